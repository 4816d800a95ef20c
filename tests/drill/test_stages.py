"""Deriving the stages of a takeover from a history, and comparing drills by them."""

import pytest

from rmqkit.cli.drills import drill_output
from rmqkit.drill import history as names
from rmqkit.drill.engine import Outcome
from rmqkit.drill.promises import PROMISES
from rmqkit.drill.promises.locks import gap_ms
from rmqkit.drill.real.runner import DrillResult
from rmqkit.drill.report import verdict_words
from rmqkit.drill.report.comparison import compare, median_of, number
from rmqkit.drill.report.row_lines import line
from rmqkit.drill.stages import RETURN, TAKEOVER, measured, stages
from rmqkit.drill.timeline import derive
from rmqkit.drill.verdict import PromiseResult, verdict_of
from tests.drill.hand import BROKER, MASTER, PLAN, SLAVE, Hand, whole


def told():
    """Return a takeover whose rows show all its stages."""
    hand = whole().failed("x", at_ms=1_020)
    for at_ms, node, members in ((0, MASTER, [0, 1]), (1_050, SLAVE, [1]), (2_140, MASTER, [0, 1])):
        shown = {"members": members, "writable": node == MASTER}
        value = ",".join(map(str, members))
        hand.history.add("route", client="ns-0", key=node, value=value, invoke_ms=at_ms, broker=BROKER, **shown)
    hand.history.add("probe", client="probe", invoke_ms=1_060, broker=BROKER, node=SLAVE, broker_id=1)
    hand.event(names.NODE_BACK, 2_100).event(names.IN_SYNC_AGAIN, 2_900)
    derive(hand.history)
    return hand


def test_stages_are_found_in_the_rows():
    found = {(stage.part, stage.name): stage.after_ms for stage in stages(told().history)}
    assert found == {
        (TAKEOVER, "first failed send"): 25,
        (TAKEOVER, "noticed by the name server"): 50,
        (TAKEOVER, "route changed"): 50,
        (TAKEOVER, "first read served from a slave"): 60,
        (TAKEOVER, "known in the group"): 100,
        (TAKEOVER, "a slave acts"): 100,
        (TAKEOVER, "lock granted"): 202,
        (TAKEOVER, "delayed message released"): 230,
        (RETURN, "node answers"): 100,
        (RETURN, "pre-online done"): 130,
        (RETURN, "registered"): 140,
        (RETURN, "first send acknowledged"): 505,
        (RETURN, "everything as before"): 900,
    }


def service(hand, kind, key, at_ms, **more):
    """Add a row of timers, transactions or pop."""
    hand.history.add(kind, client="someone", key=key, invoke_ms=at_ms, **more)
    return hand


def test_the_services_have_stages():
    hand = Hand().fault()
    by = {"escaped_by": "broker-a:1", "escaped_from": "broker-a:TIMER:1"}
    # No takeover: what the master did, another group did for itself, or what failed.
    service(hand, "timer-due", "t-0", 1_100, broker=BROKER)
    service(hand, "acked", "w0", 1_100, broker="broker-b", node="broker-b-0")
    service(hand, "acked", "w1", 1_150, broker=BROKER, node=SLAVE, outcome="unknown", error="answer 14")
    service(hand, "decide", "x0", 1_100, value="commit", by="end", node=MASTER)
    service(hand, "decide", "x1", 1_110, value="commit", by="end", node=SLAVE, outcome="unknown")
    service(hand, "timer-due", "t-1", 1_200, broker="broker-b", **by)
    service(hand, "decide", "x2", 1_300, value="rollback", by="check", node=SLAVE)
    service(hand, "acked", "w2", 1_400, broker=BROKER, node=SLAVE)
    derive(hand.history)
    found = {stage.name: (stage.after_ms, stage.more) for stage in stages(hand.history)}
    assert found == {
        "timer released": (200, "t-1, by broker-a:1, put on broker-b"),
        "transaction resolved": (300, f"x2: rollback by check, confirmed by {SLAVE}"),
        "pop ack accepted": (400, f"w2, by {SLAVE}"),
    }


