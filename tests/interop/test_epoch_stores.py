"""A store folder of controller mode passes from Apache's broker to ours, and back.

The taker starts in the giver's folder. It keeps the id (`brokerIdentity`) and the epochs
(`epochFileCheckpoint`), has every acknowledged message, and serves them at the same offsets. The
controller is Apache's; it sees one broker all the time.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop import apache
from tests.interop.elections import GROUP, ElectedGroup, Replica
from tests.interop.mqadmin import Mqadmin
from tests.interop.until import until

TOPIC = "passed"
COUNT = 30
#: giver, taker, and how the giver ends
HANDOVERS = [
    ("ours", "apache", "kill"),
    pytest.param("ours", "apache", "clean", marks=pytest.mark.interop_full),
    pytest.param("apache", "ours", "clean", marks=pytest.mark.interop_full),
    pytest.param("apache", "ours", "kill", marks=pytest.mark.interop_full),
]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ElectedGroup]:
    made = ElectedGroup(tmp_path, ["ours", "ours"])
    try:
        yield made
    finally:
        made.close()


def begin(group: ElectedGroup, replica: Replica) -> None:
    """Start a replica alone; return once it is master."""
    replica.begin()
    until("it takes sends", lambda: group.takes_sends(replica, TOPIC), deadline_s=apache.READY_TIMEOUT_S)


def end(replica: Replica, how: str) -> None:
    (replica.stop if how == "clean" else replica.kill)()


def shown_epochs(group: ElectedGroup, home: Path) -> list[int]:
    """Return the epochs that mqadmin shows for the group's brokers."""
    tool = Mqadmin(group.namesrv, home)
    try:
        out = tool("getBrokerEpoch", "-b", GROUP).out
    finally:
        tool.close()
    return [int(part.partition(",")[0]) for part in out.split("epoch=")[1:]]


@pytest.mark.parametrize(("giver", "taker", "how"), HANDOVERS)
def test_a_folder_keeps_its_id_and_epochs(group: ElectedGroup, tmp_path: Path, giver: str, taker: str, how: str) -> None:
    replica, slave = group.replicas
    replica.become(giver)
    begin(group, replica)
    group.send(replica, TOPIC, COUNT)
    end(replica, how)
    begin(group, replica)  # a second epoch
    group.send(replica, TOPIC, COUNT)
    identity, epochs, queue = replica.identity(), replica.epochs(), replica.queue(TOPIC, 0)
    assert len(epochs) == 2
    assert epochs[0][1] == 0 < epochs[1][1]
    end(replica, how)

    replica.become(taker)
    begin(group, replica)
    group.send(replica, TOPIC, COUNT)
    assert replica.identity() == identity == "DefaultCluster#broker-a#1"
    assert replica.epochs()[:2] == epochs
    assert shown_epochs(group, tmp_path) == [epoch for epoch, _ in replica.epochs()]
    after = replica.queue(TOPIC, 0)
    assert {offset: after.records[offset] for offset in queue.records} == queue.records
    assert len(after.records) >= len(queue.records) + COUNT

    # A slave of the giver's make gets the same log and epochs from the taker.
    slave.become(giver)
    slave.begin()
    group.until_in_sync(replica, slave, deadline_s=apache.READY_TIMEOUT_S)
    group.until_copied(replica, slave)

    # And back: the giver starts in the folder that the taker has left.
    kept = replica.epochs()
    slave.kill()
    group.until_in_sync(replica)
    end(replica, how)
    replica.become(giver)
    replica.begin()
    group.failover_s(replica, TOPIC)
    assert replica.identity() == identity
    assert replica.epochs()[: len(kept)] == kept
    assert replica.stored(TOPIC) >= len(after.records)
