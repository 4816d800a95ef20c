"""Groups of several brokers in virtual time: what is copied, and what remains after a fault."""

from random import Random

import pytest

from rmqkit.sim.cluster import SimCluster
from rmqkit.sim.world import World

SECOND = 1000
MINUTE = 60 * SECOND


def started(seed, *, replicas=2, every_ms=50, **settings):
    cluster = SimCluster(World(seed), replicas=replicas, settings=settings)
    cluster.ready()
    producer = cluster.producer("producer", "orders", every_ms=every_ms)
    consumer = cluster.consumer("consumer", "orders", "billing")
    return cluster, producer, consumer


def finish(cluster, producer, consumer, settle_ms=30 * SECOND):
    """Stop the producer, let the cluster heal, and check messages and logs."""
    producer.stop()
    cluster.world.run_for(settle_ms)
    cluster.in_sync()
    cluster.check(producer, consumer)
    cluster.check_logs()


def slave_end(cluster, name="broker-a-1"):
    return cluster.broker(name).store.offset_written


def test_what_is_sent_is_at_every_broker():
    cluster, producer, consumer = started(1, replicas=3)
    cluster.world.run_for(20 * SECOND)
    finish(cluster, producer, consumer, 5 * SECOND)
    assert len(producer.acknowledged) > 350
    assert set(producer.statuses) == {"SEND_OK"}
    assert not producer.unknown
    assert consumer.repeated == 0


def test_an_acknowledged_message_is_at_the_slave_at_that_moment():
    """The definition of SYNC_MASTER with two in sync, checked after every event of the world."""
    cluster, producer, _ = started(2)
    slave = cluster.broker("broker-a-1").store
    seen = 0

    def ended():
        nonlocal seen
        for place in list(producer.acknowledged)[seen:]:
            _, queue_id, queue_offset = place
            assert slave.queue_range("orders", queue_id).offset_max > queue_offset, f"{place} is not at the slave"
            seen += 1
        return seen > 300

    assert cluster.world.run_until(ended, MINUTE)


@pytest.mark.parametrize("end", ["kill", "crash", "stop"])
def test_a_slave_that_was_away_catches_up(end):
    cluster, producer, consumer = started(3, every_ms=100)
    world = cluster.world
    world.run_for(10 * SECOND)
    getattr(world, end)("broker-a-1")
    before = len(producer.acknowledged)
    world.run_for(40 * SECOND)
    assert len(producer.acknowledged) - before > 150, "the quorum has shrunk to the master"
    world.restart("broker-a-1")
    cluster.in_sync()
    world.run_for(10 * SECOND)
    finish(cluster, producer, consumer)
    assert set(producer.statuses) <= {"SEND_OK", "FLUSH_SLAVE_TIMEOUT"}


def test_a_slave_that_lost_its_disk_gets_all_of_it_again():
    cluster, producer, consumer = started(4, every_ms=20, mappedFileSizeCommitLog=64 * 1024)
    world = cluster.world
    world.run_for(20 * SECOND)
    world.kill("broker-a-1")
    wiped = world.folder("broker-a-1")
    wiped.files.clear()
    world.restart("broker-a-1")
    cluster.in_sync()
    finish(cluster, producer, consumer)
    assert cluster.broker("broker-a-1").store.offset_min == 0
    assert slave_end(cluster) > 2 * 64 * 1024


#: settings, and the statuses of sends while master and slaves are separated
CUT = {
    "async": ({"brokerRole": "ASYNC_MASTER"}, {"SEND_OK"}),
    "plain": ({"totalReplicas": 1}, {"FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"}),
    "shrinking": ({}, {"FLUSH_SLAVE_TIMEOUT", "SEND_OK"}),
    "strict": ({"enableAutoInSyncReplicas": False}, {"FLUSH_SLAVE_TIMEOUT"}),
}


@pytest.mark.parametrize("mode", CUT)
def test_a_cut_between_master_and_slave_is_answered_as_the_mode_says_and_heals(mode):
    settings, statuses = CUT[mode]
    cluster, producer, consumer = started(5, every_ms=200, **settings)
    world = cluster.world
    world.run_for(10 * SECOND)
    assert set(producer.statuses) == {"SEND_OK"}
    producer.statuses.clear()
    end = slave_end(cluster)
    cluster.cut_off_slaves("broker-a-0")
    world.run_for(MINUTE)
    assert set(producer.statuses) == statuses
    assert slave_end(cluster) <= end + 200, "the cut did not bite"
    master = cluster.broker("broker-a-0").replication
    assert master.in_sync_count() == 1
    if mode == "strict":
        assert producer.unknown, "sends were refused"
        assert "in-sync replicas not enough" in master.why
    world.net.heal()
    cluster.in_sync(MINUTE)
    producer.statuses.clear()
    world.run_for(10 * SECOND)
    assert set(producer.statuses) == {"SEND_OK"}
    finish(cluster, producer, consumer)


@pytest.mark.long
def test_consumers_read_on_while_the_master_is_dead():
    cluster, producer, consumer = started(6, every_ms=100)
    world = cluster.world
    world.run_for(20 * SECOND)
    world.kill("broker-a-0")
    late = cluster.consumer("late", "orders", "audit")
    acknowledged = dict(producer.acknowledged)
    world.run_for(MINUTE)
    assert late.delivered.keys() >= acknowledged.keys(), "all of it is at the slave"
    world.restart("broker-a-0")
    cluster.in_sync(MINUTE)
    world.run_for(MINUTE)
    finish(cluster, producer, consumer)
    assert len(producer.acknowledged) > len(acknowledged) + 300


@pytest.mark.long
def test_the_master_s_power_loses_nothing_when_the_slave_has_it():
    """The master loses what it had not synced; then the slave's log is ahead, and it counts."""
    cluster, producer, _ = started(7, flushDiskType="ASYNC_FLUSH")
    world = cluster.world
    world.run_for(20 * SECOND)
    world.crash("broker-a-0")
    world.run_for(5 * SECOND)
    auditor = cluster.consumer("auditor", "orders", "audit")
    # Name servers list a silent broker for two more minutes, as its connection does not end. New
    # consumers ask it first.
    world.run_for(3 * MINUTE)
    missing = producer.acknowledged.keys() - auditor.delivered.keys()
    assert not missing
    assert len(producer.acknowledged) > 300


@pytest.mark.parametrize("seed", [200, *(pytest.param(seed, marks=pytest.mark.long) for seed in (201, 202))])
def test_random_faults_lose_nothing_that_was_acknowledged(seed):
    dice = Random(f"{seed}/faults")
    cluster, producer, consumer = started(seed, replicas=dice.choice([2, 3]), every_ms=200)
    world = cluster.world
    for _ in range(5):
        world.run_for(dice.randrange(2, 8) * SECOND)
        victim = dice.choice(cluster.brokers)
        fault = dice.choice(["kill", "pause", "isolate", "cut"])
        away_ms = dice.randrange(1, 20) * SECOND
        if fault == "kill":
            world.kill(victim)
            world.run_for(away_ms)
            world.restart(victim)
        elif fault == "pause":
            world.pause(victim)
            world.run_for(away_ms)
            world.resume(victim)
        else:
            if fault == "cut":
                cluster.cut_off_slaves("broker-a-0")
            else:
                world.net.isolate(victim)
            world.run_for(away_ms)
            world.net.heal()
    cluster.in_sync(2 * MINUTE)
    before = len(producer.acknowledged)
    world.run_for(MINUTE)
    assert len(producer.acknowledged) - before > 200, "healed, but sends do not go through"
    finish(cluster, producer, consumer)
