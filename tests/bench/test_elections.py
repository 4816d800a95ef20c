"""Tests the evaluation of the times that `elections` measured."""

from tests.bench.elections import APACHE, OURS, Session, lost_row, row, section


def pair(ours: dict[str, float], theirs: dict[str, float], fault: str = "kill") -> dict[str, Session]:
    return {OURS: {fault: ours}, APACHE: {fault: theirs}}


def test_a_ratio_is_of_each_pair_and_above_the_goal_it_is_bold():
    pairs = [pair({"acked": 1.0}, {"acked": 4.0}), pair({"acked": 2.0}, {"acked": 2.5})]
    line = row(pairs, "kill", "acked")
    assert "| 1.50 s [1.00–2.00] | 3.25 s [2.50–4.00] | **0.53** [0.25–0.80] |" in line
    assert "| 0.25 [0.25–0.25] |" in row(pairs[:1], "kill", "acked")


def test_a_pair_that_one_side_did_not_finish_has_no_ratio_and_is_counted():
    pairs = [pair({"acked": 1.0}, {}), pair({"acked": 1.0}, {"acked": 4.0})]
    assert "| 4.00 s [4.00–4.00], never in 1 | 0.25 [0.25–0.25] |" in row(pairs, "kill", "acked")
    assert row(pairs[:1], "kill", "acked").endswith("| never | – |")


def test_what_is_quicker_than_the_client_sees_is_no_gain():
    assert "| 1.00 [1.00–1.00] |" in row([pair({"served": 0.0}, {"served": 0.019})], "kill", "served")


def test_lost_messages_are_counted_over_all_pairs():
    pairs = [pair({"sent": 10, "lost": 0}, {"sent": 20, "lost": 3}), pair({"sent": 5, "lost": 0}, {"sent": 5, "lost": 1})]
    assert "| 0 of 15 | 4 of 25 |" in lost_row(pairs, "kill")


def test_the_page_names_its_timers_and_pairs():
    known = {"timers": {"brokerHeartbeatInterval": 300}, "pairs": [pair({"acked": 1.0}, {"acked": 4.0})]}
    page = section({"at": "2026-01-02T00:00:00", "machine": "2 cores.", "sets": {"fast": known}})
    assert "1 alternating pair. Timers in ms: `brokerHeartbeatInterval` 300." in page
    assert "made this page. 2 cores. 2026-01-02." in page
