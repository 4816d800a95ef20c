"""One Spark session for all tests of this folder that need it (fixture `spark`).

They share it because a JVM takes seconds to start. `tests/helpers/workers.py` puts these tests on
one worker. A test must clean up what it leaves in the session: temporary views, running queries.
"""

import os
import signal

import pytest

from rmqkit.testing import factories

#: two broker groups, so that a test can lose one
pair = factories.cluster(groups=2, replicas=1, nameservers=1)
own = factories.clean("pair")

#: For short-lived JVMs: one compiler tier, and a garbage collector without threads of its own.
SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """A small session with two threads and no UI; its folders are temporary."""
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
    # PySpark replaces the SIGINT handler of the whole process; restore it for other tests.
    signal.signal(signal.SIGINT, interrupted)
    yield made
    for query in made.streams.active:
        query.stop()
    made.stop()
