"""A group in controller mode, against a scripted controller: elections, returns, the lease."""

import pytest

from rmqkit.broker.election import election, takeover
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schemas.controller import NotifyBrokerRoleChangedRequest
from tests.broker.elected_group import HEARTBEAT_INTERVAL_MS, HEARTBEAT_TIMEOUT_MS, ElectedGroup
from tests.broker.replica_group import PORT
from tests.helpers import flows

OK = 0


def test_the_states_are_drawn_as_they_are():
    assert flows.is_drawn(election.MOVES, election)
    assert flows.is_drawn(takeover.MOVES, takeover)


def test_the_first_broker_is_elected_and_the_second_joins():
    group = ElectedGroup()
    master = group.settled()
    slave = group.other(master)
    assert group.send(node=master).code == OK
    assert group.send(node=slave).code == ResponseCode.SERVICE_NOT_AVAILABLE
    group.until(lambda: group.same_logs())
    assert group.data.elected == [(1, group.data.master)]
    assert group.election(master).epochs.entries == group.election(slave).epochs.entries == [(1, 0)]
    names = {group.world.disk(each).read("/brokerIdentity", 0, 100) for each in group.hosts}
    assert names == {b"DefaultCluster#broker-a#1", b"DefaultCluster#broker-a#2"}


def test_a_broker_is_fenced_until_a_controller_answers():
    group = ElectedGroup(brokers=1)
    group.world.kill("ctl")
    group.until(lambda: group.node("broker-0").serving)
    group.world.run_for(10_000)
    assert group.send(node="broker-0").code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "no controller leads" in group.facts("broker-0")["electionWhy"]
    group.world.restart("ctl")
    group.settled(count=1)
    assert group.send(node="broker-0").code == OK


def test_the_slave_of_a_killed_master_is_elected_and_has_every_acknowledged_message():
    group = ElectedGroup()
    old = group.settled()
    for number in range(50):
        assert group.send(b"%d" % number, node=old).code == OK
    group.world.kill(old)
    new = group.other(old)
    group.until(lambda: group.master_names() == [new])
    assert group.send(b"after", node=new).code == OK
    assert group.node(new).store.queue_range("T", 0).offset_max == 51
    group.world.restart(old)
    assert group.settled() == new
    group.until(lambda: group.same_logs())
    assert group.election(old).epochs.entries == group.election(new).epochs.entries
    assert [each.epoch for each in group.election(new).epochs.entries] == [1, 2]


def test_a_slave_that_becomes_master_never_leaves_the_routes(monkeypatch: pytest.MonkeyPatch):
    """Apache's name server may handle an unregistration after the registration that follows it."""
    group = ElectedGroup()
    old = group.settled()
    new = group.other(old)
    routes = group.node("ns").routes
    address = f"{group.hosts[new]}:{PORT}"
    assert routes.member("DefaultCluster", "broker-a", address).broker_id > 0
    left: list[str] = []
    unregister = routes.unregister_address

    def note(cluster: str, broker_name: str, each: str) -> bool:
        left.append(each)
        return unregister(cluster, broker_name, each)

    monkeypatch.setattr(routes, "unregister_address", note)
    group.world.kill(old)
    group.until(lambda: group.master_names() == [new])
    group.until(lambda: routes.member("DefaultCluster", "broker-a", address).broker_id == 0)
    assert address not in left
    group.world.stop(new)
    group.until(lambda: address in left)


def test_an_old_master_truncates_what_was_never_acknowledged_and_keeps_a_copy():
    group = ElectedGroup()
    old = group.settled()
    group.send(b"acknowledged", node=old)
    new = group.other(old)
    end = group.node(old).store.offset_written
    group.world.net.isolate(old)
    group.world.net.heal()
    group.world.net.partition([old], [new])
    # The old master and its client do not notice yet that the slave is gone.
    assert group.send(b"not acknowledged", node=old).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert group.node(old).store.offset_written > end
    group.world.kill(old)
    group.world.net.heal()
    group.until(lambda: group.master_names() == [new])
    group.send(b"instead", node=new)
    group.world.restart(old)
    assert group.settled() == new
    group.until(lambda: group.same_logs())
    assert group.election(old).epochs.entries == [(1, 0), (2, end)]
    copy = group.world.disk(old).read(f"diverged/{end:020d}", 0, 1000)
    assert b"not acknowledged" in copy


def test_a_restarted_member_without_a_master_shows_no_message_that_may_be_removed():
    group = ElectedGroup()
    old = group.settled()
    group.send(b"acknowledged", node=old)
    new = group.other(old)
    group.world.net.partition([old], [new])
    assert group.send(b"not acknowledged", node=old).code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    group.world.kill(old)
    group.until(lambda: group.master_names() == [new])
    group.world.restart(old)
    group.until(lambda: group.election(old).state is election.SLAVE)
    group.world.run_for(2_000)
    assert group.node(old).store.queue_range("T", 0).offset_max <= 1
    group.world.net.heal()
    assert group.settled() == new
    group.until(lambda: group.same_logs())
    assert group.node(old).store.queue_range("T", 0).offset_max == 1


