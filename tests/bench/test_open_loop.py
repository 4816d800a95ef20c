"""Tests what the latency bench makes of its figures."""

from pathlib import Path

from tests.bench import open_loop
from tests.bench.brokers import APACHE, OURS


def steps(p999_ms: dict[int, float], saturated: int = 0) -> dict[str, dict[str, float]]:
    found = {str(rate): {"perSecond": rate, "p50Ms": 1.0, "p99Ms": 2.0, "p999Ms": ms} for rate, ms in p999_ms.items()}
    if saturated:
        found[str(saturated)] = {"perSecond": saturated * 0.9, "p50Ms": 900.0, "p99Ms": 900.0, "p999Ms": 900.0}
    return found


def figures() -> dict[str, object]:
    first = {OURS: steps({1000: 2, 5000: 3, 10000: 4}), APACHE: steps({1000: 8, 5000: 10, 10000: 12})}
    second = {OURS: steps({1000: 4, 5000: 3}, saturated=10000), APACHE: steps({1000: 8, 5000: 20, 10000: 12})}
    method = {"warm_s": 1.0, "lead_s": 1.0, "seconds": 4.0, "queues": 8, "jvm": "-Xmx1g"}
    return {"at": "2026-01-01T00:00:00", "machine": "2 cores.", "method": method, "pairs": [first, second]}


def test_a_rate_counts_if_every_pair_delivers_it() -> None:
    pairs = figures()["pairs"]
    assert isinstance(pairs, list)
    assert {rate: each["p999Ms"] for rate, each in open_loop.medians(pairs, OURS).items()} == {1000: 3, 5000: 3}
    assert max(open_loop.medians(pairs, APACHE)) == 10000


def test_the_verdict_is_at_half_of_the_lower_peak() -> None:
    text = " ".join(open_loop.section(figures()).split())
    assert "| 10,000 | – | 1 / 2 / 12 |" in text
    # rmqkit's peak is 5,000, so half of it allows the step of 1,000.
    assert "At 1,000 messages a second" in text
    assert "is 0.38 [0.25–0.50]" in text


def test_the_plot_is_the_same_for_the_same_figures(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        open_loop.draw(figures(), tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert b"rmqkit, p99.9" in (tmp_path / "a.svg").read_bytes()
