"""Simulated drills: seeds that once failed, a few fixed ones, one hash per seed, found defects."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rmqkit.drill import simulation
from rmqkit.drill.defects.table import DEFECTS
from rmqkit.drill.plan import Mode
from rmqkit.drill.promises.contract import Judgement
from rmqkit.drill.promises.table import Harm
from rmqkit.drill.sim.faults import SERIES
from rmqkit.drill.sim.plans import fault_of_plan, plan_of_seed, rewinds
from tools.drills import simulate

#: seeds that once failed, each with the reason
KEPT = tomllib.loads((Path(__file__).parents[1] / "seeds.toml").read_text())["seeds"]
HANDFUL = (1, 2)
MORE = range(3, 6)
#: defect -> a seed that finds it quickly
FOUND = {
    "ack-before-sync": 6,
    "ack-before-replication": 23,
    "acks-by-connection": 23,
    "recovery-cuts": 5,
    "truncate-in-memory": 38,
    "confirm-not-reset": 10,
    "slave-differs": 1,
    "skip-delivery": 1,
    "reorder": 2,
    "lost-queue-tail": 5,
    "offsets-backwards": 3,
    "no-comeback": 5,
}


@pytest.mark.parametrize(
    ("family", "seed"),
    [
        *[(simulation.REPLICAS, seed) for seed in HANDFUL],
        *[pytest.param(simulation.REPLICAS, seed, marks=pytest.mark.long) for seed in MORE],
        *[(each.get("family", simulation.REPLICAS), each["seed"]) for each in KEPT],
    ],
)
def test_a_seed_keeps_every_promise(family, seed):
    done = simulation.simulate(seed, family=family)
    assert done.judgement is Judgement.VALID, f"{done.plan}\n{done.why}\n{done.story}"
    assert done.sends > 0


@pytest.mark.parametrize(("defect", "seed"), FOUND.items(), ids=str)
def test_a_planted_defect_is_found_by_its_promise(defect, seed):
    done = simulation.simulate(seed, breaks=(defect,))
    assert DEFECTS[defect].promise in done.broken, done.plan
    assert done.judgement is Judgement.BROKEN
    assert done.story


def test_the_same_seed_does_the_same_in_another_process():
    seed = HANDFUL[0]
    program = f"from rmqkit.drill.simulation import simulate; print(simulate({seed}).hash)"
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    other = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert simulation.simulate(seed).hash == other.stdout.strip()


def test_a_seed_leaves_nothing_of_its_world():
    # In a process of its own: the fixture `valid_flows` keeps the flows of each test.
    program = """
import gc
from rmqkit.broker.node import Broker
from rmqkit.drill.simulation import simulate
from rmqkit.sim.world import World
gc.disable()
simulate(2)
simulate(2, family="timers")
print(sum(type(each) in (World, Broker) for each in gc.get_objects()))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "0"


def test_a_mode_wins_over_the_drawn_one():
    assert plan_of_seed(3, mode="sync+sync-flush").mode == Mode.parse("sync+sync-flush")


def test_a_series_breaks_power_and_disks_of_one_node_alone():
    seen = 0
    for seed in range(200):
        plan = plan_of_seed(seed)
        if plan.fault == SERIES:
            _, fault = fault_of_plan(plan)
            hit = {step.node for step in fault.steps if step.fault.harm in (Harm.POWER_CUT, Harm.DISK_LOSS)}
            assert len(hit) <= 1
            seen += len(hit)
    assert seen > 20


def test_promises_about_places_are_judged_where_a_master_forgets_nothing():
    assert not rewinds(Mode.parse("quorum+sync-flush"), [(Harm.POWER_CUT, True), (Harm.DISK_LOSS, False)])
    assert rewinds(Mode.parse("quorum+async-flush"), [(Harm.POWER_CUT, True)])
    assert rewinds(Mode.parse("quorum+sync-flush"), [(Harm.DISK_LOSS, True)])
    assert not rewinds(Mode.parse("async"), [(Harm.KILL, True), (Harm.ISOLATE, True)])


def test_an_exception_out_of_a_node_is_told(monkeypatch):
    from rmqkit.broker.puts.puts import Puts

    def fails(*args, **more):
        raise AssertionError("an invariant is broken")

    monkeypatch.setattr(Puts, "_await", fails)
    done = simulation.simulate(1)
    assert done.broken == (simulation.CRASHED,)
    assert "an invariant is broken" in done.story
    assert "in node broker-a-0" in done.story


def test_what_many_seeds_came_to(capsys):
    assert simulate.main(["--family", "replicas", "--seeds", "1", "--from", "2", "--verbose"]) == 0
    told = capsys.readouterr().out
    assert "seed 2: valid" in told
    assert "1 seed: 1 valid" in told
    assert told.splitlines()[-1] == "1 seeds, 1 of them valid: valid, exit 0"


def test_the_last_line_of_many_seeds_is_the_verdict_of_all():
    def end(seed, judgement, **more):
        found = dict.fromkeys(simulation.SeedResult._fields, "")
        found |= {"seed": seed, "family": "acting", "judgement": judgement}
        return simulation.SeedResult(**{**found, **more})

    valid, broken = end(1, Judgement.VALID), end(2, Judgement.BROKEN, broken=("one-master",))
    unclear = end(3, Judgement.INCONCLUSIVE, why="no steady state")
    assert simulate.verdict([valid]) == ["1 seeds, 1 of them valid: valid, exit 0"]
    assert simulate.verdict([valid, unclear])[-1] == "2 seeds, 1 of them valid: inconclusive, exit 4"
    assert simulate.verdict([valid, broken, unclear]) == [
        "not valid:",
        "  acting seed 2: broken one-master",
        "  acting seed 3: inconclusive no steady state",
        "3 seeds, 1 of them valid: broken, exit 1",
    ]


def test_a_seed_that_is_not_valid_names_the_command_that_repeats_it():
    done = simulation.simulate(2)._replace(judgement=Judgement.BROKEN, family="acting")
    told = []
    simulation.tell(done, told.append, mode="async+pool", defect="no-comeback")
    assert told[-1].strip() == (
        "repeat: rmqkit drill simulate --family acting --from 2 --seeds 1 --mode async+pool --break no-comeback"
    )


def test_a_defect_that_no_seed_meets_is_not_found():
    # This seed never restarts a master.
    count, done = simulation.find("no-comeback", [2])
    assert (count, done) == (1, None)
