"""Our brokers with Apache 5.5.0's controllers that run alone: with DLedger, and with jRaft."""

from pathlib import Path

import pytest

from tests.interop.elections import ALONE, GROUP, JRAFT, ElectedGroup, Replica
from tests.interop.mqadmin import Mqadmin
from tests.interop.until import until

TOPIC = "kinds"
COUNT = 50


def expect_in_mqadmin(group: ElectedGroup, home: Path, master: Replica) -> None:
    """Expect Apache's tool to show the controllers, both replicas in sync, and the epochs."""
    leader = group.controllers[group.leader()]
    tool = Mqadmin(group.namesrv, home)
    try:
        shown = tool("getControllerMetaData", "-a", leader).out
        assert f"ControllerLeaderAddress\t{leader}" in shown, shown
        shown = tool("getSyncStateSet", "-a", leader, "-b", GROUP).out
        in_sync = shown.partition("NotInSyncReplicas")[0]
        assert in_sync.count("alive=true") == len(group.replicas), shown
        assert f"#MasterAddr\t{master.address}" in shown, shown
        shown = tool("getBrokerEpoch", "-b", GROUP).out
        for epoch, _ in master.epochs():
            assert shown.count(f"Epoch: EpochEntry{{epoch={epoch}, ") == len(group.replicas), shown
    finally:
        tool.close()


@pytest.mark.parametrize("kind", [ALONE, JRAFT])
def test_a_killed_master_is_replaced(tmp_path: Path, kind: str) -> None:
    """Ids, the first election, SIGKILL, the first send afterwards, and the old master's return."""
    group = ElectedGroup(tmp_path, ["ours", "ours"], kind=kind)
    try:
        old, new = group.begin(TOPIC)
        assert [each.identity() for each in (old, new)] == ["DefaultCluster#broker-a#1", "DefaultCluster#broker-a#2"]
        group.send(old, TOPIC, COUNT)
        old.kill()
        group.failover_s(new, TOPIC)
        assert group.master() is new
        assert new.stored(TOPIC) >= COUNT + 2
        old.begin()
        group.until_in_sync(old, new)
        assert group.master() is new
        group.until_copied(new, old)
        expect_in_mqadmin(group, tmp_path, new)
    finally:
        group.close()


@pytest.mark.interop_full
@pytest.mark.parametrize("kind", [ALONE, JRAFT])
def test_a_stopped_master_is_replaced(tmp_path: Path, kind: str) -> None:
    group = ElectedGroup(tmp_path, ["ours", "ours"], kind=kind)
    try:
        old, new = group.begin(TOPIC)
        group.send(old, TOPIC, COUNT)
        old.pause()
        group.failover_s(new, TOPIC)
        assert new.stored(TOPIC) >= COUNT + 2
        old.resume()
        group.until_in_sync(old, new)
        group.until_copied(new, old)
    finally:
        group.close()


@pytest.mark.interop_full
@pytest.mark.parametrize("kind", [ALONE, JRAFT])
def test_the_leader_of_three_dies_and_then_the_master(tmp_path: Path, kind: str) -> None:
    group = ElectedGroup(tmp_path, ["ours", "ours"], kind=kind, controllers=3)
    try:
        old, new = group.begin(TOPIC)
        group.send(old, TOPIC, COUNT)
        leader = group.leader()
        group.stop_controller(leader)
        until("another controller leads", lambda: group.leader() not in (leader, -1))
        until("the master takes sends", lambda: group.takes_sends(old, TOPIC))
        until("the new leader knows the master", lambda: group.master() is old)
        old.kill()
        group.failover_s(new, TOPIC)
        assert new.stored(TOPIC) >= COUNT + 2
        group.start_controller(leader)
        old.begin()
        group.until_in_sync(old, new)
        group.until_copied(new, old)
    finally:
        group.close()
