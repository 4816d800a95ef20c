"""The promises of a takeover on hand-made histories: roles, locks, delayed messages, progress."""

import pytest

from rmqkit.drill import history as names
from rmqkit.drill.history import History
from rmqkit.drill.load_history import RecordedLoad
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises import PROMISES, Judgement
from rmqkit.drill.promises.heads import heads, spans
from rmqkit.drill.promises.locks import leases
from rmqkit.drill.roles import RoleRows
from rmqkit.drill.workload import delay_script, levels_ms, lock_script
from tests.drill.hand import BEGIN_MS, BROKER, MASTER, PLAN, QUIET_MS, SLAVE, Hand, whole

LOOSE = PLAN.changed(settings={"enableSlaveActingMaster": "true"})
FENCING = PLAN.changed(settings={"enableSlaveActingMaster": "true", "lockMode": "fencing"})
THIRD = "broker-a-2"


def find(name, hand, plan=PLAN):
    return PROMISES[name]().check(hand.history, plan)


def wrong(name, hand, plan=PLAN):
    """Check that a history breaks the promise; return what is reported."""
    found = find(name, hand, plan)
    assert found.judgement is Judgement.BROKEN, found
    return [each.what for each in found.broken]


def kept(name, hand, plan=PLAN):
    """Check that a history keeps the promise; return the counts."""
    found = find(name, hand, plan)
    assert found.judgement is Judgement.VALID, found
    return found.counts


def test_they_are_for_groups_whose_slaves_act():
    for name in ("one-master", "locks-exclusive", "delay-kept", "progress-forward"):
        assert PROMISES[name]().applies(PLAN)
        assert not PROMISES[name]().applies(PLAN.changed(replicas=1))
        assert not PROMISES[name]().applies(Plan(replicas=2))


# --- rows about roles


def test_a_state_is_written_at_its_first_and_its_last_look():
    history = History()
    rows = RoleRows(history)
    for at_ms in range(0, 500, 100):
        rows.told("n", BROKER, 1, role="slave", online="online", members=(1, 0), invoke_ms=at_ms)
    rows.silent("n", BROKER, 500)
    rows.silent("n", BROKER, 600)
    assert rows.state("n") == ""
    rows.told("n", BROKER, 1, role="acting", online="online", members=(1,), invoke_ms=700)
    rows.told("n", BROKER, 1, role="acting", online="online", members=(1,), invoke_ms=800)
    assert (rows.state("n"), rows.members("n")) == ("acting/online", [1])
    rows.flush()
    rows.flush()
    seen = [(row.invoke_ms, row.value, row.outcome) for row in history.rows]
    slave, none, acting = ("slave/online", "ok"), ("", "fail"), ("acting/online", "ok")
    assert seen == [(0, *slave), (400, *slave), (500, *none), (600, *none), (700, *acting), (800, *acting)]
    assert [(span.role, span.begin_ms, span.end_ms) for span in spans(history)] == [("slave", 0, 400), ("acting", 700, 800)]


def test_a_role_change_and_its_reversal_between_two_polls_are_seen_by_their_time():
    history = History()
    rows = RoleRows(history)
    for at_ms, since_ms in ((0, -50), (100, -50), (500, 450), (600, 450)):
        rows.told(MASTER, BROKER, 0, role="master", online="online", members=(0, 1), invoke_ms=at_ms, since_ms=since_ms)
    rows.flush()
    assert [(head.begin_ms, head.end_ms) for head in heads(history)[BROKER]] == [(0, 100), (500, 600)]


def test_the_service_intervals_follow_from_the_roles():
    found = heads(whole().history)[BROKER]
    assert [(head.node, head.begin_ms) for head in found] == [(MASTER, 0), (SLAVE, 1_100), (MASTER, 2_130)]


def test_a_master_that_is_broken_serves_nobody_whatever_it_says():
    """An isolated master calls itself the master until it learns that it is isolated."""
    hand = Hand().fault("isolate").role("master/online", 0, until_ms=2_050).role("master/isolated", 2_060)
    hand.role("slave/online", 0, node=SLAVE).role("acting/online", 1_500, node=SLAVE, until_ms=2_200)
    found = heads(hand.role("master/online", 2_190, until_ms=QUIET_MS).history)[BROKER]
    assert [(head.node, head.end_ms) for head in found] == [(MASTER, BEGIN_MS), (SLAVE, 2_200), (MASTER, QUIET_MS)]


