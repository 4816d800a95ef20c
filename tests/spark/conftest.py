"""One Spark session for all tests of this folder that want one (fixture `spark`): a JVM takes seconds to start.

`tests/helpers/workers.py` puts them on one worker. What a test leaves in the session (temporary views, queries that run) is
its own to take away.
"""

import os
import signal

import pytest

from rmqkit.testing import factories

#: two broker groups, so that one may be lost
pair = factories.cluster(groups=2, replicas=1, nameservers=1)
own = factories.clean("pair")

#: short-lived JVMs: their code is not worth a second compiler, nor their heap a second collector
SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """A session on two threads, small and without a UI; its folders are temporary."""
    from rmqkit.spark import session

    folder = tmp_path_factory.mktemp("spark")
    interrupted = signal.getsignal(signal.SIGINT)
    os.environ["SPARK_LAUNCHER_OPTS"] = SHORT
    made = session(
        "tests",
        master="local[2]",
        conf={
            "spark.driver.memory": "1g",
            "spark.driver.extraJavaOptions": SHORT,
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.streaming.metricsEnabled": "false",
            "spark.sql.streaming.noDataProgressEventInterval": "500ms",
        },
        pushdown=True,
    )
    # PySpark has put its own there, for as long as the process lives: other tests are not asked.
    signal.signal(signal.SIGINT, interrupted)
    yield made
    for query in made.streams.active:
        query.stop()
    made.stop()
