"""Runs seeds of the simulated Raft group, in one process per processor.

    python -m tools.drills.raft --seeds 10000
    python -m tools.drills.raft --from 4711 --seeds 1
    python -m tools.drills.raft --break all     # each planted defect, until a check finds it

Each seed that breaks a check is printed with the check; the last line sums up. The exit code is 0
if every seed holds, or if every planted defect was found, and 1 otherwise.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat

from tools.drills.raft.defects import DEFECTS, FIND_WITHIN
from tools.drills.raft.simulation import SeedEnd, run_seed

WORKERS = 2
#: seeds that a worker gets at once
CHUNK = 10
#: seeds between two lines of progress
TOLD_EVERY = 1000


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.drills.raft")
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--from", type=int, default=1, dest="first")
    parser.add_argument("--break", default="", dest="defect", choices=["", "all", *DEFECTS], help="plant this defect")
    parser.add_argument("--workers", type=int, default=WORKERS)
    given = parser.parse_args(argv)
    began_s = time.monotonic()
    with ProcessPoolExecutor(given.workers) as pool:
        if given.defect:
            names = list(DEFECTS) if given.defect == "all" else [given.defect]
            return _tell_found(pool.map(find, names, repeat(given.first)))
        seeds = range(given.first, given.first + given.seeds)
        return _tell_ends(pool.map(run_seed, seeds, chunksize=CHUNK), began_s)


def find(name: str, first: int = 1) -> tuple[str, int, SeedEnd | None]:
    """Plant a defect in seed after seed until one of its checks finds it.

    Return its name, the number of seeds, and the seed that found it, None if none did.
    """
    for number in range(FIND_WITHIN):
        end = run_seed(first + number, name)
        if end.broken in DEFECTS[name].checks:
            return name, number + 1, end
    return name, FIND_WITHIN, None


def _tell_found(found: Iterable[tuple[str, int, SeedEnd | None]]) -> int:
    missed = 0
    for name, count, end in found:
        missed += end is None
        print(f"{name}: {count} seeds, {end.text}" if end else f"{name}: not in {count} seeds", flush=True)
    return 1 if missed else 0


def _tell_ends(ends: Iterable[SeedEnd], began_s: float) -> int:
    broken: list[int] = []
    seeds = turns = elections = committed = faults = snapshots = 0
    for end in ends:
        seeds += 1
        turns, elections, committed = turns + end.turns, elections + end.elections, committed + end.committed
        faults, snapshots = faults + end.faults, snapshots + end.snapshots
        if end.broken:
            broken.append(end.seed)
            print(f"seed {end.seed}: {end.text}", flush=True)
        if seeds % TOLD_EVERY == 0:
            print(f"{seeds} seeds, {time.monotonic() - began_s:.0f} s", flush=True)
    print(
        f"{seeds} seeds in {time.monotonic() - began_s:.0f} s: {turns} turns, {faults} faults, {elections} elections, "
        f"{committed} entries committed, {snapshots} snapshots restored; {len(broken)} seeds broken {broken[:20]}",
        flush=True,
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
