"""The cases of `make soak` (`tests/soak`) with few messages: every offset exactly once, whatever happens meanwhile.

One cluster and one topic for all of them; the driver that is killed is a process of its own, everything else runs in the
shared session.
"""

import pytest

from rmqkit.testing import clusters
from tests.helpers import ports
from tests.soak import cases
from tests.soak.ingesting import Command, by_session

COUNT, SIZE = 3000, 200
#: of the driver that is killed: small, since it lives for seconds
CONF = {
    "spark.master": "local[1]",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@pytest.fixture(scope="module")
def soak(spark, tmp_path_factory):
    home = tmp_path_factory.mktemp("soak")
    base = ports.free_base(range(-2, 40))
    running = clusters.start(home / "cluster", timeout_s=60, groups=1, replicas=2, base_port=base)
    try:
        made = cases.Soak(
            cluster=running.cluster,
            spark=spark,
            folder=home,
            ingest=by_session(spark, running.namesrv, "1 second"),
            command=lambda *places, **asked: Command(*places, **asked, conf=CONF),
            count=COUNT,
            size=SIZE,
            batches=4,
            killed_after=1,
            queues=2,
        )
        made.prepare()
        yield made
    finally:
        running.down(keep=False)


def test_available_now(soak):
    checked, facts = cases.available_now(soak)
    assert checked.is_right, checked
    assert checked.expected == COUNT
    assert facts["batches"] == 4


def test_follow(soak):
    checked, facts = cases.follow(soak)
    assert checked.is_right, checked
    assert facts["batches"] >= 2


def test_a_driver_that_is_killed(soak):
    checked, _ = cases.killed_driver(soak, kills=1)
    assert checked.is_right, checked


def test_a_master_that_is_killed(soak):
    checked, _ = cases.killed_master(soak)
    assert checked.is_right, checked
    assert 0 < checked.from_slave < COUNT
