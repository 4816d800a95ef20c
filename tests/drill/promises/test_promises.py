"""Each checker on hand-made histories: what keeps the promise, what breaks it, what proves
nothing."""

import pytest

from rmqkit.drill.history import History
from rmqkit.drill.plan import Mode
from rmqkit.drill.promises import PROMISES, Judgement
from rmqkit.drill.promises.survival import split
from tests.drill.hand import MASTER, PLAN, QUIET_MS, SLAVE, Hand, whole

VALID, BROKEN, INCONCLUSIVE = Judgement.VALID, Judgement.BROKEN, Judgement.INCONCLUSIVE


def check(name, hand, plan=PLAN):
    return PROMISES[name]().check(hand.history, plan)


def in_mode(mode, **more):
    return PLAN.changed(mode=Mode.parse(mode), **more)


@pytest.mark.parametrize("name", [name for name, make in PROMISES.items() if make().applies(PLAN)])
def test_a_drill_in_which_all_is_well_keeps_every_promise(name):
    found = check(name, whole())
    assert found.judgement is VALID, found
    assert found.facts > 0


@pytest.mark.parametrize("name", PROMISES)
def test_nothing_seen_is_inconclusive_and_says_why(name):
    found = PROMISES[name]().check(History(), PLAN)
    assert found.judgement is INCONCLUSIVE
    assert found.why


# --- survival


def lost_at_the_master(**more):
    """a, b and c were acknowledged. b remains on the slave only, c nowhere."""
    hand = Hand().fault(**more).in_sync(0, 2)
    for offset, key in enumerate("abc"):
        hand.send(key, offset, at_ms=100 * (offset + 1))
    return hand.in_sync(900, 2).read(MASTER, "a").read(SLAVE, "a", "b")


def test_a_lost_message_breaks_survival_and_is_named():
    found = check("acknowledged-survive", lost_at_the_master())
    assert found.judgement is BROKEN
    assert [each.key for each in found.broken] == ["b", "c"]
    assert "slave only" in found.broken[0].what
    assert "stored on no broker" in found.broken[1].what
    assert found.counts["lost postfix"] == 2


def test_what_the_table_promises_on_a_slave_may_be_missing_at_the_master():
    found = check("acknowledged-survive", lost_at_the_master(harm="power-cut"))
    assert [each.key for each in found.broken] == ["c"]
    assert found.counts["only on a slave"] == 1


def test_where_nothing_is_promised_losses_are_counted_and_no_more():
    found = check("acknowledged-survive", lost_at_the_master(harm="power-cut"), in_mode("async"))
    assert found.judgement is VALID
    assert found.counts["lost where nothing is promised"] == 1
    assert "promises nothing" in found.why
    found = check("acknowledged-survive", lost_at_the_master(harm="power-cut"), in_mode("async+sync-flush"))
    assert found.judgement is BROKEN


def test_a_quorum_that_had_shrunk_promises_what_an_async_master_does():
    def hand(in_sync):
        made = Hand().fault(harm="disk-loss").in_sync(0, 2).send("a", 0, at_ms=100)
        made.in_sync(300, in_sync).send("b", 1, at_ms=400).in_sync(500, in_sync)
        return made.read(MASTER).read(SLAVE, "a")

    assert check("acknowledged-survive", hand(1)).counts["lost where nothing is promised"] == 1
    assert check("acknowledged-survive", hand(2)).judgement is BROKEN
    assert check("acknowledged-survive", hand(1), in_mode("sync")).judgement is BROKEN


def test_a_poll_after_the_fault_excuses_no_send_answered_before_it():
    """The poll after a power cut shows the slave as gone; that excuses nothing before the fault."""
    hand = Hand().fault(harm="power-cut").in_sync(0, 2).send("a", 0, at_ms=100).in_sync(3_000, 1)
    assert check("acknowledged-survive", hand.read(MASTER).read(SLAVE)).judgement is BROKEN
    hand = Hand().fault(harm="power-cut").in_sync(0, 2).send("a", 0, at_ms=1_100).in_sync(3_000, 1)
    assert check("acknowledged-survive", hand.read(MASTER).read(SLAVE)).judgement is VALID


