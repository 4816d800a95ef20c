"""The set of in-sync replicas at its master: puts wait for the union while a change is pending."""

from types import SimpleNamespace
from typing import Any

import pytest

from rmqkit.broker.election.sync_states import PROPOSAL_MS, SyncStates
from rmqkit.broker.replication.log_tail import whole_end
from rmqkit.wire.codes import ResponseCode
from tests.broker.elected_group import ElectedGroup

OK = 0


def states(group: ElectedGroup, name: str) -> SyncStates:
    return group.election(name)._sync_states


def test_a_change_that_was_applied_and_not_answered_counts():
    group = ElectedGroup()
    group.data.mute.add(1001)
    group.until(lambda: len(group.data.in_sync) == 2)
    master = group.master_names()[0]
    slave = group.other(master)
    # The controller may elect the slave now, and the master does not know.
    assert states(group, master).required == {group.election(slave).own_id}
    group.world.net.partition([master], [slave])
    assert group.send(node=master).code == ResponseCode.FLUSH_SLAVE_TIMEOUT


def test_a_change_that_is_not_applied_counts_until_it_cannot_be_applied_any_more():
    group = ElectedGroup()
    group.data.deaf.add(1001)
    group.until(lambda: len(group.master_names()) == 1)
    master = group.master_names()[0]
    slave = group.other(master)
    group.until(lambda: states(group, master).required)
    group.world.kill(slave)
    assert group.send(node=master).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    group.world.run_for(PROPOSAL_MS + 10_000)
    group.until(lambda: not states(group, master).required)
    assert group.send(node=master).code == OK


def test_a_lost_slave_counts_until_the_controller_has_agreed():
    group = ElectedGroup()
    master = group.settled()
    group.data.deaf.add(1001)
    group.world.kill(group.other(master))
    group.world.run_for(100)
    assert group.send(b"waits", node=master).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    group.data.deaf.clear()
    group.until(lambda: group.data.in_sync == [group.election(master).own_id])
    group.world.run_for(100)
    assert group.send(b"goes on", node=master).code == OK


def test_consumers_see_what_all_members_in_sync_have():
    group = ElectedGroup()
    master = group.settled()
    assert group.send(b"one", node=master).code == OK
    group.world.net.partition([master], [group.other(master)])
    assert group.send(b"two", node=master).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    store = group.node(master).store
    assert store.queue_range("T", 0).offset_max == 1
    # Once the controller has dropped the slave, the master alone decides.
    group.until(lambda: len(group.data.in_sync) == 1)
    group.until(lambda: store.queue_range("T", 0).offset_max == 2)


def test_a_slave_shows_the_last_message_as_soon_as_it_is_confirmed():
    group = ElectedGroup()
    master = group.settled()
    slave = group.other(master)
    assert group.send(b"one", node=master).code == OK
    group.world.run_for(20)
    assert group.node(slave).store.queue_range("T", 0).offset_max == 1


def test_a_learner_gets_the_log_and_never_joins():
    group = ElectedGroup(brokers=1)
    group.settled(count=1)
    learner = group.add(1, asyncLearner=True)
    group.send(b"one", node="broker-0")
    group.until(lambda: group.same_logs("broker-0", learner))
    group.world.run_for(5000)
    assert len(group.data.in_sync) == 1
    assert not states(group, "broker-0").required
    assert group.send(b"two", node="broker-0").code == OK


def test_a_member_that_stops_reading_leaves_the_set():
    group = ElectedGroup(haMaxTimeSlaveNotCatchup=2000, slaveTimeout=500)
    master = group.settled()
    slave = group.other(master)
    group.world.pause(slave)
    for _ in range(8):
        group.send(node=master)
    group.until(lambda: len(group.data.in_sync) == 1)
    assert group.send(node=master).code == OK
    group.world.resume(slave)
    assert group.settled() == master


def test_a_member_that_was_slow_to_join_gets_its_time_again():
    """Its time to catch up counts from its joining, not from its connection."""
    group = ElectedGroup(haMaxTimeSlaveNotCatchup=1_500)
    master = group.settled()
    slave, states = group.other(master), group.node(master).replication.sync_states
    members = sorted(states.ids)
    group.world.pause(slave)
    group.data.in_sync, group.data.version = [states.own_id], group.data.version + 1
    group.until(lambda: states.ids == {states.own_id})
    assert group.send(node=master).code == OK
    group.world.run_for(2_000)
    group.data.in_sync, group.data.version = members, group.data.version + 1
    group.until(lambda: sorted(states.ids) == members)
    group.world.run_for(700)
    assert sorted(states.ids) == members
    group.until(lambda: states.ids == {states.own_id}, 3_000)


