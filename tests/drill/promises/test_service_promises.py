"""The promises about timers, transactions and pop on hand-made histories."""

import pytest

from rmqkit.drill.history import FAIL, UNKNOWN
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises import PROMISES, Judgement
from tests.drill.service_hand import ASYNC, BROKER, ENDS_MS, FAULT_MS, OTHER, QUORUM, ServiceHand


@pytest.fixture
def hand():
    return ServiceHand()


def counts(name, hand, plan=QUORUM):
    found = PROMISES[name]().check(hand.history, plan)
    assert found.judgement is Judgement.VALID, found
    return found.counts


def wrong(name, hand, plan=QUORUM):
    found = PROMISES[name]().check(hand.history, plan)
    assert found.judgement is Judgement.BROKEN, found
    (broken,) = found.broken
    return broken.what


@pytest.mark.parametrize("name", ["timer-kept", "transaction-atomic", "pop-kept"])
def test_they_are_for_plans_with_their_load(name, hand):
    assert PROMISES[name]().applies(QUORUM)
    assert not PROMISES[name]().applies(Plan())
    assert PROMISES[name]().check(hand.history, QUORUM).judgement is Judgement.INCONCLUSIVE


# --- timers


def timers(hand, plan=QUORUM):
    return counts("timer-kept", hand, plan)


def test_a_timer_is_delivered_when_it_is_due(hand):
    found = timers(hand.timer().timer_due())
    assert (found["acknowledged"], found["delivered"], found["latest ms"]) == (1, 1, 100)


def test_a_timer_that_is_early_lost_changed_or_unknown_is_told(hand):
    assert "500 ms before it was due" in wrong("timer-kept", hand.timer().timer_due(at_ms=2_500))
    assert "never delivered" in wrong("timer-kept", ServiceHand().timer())
    assert "has another body" in wrong("timer-kept", ServiceHand().timer().timer_due().timer_due(value="crc"))
    assert "was never sent" in wrong("timer-kept", ServiceHand().timer().timer_due().timer_due("u"))


def test_a_timer_without_an_answer_need_not_come(hand):
    assert timers(hand.timer(outcome=UNKNOWN))["unknown"] == 1


def test_a_recalled_timer_does_not_come(hand):
    assert timers(hand.timer().recall())["recalled"] == 1
    assert "recalled at 1500 ms, but delivered at 3100 ms" in wrong("timer-kept", hand.timer_due())


def test_a_recall_that_is_late_or_unknown_promises_nothing():
    assert timers(ServiceHand().timer().recall(at_ms=2_900).timer_due())["delivered"] == 1
    assert timers(ServiceHand().timer().recall(outcome=UNKNOWN).timer_due())["delivered"] == 1
    assert timers(ServiceHand().timer().recall(outcome=UNKNOWN))["delivered"] == 0


def test_a_recall_that_the_fault_took_is_excused_without_copies():
    def recalled():
        late = {"at_ms": FAULT_MS - 100, "due_ms": FAULT_MS + 900}
        return ServiceHand().timer(at_ms=FAULT_MS - 1_100).recall(**late).timer_due(at_ms=FAULT_MS + 2_000)

    assert timers(recalled(), ASYNC)["recalled and delivered, allowed"] == 1
    assert "recalled" in wrong("timer-kept", recalled())


def test_a_timer_is_released_once_but_around_the_fault():
    again = {"offset": 5, "broker": OTHER, "escaped_from": "broker-a:TIMER:1", "escaped_by": "broker-a:1"}
    what = wrong("timer-kept", ServiceHand().timer().timer_due().timer_due(at_ms=9_000, **again))
    assert "no fault or takeover explains the second release" in what
    near = ServiceHand().timer(at_ms=FAULT_MS - 2_100).timer_due(at_ms=FAULT_MS - 50)
    assert timers(near.timer_due(at_ms=FAULT_MS + 2_000, **again))["released twice, by an acting master"] == 1


# --- transactions


def transactions(hand, plan=QUORUM):
    return counts("transaction-atomic", hand, plan)


