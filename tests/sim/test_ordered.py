"""Ordered consumption with the broker's queue locks: one member at a time works on a queue."""

from functools import partial

import pytest

from rmqkit.client.consumers.offset_store import RemoteOffsets
from rmqkit.client.consumers.push_consumer import PushConsumerCore
from rmqkit.client.consumers.push_queue import PushConsumerSettings
from rmqkit.client.consumers.subscriptions import ConsumeFrom
from rmqkit.client.flow import start
from rmqkit.client.message import Message, SendResult
from rmqkit.client.producers.outgoing_message import Prepare
from rmqkit.client.producers.producer import ProducerCore, ProducerSettings
from rmqkit.sim.cluster import SimCluster
from rmqkit.sim.world import World
from rmqkit.wire.uniqueids import UniqueIds

SECOND = 1000
KEYS = [f"order-{number}" for number in range(12)]
WORK_MS = 5


class Deliveries:
    """What the group's listeners saw: (now, member, key, number within the key)."""

    def __init__(self, world):
        self.world = world
        self.seen = []
        #: queue → member whose listener works on it
        self.at_work = {}

    def began(self, member, batch):
        assert batch.queue not in self.at_work, f"{member} and {self.at_work[batch.queue]} work on {batch.queue}"
        self.at_work[batch.queue] = member

    def ended(self, member, batch):
        del self.at_work[batch.queue]
        for message in batch.messages:
            key, number = message.body.decode().split("/")
            self.seen.append((self.world.now_ms, member, key, int(number)))

    def numbers(self, key):
        """Return the numbers of a key in the order of first delivery."""
        return list(dict.fromkeys(number for _, _, each, number in self.seen if each == key))

    def of(self, member, since_ms=0):
        return [each for each in self.seen if each[1] == member and each[0] >= since_ms]


def member(cluster, name, deliveries):
    def make(client):
        settings = PushConsumerSettings(group="billing", orderly=True, consume_from=ConsumeFrom.FIRST)

        def dispatch(batch):
            deliveries.began(name, batch)

            def done():
                deliveries.ended(name, batch)
                consumer.finished(batch, True)

            client.timers.after(WORK_MS, done)

        consumer = PushConsumerCore(client, settings, RemoteOffsets(client, "billing"), dispatch)
        consumer.subscribe("orders", "*", "TAG")
        client.timers.after(500, lambda: start(consumer.start()))

    cluster.client(name, make)


class Sender:
    """Sends messages of several keys; the next one of a key after the previous is acknowledged."""

    def __init__(self, cluster, every_ms):
        self.sent = dict.fromkeys(KEYS, 0)
        self.stopped = False
        self._every_ms = every_ms
        cluster.client("sender", self._begin)

    def _begin(self, client):
        core = ProducerCore(client, ProducerSettings(group="sim"))
        prepare = Prepare(UniqueIds(bytes(4), pid=1, salt=1))

        def ended(key, outcome):
            assert isinstance(outcome, SendResult), outcome
            self.sent[key] += 1
            client.timers.after(self._every_ms, partial(send, key))

        def send(key):
            if not self.stopped:
                out = prepare.message(Message("orders", f"{key}/{self.sent[key]}"), client.clock.wall_ms)
                core.send(out, partial(ended, key), timeout_ms=3000, ordering_key=key)

        for key in KEYS:
            client.timers.after(1000, partial(send, key))


def story(seed):
    cluster = SimCluster(World(seed))
    cluster.ready()
    sender = Sender(cluster, every_ms=200)
    deliveries = Deliveries(cluster.world)
    for name in ("one", "two"):
        member(cluster, name, deliveries)
    return cluster, sender, deliveries


def finish(cluster, sender, deliveries):
    sender.stopped = True
    cluster.world.run_for(10 * SECOND)
    for key in KEYS:
        assert sender.sent[key] > 100
        assert deliveries.numbers(key) == list(range(sender.sent[key])), f"{key} was not delivered in order"


def test_two_members_share_the_queues_and_keep_the_order():
    cluster, sender, deliveries = story(1)
    cluster.world.run_for(60 * SECOND)
    finish(cluster, sender, deliveries)
    assert deliveries.of("one")
    assert deliveries.of("two")
    keys_by_member = {key: {who for at, who, each, _ in deliveries.seen if each == key and at > 20_000} for key in KEYS}
    assert all(len(members) == 1 for members in keys_by_member.values()), "a key moved without a reason"


@pytest.mark.long
def test_the_queues_of_a_killed_member_go_to_the_other_after_the_lease():
    cluster, sender, deliveries = story(2)
    world = cluster.world
    world.run_for(30 * SECOND)
    assert deliveries.of("one")
    assert deliveries.of("two")
    lost = {key for _, who, key, _ in deliveries.seen if who == "one"} - {
        key for _, who, key, _ in deliveries.of("two", world.now_ms - 10 * SECOND)
    }
    assert lost
    killed_ms = world.now_ms
    world.kill("one")
    deliveries.at_work = {queue: who for queue, who in deliveries.at_work.items() if who != "one"}
    world.run_for(30 * SECOND)
    assert not {key for _, _, key, _ in deliveries.of("two", killed_ms)} & lost, "its lease has not run out"
    world.run_for(60 * SECOND)
    assert {key for _, _, key, _ in deliveries.of("two", killed_ms)} == set(KEYS)
    finish(cluster, sender, deliveries)


def test_a_member_that_leaves_gives_its_queues_at_once():
    cluster, sender, deliveries = story(3)
    world = cluster.world
    world.run_for(30 * SECOND)
    world.stop("one")
    left_ms = world.now_ms
    world.run_for(8 * SECOND)
    assert {key for _, _, key, _ in deliveries.of("two", left_ms)} == set(KEYS)
    finish(cluster, sender, deliveries)


def test_a_broker_that_restarts_has_forgotten_its_locks_and_the_order_holds():
    cluster, sender, deliveries = story(4)
    world = cluster.world
    world.run_for(20 * SECOND)
    sender.stopped = True
    world.run_for(2 * SECOND)
    world.kill("broker-a-0")
    world.run_for(5 * SECOND)
    world.restart("broker-a-0")
    world.run_for(30 * SECOND)
    assert world.node("broker-a-0").locks.table.count, "taken again by renewal"
    for key in KEYS:
        assert deliveries.numbers(key) == list(range(sender.sent[key]))