def test_members_outside_of_the_set_acknowledge_nothing():
    group = ElectedGroup(brokers=3, allAckInSyncStateSet=False, inSyncReplicas=2)
    master = group.settled(count=3)
    data: Any = group.data
    others = [each for each in group.hosts if each != master]
    group.world.kill(others[0])
    group.until(lambda: len(data.in_sync) == 2)
    assert group.send(node=master).code == OK
    data.deaf.add(1001)
    group.world.kill(others[1])
    group.world.restart(others[0])
    group.until(lambda: group.same_logs(master, others[0]))
    assert group.send(node=master).code == ResponseCode.FLUSH_SLAVE_TIMEOUT


def test_a_member_that_is_idle_stays_in_the_set():
    group = ElectedGroup(haMaxTimeSlaveNotCatchup=1000, haSendHeartbeatInterval=5000)
    master = group.settled()
    group.send(node=master)
    version = group.data.version
    group.world.run_for(30_000)
    assert group.data.version == version


def test_with_sync_flush_consumers_see_what_is_on_the_master_s_disk_too():
    """Else a power cut of all members could take back what a consumer has read."""
    group = ElectedGroup(flushDiskType="SYNC_FLUSH", syncFlushTimeout=1000)
    master = group.settled()
    slave = group.other(master)
    group.world.process(master).disk.sync_us = (3_000_000, 3_000_001)
    assert group.send(b"one", node=master).code == ResponseCode.FLUSH_DISK_TIMEOUT
    store, end = group.node(master).store, group.node(master).store.offset_written
    group.until(lambda: group.node(slave).store.offset_synced == end)
    assert states(group, master).confirmed == store.offset_synced < end
    assert store.queue_range("T", 0).offset_max == group.node(slave).store.queue_range("T", 0).offset_max == 0
    group.until(lambda: states(group, master).confirmed == end)
    group.world.run_for(20)
    assert store.queue_range("T", 0).offset_max == group.node(slave).store.queue_range("T", 0).offset_max == 1


def test_what_consumers_have_seen_survives_a_power_cut_of_all_members():
    """The master returns first, with the shorter log: it has only what nobody has read."""
    group = ElectedGroup(flushDiskType="SYNC_FLUSH", syncFlushTimeout=500)
    master = group.settled()
    slave = group.other(master)
    assert group.send(b"one", node=master).code == OK
    group.world.process(master).disk.sync_us = (3_000_000, 3_000_001)
    assert group.send(b"two", node=master).code == ResponseCode.FLUSH_DISK_TIMEOUT
    confirmed, end = states(group, master).confirmed, group.node(slave).store.offset_synced
    for name in (master, slave):
        group.world.crash(name)
    group.world.restart(master)
    group.until(lambda: group.master_names() == [master])
    assert confirmed <= group.node(master).store.offset_written < end
    assert states(group, master).confirmed >= confirmed
    assert group.node(master).store.queue_range("T", 0).offset_max == 1
    group.world.restart(slave)
    group.settled()
    assert not group.world.log(slave).events("confirmed-messages-cut")


def test_with_sync_flush_a_master_alone_shows_what_is_on_its_disk():
    group = ElectedGroup(brokers=1, flushDiskType="SYNC_FLUSH")
    master = group.settled(count=1)
    group.world.process(master).disk.sync_us = (300_000, 300_001)
    asked_ms = group.world.now_ms
    assert group.send(b"one", node=master).code == OK
    assert group.world.now_ms - asked_ms >= 300
    group.world.run_for(20)
    assert group.node(master).store.queue_range("T", 0).offset_max == 1


@pytest.mark.parametrize(("offset", "end"), [(60, 60), (70, 70), (90, 70)])
def test_half_a_record_is_not_confirmed(offset: int, end: int):
    """A slave reports what it has of a record; if it is elected, it removes that."""
    store: Any = SimpleNamespace(offset_dispatched=70)
    assert whole_end(store, offset) == end
