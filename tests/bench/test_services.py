"""Tests the table of the services that are compared with Apache's broker."""

import pytest

from tests.bench.brokers import APACHE, OURS
from tests.bench.rows import CountsDiffer
from tests.bench.services import FIGURES_OF_ROWS, ROWS, _check, section


def pair(factor: float) -> dict[str, dict[str, float]]:
    """A pair in which each of our figures is `factor` times Apache's."""
    values = {each.value for each in FIGURES_OF_ROWS}
    return {side: dict.fromkeys(values, 100 * by) | {"cpuMicros": 5.0} for side, by in ((OURS, factor), (APACHE, 1))}


def test_the_section_has_a_line_for_each_figure_that_was_measured():
    rows = {name: {"at": "2026-11-24T00:00:00+00:00", "pairs": [pair(2), pair(1.5), pair(4)]} for name in ROWS}
    method = {"warm_s": 10.0, "seconds": 6.0, "queues": 8, "jvm": "-Xms1g"}
    text = section({"machine": "2 cores.", "method": method, "rows": rows})
    assert "| pop and ack, 8 workers, 1 KiB | msg/s | 200 | 100 | 2.00 [1.50–4.00] | ≥ 1.2 | yes | 5.0 / 5.0 | 3 |" in text
    assert "| private memory, 10^6 timers wait | MiB | 200 | 100 | 2.00 [1.50–4.00] | ≤ 0.1 | **no** | – | 3 |" in text
    assert max(len(line) for line in text.splitlines() if not line.startswith("|")) <= 100
    del rows["memory"]
    assert "10^6 timers" not in section({"machine": "2 cores.", "method": method, "rows": rows})


def test_counts_that_differ_end_the_run():
    class Running:
        name = OURS

    class OneSession:
        running = Running()

    figure = {"done": 10, "readable": 9, "failed": 0, "firstFailure": ""}
    with pytest.raises(CountsDiffer, match=r"rmqkit, halves: \{'readable': 9\} instead of \{'readable': 10\}"):
        _check(OneSession(), "halves", figure, readable=10)
    _check(OneSession(), "halves", figure, readable=9)
