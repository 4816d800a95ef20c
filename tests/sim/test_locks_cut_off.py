"""Queue locks while a master is isolated together with one client, and a slave acts for it."""

from typing import NamedTuple

import pytest

from rmqkit.broker.locks.lock_table import LOCK_LIVE_MS
from rmqkit.client.flow import start
from rmqkit.errors import ClientError
from rmqkit.sim.cluster import SimCluster
from rmqkit.sim.world import World
from rmqkit.wire.bodies import LockBatchAnswer, LockBatchBody
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.fastjson import MessageQueue

SECOND = 1000
QUEUE = MessageQueue("orders", "broker-a", 0)


class Grant(NamedTuple):
    """A lease counts from its request; a renewal extends it."""

    client: str
    from_ms: int
    until_ms: int


def locker(cluster: SimCluster, name: str, grants: list[Grant]) -> None:
    """Add a client that requests the queue's lock every 5 s, at the master named by its route."""

    def make(client):
        body = LockBatchBody(client_id=name, consumer_group="billing", mq_set=[QUEUE]).encode()

        async def work():
            while True:
                await client.timers.sleep(5 * SECOND)
                asked_ms = cluster.world.now_ms
                try:
                    await client.routes.find("orders")
                    master = client.routes.master("broker-a")
                    reply = await client.ask(master, RequestCode.LOCK_BATCH_MQ, None, body, timeout_ms=SECOND)
                except ClientError:
                    continue
                if QUEUE in LockBatchAnswer.decode(reply.body).lock_ok_mq_set:
                    grants.append(Grant(name, asked_ms, asked_ms + LOCK_LIVE_MS))

        client.routes.watch("orders")
        client.timers.after(SECOND, lambda: start(work()))

    cluster.client(name, make)


def overlaps(grants: list[Grant]) -> list[tuple[Grant, Grant]]:
    held = sorted(grants, key=lambda grant: grant.from_ms)
    return [
        (one, two)
        for at, one in enumerate(held)
        for two in held[at + 1 :]
        if two.client != one.client and two.from_ms < one.until_ms
    ]


def story(lock_mode: str) -> tuple[SimCluster, list[Grant]]:
    """Isolate the master and `near` from everything else, the name server too, for two minutes."""
    cluster = SimCluster(
        World(3), replicas=3, acting=True, fast=True, settings={"lockMode": lock_mode, "autoCreateTopicEnable": True}
    )
    cluster.ready()
    cluster.producer("producer", "orders", every_ms=1000)
    cluster.world.run_for(5 * SECOND)
    grants: list[Grant] = []
    locker(cluster, "near", grants)
    cluster.world.run_for(10 * SECOND)
    locker(cluster, "far", grants)
    assert {grant.client for grant in grants} == {"near"}
    cluster.world.net.partition(["broker-a-0", "near"], ["broker-a-1", "broker-a-2", "ns-0", "far", "producer"])
    cluster.world.run_for(120 * SECOND)
    assert cluster.broker("broker-a-1").view.facts()["role"] == "acting"
    cluster.world.net.heal()
    cluster.world.run_for(30 * SECOND)
    return cluster, grants


def test_loose_brokers_grant_one_queue_twice():
    _, grants = story("loose")
    assert overlaps(grants)


def test_strict_ones_do_not_and_the_majority_goes_on():
    cluster, grants = story("strict")
    assert not overlaps(grants)
    far = [grant for grant in grants if grant.client == "far"]
    near = [grant for grant in grants if grant.client == "near"]
    assert far, "nobody got the queue on the side of the majority"
    assert far[0].from_ms >= near[-1].until_ms
    assert far[0].from_ms <= near[-1].until_ms + 10 * SECOND, "it took longer than the lease"
    assert far[-1].from_ms >= cluster.world.now_ms - 10 * SECOND, "its lock is renewed by the master that is back"


@pytest.mark.parametrize("lock_mode", ["loose", "strict"])
def test_a_takeover_costs_the_owner_nothing(lock_mode):
    """The owner finds the acting master and locks its queue again; nobody got it in between."""
    settings, quick = {"lockMode": lock_mode}, {"route_refresh_ms": 2000}
    cluster = SimCluster(World(4), replicas=3, acting=True, fast=True, settings=settings, client_settings=quick)
    cluster.ready()
    cluster.producer("producer", "orders", every_ms=1000)
    cluster.world.run_for(5 * SECOND)
    grants: list[Grant] = []
    locker(cluster, "one", grants)
    cluster.world.run_for(10 * SECOND)
    killed_ms = cluster.world.now_ms
    cluster.world.kill("broker-a-0")
    cluster.world.run_for(25 * SECOND)
    after = [grant.from_ms for grant in grants if grant.from_ms > killed_ms]
    assert after
    assert after[0] - killed_ms <= 15 * SECOND