def test_a_committed_message_is_delivered_and_a_rolled_back_one_is_not(hand):
    hand.half().decide().visible()
    found = transactions(hand.half("y", local="rollback").decide("y", value="rollback"))
    assert (found["committed"], found["rolled back"]) == (1, 1)
    assert "it was rolled back" in wrong("transaction-atomic", hand.visible("y"))


def test_a_commit_that_is_lost_is_told(hand):
    assert "never delivered" in wrong("transaction-atomic", hand.half().decide())


def test_a_half_is_sent_for_every_message(hand):
    assert "no half message was sent" in wrong("transaction-atomic", hand.half().visible().visible("y"))
    assert "its half has another body" in wrong("transaction-atomic", ServiceHand().half().visible().visible(value="z"))


def test_the_half_of_a_dead_producer_is_asked_about(hand):
    hand.half(local="dies", decision="rollback")
    assert "never asked about" in wrong("transaction-atomic", hand)
    found = transactions(hand.decide(value="rollback", by="check"))
    assert (found["producer died"], found["asked about"]) == (1, 1)


def test_a_rollback_without_an_answer_may_have_been_recorded(hand):
    assert transactions(hand.half(local="rollback").decide(value="rollback", outcome=UNKNOWN))["rolled back"] == 1


def test_a_half_that_is_not_stored_need_not_end(hand):
    assert transactions(hand.half(outcome=UNKNOWN).half("y", outcome=FAIL))["acknowledged"] == 0


def test_a_message_is_committed_once(hand):
    what = wrong("transaction-atomic", hand.half().visible().visible(at_ms=5_000, offset=4))
    assert "no fault or takeover explains" in what


def test_a_commit_of_the_moment_of_an_isolation_may_not_have_reached_the_slave():
    def hand(before_ms):
        made = ServiceHand("isolate").half().decide().visible(at_ms=FAULT_MS - before_ms)
        return made.visible(at_ms=FAULT_MS + 2_000, broker=OTHER)

    assert transactions(hand(1))["released twice"] == 1
    assert "no fault or takeover explains" in wrong("transaction-atomic", hand(100))


def test_a_half_that_an_acting_slave_moved_while_its_master_served_may_be_committed_twice():
    def hand(by="broker-a:1", sent_ms=ENDS_MS + 20, harm="kill"):
        made = ServiceHand(harm).acts(ENDS_MS + 50, ENDS_MS + 450).half(at_ms=sent_ms)
        return made.visible(at_ms=20_000).visible(at_ms=20_400, broker=OTHER, escaped_by=by)

    assert transactions(hand())["released twice, by an acting master"] == 1
    for other in (hand(by="broker-b:1"), hand(sent_ms=ENDS_MS + 460), hand(by=""), hand(harm="isolate")):
        assert "no fault or takeover explains" in wrong("transaction-atomic", other)


# --- pop


def pops(hand, plan=QUORUM):
    return counts("pop-kept", hand, plan)


def test_a_message_is_popped_and_acked_once(hand):
    assert pops(hand.send().pop().ack())["acked"] == 1


def test_a_message_that_nobody_popped_or_that_nobody_sent_is_told(hand):
    hand.send().pop().ack()
    assert "never delivered" in wrong("pop-kept", hand.send("n"))
    assert "was never sent" in wrong("pop-kept", ServiceHand().send().pop().ack().pop("u"))
    assert "has another body" in wrong("pop-kept", ServiceHand().send().pop().ack().pop(value="z"))


def test_a_popped_message_is_invisible(hand):
    hand.send().pop().pop(at_ms=2_500, member="popper-1").ack(pop_ms=2_500, at_ms=2_600)
    assert "invisible until 3200 ms, but popper-1 popped it at 2500 ms" in wrong("pop-kept", hand)


def test_it_returns_when_its_time_has_ended(hand):
    found = pops(hand.send().pop().pop(at_ms=3_300, topic="retry 1").ack(pop_ms=3_300, at_ms=3_400))
    assert found["returned"] == 1


def test_what_nobody_acks_must_return(hand):
    assert "not acked, and not popped again" in wrong("pop-kept", hand.send().pop())


def test_an_ack_without_an_answer_ends_the_wait(hand):
    assert pops(hand.send().pop().ack(outcome=UNKNOWN))["acks without an answer"] == 1


