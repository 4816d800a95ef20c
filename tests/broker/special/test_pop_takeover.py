"""Takeover with popped messages, in a simulated cluster of two groups of three."""

import pytest

from rmqkit.broker.special.pop.records import ack_put, checkpoint_put
from rmqkit.broker.special.pop.revive import PopRevive
from rmqkit.sim.cluster import SimCluster
from rmqkit.sim.world import World
from rmqkit.store.contract import Put, PutStatus
from rmqkit.wire.bodies.pop import REVIVE_GROUP, PopAck, PopCheckpoint
from rmqkit.wire.record import iter_records

A0, A1, B0 = "broker-a-0", "broker-a-1", "broker-b-0"
RETRY = "%RETRY%CG_T"
INVISIBLE_MS = 20_000


class Lab:
    """Group a's master has popped messages; group b takes what escapes."""

    def __init__(self, *, has_topic=True, has_retry_topic=True):
        self.world = World(1)
        self.cluster = SimCluster(self.world, groups=2, replicas=3, acting=True, fast=True)
        self.cluster.ready()
        for name in (A0, B0) if has_topic else (A0,):
            self.world.call(name, self._prepare)
        if has_retry_topic:
            self.world.call(B0, lambda broker: broker.topics.create_system(RETRY, 1))
        self.world.run_for(5_000)
        self.pop_ms = 0

    @staticmethod
    def _prepare(broker):
        broker.topics.create_system("T", 1)
        broker.groups.get("CG")

    def duty(self, name):
        return self.cluster.broker(name).special.find(PopRevive)

    def append(self, name, *puts):
        def run(broker):
            for put in puts:
                assert broker.store.append(put).status is PutStatus.PUT_OK

        self.world.call(name, run)
        self.world.run_for(1)

    @staticmethod
    def message(number):
        unique = f"UNIQ_KEY\x01k{number}\x02".encode()
        return Put("T", 0, 0, 0, 1, bytes(8), bytes(8), 0, 0, b"m%d" % number, unique, 0)

    def pop(self, count, acked=()):
        """Store messages at group a's master, the checkpoint of a pop that took them, and acks."""
        broker, topic = self.cluster.broker(A0), self.duty(A0).topic
        self.pop_ms = pop_ms = broker.clock.wall_ms
        messages = [self.message(number) for number in range(count)]
        checkpoint = PopCheckpoint(
            broker_name="broker-a",
            group="CG",
            differences=list(range(count)),
            count=count,
            invisible_ms=INVISIBLE_MS,
            pop_ms=pop_ms,
            revive_ms=pop_ms + INVISIBLE_MS,
            topic="T",
        )
        key = {"broker_name": "broker-a", "group": "CG", "pop_ms": pop_ms, "topic": "T"}
        acks = [ack_put(PopAck(offset=each, **key), pop_ms, topic, 0, pop_ms, bytes(8)) for each in acked]
        self.append(A0, *messages, checkpoint_put(checkpoint, topic, 0, pop_ms, bytes(8)), *acks)
        self.world.call(A0, lambda broker: broker.special.find(PopRevive).appended(0, 0))

    def retried(self, name):
        store = self.cluster.broker(name).store
        end = store.queue_range(RETRY, 0).offset_max
        entries = store.entries(RETRY, 0, 0, end) if end else ()
        return sorted(next(iter_records(store.read_log(each.phy_offset, each.size))).body for each in entries)

    def until(self, reached, limit_ms=90_000):
        assert self.world.run_until(reached, limit_ms), "not in time"


@pytest.fixture
def lab():
    return Lab()


def test_popped_messages_of_a_dead_master_escape_once_and_acked_ones_do_not(lab):
    lab.pop(4, acked=(1,))
    lab.world.run_for(2_000)
    lab.world.kill(A0)
    lab.until(lambda: lab.duty(A1).is_on)
    lab.until(lambda: len(lab.retried(B0)) == 3)
    lab.world.run_for(10_000)
    assert lab.retried(B0) == [b"m0", b"m2", b"m3"]
    lab.world.restart(A0)
    lab.until(lambda: lab.duty(A0).is_on)
    assert not lab.duty(A1).is_on
    lab.world.run_for(30_000)
    assert lab.retried(A0) == [], "the acting slave's progress came back with its offsets"
    assert lab.retried(B0) == [b"m0", b"m2", b"m3"]


def test_messages_escape_to_a_broker_that_has_only_the_topic():
    lab = Lab(has_retry_topic=False)
    lab.pop(2)
    lab.world.run_for(2_000)
    lab.world.kill(A0)
    lab.until(lambda: lab.duty(A1).is_on)
    lab.until(lambda: lab.retried(B0) == [b"m0", b"m1"])
    assert lab.cluster.broker(B0).topics.get(RETRY).write_queue_nums == 1
    lab.world.restart(A0)
    lab.until(lambda: lab.duty(A0).is_on)
    lab.world.run_for(10_000)
    assert lab.retried(A0) == []


@pytest.mark.long
def test_without_a_broker_that_has_the_topic_messages_wait_for_the_master():
    lab = Lab(has_topic=False, has_retry_topic=False)
    lab.pop(2)
    lab.world.run_for(2_000)
    lab.world.kill(A0)
    lab.until(lambda: lab.duty(A1).is_on)
    lab.world.run_for(30_000)
    assert lab.duty(A1).due_count() == 2
    lab.world.restart(A0)
    lab.until(lambda: lab.retried(A0) == [b"m0", b"m1"])


def test_what_the_master_gave_again_before_it_died_is_not_given_by_its_slave(lab):
    lab.pop(3)
    lab.until(lambda: len(lab.retried(A0)) == 3)
    lab.until(lambda: len(lab.retried(A1)) == 3)
    # The slave does not know yet how far the master has come.
    assert not lab.cluster.broker(A1).offsets.of(REVIVE_GROUP, lab.duty(A1).topic)
    lab.world.kill(A0)
    lab.until(lambda: lab.duty(A1).is_on)
    lab.world.run_for(20_000)
    assert lab.retried(B0) == []