def test_a_committed_message_that_escaped_was_resolved_by_another_broker():
    hand = service(Hand().fault(), "visible", "x3", 1_250, broker="broker-b", escaped_by="broker-a:1")
    derive(hand.history)
    assert hand.history.event_ms(names.CHECKED) == 1_250
    # While a slave is broken, its master resolves transactions and takes acks as before.
    hand = Hand().fault(node=SLAVE)
    service(hand, "decide", "x4", 1_250, value="commit", by="end", node=MASTER)
    service(hand, "acked", "w3", 1_250, broker=BROKER, node=MASTER)
    derive(hand.history)
    assert not stages(hand.history)


def test_rows_of_services_are_in_stories():
    hand = Hand()
    service(hand, "timer", "k", 10, complete_ms=13, due_ms=1_010)
    service(hand, "recall", "k", 20, complete_ms=22, outcome="unknown", error="no answer")
    service(hand, "half", "k", 30, complete_ms=33, local="dies", decision="commit")
    service(hand, "decide", "k", 40, complete_ms=42, value="commit", by="check", node=SLAVE)
    service(hand, "visible", "k", 50, broker="broker-b", queue=1, offset=2, group="g", escaped_by="broker-a:1")
    popped = {"node": MASTER, "pop_ms": 58, "invisible_ms": 3_000, "attempt": 1}
    service(hand, "popped", "k", 60, broker=BROKER, queue=0, offset=7, **popped)
    service(hand, "acked", "k", 70, complete_ms=71, node=MASTER)
    assert [line(row) for row in hand.history.story("k")] == [
        "someone: send of a timer that is due at 1010 ms ended ok after 3 ms",
        "someone: recall ended unknown after 2 ms: no answer",
        "someone: send of a half message ended ok after 3 ms; the local transaction says dies, its record commit",
        "someone: commit to the check of broker-a-1 ended ok after 2 ms",
        "someone: delivered to g from broker-b queue 1 offset 2, put there by acting slave broker-a:1",
        "someone: popped from broker-a-0, broker-a queue 0 offset 7, delivery 2; hidden for 3000 ms from 58 ms",
        "someone: ack to broker-a-0 ended ok after 1 ms",
    ]


def test_a_lock_of_the_master_is_no_takeover_while_its_slave_is_broken():
    hand = Hand().fault(node=SLAVE).lock("locker-0", 1_200)
    derive(hand.history)
    assert hand.history.event_ms(names.LOCK_GRANTED) is None
    assert gap_ms(hand.history) is None
    hand = Hand().fault().lock("locker-0", 1_200, node=SLAVE)
    derive(hand.history)
    assert hand.history.event_ms(names.LOCK_GRANTED) == 1_202
    assert gap_ms(hand.history) == 202


def test_the_row_known_in_the_group_has_the_remaining_ids():
    known = next(row for row in told().history.events if row.key == names.ANNOUNCED)
    assert known.value == f"{SLAVE} sees broker ids 1 alive"


def test_a_route_that_never_changed_is_not_registered_again():
    hand = whole()
    hand.history.add("route", client="ns-0", key=MASTER, invoke_ms=0, broker=BROKER, members=[0, 1], writable=True)
    hand.history.add("route", client="ns-0", key=MASTER, invoke_ms=2_500, broker=BROKER, members=[0], writable=True)
    derive(hand.history)
    assert names.REGISTERED not in [row.key for row in hand.history.events]


