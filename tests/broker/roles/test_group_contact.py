"""A master releases due messages only while no other member can have taken over unnoticed.

Source: `BrokerController.changeSpecialServiceStatus`; Apache's isolated master goes on releasing.
"""

from rmqkit.broker.roles import Duty
from rmqkit.broker.roles import group_contact as contacts
from rmqkit.broker.roles.acting_master import LOOK_MS, RELEASE_MS
from rmqkit.broker.roles.group_contact import ANSWER_MS
from tests.broker.replica_group import Group
from tests.broker.roles.test_pre_online import Escaped
from tests.broker.roles.test_roles import NOT_ACTIVE_MS, TIMERS, acting_group, is_whole
from tests.helpers import flows

M, S1 = "broker-0", "broker-1"
LEVEL_2_MS = 5000
LATER = "Later"


def later(group: Group, count: int = 3) -> None:
    """Store messages that are due in 5 s."""
    for number in range(count):
        sent = group.send(b"%d" % number, topic=LATER, properties="DELAY\x012\x02")
        assert sent.code in (0, 11), sent.remark


def released(group: Group, node: str = M) -> int:
    return group.node(node).store.queue_range(LATER, 0).offset_max


def test_the_head_has_the_drawing():
    assert flows.is_drawn(contacts.MOVES, contacts)


# --- whole groups


def test_an_isolated_master_releases_nothing_that_the_acting_slave_releases():
    group = acting_group(slaves=2)
    later(group, 3)
    group.world.net.isolate(M)
    group.until(lambda: group.slave.roles.is_acting, 5000)
    escaped = Escaped(group)
    group.until(lambda: len(escaped.origins) == 3)
    group.world.run_for(2000)
    assert released(group) == 0
    assert not group.master.special.destination, "special duties are suspended"
    assert "what is due waits: no member of its group and no name server answers" in group.master.roles.facts()["roleWhy"]
    group.world.net.heal()
    group.until(lambda: is_whole(group), 20_000)
    later(group, 1)
    group.world.run_for(LEVEL_2_MS + 500)
    assert released(group) == 1, "the master has the acting slave's progress, and works again"
    assert group.master.roles.state.does(Duty.SPECIAL)


def test_a_master_continues_while_only_the_name_servers_are_down():
    group = acting_group(slaves=1)
    later(group)
    group.world.kill("ns")
    group.world.run_for(LEVEL_2_MS + NOT_ACTIVE_MS)
    assert group.master.roles.is_cut_off
    assert released(group) == 3
    assert not group.master.roles.contact.is_lost
    group.until(lambda: released(group, S1) == 3, 1000)


def test_special_duties_stop_without_name_servers_and_slaves_and_resume_with_either():
    group = acting_group(slaves=1)
    group.world.kill("ns")
    group.world.run_for(NOT_ACTIVE_MS)
    group.world.kill(S1)
    later(group)
    group.world.run_for(LEVEL_2_MS + 2000)
    assert released(group) == 0
    assert group.master.roles.contact.is_lost
    group.world.restart(S1)
    group.until(lambda: released(group) == 3, 10_000)


def test_a_master_whose_slaves_are_all_down_continues():
    group = acting_group(slaves=1)
    later(group)
    group.world.kill(S1)
    group.world.run_for(LEVEL_2_MS + 500)
    assert released(group) == 3


def test_a_stalled_slave_delays_a_release_only_by_the_wait_for_its_answer():
    group = acting_group(slaves=1)
    later(group)
    group.world.run_for(LEVEL_2_MS - 500)
    group.world.pause(S1)
    group.world.run_for(500 + 2 * ANSWER_MS)
    assert released(group) == 3


def test_a_master_cut_off_from_the_name_servers_only_waits_once_a_slave_acts():
    group = acting_group(slaves=2)
    group.world.net.partition([M], ["ns"])
    later(group, 2)
    group.until(lambda: group.slave.roles.is_acting, 5000)
    escaped = Escaped(group)
    group.until(lambda: len(escaped.origins) == 2)
    group.world.run_for(1000)
    assert released(group) == 0
    assert "has given up this master" in group.master.roles.facts()["roleWhy"]
    group.world.net.heal()
    group.until(lambda: is_whole(group), 20_000)
    group.world.run_for(1000)
    assert released(group) == 0


def just_asked() -> tuple[Group, int]:
    """Return a group whose master only the name servers have lost, and when its slave answered.

    The slave has just told the master that it still follows it, and would act now otherwise.
    """
    group = acting_group(slaves=1)
    group.world.net.partition([M], ["ns"])
    group.until(lambda: group.slave.roles.is_masterless, 10_000)
    followed_ms = group.slave.replication.answers.followed_ms
    assert group.slave.clock.mono_ms < followed_ms + RELEASE_MS
    assert not group.slave.roles.is_acting
    assert "may be in flight" in group.slave.roles.acting.why_not
    return group, followed_ms


def test_a_slave_that_has_just_answered_its_master_waits_for_what_the_master_releases():
    """The master is isolated from the name servers only, and asks its slave once per heartbeat."""
    group, followed_ms = just_asked()
    slave = group.slave
    group.until(lambda: slave.roles.is_acting, RELEASE_MS + 50)
    assert slave.replication.answers.followed_ms == followed_ms, "it gives up its master from then on"
    assert slave.clock.mono_ms >= followed_ms + RELEASE_MS


def test_a_slave_does_not_wait_for_a_master_whose_connection_has_ended():
    group, followed_ms = just_asked()
    slave = group.slave
    group.world.kill(M)
    killed_ms = slave.clock.mono_ms
    group.until(lambda: slave.roles.is_acting, RELEASE_MS)
    assert slave.clock.mono_ms < min(followed_ms + RELEASE_MS, killed_ms + 2 * LOOK_MS)


def test_a_broker_that_never_had_a_slave_needs_no_contact():
    group = Group(slaves=0, **TIMERS, totalReplicas=1, brokerRole="ASYNC_MASTER", inSyncReplicas=1)
    group.until(lambda: group.master.roles.members)
    group.world.kill("ns")
    later(group)
    group.world.run_for(LEVEL_2_MS + NOT_ACTIVE_MS)
    assert group.master.roles.is_cut_off
    assert released(group) == 3


def test_a_message_that_waited_when_the_master_was_isolated_is_released_by_it_after_an_unnoticed_isolation():
    group = acting_group(slaves=1)
    later(group)
    group.world.run_for(LEVEL_2_MS - 300)
    group.world.net.isolate(M)
    group.world.run_for(1000)
    assert released(group) == 0
    group.world.net.heal()
    group.until(lambda: released(group) == 3, 2000)
    assert not group.slave.roles.is_acting


def test_an_answer_from_before_the_isolation_proves_nothing_once_another_member_stays_silent():
    """One slave has answered, the master is isolated, and the other slave's answer never comes."""
    group = acting_group(slaves=2)
    later(group)
    group.world.pause(S1)
    group.until(lambda: 2 in group.master.roles.contact._heard, LEVEL_2_MS + 500)
    group.world.net.isolate(M)
    group.world.run_for(2 * ANSWER_MS)
    assert released(group) == 0
