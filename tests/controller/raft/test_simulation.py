"""Simulated groups: seeds that hold, and planted defects that do not stay hidden.

`python -m tools.drills.raft` runs more seeds.
"""

import pytest

from tools.drills.raft.__main__ import find
from tools.drills.raft.checks import CHECKS
from tools.drills.raft.defects import DEFECTS, FIND_WITHIN
from tools.drills.raft.simulation import Simulation, run_seed

#: seeds of every run, in parts that the workers share; the others are for `make test-long`
SEEDS, PARTS = 40, 4
LONG_SEEDS, LONG_PARTS = 600, 12
#: defects that one of the first seeds finds
EARLY = (
    "vote-for-any-log",
    "no-pre-vote",
    "minority-commits",
    "commit-beyond-agreement",
    "read-without-quorum",
    "lost-vote-file",
    "compaction-drops-tail",
)


def run(seeds: range) -> None:
    ends = [run_seed(seed) for seed in seeds]
    assert [(end.seed, end.text) for end in ends if end.broken] == []
    # A group that does nothing breaks nothing either.
    assert min(sum(each) for each in zip(*(end[3:] for end in ends), strict=True)) > len(seeds) // 2


@pytest.mark.parametrize("part", range(PARTS))
def test_seeds(part):
    run(range(1 + part, 1 + SEEDS, PARTS))


@pytest.mark.long
@pytest.mark.parametrize("part", range(LONG_PARTS))
def test_more_seeds(part):
    run(range(1 + SEEDS + part, 1 + SEEDS + LONG_SEEDS, LONG_PARTS))


def test_a_seed_is_repeatable():
    assert run_seed(7) == run_seed(7)


@pytest.mark.parametrize("name", [pytest.param(each, marks=() if each in EARLY else pytest.mark.long) for each in DEFECTS])
def test_each_defect_is_found(name, monkeypatch):
    monkeypatch.undo()  # a planted defect breaks the invariants that are checked after each test
    _, count, end = find(name)
    assert end is not None, f"{name}: no seed of {FIND_WITHIN} found it"
    assert end.broken in DEFECTS[name].checks
    assert count <= FIND_WITHIN


def test_each_row_names_checks_that_exist():
    for row in DEFECTS.values():
        assert row.checks
        assert set(row.checks) <= set(CHECKS), row.name
        assert (row.plant is None) != (row.plant_storage is None)


def test_a_wrong_check_would_be_noticed():
    """Each check but those that only back up others is needed for some defect."""
    needed = {check for row in DEFECTS.values() for check in row.checks}
    assert set(CHECKS) - needed == {"recovers"}


@pytest.mark.parametrize("slow_ms", [(1, 2), (300, 500), (800, 1500)])
def test_slow_disks_delay_an_election_and_do_not_prevent_it(slow_ms):
    """With time-outs that never grow, no seed elected a leader with the slow ones."""
    group = next(each for each in map(Simulation, range(100)) if len(each.ids) == 3)
    group.election_timeout_ms, group.disk_us = 500, (slow_ms[0] * 1000, slow_ms[1] * 1000)
    group.loss = group.repeats = group.stragglers = 0.0
    for machine in group.machines:
        machine.start()
    assert group.run_for(30_000, lambda: any(each.log.leadership.is_self for each in group.machines))