def test_a_master_that_thinks_it_serves_while_another_acts_is_in_doubt():
    hand = Hand().fault("pause").role("master/online", 0, until_ms=990).role("", 1_100)
    hand.role("master/online", 2_010, until_ms=2_030).role("master/isolated", 2_040).role("master/online", 2_600)
    hand.role("master/online", QUIET_MS).role("acting/online", 1_500, node=SLAVE, until_ms=2_620)
    assert [head.begin_ms for head in heads(hand.history)[BROKER]] == [0, 1_500, 2_600]


# --- one master


def test_a_whole_takeover_has_one_master():
    counts = kept("one-master", whole())
    assert counts["acting ms"] == 1_040
    assert counts["master and acting at once, ms"] == counts["of these without a fault, ms"] == 10


def test_two_that_append_are_found():
    told = wrong("one-master", whole().role("master/online", 2_600, node=SLAVE, until_ms=2_700))
    assert told == ["broker-a-0 and broker-a-1 both append from 2600 to 2700 ms"]


def test_one_that_acts_and_knows_better_is_found():
    told = wrong("one-master", whole().role("acting/online", 3_000, node=SLAVE, members=(0, 1)))
    assert told == ["broker-a-1 acts as master at 3000 ms, although it sees broker id 0 alive"]


def test_both_at_once_has_an_end_when_nothing_is_broken():
    during = whole().role("acting/online", 1_100, node=THIRD, members=(2,), until_ms=1_900)
    assert kept("one-master", during)["master and acting at once, ms"] > 800
    after = Hand().fault().role("master/online", 2_100, until_ms=QUIET_MS + 200)
    after.role("acting/online", 1_100, node=SLAVE, members=(1,), until_ms=QUIET_MS + 200)
    told = wrong("one-master", after)
    assert told == ["broker-a-1 is acting and broker-a-0 is master, for 3100 ms that no fault explains"]


def test_nobody_stores_anything_while_the_master_is_gone():
    hand = whole().event(names.FAULT_BITES, 1_050)
    kept("one-master", hand)
    told = wrong("one-master", hand.send("x", 9, at_ms=1_400))
    assert "an acting slave must have stored it" in told[0]


# --- locks


def test_leases_that_overlap_break_strict_locks_and_are_counted_with_loose_ones():
    hand = Hand().fault().lock("locker-0", 100).lock("locker-1", 1_500, node=SLAVE).event(names.LOAD_ENDS, 4_000)
    told = wrong("locks-exclusive", hand)
    assert "(granted by broker-a-0) and locker-1 (granted by broker-a-1) both hold the lock from 1502 to 4000 ms" in told[0]
    assert find("locks-exclusive", hand, FENCING).judgement is Judgement.BROKEN
    found = find("locks-exclusive", hand, LOOSE)
    assert found.judgement is Judgement.VALID
    assert found.why
    assert found.counts["leases that overlap"] == 1
    assert found.counts["longest overlap ms"] == 2_498
    assert found.counts["gap at takeover ms"] == 502


@pytest.mark.parametrize(
    "hand",
    [
        Hand().lock("a", 100).unlock("a", 200).lock("b", 210),
        Hand().lock("a", 100).unlock("a", 200, outcome="unknown").lock("b", 210),
        Hand().lock("a", 100).lock("b", 200, outcome="fail").lock("b", 210, outcome="unknown"),
        Hand().lock("a", 100).lock("b", 200, queue=1),
        Hand().lock("a", 100, lease_ms=50).lock("b", 151),
        Hand().lock("a", 100).lock("a", 300, outcome="fail").lock("b", 310),
        Hand().lock("a", 100).lock("a", 200).lock("a", 300),
    ],
    ids=["given back", "perhaps given back", "refused, unknown", "other queue", "run out", "lost", "renewed"],
)
def test_locks_that_exclude_each_other(hand):
    assert kept("locks-exclusive", hand)["leases that overlap"] == 0


def test_a_renewed_lease_lasts():
    hand = Hand().lock("a", 100, lease_ms=200).lock("a", 250, lease_ms=200).lock("b", 400, lease_ms=200)
    assert [(lease.client, lease.begin_ms, lease.end_ms) for lease in leases(hand.event("x", 900).history)] == [
        ("a", 102, 450),
        ("b", 402, 600),
    ]
    assert len(wrong("locks-exclusive", hand)) == 1


@pytest.mark.parametrize("ends", [Hand.unlock, lambda hand, *given: hand.lock(*given, outcome="fail")])
def test_a_lease_that_ran_out_was_held_until_then(ends):
    """It does not matter what its member does afterwards."""
    hand = Hand().lock("a", 100, lease_ms=200).lock("b", 200, lease_ms=400)
    assert len(wrong("locks-exclusive", ends(hand, "a", 500).event("x", 900))) == 1


