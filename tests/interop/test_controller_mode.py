"""Our brokers in controller mode, with the controller in Apache 5.5.0's name server.

In the mixed groups one of the two brokers is Apache's; either is master in turn.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.acting import send_code
from tests.interop.elections import ElectedGroup
from tests.interop.until import until

TOPIC = "elected"


@pytest.fixture
def group(tmp_path: Path) -> Iterator[ElectedGroup]:
    made = ElectedGroup(tmp_path, ["ours", "ours"])
    try:
        yield made
    finally:
        made.close()


def test_ids_files_and_the_first_election(group: ElectedGroup) -> None:
    master, slave = group.begin(TOPIC)
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
    old, new = group.begin(TOPIC)
    acked = 1 + sum(send_code(old.address, TOPIC, "") == 0 for _ in range(200))
    assert acked == 201
    old.kill()
    group.failover_s(new, TOPIC)
    assert group.master() is new
    assert new.stored(TOPIC) >= acked + 1
    assert [epoch for epoch, _ in new.epochs()] == [1, 2]
    old.begin()
    group.until_in_sync(old, new)
    assert group.master() is new
    until("the old master has the log", lambda: old.log_end() == new.log_end())
    assert old.log() == new.log()
    assert old.epochs() == new.epochs()
    # And back again.
    new.kill()
    group.failover_s(old, TOPIC)
    assert old.stored(TOPIC) >= acked + 2


def test_a_stopped_process_is_replaced_and_returns_as_slave(group: ElectedGroup) -> None:
    old, new = group.begin(TOPIC)
    old.pause()
    try:
        group.failover_s(new, TOPIC)
        assert group.master() is new
    finally:
        old.resume()
    assert send_code(old.address, TOPIC, "") != 0
    group.until_in_sync(old, new)
    until("the old master has the log", lambda: old.log_end() == new.log_end())
    assert old.log() == new.log()


def test_a_slave_that_is_gone_leaves_the_set_and_returns(group: ElectedGroup) -> None:
    master, slave = group.begin(TOPIC)
    slave.kill()
    group.until_in_sync(master)
    assert send_code(master.address, TOPIC, "") == 0
    slave.begin()
    group.until_in_sync(master, slave)
    until("the slave has the log", lambda: slave.log_end() == master.log_end())


@pytest.mark.interop_full
def test_a_clean_stop_of_the_master_elects_the_slave(group: ElectedGroup) -> None:
    old, new = group.begin(TOPIC)
    old.stop()
    group.failover_s(new, TOPIC)
    old.begin()
    group.until_in_sync(old, new)


@pytest.mark.parametrize("order", [("apache", "ours"), pytest.param(("ours", "apache"), marks=pytest.mark.interop_full)])
def test_a_mixed_group_elects_either_broker(tmp_path: Path, order: tuple[str, str]) -> None:
    group = ElectedGroup(tmp_path, list(order))
    try:
        first, second = group.begin(TOPIC)
        acked = 1 + sum(send_code(first.address, TOPIC, "") == 0 for _ in range(50))
        assert acked == 51
        until("both have the log", lambda: first.log_end() == second.log_end())
        assert first.log() == second.log()
        assert first.epochs() == second.epochs()
        first.kill()
        group.failover_s(second, TOPIC)
        assert second.stored(TOPIC) >= acked + 1
        first.begin()
        group.until_in_sync(first, second)
        until("the first has the log", lambda: first.log_end() == second.log_end())
        assert first.log() == second.log()
        assert first.epochs() == second.epochs()
        second.kill()
        group.failover_s(first, TOPIC)
        assert first.stored(TOPIC) >= acked + 2
    finally:
        group.close()


@pytest.mark.interop_full
@pytest.mark.parametrize("other", ["apache", "ours"])
def test_an_old_master_truncates_what_the_new_one_never_had(tmp_path: Path, other: str) -> None:
    group = ElectedGroup(tmp_path, ["ours", other], is_unclean=True)
    try:
        old, new = group.begin(TOPIC)
        until("both have the log", lambda: old.log_end() == new.log_end())
        new.kill()
        group.until_in_sync(old)
        assert send_code(old.address, TOPIC, "") == 0
        end = old.log_end()
        old.kill()
        new.begin()
        group.failover_s(new, TOPIC)
        epoch, start = new.epochs()[-1]
        assert epoch > 1
        assert start < end
        old.begin()
        group.until_in_sync(old, new)
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
        old, new = group.begin(TOPIC)
        acked = 1 + sum(send_code(old.address, TOPIC, "") == 0 for _ in range(50))
        assert acked == 51
        leader = group.leader()
        group.stop_controller(leader)
        until("another controller leads", lambda: group.leader() not in (leader, -1))
        until("the master takes sends", lambda: group.takes_sends(old, TOPIC))
        until("the new leader knows the master", lambda: group.master() is old)
        old.kill()
        group.failover_s(new, TOPIC)
        assert new.stored(TOPIC) >= acked + 1
        old.begin()
        group.until_in_sync(old, new)
        until("the old master has the log", lambda: old.log_end() == new.log_end())
        assert old.log() == new.log()
    finally:
        group.close()
