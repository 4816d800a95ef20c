"""Tests how takeovers with pending work are counted and shown."""

from typing import Any

from rmqkit.wire.bodies.pop import ReceiptHandle
from tests.bench.brokers import APACHE, OURS
from tests.bench.takeover.load import Pops, handles
from tests.bench.takeover.page import LINES, page, rows


def counts(**more: Any) -> dict[str, Any]:
    found = dict.fromkeys((each.value for each in LINES), 0)
    return {**found, "timers": 100, "committed": 50, "unacked": 64, "left": 40, "backSeconds": 0.5, **more}


def test_a_row_shows_the_median_and_where_pairs_differ():
    pairs = [
        {OURS: counts(timersDuring=100), APACHE: counts(timersDuring=count, backSeconds=back)}
        for count, back in ((0, None), (7, None), (9, 2.25))
    ]
    found = rows("kill", pairs)
    command = '`make bench-takeover ARGS="--fault kill --pairs 1"`'
    assert found[0] == f"| due timers delivered during the outage | 100 of 100 | 7 of 100 [0–9] | {command} |"
    assert found[-1].startswith(
        "| master takes messages again after its return | 0.5 s [0.5–0.5] | 2.2 s [2.2–2.2]; never in 2 of 3 |"
    )
    figures = {
        "faults": {"kill": pairs},
        "machine": "2 cores.",
        "at": "2026-11-24",
        "timers": {"scan": 500},
        "settings": {},
    }
    text = page(figures)
    assert "Pairs: 3." in text
    assert "SIGSTOP" not in text, "no pair of that fault"
    assert max(len(line) for line in text.splitlines() if not line.startswith("|")) <= 100


def test_each_popped_message_has_a_handle():
    fields = {
        "popTime": "7",
        "invisibleTime": "10000",
        "reviveQid": "3",
        "startOffsetInfo": "0 1 40;1 0 2",
        "msgOffsetInfo": "0 1 40,42;1 0 2",
    }
    assert handles(fields, "a") == [
        ReceiptHandle(40, 7, 10000, 3, "0", "a", 1, 40),
        ReceiptHandle(40, 7, 10000, 3, "0", "a", 1, 42),
        ReceiptHandle(2, 7, 10000, 3, "1", "a", 0, 2),
    ]
    assert handles({"popTime": "7"}, "a") == []


def test_a_delivery_before_the_ack_is_not_given_again():
    pops = Pops.__new__(Pops)
    pops.given = {"once": [1.0], "twice": [1.0, 1.5], "after": [1.0, 3.0], "unacked": [1.0, 9.0]}
    pops.acked = {"once": 2.0, "twice": 2.0, "after": 2.0}
    assert pops.given_after_ack() == 1
    assert pops.given_since(["once", "unacked", "unknown"], 5.0) == 1
