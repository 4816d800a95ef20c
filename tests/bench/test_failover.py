"""Tests the evaluation of the times that the probe of `failover` measured."""

import pytest

from tests.bench.brokers import APACHE, OURS
from tests.bench.failover import Pairs, median_interval, own, row, section, summary
from tests.bench.rows import FIRST, WARM


def test_stages_after_the_route_count_from_its_change():
    seen = {"route": 2.0, "read": 2.3, "lock": 1.99, "back": 5.0}
    assert own(seen, "route") == 2.0
    assert own(seen, "read") == pytest.approx(0.3)
    assert own(seen, "lock") == 0.0, "another thread saw the route sooner"
    assert own(seen, "back") == 5.0
    assert own(seen, "delayed") is None
    assert own({"read": 1.0}, "read") is None


def test_the_interval_of_a_median_is_made_of_order_statistics():
    assert median_interval(list(range(1, 16))) == (4, 12), "15 pairs: the 4th and the 12th hold 96 %"
    assert median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0), "too few for 95 %: the extremes"


def pairs(ours: dict[str, float], theirs: dict[str, float]) -> Pairs:
    return [{OURS: {FIRST: {"kill": ours}}, APACHE: {FIRST: {"kill": theirs}}}]


def page(found: object) -> str:
    figures = {"at": "2026-01-02T00:00:00", "machine": "2 cores.", "timers": {"scan": 500}, "pairs": found}
    return section(figures)


def test_a_stage_that_one_side_never_reached_has_no_ratio():
    line = row(pairs({"route": 0.1, "back": 1.0}, {"route": 0.1}), FIRST, "kill", "back")
    assert line == "| kill | master back in the route, and takes messages | 1.00 s | never | – | – | – | – | 1 / 0 |"


def test_times_below_the_interval_of_the_probe_count_as_equal():
    line = row(pairs({"route": 0.001}, {"route": 0.019}), FIRST, "kill", "route")
    assert "| 1.00 [1.00–1.00] |" in line


def test_a_stage_has_its_time_since_the_fault_and_since_the_change_of_the_route():
    line = row(pairs({"route": 2.0, "read": 2.5}, {"route": 1.0, "read": 2.0}), FIRST, "kill", "read")
    assert "| 2.50 s | 2.00 s | 1.25 [1.25–1.25] | 0.50 s | 1.00 s | 0.50 [0.50–0.50] | 1 / 1 |" in line


def test_each_regime_has_a_table_of_its_own():
    sides = {
        make: {FIRST: {"kill": {"route": first}}, WARM: {"kill": {"route": warm}}}
        for make, first, warm in ((OURS, 0.5, 0.25), (APACHE, 1.0, 1.25))
    }
    text = page([sides])
    first, warm = text.partition("## Warm")[::2]
    assert "| kill | route changed (detection) | 0.50 s | 1.00 s | 0.50" in first
    assert "| kill | route changed (detection) | 0.25 s | 1.25 s | 0.20" in warm
    assert "run `make bench-failover" not in text
    both = "| 0.50 s | 1.00 s | 0.50 [0.50–0.50] | 0.25 s | 1.25 s | 0.20 [0.20–0.20] |"
    assert f"| kill | route changed (detection) {both}" in summary({"pairs": [sides]})


def test_the_page_names_its_timers_and_how_many_pairs_it_has():
    text = page(pairs({}, {}))
    assert "1 alternating pairs, the same timers on both sides (scan 500 ms). 2 cores. 2026-01-02." in " ".join(
        text.split()
    )
    assert text.count("| never | never | – |") == 10
    assert max(len(line) for line in text.splitlines() if not line.startswith("|")) <= 100


def test_figures_without_a_regime_are_left_out_and_the_page_names_the_command():
    old = [{OURS: {"kill": {"route": 0.1}}, APACHE: {"kill": {"route": 0.1}}}]
    text = page(old)
    assert text.count("run `make bench-failover ARGS=--write`") == 2
    assert "| kill |" not in text
    assert summary({"pairs": old}) == "Not measured yet: run `make bench-failover ARGS=--write`."