def test_members_that_work_in_turns_are_counted():
    hand = whole()
    for client, offset in (("p-0", 0), ("p-0", 1), ("p-1", 2), ("p-0", 3), ("p-1", 4), ("p-1", 5)):
        hand.history.add(
            "deliver",
            client=client,
            key="a",
            invoke_ms=3_000,
            broker=BROKER,
            queue=0,
            offset=offset,
            group="g",
            ordered=True,
        )
    assert kept("locks-exclusive", hand)["worked on in turns"] == 2


# --- delayed messages


def test_delayed_messages_that_came_once():
    counts = kept("delay-kept", whole())
    assert {key: counts[key] for key in ("delivered", "released twice", "escaped", "escaped to broker-b", "latest ms")} == {
        "delivered": 2,
        "released twice": 0,
        "escaped": 1,
        "escaped to broker-b": 1,
        "latest ms": 897,
    }


def test_early_lost_and_unknown_delayed_messages_are_violations_with_their_keys():
    early = find("delay-kept", whole().delay("e", 400).due("e", 1_390))
    assert [each.key for each in early.broken] == ["e"]
    assert "10 ms before it was due" in early.broken[0].what
    lost = find("delay-kept", whole().delay("l", 400))
    assert [each.what for each in lost.broken] == ["answered SEND_OK at 403 ms, but never delivered"]
    strange = find("delay-kept", whole().due("x", 3_000).delay("y", 100).due("y", 1_200, value="other"))
    assert [each.key for each in strange.broken] == ["x", "y"]


def test_what_was_not_answered_or_is_not_due_yet_is_not_missed():
    counts = kept("delay-kept", whole().delay("u", 400, outcome="unknown").delay("n", 3_500))
    assert (counts["unknown"], counts["delivered"]) == (1, 2)


def test_where_the_mode_promises_nothing_a_lost_one_is_counted():
    hand = whole().delay("l", 400)
    for row in hand.history.events:
        if row.key == names.FAULT_BEGINS:
            row.extra["harm"] = "disk-loss"
    assert kept("delay-kept", hand)["lost where nothing is promised"] == 1


def test_what_was_released_in_the_last_second_may_come_again():
    hand = whole().delay("a", -1_000).due("a", 500, offset=7).due("a", 1_150, broker="broker-b", by="broker-a:1")
    counts = kept("delay-kept", hand)
    assert counts["released twice"] == counts["released twice, by an acting master"] == 1


def test_nothing_older_comes_again():
    hand = whole().delay("a", -3_000).due("a", -1_900, offset=7).due("a", 1_150, broker="broker-b", by="broker-a:1")
    assert "no fault or takeover explains the second release" in wrong("delay-kept", hand)[0]
    # A broker without replicas loses what it wrote last, so its messages may come again.
    assert kept("delay-kept", hand, PLAN.changed(replicas=1))["released twice"] == 1


def test_an_isolated_master_releases_nothing_that_comes_again():
    def hand(released_ms):
        made = whole().delay("a", -1_000).due("a", released_ms, offset=7)
        for row in made.history.events:
            if row.key == names.FAULT_BEGINS:
                row.extra["harm"] = "isolate"
        return made.due("a", 1_900, broker="broker-b", by="broker-a:1")

    for released_ms in (900, BEGIN_MS + 250, 1_850):
        assert "no fault or takeover explains the second release" in wrong("delay-kept", hand(released_ms))[0]
    assert kept("delay-kept", hand(BEGIN_MS + 20))["released twice"] == 1, "its copy was on its way"
    again = hand(1_850).event(names.FAULT_BEGINS, 1_800, broker=BROKER, harm="kill", node=SLAVE, role="slave")
    assert kept("delay-kept", again)["released twice"] == 1, "another fault may explain it"


