"""Simulated drills of every family (`make simulate`); `rmqkit drill simulate` does those of one.

The last line is the verdict of all seeds. Exit codes: 0 valid, 1 a promise is broken, 4 inconclusive.

python -m tools.drills.simulate --seeds 2000                      # of each family; of 3 x 3 one in twenty
python -m tools.drills.simulate --family acting --from 4711 --seeds 1
python -m tools.drills.simulate --break all                       # plant each defect until its promise finds it
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rmqkit.drill.defects import table
from rmqkit.drill.promises.contract import Judgement
from rmqkit.drill.simulation import FAMILIES, WORKERS, SeedResult, exit_code, find, many, summary, tell
from rmqkit.drill.verdict import EXIT_CODES

#: seeds in which a planted defect must be found
FIND_WITHIN = 200


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.drills.simulate")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--from", type=int, default=1, dest="first")
    parser.add_argument("--family", default="", choices=["", *FAMILIES], help="which kind of plans; else each of them")
    parser.add_argument("--mode", default="", help="of all seeds, instead of the drawn ones")
    parser.add_argument(
        "--break", default="", dest="defect", help="plant this defect (all: one after another), until found"
    )
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--verbose", action="store_true", help="a line for each seed")
    given = parser.parse_args(argv)
    if given.defect:
        return _find_all(given.defect, range(given.first, given.first + FIND_WITHIN), given.mode)
    ends = []
    for family in [given.family] if given.family else FAMILIES:
        # Nine brokers cost as much as several drills of four.
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
    """The seeds that are not valid, one a line, and the verdict of all as the last line."""
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
