"""Simulated drills with access control and TLS on every node: promises hold, and users survive."""

import os
import subprocess
import sys

import pytest

from rmqkit.drill import simulation
from rmqkit.drill.promises.contract import Judgement
from rmqkit.drill.simulation_tls import tls_of
from rmqkit.sim import users
from rmqkit.sim.cluster import SimCluster
from rmqkit.sim.tls_ends import TlsEnd
from rmqkit.sim.world import World

#: families of drills, each with a seed
HANDFUL = [
    ("acting", 111),
    ("replicas", 1),
    pytest.param("acting", 12, marks=pytest.mark.long),
    pytest.param("timers", 3, marks=pytest.mark.long),
    pytest.param("transactions", 3, marks=pytest.mark.long),
    pytest.param("pop", 3, marks=pytest.mark.long),
]


@pytest.mark.parametrize(("family", "seed"), HANDFUL)
def test_a_seed_keeps_every_promise(family, seed):
    done = simulation.simulate(seed, family=family, secure=True)
    assert done.judgement is Judgement.VALID, f"{done.plan}\n{done.why}\n{done.story}"
    assert done.sends > 0


def hash_in_a_process(seed: int, hash_seed: str) -> str:
    program = f"from rmqkit.drill.simulation import simulate; print(simulate({seed}, secure=True).hash)"
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return run.stdout.strip()


@pytest.mark.long
def test_the_same_seed_does_the_same_in_another_process():
    """Other certificates and other keys of connections, but the same sizes at the same times."""
    assert simulation.simulate(1, secure=True).hash == hash_in_a_process(1, "4711")


def test_access_control_and_tls_were_on():
    run = simulation.drill(simulation.FAMILIES["replicas"].plan_of_seed(1).changed(secure=True))
    cluster = run.driver.cluster
    assert cluster.has_users()
    ends = list(run.driver.world.net.ends)
    assert {end.conn.tag for end in ends} >= {"remoting", "ha"}
    assert all(isinstance(end, TlsEnd) for end in ends)
    for name in cluster.brokers:
        gate = cluster.broker(name).remoting.gate
        assert gate is not None
        assert gate.has_rules
        assert sorted(cluster.broker(name).view.access.table.accounts) == ["app", "operator"]


@pytest.mark.long
def test_a_planted_defect_is_found_with_access_control_too():
    done = simulation.simulate(111, breaks=("no-self-isolation",), family="acting", secure=True)
    assert done.broken


@pytest.mark.parametrize("end", [lambda world: world.kill, lambda world: world.crash], ids=["killed", "no power"])
def test_a_user_made_just_before_its_master_dies(end):
    """A change is answered once it is on the master's disk, so it is there when the master returns.

    Meanwhile the acting slave knows what it has copied.
    """
    world = World(7)
    cluster = SimCluster(world, replicas=2, acting=True, fast=True, secure=True, tls=tls_of)
    cluster.ready()
    table = cluster.broker("broker-a-0").view.access.table
    table.ensure_super("late", "late-secret")
    saved = []
    table.save(lambda: saved.append(True))
    assert world.run_until(lambda: saved, 5_000)
    end(world)("broker-a-0")
    slave = cluster.broker("broker-a-1")
    assert world.run_until(lambda: slave.role.is_acting, 60_000)
    known = set(slave.view.access.table.accounts)
    assert {users.APP[0], users.OPERATOR[0]} <= known <= {users.APP[0], users.OPERATOR[0], "late"}
    world.restart("broker-a-0")
    cluster.ready()
    for name in cluster.brokers:
        assert world.run_until(lambda name=name: "late" in cluster.broker(name).view.access.table.accounts, 60_000)