def test_releases_may_repeat_if_the_only_node_that_knew_of_them_died():
    """Seed 417: the master returned just when the slave that acted for it was killed."""

    def hand(*, acting_dies):
        made = Hand().role("master/online", 0, until_ms=990).role("", 1_010)
        for _ in range(1 + acting_dies):  # a series has an event of its own, then one per step
            made.event(names.FAULT_BEGINS, BEGIN_MS, broker=BROKER, harm="kill", node=MASTER, role="master")
        made.role("acting/online", 1_100, node=SLAVE, members=(1,), until_ms=7_900)
        if acting_dies:
            made.event(names.FAULT_BEGINS, 7_950, broker=BROKER, harm="kill", node=SLAVE, role="slave")
            made.event(names.STEP_ENDS, 7_990, node=MASTER).event(names.STEP_ENDS, 8_000, node=SLAVE)
        made.event(names.FAULT_ENDS, 8_000).role("master/online", 8_100, until_ms=9_000, boot="2")
        made.delay("a", 500, delay_ms=4_500).due("a", 5_000, broker="broker-b", by="broker-a:1")
        return made.due("a", 8_150, offset=7)

    assert "no fault or takeover explains the second release" in wrong("delay-kept", hand(acting_dies=False))[0]
    counts = kept(
        "delay-kept", hand(acting_dies=True), PLAN.changed(settings={**PLAN.settings, "flushDelayOffsetInterval": "100"})
    )
    assert counts["released twice"] == 1


def test_delivered_twice_is_not_released_twice():
    counts = kept("delay-kept", whole().due("t", 3_000))
    assert (counts["delivered twice"], counts["released twice"]) == (1, 0)


# --- progress


def progress(*, at_takeover=3, at_return=5, harm="kill"):
    """The master held 3 a second before its fault and 4 at its end; the acting master reached 5."""
    hand = Hand().fault(harm).takeover()
    hand.committed(3, -200).committed(4, 900).committed(at_takeover, 1_110, node=SLAVE).committed(5, 1_120, node=SLAVE)
    hand.committed(5, 2_120, node=SLAVE)
    return hand.committed(at_return, 2_140, boot="2").committed(5, QUIET_MS, boot="2")


def test_the_last_second_may_be_given_back():
    counts = kept("progress-forward", progress())
    assert (counts["given back at takeover"], counts["given back at return"], counts["changes"]) == (1, 0, 2)


def test_less_than_was_held_a_second_before_is_told():
    told = wrong("progress-forward", progress(at_takeover=2))
    assert "broker-a-1 serves from 1100 ms with offset 2" in told[0]
    assert "broker-a-0 held 3" in told[0]
    told = wrong("progress-forward", progress(at_return=2))
    assert "broker-a-0 serves from 2130 ms with offset 2" in told[0]
    assert "return: " in told[0]


def test_an_offset_that_a_member_set_back_counts_at_the_return():
    """Seed 1361: a member that had been isolated committed where it had stopped."""
    kept("progress-forward", progress(at_return=2).committed(2, 1_500, node=SLAVE, by_member=True))
    told = wrong("progress-forward", progress(at_return=1).committed(2, 1_500, node=SLAVE, by_member=True))
    assert "broker-a-1 held 2" in told[0]
    wrong("progress-forward", progress(at_return=2).committed(2, 1_500, node=SLAVE, by_member=False))


def test_an_acting_master_without_a_groups_offsets_has_lost_them():
    hand = Hand().fault().takeover().committed(3, -200).committed(3, 900).committed(3, QUIET_MS, boot="2")
    assert "with offset -1 of group g" in wrong("progress-forward", hand)[0]


def test_a_give_back_without_an_answer_may_be_carried_out_later():
    hand = Hand().lock("a", 100).unlock("a", 200, outcome="unknown").lock("a", 300).lock("b", 400)
    kept("locks-exclusive", hand)
    hand.unlock("a", 500).lock("a", 600).lock("a", 700)
    assert "both hold the lock" in wrong("locks-exclusive", hand)[0]


def test_a_late_first_poll_counts_if_each_poll_is_recorded():
    """On a busy machine a broker may answer its first poll late."""

    def looked(first_ms, **more):
        hand = Hand().fault().takeover().committed(3, 1_110, node=SLAVE, **more)
        return hand.committed(3, first_ms, boot="2", **more)

    assert "broker-a-0 serves from 2130 ms with offset -1" in wrong("progress-forward", looked(2_900))[0]
    kept("progress-forward", looked(2_900, each=True))
    # A much later poll says nothing about the moment at which the broker began.
    facts = [find("progress-forward", looked(first_ms, each=True)).facts for first_ms in (2_900, 9_000)]
    assert facts == [2, 1]


def test_messages_given_again_are_counted_and_those_committed_before_are_told():
    hand = progress(harm="isolate")
    hand.deliver("m", 3, at_ms=950).deliver("m", 3, at_ms=1_200).deliver("n", 5, at_ms=2_100)
    counts = kept("progress-forward", hand.deliver("n", 5, at_ms=2_300))
    assert (counts["given again at takeover"], counts["given again at return"]) == (1, 1)
    told = wrong("progress-forward", hand.deliver("o", 1, at_ms=500).deliver("o", 1, at_ms=2_400))
    assert "redelivered to group g at 2400 ms" in told[0]


