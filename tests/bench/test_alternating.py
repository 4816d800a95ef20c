"""Tests `alternating`: two checkouts are measured alternately, and the minimum of each decides."""

from pathlib import Path

import pytest

from tests.bench import alternating
from tests.bench.alternating import HERE, Comparison, compare, parse, run

OTHER = Path("/other")


def test_the_first_place_alternates() -> None:
    asked: list[Path] = []

    def measure(checkout: Path, load: str) -> float:
        asked.append(checkout)
        return 2.0 if checkout == HERE else 4.0

    found = compare(OTHER, "send", 3, measure)
    assert asked == [OTHER, HERE, HERE, OTHER, OTHER, HERE]
    assert found == Comparison("send", [2.0] * 3, [4.0] * 3)
    assert found.ratio == 0.5


@pytest.mark.parametrize(("ours", "code"), [(10.2, 0), (10.4, 1)])
def test_a_load_that_is_slower_than_the_limit_fails(ours: float, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    times = {"send": ours, "pull": 9.0}

    def measure(checkout: Path, load: str) -> float:
        return times[load] if checkout == HERE else 10.0

    assert run(OTHER, ["send", "pull"], 3, 3, measure) == code
    printed = capsys.readouterr().out
    assert f"{ours / 10:.3f} [{ours / 10:.3f}-{ours / 10:.3f}]" in printed
    assert ("slower by more than 3 %: send" in printed) == bool(code)


def test_one_outlier_among_the_pairs_does_not_change_the_ratio() -> None:
    found = Comparison("send", [10.0, 10.0, 20.0], [10.0, 10.0, 10.0])
    assert found.ratio == 1.0
    assert "1.000 [1.000-2.000]" in found.line()
    assert Comparison("send", [11.0, 30.0], [20.0, 10.0]).ratio == 1.1


def test_the_bench_s_own_line_is_read() -> None:
    assert parse("    send     9.55 µs a message\n    pull     1.45 µs a message\n", "pull") == 1.45
    with pytest.raises(ValueError, match="no figure of hold"):
        parse("    send     9.55 µs a message\n", "hold")


@pytest.mark.long
def test_a_checkout_measures_its_own_code() -> None:
    assert alternating.measure_with(["--rounds", "1"])(HERE, "single") > 0
