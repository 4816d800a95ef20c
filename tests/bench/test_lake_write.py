"""Tests the rendered section on ingests."""

from tests.bench.lake_write import section, table

RATES = {"delta": [100_000.0, 120_000.0, 90_000.0], "old": [50_000.0, 80_000.0, 60_000.0]}


def test_a_line_for_each_contender_with_the_ratio_of_each_round():
    lines = table(RATES).splitlines()
    assert lines[2] == "| `pipeline ingest`: a Delta table | 100,000 | 102 | – |"
    assert lines[3].endswith("| 60,000 | 61 | 1.50 [1.50–2.00] |")


def test_the_section_names_size_and_rounds():
    text = section({"machine": "2 cores.", "at": "2026-11-27T00:00:00+00:00", "messages": 600_000, "rates": RATES})
    assert "600,000 messages of 1 KiB" in text
    assert "medians of 3" in text
    assert "2 cores. 2026-11-27." in text
