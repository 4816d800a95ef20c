"""Tests the rendered section on masters that wait for a slave."""

from tests.bench.brokers import APACHE, OURS
from tests.bench.sync_master import ROWS, section


def test_the_section_has_a_line_for_each_row_that_was_measured():
    def figure(rate: float) -> dict[str, float]:
        return {"perSecond": rate, "cpuMicros": 5.0, "megabytes": 120.0, "wholeSeconds": 1.2, "readableSeconds": 3.4}

    pairs = [{OURS: figure(300 + 100 * number), APACHE: figure(200)} for number in range(3)]
    rows = {name: {"at": "2026-11-22T00:00:00+00:00", "pairs": pairs} for name in ROWS}
    figures = {"machine": "2 cores.", "method": {"seconds": 6.0, "warm_s": 10.0}, "rows": rows}
    text = section(figures)
    assert "| 64 threads, 1 KiB, two copies | msg/s | 400 | 200 | 2.00 [1.50–2.50] | ≥ 1 | yes | 5.0 / 5.0 | 3 |" in text
    assert "can be read from the slave's queues | 3.4 s (rmqkit) and 3.4 s (apache)" in text
    del rows["catch-up"]
    assert "a wiped slave catches up" not in section(figures)
