"""The built-in promises pass the contract for plug-in authors, and a useless promise fails it."""

import re

import pytest

from rmqkit.drill.history import IN_SYNC_AGAIN
from rmqkit.drill.plan import Mode
from rmqkit.drill.promises import PROMISES, Judgement, judged
from rmqkit.testing import PromiseContract
from tests.drill.hand import MASTER, PLAN, QUIET_MS, SLAVE, Hand, elected, whole
from tests.drill.service_hand import QUORUM, ServiceHand
from tests.tidy.tree import ROOT

#: promise -> a history that breaks it
BREAK = {
    "acknowledged-survive": lambda: whole().send("z", 9, at_ms=300),
    "nothing-unsent": lambda: whole().deliver("z", 9),
    "everything-delivered": lambda: whole().deliver("a", 0, group="h"),
    "queue-order": lambda: whole().send("z", 0, at_ms=3_000),
    "offsets-stable": lambda: whole().deliver("z", 1),
    "commits-forward": lambda: whole().committed(1, QUIET_MS + 1),
    "logs-equal": lambda: whole().log(MASTER, 200, "p").log(SLAVE, 200, "q"),
    "one-master": lambda: whole().role("master/online", 1_200, node=SLAVE, until_ms=2_500),
    "one-master-per-epoch": lambda: elected().role("master/online", 1_200, node=SLAVE, epoch=1),
    "confirm-forward": lambda: elected().confirm(SLAVE, 3_000, epoch=2, offset=299),
    "epochs-equal": lambda: epochs().epoch(SLAVE, 2, 300, 400, "r"),
    "lease-kept": lambda: leases().takes(MASTER, 60_000, epoch=1),
    "election-ends": lambda: leases().in_sync(QUIET_MS, 1, node=MASTER, final=True),
    "locks-exclusive": lambda: whole().lock("locker-0", 1_400, node=SLAVE),
    "delay-kept": lambda: whole().delay("u", 400),
    "timer-kept": lambda: timer().timer("u"),
    "transaction-atomic": lambda: transaction().half("u"),
    "pop-kept": lambda: popped().send("u"),
    "progress-forward": lambda: progress(at_takeover=1),
    "waits-bounded": lambda: whole().send("z", 9, took_ms=60_000),
    "recovers": lambda: whole().failed("z", writer="writer-9", at_ms=3_000),
}


def timer():
    return ServiceHand().timer().timer_due()


def epochs():
    """Return a history: both logs have the epochs 1 and 2, and the old master's has more of 1."""
    hand = Hand().epoch(MASTER, 1, 0, 300, "p").epoch(SLAVE, 1, 0, 300, "p").epoch(MASTER, 1, 0, 350, "s")
    return hand.epoch(SLAVE, 2, 300, 400, "q").epoch(MASTER, 2, 300, 400, "q")


def leases():
    """Return a history: the next master takes messages from 2,500 ms on, and all ends well."""
    hand = Hand().takes(MASTER, 900, epoch=1).fault().takes(SLAVE, 2_500, epoch=2).takes(MASTER, 2_600, epoch=1)
    slave = {"role": "slave", "epoch": 2, "in_sync": 0}
    hand.history.add("node", client=MASTER, invoke_ms=QUIET_MS, broker="broker-a", **slave)
    return hand.takes(SLAVE, QUIET_MS, epoch=2).event(IN_SYNC_AGAIN, QUIET_MS)


def transaction():
    return ServiceHand().half().decide().visible()


def popped():
    return ServiceHand().send().pop().ack()


#: promise -> a history that keeps it, if `whole` has no such rows
KEEP = {
    "timer-kept": timer,
    "transaction-atomic": transaction,
    "pop-kept": popped,
    "one-master-per-epoch": elected,
    "confirm-forward": elected,
    "epochs-equal": epochs,
    "lease-kept": leases,
    "election-ends": leases,
}
#: promise -> a plan that makes it, if `PLAN` does not
PLANS = {
    **dict.fromkeys(("timer-kept", "transaction-atomic", "pop-kept"), QUORUM),
    **dict.fromkeys(("one-master-per-epoch", "confirm-forward"), PLAN.changed(mode=Mode.parse("all-ack"))),
    **{
        name: PLAN.changed(mode=Mode.parse("all-ack"), promises=(name,))
        for name in ("epochs-equal", "lease-kept", "election-ends")
    },
}


def progress(at_takeover):
    """Return a history: the master held 3 more than a second before its fault, and the acting
    master starts with `at_takeover`."""
    hand = whole()
    hand.history.rows[:] = [row for row in hand.history.rows if row.kind != "committed"]
    hand.committed(3, -200).committed(3, 900).committed(at_takeover, 1_110, node=SLAVE).committed(4, QUIET_MS, final=True)
    return hand.committed(4, QUIET_MS, node=SLAVE, final=True)


def contract_of(name):
    members = {
        "make": PROMISES[name],
        "kept": staticmethod(lambda: KEEP.get(name, whole)().history),
        "broken": staticmethod(lambda: BREAK[name]().history),
        "plan": PLANS.get(name, PLAN),
    }
    return type(f"Test_{name.replace('-', '_')}", (PromiseContract,), members)


globals().update({f"Test_{name.replace('-', '_')}": contract_of(name) for name in PROMISES})


def test_every_promise_has_a_way_to_break_it():
    assert set(BREAK) == set(PROMISES)


def test_the_promise_that_the_guide_shows_passes_the_contract():
    guide = (ROOT / "docs" / "plugins.md").read_text()
    shown = re.search(r"^```python\n# promise_example.py\n(.*?)^```$", guide, re.MULTILINE | re.DOTALL)
    made = {}
    exec(shown[1], made)
    suite = PromiseContract()
    suite.promise = made["QuickWhileWhole"]()
    assert suite.find(whole().history).judgement is Judgement.VALID
    slow = Hand().send("z", 0, at_ms=0, took_ms=1_200).history
    assert [each.key for each in suite.find(slow).broken] == ["z"]
    suite.test_nothing_seen_is_inconclusive_and_says_why()
    suite.test_a_send_without_an_answer_breaks_nothing()


class Blind:
    """A promise that never finds a violation."""

    name, text = "blind", "all is well"

    def applies(self, plan):
        return True

    def check(self, history, plan):
        return judged(len(history) + 1, ())


def test_the_contract_fails_a_promise_that_sees_nothing():
    suite = type("Suite", (PromiseContract,), {"make": Blind, "broken": staticmethod(lambda: Hand().history)})()
    suite.promise = Blind()
    assert suite.find(Hand().history).judgement is Judgement.VALID
    with pytest.raises(AssertionError):
        suite.test_a_history_that_breaks_it_is_found_and_told()
    with pytest.raises(AssertionError):
        suite.test_nothing_seen_is_inconclusive_and_says_why()
