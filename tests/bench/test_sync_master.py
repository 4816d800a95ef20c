"""Tests the rendered section on masters that wait for a slave."""

from typing import Any

from tests.bench.brokers import APACHE, OURS
from tests.bench.rows import FIRST, WARM
from tests.bench.sync_master import ROWS, section

AT = {"at": "2026-11-22T00:00:00+00:00"}


def pairs(*rates: float) -> list[dict[str, dict[str, float]]]:
    def figure(rate: float) -> dict[str, float]:
        return {"perSecond": rate, "cpuMicros": 5.0, "megabytes": 120.0, "wholeSeconds": 1.2, "readableSeconds": 3.4}

    return [{OURS: figure(rate), APACHE: figure(200)} for rate in rates]


def figures(rows: dict[str, Any]) -> dict[str, Any]:
    return {"machine": "2 cores.", "method": {"seconds": 6.0, "warm_after_s": 60.0}, "rows": rows}


def test_each_regime_has_its_ratio_and_rates_are_those_of_the_warm_group():
    text = section(figures({"sync-64": {**AT, FIRST: pairs(300, 400, 500), WARM: pairs(180, 190, 260)}}))
    ratios = "2.00 [1.50–2.50], goal ≥ 1 | **0.95** [0.90–1.30], goal ≥ 1"
    assert f"| 64 threads, 1 KiB, two copies | msg/s | 190 | 200 | {ratios} | 5.0 / 5.0 | – / – | 3 |" in text
    assert "Below a goal: 64 threads, 1 KiB, two copies (warm 0.95)." in text
    assert "a wiped slave catches up" not in text


def test_the_copy_to_a_wiped_slave_has_no_warm_figure():
    assert ROWS["catch-up"].regime == FIRST
    text = section(figures({"catch-up": {**AT, FIRST: pairs(500)}}))
    assert "| 500 | 200 | 2.50 [2.50–2.50], goal ≥ 1 | – |" in text
    assert "can be read from the slave's queues | 3.4 s (rmqkit) and 3.4 s (apache)" in text


def test_figures_without_a_regime_are_left_out_and_the_page_names_the_command():
    rows = {"sync-1": {**AT, "pairs": pairs(300)}, "sync-64": {**AT, FIRST: pairs(300), WARM: pairs(300)}}
    text = section(figures(rows))
    assert "| 64 threads, 1 KiB, two copies |" in text
    assert "| 1 thread, 1 KiB, two copies |" not in text
    remark = "left out (1 thread, 1 KiB, two copies): run `make bench-replicas ARGS=--write`"
    assert remark in " ".join(text.split())