@pytest.mark.parametrize(("heeds_lease", "fifths"), [(False, 4), (True, 2)])
def test_an_isolated_master_refuses_messages_before_another_one_is_elected(heeds_lease, fifths):
    """The lease is short at controllers of rmqkit, and longer at Apache's, which elect later."""
    group = ElectedGroup(allAckInSyncStateSet=False)
    group.data.heeds_lease = heeds_lease
    old = group.settled()
    began_ms = group.world.now_ms
    group.world.net.partition([old], ["ctl"])
    group.until(lambda: group.election(old).is_lease_over, 2 * HEARTBEAT_TIMEOUT_MS)
    passed_ms = group.world.now_ms - began_ms
    lease_ms = HEARTBEAT_TIMEOUT_MS * fifths // 5
    assert lease_ms - 2 * HEARTBEAT_INTERVAL_MS <= passed_ms <= lease_ms + 100
    assert len(group.data.elected) == 1
    reply = group.send(node=old)
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "another one may be elected" in reply.remark
    new = group.other(old)
    group.until(lambda: new in group.master_names())
    group.world.net.heal()
    assert group.settled() == new


def test_a_leader_that_names_another_master_renews_no_lease():
    group = ElectedGroup()
    old = group.settled()
    new = group.other(old)
    group.world.pause(old)
    group.until(lambda: group.election(new).state is election.MASTER)
    since = len(group.world.log(old).events("lease-renewed"))
    group.world.resume(old)
    group.until(lambda: group.election(old).state is election.SLAVE)
    assert len(group.world.log(old).events("lease-renewed")) == since


def test_an_isolated_master_acknowledges_nothing_alone():
    group = ElectedGroup()
    old = group.settled()
    new = group.other(old)
    group.world.net.partition([old], ["ctl", new])
    reply = group.send(b"alone", node=old)
    assert reply.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    group.until(lambda: new in group.master_names())
    assert group.send(b"new", node=new).code == OK
    group.world.net.heal()
    assert group.settled() == new
    group.until(lambda: group.same_logs())
    assert b"alone" not in group.log(old)


def test_a_stalled_master_serves_nothing_that_arrived_meanwhile():
    group = ElectedGroup(allAckInSyncStateSet=False)
    old = group.settled()
    new = group.other(old)
    group.world.pause(old)
    group.until(lambda: group.master_names() == [old, new] or new in group.master_names())
    group.world.resume(old)
    assert group.send(node=old).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert group.settled() == new


def test_a_master_whose_slave_is_gone_goes_on_once_the_controller_has_dropped_it():
    group = ElectedGroup()
    master = group.settled()
    group.world.kill(group.other(master))
    group.until(lambda: len(group.data.in_sync) == 1)
    assert group.send(node=master).code == OK


def test_too_few_members_in_sync_refuse_messages():
    group = ElectedGroup(minInSyncReplicas=2, inSyncReplicas=2)
    master = group.settled()
    assert group.send(node=master).code == OK
    group.world.kill(group.other(master))
    group.until(lambda: len(group.data.in_sync) == 1)
    group.world.run_for(100)
    reply = group.send(node=master)
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "in-sync replicas not enough" in reply.remark


def test_a_forged_push_changes_nothing():
    group = ElectedGroup()
    master = group.settled()
    push = NotifyBrokerRoleChangedRequest(master_broker_id=9, master_address="10.9.9.9:1", master_epoch=2**31 - 1)
    group.ask(master, RequestCode.NOTIFY_BROKER_ROLE_CHANGED, push)
    group.world.run_for(3000)
    assert group.master_names() == [master]
    assert group.send(node=master).code == OK


def test_controllers_that_lost_their_data_change_no_master():
    group = ElectedGroup()
    old = group.settled()
    group.world.kill(old)
    new = group.other(old)
    group.until(lambda: group.master_names() == [new])
    group.data.epoch, group.data.master, group.data.in_sync = 1, group.election(old).own_id, [group.election(old).own_id]
    group.world.restart(old)
    group.until(lambda: "remove its brokerIdentity" in group.election(new).why)
    assert group.master_names() == [new]


@pytest.mark.parametrize("mute", [1013])
def test_a_broker_that_dies_while_it_applies_for_an_id_gets_the_same_one(mute: int):
    group = ElectedGroup(brokers=1)
    group.data.mute.add(mute)
    group.until(lambda: 1 in group.data.codes)
    group.world.kill("broker-0")
    group.data.mute.clear()
    group.world.restart("broker-0")
    group.settled(count=1)
    assert list(group.data.codes) == [1]
    assert group.election("broker-0").own_id == 1


def test_a_master_that_restarts_unnoticed_yields_to_a_member_with_a_longer_log():
    group = ElectedGroup()
    old = group.settled()
    group.send(b"kept", node=old)
    new = group.other(old)
    end = group.node(old).store.offset_written
    group.send(b"lost by the master", node=old)
    group.until(lambda: group.same_logs())
    # The master's power fails, it loses its last message, and no controller looks meanwhile.
    group.world.kill("ctl")
    ended: list = []
    group.world.net.partition([old], [new])
    group.world.call(old, lambda broker: broker.store.truncate(end, ended.append))
    group.until(lambda: ended)
    assert ended == [None]
    group.world.kill(old)
    group.world.net.heal()
    group.world.restart(old)
    group.world.restart("ctl")
    assert group.settled() == new
    group.until(lambda: group.same_logs())
    assert b"lost by the master" in group.log(old)


def test_a_broker_that_is_named_master_without_its_set_does_not_lead():
    """It would acknowledge alone what other members have to confirm."""
    group = ElectedGroup()
    old = group.settled()
    own_id = group.election(old).own_id
    group.world.kill(group.other(old))
    group.until(lambda: group.data.in_sync == [own_id])
    group.world.kill("ctl")
    group.world.kill(old)
    group.data.in_sync = []
    group.world.restart(old)
    group.world.restart("ctl")
    group.world.run_for(5_000)
    assert group.master_names() == []
    assert "lacks it in the set" in group.election(old).why
    group.data.in_sync = [own_id]
    group.until(lambda: group.master_names() == [old])
