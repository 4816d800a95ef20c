"""Tests the page that is rendered from stored figures."""

from pathlib import Path

from tests.bench import figures as kept
from tests.bench.brokers import APACHE, OURS
from tests.bench.rows import FIRST, ROWS, WARM


def pair(ours: float, apache: float, value: str = "perSecond") -> dict[str, dict[str, float]]:
    return {
        OURS: {value: ours, "cpuMicros": 10.0, "clientMicros": 20.0},
        APACHE: {value: apache, "cpuMicros": 30.0, "clientMicros": 21.0},
    }


def test_a_ratio_is_the_median_of_the_pairs() -> None:
    pairs = [pair(200, 100), pair(300, 100), pair(150, 100)]
    assert kept.ratios(pairs, "perSecond") == [2.0, 3.0, 1.5]
    line = kept.row_line(ROWS["sync-8"], {FIRST: pairs})
    rate = "| 200 | 100 | 2.00 [1.50–3.00], goal ≥ 1.8 | – |"
    cpu = " 10.0 / 30.0 = 0.33, goal ≤ 0.5 | 20.0 / 21.0 | 3 |"
    assert rate + cpu in line


def test_each_regime_has_a_ratio_and_a_goal_of_its_own() -> None:
    line = kept.row_line(ROWS["sync-8"], {FIRST: [pair(170, 100)], WARM: [pair(140, 100), pair(130, 100)]})
    assert "| 135 | 100 | **1.70** [1.70–1.70], goal ≥ 1.8 | 1.35 [1.30–1.40], goal ≥ 1.3 |" in line


def test_cpu_above_its_goal_is_marked() -> None:
    slow = {OURS: {"perSecond": 1.0, "cpuMicros": 9.3}, APACHE: {"perSecond": 1.0, "cpuMicros": 6.4}}
    assert "| 9.3 / 6.4 = **1.45**, goal ≤ 1 |" in kept.row_line(ROWS["batch"], {WARM: [slow]})


def test_the_page_names_each_row_that_misses_a_goal() -> None:
    cheap, dear = {"perSecond": 150.0, "cpuMicros": 10.0}, {"perSecond": 150.0, "cpuMicros": 60.0}
    apache = {"perSecond": 100.0, "cpuMicros": 100.0}
    rows = {
        "drain": {FIRST: [pair(120, 100)], WARM: [pair(160, 100)]},
        "async": {FIRST: [pair(160, 100)], WARM: [{OURS: dear, APACHE: apache}]},
        "sync-1": {FIRST: [pair(130, 100)], WARM: [{OURS: cheap, APACHE: apache}]},
        "start-up": {FIRST: [pair(1.0, 4.0, "seconds")]},
    }
    assert kept.missed_text(ROWS, rows) == (
        "Below a goal: async, 1024 in flight, 1 KiB (CPU 0.60); drain of 300,000 × 1 KiB (first minute 1.20);"
        " start-up to the first acknowledged send (first minute 0.25)."
    )
    assert kept.missed_text(ROWS, {"sync-1": rows["sync-1"]}) == "All rows reach their goals."


def test_less_is_better_where_the_row_says_so() -> None:
    assert ROWS["start-up"].less
    line = kept.row_line(ROWS["start-up"], {FIRST: [pair(1.0, 4.0, "seconds")]})
    assert "| **0.25** [0.25–0.25], goal ≤ 0.2 | – |" in line
    line = kept.row_line(ROWS["start-up"], {FIRST: [pair(1.0, 5.0, "seconds")]})
    assert "| 0.20 [0.20–0.20], goal ≤ 0.2 | – |" in line


def test_rows_are_kept_one_by_one_and_the_page_has_all_of_them(tmp_path: Path) -> None:
    path = tmp_path / "performance" / "figures.json"
    known = kept.load(path)
    known["rows"]["sync-1"] = {"at": "2026-01-01T00:00:00+00:00", FIRST: [pair(5, 4)]}
    kept.save(path, known)
    known = kept.load(path)
    known["rows"]["batch"] = {"at": "2026-01-02T00:00:00+00:00", FIRST: [pair(9, 10)]}
    kept.save(path, known)
    (path.parent / "profile.md").write_text("# Where the time goes\n")
    page = kept.render(kept.load(path), path.parent)
    assert ROWS["sync-1"].title in page
    assert ROWS["batch"].title in page
    assert "Rows of 2026-01-01 to 2026-01-02." in page
    assert page.endswith("## Where the time goes\n")