def test_pre_online_is_seen_by_its_time_when_it_was_over_before_anybody_looked():
    hand = Hand().fault("isolate").role("master/online", 0, until_ms=990).role("", 1_100, until_ms=2_000)
    for at_ms, since_ms in ((0, -5_000), (2_050, -5_000), (2_300, 2_290)):
        told = {"members": [0, 1], "broker_id": 0, "since": since_ms, "why": "it took over"}
        hand.history.add("role", client=MASTER, key="master", value="master/online", invoke_ms=at_ms, broker=BROKER, **told)
    derive(hand.history)
    found = {row.key: (row.invoke_ms, row.value) for row in hand.history.events}
    assert found[names.PRE_ONLINE_DONE] == (2_300, "broker-a-0: it took over")


def verdict(hand):
    promises = [made() for made in PROMISES.values()]
    checked = [
        PromiseResult(each.name, each.text, each.check(hand.history, PLAN)) for each in promises if each.applies(PLAN)
    ]
    return verdict_of(hand.history, checked, node=MASTER, proof="gone", why="")


def test_the_compared_figures_have_stages_and_redelivered_messages():
    hand = told().deliver("a", 0, at_ms=1_600)
    found = measured(hand.history, verdict(hand))
    assert found["fault → lock granted, s"] == 0.202
    assert found["fault's end → registered, s"] == 0.14
    assert found["messages given again at takeover"] == 1
    assert found["delayed messages escaped"] == 1
    shown = verdict_words.figures(hand.history, verdict(hand))
    assert shown["fault → lock granted, s"] == "0.20"
    assert shown["messages given again at takeover"] == "1"


def test_delayed_messages_are_in_stories():
    history = told().history
    assert [line(row) for row in history.story("s") if row.kind != "event"] == [
        "delayer: send with delay level 1 ended ok after 3 ms, due at 1200 ms",
        "delayed-0: delivered to g-delayed from broker-b queue 0 offset 0, put there by acting slave broker-a:1",
    ]


@pytest.mark.parametrize(
    ("values", "low", "high", "at_least"),
    [([3.0], 3, 3, 0.0), ([1.0, 9.0], 1, 9, 0.5), (range(1, 7), 1, 6, 0.95), (range(1, 21), 6, 15, 0.95)],
)
def test_the_interval_of_a_median_is_that_of_order_statistics(values, low, high, at_least):
    found = median_of([*values])
    assert (found.low, found.high, found.runs) == (low, high, len(values))
    assert found.level >= at_least


def test_sides_are_compared_pair_by_pair():
    first = [{"s": 1.0, "x": 3}, {"s": 2.0}, {"s": 3.0}]
    second = [{"s": 1.5}, {"s": 2.5}, {"s": 3.7}]
    by_name = {each.name: each for each in compare(first, second)}
    assert str(by_name["s"].difference) == "0.5 [0.5 – 0.7]"
    assert [str(each) for each in by_name["s"].sides] == ["2 [1 – 3]", "2.5 [1.5 – 3.7]"]
    assert by_name["x"].sides[1] is by_name["x"].difference is None
    assert median_of([]) is None
    assert number(12) == "12"


def test_many_drills_a_side_are_shown_as_medians(tmp_path):
    hand = told()
    done = DrillResult(PLAN, Outcome(verdict(hand)), hand.history, tmp_path)
    rows = {name: cells for name, *cells in drill_output.compared([[done] * 6, [done] * 6])}
    assert rows["verdict"] == ["6 valid", "6 valid", ""]
    assert rows["fault → lock granted, s"] == ["0.2 [0.2 – 0.2]", "0.2 [0.2 – 0.2]", "0 [0 – 0]"]
    document = drill_output.compared_document(["a", "b"], [[done] * 6, [done] * 6])
    assert [len(each) for each in document["drills"].values()] == [6, 6]
    figure = next(each for each in document["figures"] if each["name"] == "fault → lock granted, s")
    assert figure["difference"]["runs"] == 6
    # With one drill per side there are no medians, but each promise's verdict.
    one = {name: cells for name, *cells in drill_output.compared([[done], [done]])}
    assert one["locks-exclusive"] == ["valid", "valid"]
    assert list(drill_output.compared_document(["a", "b"], [[done], [done]])) == ["a", "b"]
