"""Runs simulated drills of every family (`make simulate`); `rmqkit drill simulate` runs one family.

    python -m tools.drills.simulate --seeds 2000     # per family; acting-3x3 gets a 20th of them
    python -m tools.drills.simulate --family acting --from 4711 --seeds 1
    python -m tools.drills.simulate --break all      # plant each defect until its promise finds it

The last line is the verdict of all seeds. Exit codes: 0 valid, 1 a promise is broken, 4
inconclusive.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rmqkit.drill.defects import table
from rmqkit.drill.promises.contract import Judgement
from rmqkit.drill.simulation import FAMILIES, WORKERS, SeedResult, exit_code, find, many, summary, tell
from rmqkit.drill.verdict import EXIT_CODES

#: maximum number of seeds within which a planted defect must be found; the rarest one needs 208
FIND_WITHIN = 400


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.drills.simulate")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--from", type=int, default=1, dest="first")
    parser.add_argument("--family", default="", choices=["", *FAMILIES], help="run only plans of this family")
    parser.add_argument("--mode", default="", help="use this mode for all seeds instead of drawing one")
    parser.add_argument(
        "--break", default="", dest="defect", help="plant this defect (all: one after another) until it is found"
    )
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--verbose", action="store_true", help="print a line for each seed")
    given = parser.parse_args(argv)
    if given.defect:
        return _find_all(given.defect, range(given.first, given.first + FIND_WITHIN), given.mode)
    ends = []
    for family in [given.family] if given.family else FAMILIES:
        # One drill of nine brokers costs as much as several drills of four.
        count = given.seeds if given.family else max(1, given.seeds // FAMILIES[family].costs)
        those = []
        for done in many(range(given.first, given.first + count), given.mode, workers=given.workers, family=family):
            those.append(done)
            tell(done, lambda line: print(line, flush=True), verbose=given.verbose, mode=given.mode)
        print(f"{family}: {summary(those)}", flush=True)
        ends += those
    print("\n".join(verdict(ends)), flush=True)
    return exit_code(ends)


def verdict(ends: Sequence[SeedResult]) -> list[str]:
    """Return a line per seed that is not valid; the last line is the verdict of all seeds."""
    bad = [done for done in ends if done.judgement is not Judgement.VALID]
    lines = [f"  {done.family} seed {done.seed}: {done.judgement} {', '.join(done.broken) or done.why}" for done in bad]
    code = exit_code(ends)
    judgement = next(each for each, meant in EXIT_CODES.items() if meant == code)
    heading = ["not valid:"] if bad else []
    return [*heading, *lines, f"{len(ends)} seeds, {len(ends) - len(bad)} of them valid: {judgement}, exit {code}"]


def _find_all(defect: str, seeds: Sequence[int], mode: str) -> int:
    missed = 0
    for name in table.DEFECTS if defect == "all" else [defect]:
        count, done = find(name, seeds, mode)
        missed += done is None
        found = f"{count} seeds, {table.DEFECTS[name].promise}, seed {done.seed}" if done else f"not in {count} seeds"
        print(f"{name}: {found}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
