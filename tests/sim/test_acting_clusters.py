"""Acting masters in simulated clusters, and brokers that share a process."""

import pytest

from rmqkit.broker.node import Broker
from rmqkit.cluster.layout.presets import PRESETS
from rmqkit.nameserver import answers
from rmqkit.sim.cluster import FAST, FAST_NAMESERVER, SimCluster
from rmqkit.sim.world import World
from rmqkit.wire.bodies import TopicRoute


def test_settings_of_acting_clusters():
    cluster = SimCluster(World(1), groups=2, replicas=2, acting=True, fast=True, settings={"escapeStrategy": "none"})
    config = cluster.broker("broker-b-1").config.acting
    assert (config.enable, config.escape_strategy) == (True, "none")
    assert (config.heartbeat_ms, config.not_active_ms, config.member_sync_ms) == (300, 2000, 300)
    nameserver = cluster.world.node("ns-0").config.nameserver
    assert nameserver.support_acting_master
    assert nameserver.notify_min_broker_id_changed
    assert nameserver.scan_not_active_broker_interval_ms == 500


def test_without_it_nothing_acts():
    cluster = SimCluster(World(1), replicas=2)
    assert not cluster.broker("broker-a-1").config.acting.enable
    assert not cluster.world.node("ns-0").config.nameserver.support_acting_master


def test_fast_is_the_preset():
    assert PRESETS["fast-failover"]["settings"] == {**FAST, **FAST_NAMESERVER}


def test_brokers_of_a_container_know_each_other_and_settle_together():
    made: list[Broker] = []
    containers = [("broker-a-0", "broker-b-1"), ("broker-b-0", "broker-a-1")]
    world = World(2)
    cluster = SimCluster(world, groups=2, replicas=2, containers=containers, prepared=made.append)
    names = {name: [each.name for each in cluster.broker(name).view.neighbours] for name in cluster.brokers}
    assert names == {
        "broker-a-0": ["broker-b-1"],
        "broker-a-1": ["broker-b-0"],
        "broker-b-0": ["broker-a-1"],
        "broker-b-1": ["broker-a-0"],
    }
    assert cluster.together("broker-b-1") == ("broker-a-0", "broker-b-1")
    cluster.ready()
    master, other = cluster.broker("broker-a-0"), cluster.broker("broker-b-1")
    seen: list[str] = []
    master.settle, settle = lambda: (seen.append("settled"), settle())[1], master.settle  # type: ignore[method-assign]
    world.call("broker-b-1", lambda node: seen.append("turn of the other"))
    world.run_until(lambda: len(seen) > 1 and seen[0] != "settled", 1000)
    at = seen.index("turn of the other")
    assert seen[at + 1] == "settled"
    for name in cluster.together("broker-a-0"):
        world.kill(name)
    for name in cluster.together("broker-a-0"):
        world.restart(name)
    assert other.view not in cluster.broker("broker-a-0").view.neighbours
    assert [each.name for each in cluster.broker("broker-a-0").view.neighbours] == ["broker-b-1"]
    assert [each.name for each in cluster.broker("broker-b-1").view.neighbours] == ["broker-a-0"]


def route(cluster: SimCluster) -> TopicRoute | None:
    """Return the route of the topic named like the group, as the name server answers clients."""
    node = cluster.world.node("ns-0")
    return answers.route(node.routes, "broker-a", support_acting=node.config.nameserver.support_acting_master)


def shown(cluster: SimCluster) -> tuple[dict[int, str], int] | None:
    """Return the group's addresses by broker id, and the permission of its queues."""
    told = route(cluster)
    return None if told is None else (dict(told.broker_datas[0].broker_addrs), told.queue_datas[0].perm)


@pytest.mark.parametrize(("fault", "limit_ms"), [("kill", 500), ("pause", 3000), ("crash", 3000)])
def test_the_takeover_is_shown_and_told(fault: str, limit_ms: int):
    """The connections of a killed process end at once, a paused one's do not.

    Its registration expires after 2 s; the name server checks every 0.5 s.
    """
    world = World(f"takeover {fault}")
    cluster = SimCluster(world, replicas=2, acting=True, fast=True)
    cluster.ready()
    master, slave = "10.0.1.1:10911", "10.0.1.2:10911"
    assert shown(cluster) == ({0: master, 1: slave}, 7)
    world.run_for(5000)
    getattr(world, fault)("broker-a-0")
    acting = cluster.broker("broker-a-1").roles
    assert world.run_until(lambda: shown(cluster) == ({0: slave}, 5) and acting.is_acting, limit_ms)
    world.run_for(2000)
    world.resume("broker-a-0") if fault == "pause" else world.restart("broker-a-0")
    assert world.run_until(lambda: shown(cluster) == ({0: master, 1: slave}, 7), 10_000)
    assert world.run_until(lambda: not acting.is_acting, 500)
    cluster.in_sync()


def test_a_slave_alone_brings_the_topics_of_its_group():
    """Name server and master are lost. The slave registers and acts, as no master returns."""
    world = World("alone")
    cluster = SimCluster(world, replicas=2, acting=True, fast=True)
    cluster.ready()
    for name in ("ns-0", *cluster.brokers):
        world.kill(name)
    world.restart("ns-0")
    world.restart("broker-a-1")
    assert world.run_until(lambda: shown(cluster) == ({0: "10.0.1.2:10911"}, 5), 5000)
    assert world.run_until(lambda: cluster.broker("broker-a-1").roles.is_acting, 5000)
