"""Our brokers in controller mode, with the controller in Apache 5.5.0's name server.

In the mixed groups one of the two brokers is Apache's; either is master in turn.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rmqkit.wire.record import iter_records
from tests.interop import apache
from tests.interop.acting import send_code
from tests.interop.elections import ElectedGroup, Replica
from tests.interop.groups import read_log
from tests.interop.until import until

TOPIC = "elected"


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ElectedGroup]:
    made = ElectedGroup(tmp_path, ["ours", "ours"])
    try:
        yield made
    finally:
        made.close()


def begin(group: ElectedGroup) -> tuple[Replica, Replica]:
    """Start both replicas one after the other. Return master and slave, both in sync."""
    master, slave = group.replicas
    master.begin()
    until("the first replica is elected", lambda: group.takes_sends(master, TOPIC), deadline_s=apache.READY_TIMEOUT_S)
    slave.begin()
    in_sync = {master.address, slave.address}
    until("both are in sync", lambda: group.in_sync() == in_sync, deadline_s=apache.READY_TIMEOUT_S)
    return master, slave


def bodies(replica: Replica) -> int:
    """Return the number of the topic's messages in the replica's log."""
    _, data = read_log(replica.store, replica.log_end())
    return sum(1 for record in iter_records(data) if record.topic == TOPIC)


def test_ids_files_and_the_first_election(group: ElectedGroup) -> None:
    master, slave = begin(group)
    assert [each.identity() for each in (master, slave)] == ["DefaultCluster#broker-a#1", "DefaultCluster#broker-a#2"]
    assert group.master() is master
    assert master.epochs() == [(1, 0)]
    assert send_code(master.address, TOPIC, "") == 0
    assert send_code(slave.address, TOPIC, "") != 0
    until("the slave has the log", lambda: slave.log_end() == master.log_end() > 0)
    assert slave.epochs() == master.epochs()
    text = (master.store / "epochFileCheckpoint").read_text().splitlines()
    assert text[0] == "1"
    assert text[2] == "1-0"


def test_the_slave_of_a_killed_master_takes_over_and_nothing_acknowledged_is_lost(group: ElectedGroup) -> None:
    old, new = begin(group)
    acked = 1 + sum(send_code(old.address, TOPIC, "") == 0 for _ in range(200))
    assert acked == 201
    old.kill()
    group.failover_s(new, TOPIC)
    assert group.master() is new
    assert bodies(new) >= acked + 1
    assert [epoch for epoch, _ in new.epochs()] == [1, 2]
    old.begin()
    until("both are in sync again", lambda: group.in_sync() == {old.address, new.address})
    assert group.master() is new
    until("the old master has the log", lambda: old.log_end() == new.log_end())
    assert old.log() == new.log()
    assert old.epochs() == new.epochs()
    # And back again.
    new.kill()
    group.failover_s(old, TOPIC)
    assert bodies(old) >= acked + 2


def test_a_stopped_process_is_replaced_and_returns_as_slave(group: ElectedGroup) -> None:
    old, new = begin(group)
    old.pause()
    try:
        group.failover_s(new, TOPIC)
        assert group.master() is new
    finally:
        old.resume()
    assert send_code(old.address, TOPIC, "") != 0
    until("both are in sync again", lambda: group.in_sync() == {old.address, new.address})
    until("the old master has the log", lambda: old.log_end() == new.log_end())
    assert old.log() == new.log()


def test_a_slave_that_is_gone_leaves_the_set_and_returns(group: ElectedGroup) -> None:
    master, slave = begin(group)
    slave.kill()
    until("the slave has left", lambda: group.in_sync() == {master.address})
    assert send_code(master.address, TOPIC, "") == 0
    slave.begin()
    until("the slave is back", lambda: group.in_sync() == {master.address, slave.address})
    until("the slave has the log", lambda: slave.log_end() == master.log_end())


@pytest.mark.interop_full
def test_a_clean_stop_of_the_master_elects_the_slave(group: ElectedGroup) -> None:
    old, new = begin(group)
    old.stop()
    group.failover_s(new, TOPIC)
    old.begin()
    until("both are in sync again", lambda: group.in_sync() == {old.address, new.address})


@pytest.mark.parametrize("order", [("apache", "ours"), pytest.param(("ours", "apache"), marks=pytest.mark.interop_full)])
def test_a_mixed_group_elects_either_broker(tmp_path: Path, order: tuple[str, str]) -> None:
    group = ElectedGroup(tmp_path, list(order))
    try:
        first, second = begin(group)
        acked = 1 + sum(send_code(first.address, TOPIC, "") == 0 for _ in range(50))
        assert acked == 51
        until("both have the log", lambda: first.log_end() == second.log_end())
        assert first.log() == second.log()
        assert first.epochs() == second.epochs()
        first.kill()
        group.failover_s(second, TOPIC)
        assert bodies(second) >= acked + 1
        first.begin()
        until("both are in sync again", lambda: group.in_sync() == {first.address, second.address})
        until("the first has the log", lambda: first.log_end() == second.log_end())
        assert first.log() == second.log()
        assert first.epochs() == second.epochs()
        second.kill()
        group.failover_s(first, TOPIC)
        assert bodies(first) >= acked + 2
    finally:
        group.close()


@pytest.mark.interop_full
@pytest.mark.parametrize("other", ["apache", "ours"])
def test_an_old_master_truncates_what_the_new_one_never_had(tmp_path: Path, other: str) -> None:
    group = ElectedGroup(tmp_path, ["ours", other], is_unclean=True)
    try:
        old, new = begin(group)
        until("both have the log", lambda: old.log_end() == new.log_end())
        new.kill()
        until("the slave has left", lambda: group.in_sync() == {old.address})
        assert send_code(old.address, TOPIC, "") == 0
        end = old.log_end()
        old.kill()
        new.begin()
        group.failover_s(new, TOPIC)
        epoch, start = new.epochs()[-1]
        assert epoch > 1
        assert start < end
        old.begin()
        until("both are in sync again", lambda: group.in_sync() == {old.address, new.address})
        until("the old master has the log", lambda: old.log_end() == new.log_end())
        assert old.log() == new.log()
        assert old.epochs() == new.epochs()
        assert [path.name for path in (old.store / "diverged").iterdir()] == [f"{start:020d}"]
    finally:
        group.close()


@pytest.mark.interop_full
def test_a_group_of_controllers_loses_its_leader_and_then_the_group_its_master(tmp_path: Path) -> None:
    group = ElectedGroup(tmp_path, ["ours", "ours"], controllers=3)
    try:
        old, new = begin(group)
        acked = 1 + sum(send_code(old.address, TOPIC, "") == 0 for _ in range(50))
        assert acked == 51
        leader = group.leader()
        group.stop_controller(leader)
        until("another controller leads", lambda: group.leader() not in (leader, -1))
        until("the master takes sends", lambda: group.takes_sends(old, TOPIC))
        until("the new leader knows the master", lambda: group.master() is old)
        old.kill()
        group.failover_s(new, TOPIC)
        assert bodies(new) >= acked + 1
        old.begin()
        until("both are in sync again", lambda: group.in_sync() == {old.address, new.address})
        until("the old master has the log", lambda: old.log_end() == new.log_end())
        assert old.log() == new.log()
    finally:
        group.close()