def test_an_answer_that_says_less_promises_less():
    def hand(status):
        return (
            Hand()
            .fault(harm="power-cut")
            .in_sync(0, 2)
            .send("a", 0, status=status)
            .in_sync(900, 2)
            .read(MASTER)
            .read(SLAVE)
        )

    assert check("acknowledged-survive", hand("SEND_OK")).judgement is BROKEN
    for status in ("FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"):
        found = check("acknowledged-survive", hand(status))
        assert (found.judgement, found.counts["lost where nothing is promised"]) == (VALID, 1)
    assert check("acknowledged-survive", hand("FLUSH_DISK_TIMEOUT"), in_mode("async+sync-flush")).judgement is VALID


def test_a_send_without_an_answer_is_unknown_whatever_became_of_it():
    hand = whole().unknown("u").unknown("v")
    hand.read(MASTER, "v", first=4, queue=0)
    found = check("acknowledged-survive", hand)
    assert found.judgement is VALID
    assert (found.counts["unknown"], found.counts["unknown, found"]) == (2, 1)


def test_a_master_that_was_not_read_to_its_end_proves_no_loss():
    hand = Hand().fault().in_sync(0, 2).send("a", 0).in_sync(900, 2).read(MASTER, ok=False).read(SLAVE)
    found = check("acknowledged-survive", hand)
    assert found.judgement is INCONCLUSIVE
    assert MASTER in found.why


def test_a_fault_of_a_slave_takes_nothing_from_the_master():
    hand = Hand().fault(harm="disk-loss", node=SLAVE).send("a", 0).read(MASTER).read(SLAVE)
    assert check("acknowledged-survive", hand, in_mode("async")).judgement is BROKEN


def test_losses_are_split_by_their_position_among_a_writers_sends():
    rows = Hand()
    for number, key in enumerate("abcdef"):
        rows.send(key, number)
    rows.send("x", 9, writer="writer-1")
    acknowledged = rows.history.acknowledged
    assert split("abdf", acknowledged) == {"prefix": 2, "middle": 1, "postfix": 1}
    assert split("", acknowledged) == {"prefix": 0, "middle": 0, "postfix": 0}
    assert split("x", acknowledged) == {"prefix": 1, "middle": 0, "postfix": 0}


# --- delivery


def test_a_phantom_is_found_in_deliveries_and_in_the_last_reading():
    assert check("nothing-unsent", whole().deliver("z", 9)).broken[0].key == "z"
    assert check("nothing-unsent", whole().read(SLAVE, "y", first=9)).broken[0].key == "y"


def test_another_body_is_a_message_that_nobody_sent():
    found = check("nothing-unsent", whole().deliver("a", 0, value="crc of other bytes"))
    assert "another body" in found.broken[0].what


def test_a_refused_or_unanswered_send_that_is_delivered_is_no_phantom():
    assert check("nothing-unsent", whole().unknown("u").deliver("u", 9)).judgement is VALID


def test_a_group_that_was_not_given_a_message_is_named():
    hand = whole().deliver("a", 0, group="h").deliver("b", 1, group="h").deliver("d", 3, group="h")
    found = check("everything-delivered", hand)
    assert [(each.key, each.what) for each in found.broken] == [("c", "was not delivered to group h")]


def test_delivered_twice_and_stored_twice_are_counted_apart():
    hand = whole().deliver("a", 0, at_ms=3_000).read(MASTER, "b", first=4)
    found = check("everything-delivered", hand)
    assert found.judgement is VALID
    assert (found.counts["delivered twice"], found.counts["stored twice"]) == (1, 1)


# --- order


def test_a_later_send_with_a_lower_offset_breaks_the_order():
    found = check("queue-order", whole().send("e", 1, at_ms=3_000))
    assert [each.key for each in found.broken] == ["e"]
    assert check("queue-order", whole().send("e", 1, at_ms=3_000, writer="writer-1")).judgement is VALID