def acked_before_the_fault(harm, before_ms):
    at_ms = FAULT_MS - before_ms
    hand = ServiceHand(harm).send().pop(at_ms=at_ms - 100).ack(pop_ms=at_ms - 100, at_ms=at_ms)
    return hand.pop(at_ms=ENDS_MS).ack(pop_ms=ENDS_MS, at_ms=ENDS_MS + 50)


@pytest.mark.parametrize("harm", ["kill", "isolate"])
def test_acked_means_never_again_but_around_the_fault(harm):
    hand = ServiceHand(harm).send().pop().ack().pop(at_ms=6_000).ack(pop_ms=6_000, at_ms=6_100)
    assert "acked it at 1300 ms, popper-0 popped it again at 6000 ms" in wrong("pop-kept", hand)
    assert pops(acked_before_the_fault(harm, 200))["again after the ack, allowed"] == 1
    assert "popped it again" in wrong("pop-kept", acked_before_the_fault(harm, 2_000))


def test_an_ack_after_the_invisible_time_promises_nothing(hand):
    hand.send().pop().ack(at_ms=3_300).pop(at_ms=3_400, topic="retry 1").ack(pop_ms=3_400, at_ms=3_500)
    assert pops(hand)["returned"] == 1


def test_a_message_that_its_producer_stored_twice_is_two_messages(hand):
    hand.send().pop().ack().pop(at_ms=1_500).ack(pop_ms=1_500, at_ms=1_600).read().read(offset=3)
    assert pops(hand)["stored twice by their producer"] == 1


def held_twice_at_the_fault(holders=2):
    """Popped just before the fault, and again just after: no broker knows both pops in time."""
    hidden = {"invisible_ms": 3_000}
    hand = ServiceHand("kill").send().pop(at_ms=FAULT_MS - 100, **hidden)
    hand.pop(at_ms=FAULT_MS + 100, member="popper-1", **hidden)
    for back_ms in range(FAULT_MS + 3_200, FAULT_MS + 3_200 + holders):
        hand.pop(at_ms=back_ms, topic="retry 1").ack(pop_ms=back_ms, at_ms=FAULT_MS + 3_300)
    return hand


def test_both_copies_of_an_allowed_repeat_come_back():
    found = pops(held_twice_at_the_fault())
    assert (found["again while invisible, allowed"], found["again as a second copy"]) == (1, 1)


def test_an_allowed_repeat_makes_no_more_than_one_copy():
    assert "invisible until 15201 ms" in wrong("pop-kept", held_twice_at_the_fault(holders=3))


def popped_by_nobody(broker=BROKER):
    """A pop at the isolation has no answer; the successor gives the message to another."""
    hand = ServiceHand("isolate").send(at_ms=9_000).pop_lost(at_ms=FAULT_MS - 10, broker=broker)
    hand.pop(at_ms=12_000).ack(pop_ms=12_000, at_ms=12_100)
    return hand.pop(at_ms=ENDS_MS + 500, topic="retry 1").ack(pop_ms=ENDS_MS + 500, at_ms=ENDS_MS + 600)


def test_what_a_pop_without_an_answer_popped_comes_back():
    found = pops(popped_by_nobody())
    assert (found["pops without an answer"], found["again as a second copy"]) == (1, 1)


def test_a_lost_pop_at_another_group_explains_nothing():
    assert "acked it at 12100 ms" in wrong("pop-kept", popped_by_nobody(broker=OTHER))


def returned_twice(before_ms):
    """Its invisible time ends just before the isolation; the successor returns it as well."""
    until_ms = FAULT_MS - before_ms
    hand = ServiceHand("isolate").send().pop(at_ms=until_ms - 2_000).pop(at_ms=12_000, topic="retry 1")
    hand.ack(pop_ms=12_000, at_ms=12_100)
    return hand.pop(at_ms=ENDS_MS + 500, topic="retry 1").ack(pop_ms=ENDS_MS + 500, at_ms=ENDS_MS + 600)


def test_a_message_redelivered_as_the_isolation_begins_may_be_redelivered_twice():
    assert pops(returned_twice(before_ms=10))["again as a second copy"] == 1
    assert "acked it at 12100 ms" in wrong("pop-kept", returned_twice(before_ms=2_000))
