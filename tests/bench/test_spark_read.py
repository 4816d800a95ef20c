"""Tests the rendered section on reading topics with Spark."""

from tests.bench.spark_read import CONTENDERS, ROWS, section, table


def figures(rate: float) -> dict[str, float]:
    return {"perSecond": rate, "brokerMicros": 1.25, "pythonMicros": 4.0, "jvmMicros": 2.5}


def test_a_line_for_each_contender_and_the_ratio_of_each_round():
    rates = {"arrow": 300_000.0, "tuples": 150_000.0, "consumer": 100_000.0, "parquet": 600_000.0, "tuned": 400_000.0}
    rates["prebuilt"] = 500_000.0
    rounds = [{name: figures(rate * factor) for name, rate in rates.items()} for factor in (1.0, 1.5, 2.0)]
    rounds[0]["tuples"] = figures(300_000.0)
    known = dict.fromkeys(ROWS, rounds)
    lines = table(known).splitlines()
    assert len(lines) == 2 + len(ROWS) * len(CONTENDERS)
    assert lines[2] == "| 1 KiB | `rocketmq`, Arrow batches | 450,000 | 461 | – | – | – | 1.2 / 4.0 / 2.5 |"
    assert lines[3].startswith(
        "| 1 KiB | *tuples*: one tuple per message | 300,000 | 307 | 2.00 [1.00–2.00] | ≥ 1.5 | yes |"
    )
    assert "| *Parquet*, uncompressed | 900,000 | 922 | 0.50 [0.50–0.50] | ≥ 0.6 | **no** |" in lines[5]
    text = section({"machine": "2 cores.", "at": "2026-11-22T00:00:00+00:00", "rows": known})
    assert "medians of 3 rounds" in text
    assert "- 1 KiB: *prebuilt* has 0.83 of Parquet's rate, and the Arrow reader 0.60 of *prebuilt*'s." in text
    assert "2 cores. 2026-11-22." in text