def test_first_deliveries_come_in_the_order_of_offsets():
    hand = whole().deliver("a", 0, group="h").deliver("c", 2, group="h").deliver("b", 1, group="h")
    assert [each.key for each in check("queue-order", hand).broken] == ["b"]


def test_deliveries_that_come_again_are_no_disorder():
    assert check("queue-order", whole().deliver("a", 0, at_ms=3_000).deliver("b", 1, at_ms=3_001)).judgement is VALID


# --- offsets


@pytest.mark.parametrize(
    "second",
    [
        lambda hand: hand.send("z", 1, at_ms=3_000),
        lambda hand: hand.deliver("z", 1),
        lambda hand: hand.read(SLAVE, "z", first=1),
    ],
    ids=["answered", "delivered", "read from a slave"],
)
def test_an_offset_with_two_messages_breaks_stability(second):
    found = check("offsets-stable", second(whole()))
    assert found.judgement is BROKEN
    assert found.broken[0].key == "z"
    assert "and also b (answered" in found.broken[0].what


@pytest.mark.parametrize("name", ["offsets-stable", "queue-order"])
def test_messages_that_a_mode_may_lose_may_lose_their_offsets(name):
    """A killed master loses its store pool: b and c are gone; d and e have their offsets."""
    hand = Hand().fault().send("a", 0, at_ms=100).send("b", 1, at_ms=200).send("c", 2, at_ms=300)
    hand.send("d", 1, at_ms=3_000).send("e", 2, at_ms=3_100).read(MASTER, "a", "d", "e").read(SLAVE, "a", "d", "e")
    assert check(name, hand, in_mode("async+pool")).judgement is VALID
    assert check(name, hand, in_mode("async")).judgement is BROKEN


def test_a_hole_in_a_queue_breaks_density():
    found = check("offsets-stable", Hand().read(SLAVE, "a", None, None, "d", None, "f"))
    assert "no message at 1-2, 4 " in found.broken[0].what
    assert SLAVE in found.broken[0].what


def test_what_retention_took_from_the_front_is_no_hole():
    assert check("offsets-stable", Hand().read(MASTER, "d", "e", first=3)).judgement is VALID


# --- commits


def test_an_offset_that_goes_back_while_its_node_runs_is_found():
    found = check("commits-forward", whole().committed(9, 3_000).committed(8, 3_100))
    assert "from 9 to 8" in found.broken[0].what


def test_a_restart_may_give_back_what_was_not_written_yet_and_no_more():
    hand = Hand().committed(100, 1_000).committed(200, 9_000).committed(150, 12_000, boot="2")
    found = check("commits-forward", hand)
    assert (found.judgement, found.counts["given back by a restart"]) == (VALID, 50)
    found = check("commits-forward", Hand().committed(100, 1_000).committed(200, 9_000).committed(99, 12_000, boot="2"))
    assert found.judgement is BROKEN
    assert "restarted with offset 99" in found.broken[0].what


def test_replicas_that_hold_different_offsets_in_the_end_are_found():
    hand = whole().committed(6, QUIET_MS + 1, final=True)
    found = check("commits-forward", hand)
    assert f"{MASTER} 6, {SLAVE} 4" in found.broken[0].what


def test_a_slave_that_is_ahead_may_hold_a_higher_offset_in_the_end():
    """Seed 1232: its master has lost the message behind that offset."""

    def ends(node):
        hand = whole().fault().in_sync(QUIET_MS, None, node=SLAVE, state="ahead", final=True)
        return hand.committed(6, QUIET_MS + 1, node=node, final=True)

    assert check("commits-forward", ends(SLAVE)).judgement is BROKEN, "a killed master has lost nothing"
    assert check("commits-forward", ends(SLAVE), in_mode("quorum+pool")).judgement is VALID
    assert check("commits-forward", ends(MASTER), in_mode("quorum+pool")).judgement is BROKEN


# --- logs


def test_a_byte_that_differs_is_found_with_its_place():
    hand = whole().log(MASTER, 200, "p").log(SLAVE, 200, "q")
    found = check("logs-equal", hand)
    assert "bytes 200 to 300" in found.broken[0].what


