"""Runs the loads of `inprocess.py` in two checkouts alternately and compares the cost per message.

Each measurement is a separate process, in which a checkout runs its own bench on its own code. A
pair measures both checkouts with one load. The order alternates from pair to pair, so that a
machine that becomes slower or faster favours neither. The result is the ratio of the minimum of
each, because other processes can only add time. The median and range of the pairs' ratios show how
quiet the machine was. If they are far apart, the ratio means little.
"""

import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parents[2]
_LINE = re.compile(r"^ *(?P<load>\w+) +(?P<us>[\d.]+) µs a message$", re.M)

#: (checkout, load) → µs a message
Measure = Callable[[Path, str], float]


class Comparison(NamedTuple):
    """µs per message of both checkouts, pair by pair."""

    load: str
    ours: Sequence[float]
    theirs: Sequence[float]

    @property
    def ratios(self) -> list[float]:
        return [ours / theirs for ours, theirs in zip(self.ours, self.theirs, strict=True)]

    @property
    def ratio(self) -> float:
        return min(self.ours) / min(self.theirs)

    def line(self) -> str:
        ratios = self.ratios
        spread = f"{statistics.median(ratios):.3f} [{min(ratios):.3f}-{max(ratios):.3f}]"
        return f"{self.load:>8} {min(self.ours):9.2f} {min(self.theirs):9.2f} {self.ratio:7.3f}   {spread}"


HEAD = f"{'load':>8} {'this, µs':>9} {'other, µs':>9}   ratio   of pairs: median [lowest-highest]"


def measure_with(options: Sequence[str]) -> Measure:
    """Run the bench of a checkout in a process; `options` are those of `inprocess.py`."""

    def measure(checkout: Path, load: str) -> float:
        command = [sys.executable, "-m", "tests.bench.inprocess", load, *options]
        # PYTHONPATH takes precedence over the installed package, which is one of the two checkouts.
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        ran = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)
        if ran.returncode:
            raise SystemExit(f"the bench of {checkout} failed:\n{ran.stderr}")
        return parse(ran.stdout, load)

    return measure


def parse(output: str, load: str) -> float:
    """Return µs per message. Raises ValueError if the output has no line of the load."""
    for found in _LINE.finditer(output):
        if found["load"] == load:
            return float(found["us"])
    raise ValueError(f"no figure of {load} in {output!r}")


def compare(other: Path, load: str, pairs: int, measure: Measure) -> Comparison:
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(pairs):
        turns = [(HERE, ours), (other, theirs)]
        for checkout, found in turns if number % 2 else reversed(turns):
            found.append(measure(checkout, load))
    return Comparison(load, ours, theirs)


def slower(found: Sequence[Comparison], limit_percent: float) -> list[str]:
    """Return the loads that are slower in this checkout by more than the limit."""
    return [each.load for each in found if each.ratio > 1 + limit_percent / 100]


def run(other: Path, loads: Sequence[str], pairs: int, limit_percent: float, measure: Measure) -> int:
    """Print a line per load. Return 1 if a load is slower than the limit allows, else 0."""
    print(HEAD, flush=True)
    found = []
    for load in loads:
        found.append(compare(other, load, pairs, measure))
        print(found[-1].line(), flush=True)
    over = slower(found, limit_percent)
    if over:
        print(f"slower by more than {limit_percent:g} %: {', '.join(over)}")
    return 1 if over else 0