def test_a_message_first_delivered_after_the_return_was_not_handed_over():
    """The members of a group find the master one after the other, so queues move between them."""
    hand = progress(harm="kill").deliver("n", 5, at_ms=2_200).deliver("n", 5, at_ms=2_300)
    assert kept("progress-forward", hand)["given again at return"] == 1


def test_a_message_whose_offset_the_acting_slave_never_held_was_not_handed_over():
    """Seed 343: both brokers were paused when it was consumed, and then the group had no locks."""
    early = progress(harm="pause").deliver("n", 5, at_ms=1_050).deliver("n", 5, at_ms=2_300)
    assert kept("progress-forward", early)["given again at return"] == 1
    held = progress(harm="pause").deliver("n", 4, at_ms=1_050).deliver("n", 4, at_ms=2_300)
    assert "after broker-a-1 had handed over to broker-a-0" in wrong("progress-forward", held)[0]


@pytest.mark.parametrize("harm", ["kill", "pause"])
def test_nothing_is_redelivered_at_the_return_after_a_kill_or_a_pause(harm):
    def hand(at_ms):
        return progress(harm=harm).deliver("n", 5, at_ms=1_900).deliver("n", 5, at_ms=at_ms)

    assert "after broker-a-1 had handed over to broker-a-0" in wrong("progress-forward", hand(2_300))[0]
    assert kept("progress-forward", hand(2_000))["given again at takeover"] == 1
    disturbed = hand(2_300).event(names.FAULT_BEGINS, 2_200, broker=BROKER, harm="pause", node=SLAVE, role="slave")
    assert kept("progress-forward", disturbed)["given again at return"] == 1
    isolated = hand(2_300).event(names.FAULT_BEGINS, 1_500, broker="broker-b", harm="isolate", node="broker-b-0")
    assert kept("progress-forward", isolated)["given again at return"] == 1


def test_where_nobody_took_over_there_is_nothing_to_give_back():
    """The fault ended before anybody noticed."""
    hand = Hand().fault("pause").role("master/online", 0, until_ms=990).role("master/online", 2_050, until_ms=QUIET_MS)
    found = find("progress-forward", hand.committed(3, 100))
    assert (found.judgement, found.why, found.facts) == (Judgement.VALID, "no broker took over", 1)
    assert find("progress-forward", Hand().fault().takeover()).judgement is Judgement.INCONCLUSIVE


def test_after_a_lost_disk_it_is_counted_only():
    hand = progress(at_takeover=0)
    for row in hand.history.events:
        if row.key == names.FAULT_BEGINS:
            row.extra["harm"] = "power-cut"
    assert kept("progress-forward", hand)["given back at takeover"] == 4


# --- the workload


def test_the_same_seed_delays_and_locks_the_same():
    def first(script, count=50):
        return [next(script) for _ in range(count)]

    assert first(delay_script(PLAN)) == first(delay_script(PLAN))
    assert first(lock_script(PLAN, 0)) == first(lock_script(PLAN, 0)) != first(lock_script(PLAN, 1))
    assert {order.level for order in first(delay_script(PLAN))} == {1, 2}
    assert set(levels_ms(PLAN.changed(fault_ms=1_500))) == {1}, "no fault is waited for longer than it lasts"
    own = PLAN.changed(settings={"messageDelayLevel": "1s 2s 3s 1h"})
    assert levels_ms(own) == {1: 1_000, 2: 2_000, 3: 3_000}
    assert not list(delay_script(PLAN.changed(settings={"messageDelayLevel": "1h"})))


def test_lock_rows_are_what_checkers_read():
    history = History()
    load = RecordedLoad(PLAN, history, lambda: 130, name="d", broker=BROKER)
    load.locks_asked("locker-0", SLAVE, (0, 1), [1], 100)
    load.locks_asked("locker-0", SLAVE, (2,), None, 100, "no answer")
    load.locks_returned("locker-0", SLAVE, (1,), 120, answered=True)
    assert [(row.kind, row.queue, row.outcome, row.key) for row in history.rows] == [
        ("lock", 0, "fail", "d-lock"),
        ("lock", 1, "ok", "d-lock"),
        ("lock", 2, "unknown", "d-lock"),
        ("unlock", 1, "ok", "d-lock"),
    ]
    assert history.rows[1].extra["granted_until"] == 60_100
    assert [(lease.begin_ms, lease.end_ms) for lease in leases(history)] == []