def test_a_piece_that_a_slave_lacks_is_found():
    found = check("logs-equal", whole().log(MASTER, 200, "p"))
    assert "lacks 1 pieces from byte 200" in found.broken[0].what


def test_a_slave_that_joined_late_is_compared_from_its_first_byte():
    hand = Hand().log(MASTER, 0, "x").log(MASTER, 100, "y").log(SLAVE, 100, "y")
    found = check("logs-equal", hand)
    assert (found.judgement, found.facts) == (VALID, 1)


def test_a_slave_that_stopped_because_it_is_ahead_is_said_and_not_compared():
    hand = Hand().fault().log(MASTER, 0, "x").log(SLAVE, 0, "z")
    hand.in_sync(QUIET_MS, None, node=SLAVE, state="ahead", final=True)
    assert check("logs-equal", hand).judgement is BROKEN, "a killed master has lost nothing"
    found = check("logs-equal", hand, in_mode("quorum+pool"))
    assert found.judgement is VALID
    assert f"{SLAVE} is ahead" in found.why
    assert not PROMISES["logs-equal"]().applies(PLAN.changed(replicas=1))


# --- waits


def test_a_send_that_takes_longer_than_its_time_is_found():
    found = check("waits-bounded", whole().unknown("u", took_ms=5_001))
    assert [each.key for each in found.broken] == ["u"]
    assert check("waits-bounded", whole().unknown("u", took_ms=4_999)).judgement is VALID


def test_an_answer_of_a_slave_timeout_has_waited_no_longer_than_that():
    plan = PLAN.changed(seen={"slaveTimeout": "1000"})
    late = whole().send("e", 4, took_ms=3_001, status="FLUSH_SLAVE_TIMEOUT")
    assert check("waits-bounded", late, plan).judgement is BROKEN
    assert check("waits-bounded", late).judgement is VALID


def test_a_master_that_nobody_harms_answers_within_its_own_limits():
    plan = PLAN.changed(seen={"slaveTimeout": "1000", "syncFlushTimeout": "2000"}, send_timeout_ms=60_000)

    def late(node):
        hand = Hand().fault(node=node)
        hand.history.add("send", key="a", invoke_ms=0, complete_ms=4_100, status="SEND_OK", timeout_ms=60_000)
        return hand

    assert check("waits-bounded", late(SLAVE), plan).judgement is BROKEN
    assert check("waits-bounded", late(MASTER), plan).judgement is VALID


def test_a_writer_that_is_never_acknowledged_again_is_found():
    hand = whole().send("e", 9, writer="writer-7").failed("f", writer="writer-7", at_ms=3_000)
    found = check("recovers", hand)
    assert "writer-7" in found.broken[0].what


def test_a_node_that_does_not_serve_at_the_end_has_not_recovered():
    found = check("recovers", whole().read(SLAVE, ok=False, queue=1))
    assert SLAVE in found.broken[0].what


# --- a message read before it was acknowledged may vanish in a power cut; its offset is reused


def read_before_its_answer(harm):
    """x was delivered from offset 1, then a fault; y was stored there and acknowledged."""
    hand = Hand().send("w0-0", 0).deliver("w0-0", 0).unknown("x").deliver("x", 1).fault(harm)
    return hand.send("y", 1, at_ms=9_000).read(MASTER, "w0-0", "y").read(SLAVE, "w0-0", "y")


@pytest.mark.parametrize("name", ["offsets-stable", "everything-delivered"])
@pytest.mark.parametrize(("harm", "judgement"), [("power-cut", VALID), ("kill", BROKEN)])
def test_a_number_may_be_given_again_after_a_power_cut_alone(name, harm, judgement):
    found = check(name, read_before_its_answer(harm), in_mode("sync+sync-flush"))
    assert found.judgement is judgement, found


def test_an_acknowledged_message_has_its_number_after_a_power_cut_too():
    hand = Hand().send("a", 0).deliver("a", 0).fault("power-cut").send("b", 0, at_ms=9_000)
    hand.read(MASTER, "b").read(SLAVE, "b")
    assert check("offsets-stable", hand, in_mode("sync+sync-flush")).judgement is BROKEN
