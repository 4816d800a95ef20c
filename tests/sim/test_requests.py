"""Requests and replies between clients of two broker groups, while brokers and links break."""

from functools import partial

import pytest

from rmqkit.client.consumers.offset_store import RemoteOffsets
from rmqkit.client.consumers.push_consumer import PushConsumerCore
from rmqkit.client.consumers.push_queue import PushConsumerSettings
from rmqkit.client.consumers.subscriptions import ConsumeFrom
from rmqkit.client.flow import start
from rmqkit.client.message import Message
from rmqkit.client.producers.outgoing_message import Prepare
from rmqkit.client.producers.producer import ProducerCore, ProducerSettings
from rmqkit.errors import ClientError, RequestTimeout
from rmqkit.sim.cluster import SimCluster
from rmqkit.sim.world import World
from rmqkit.wire.uniqueids import UniqueIds

SECOND = 1000
TIMEOUT_MS = 5_000


class Asker:
    """Sends a request every `every_ms` and records how each ended."""

    def __init__(self, cluster, every_ms):
        self.asked = 0
        self.replies = {}
        self.errors = {}
        self.stopped = False
        self._every_ms = every_ms
        self.client_id = None
        cluster.client("asker", self._begin)

    def _begin(self, client):
        core = ProducerCore(client, ProducerSettings(group="askers"))
        prepare = Prepare(UniqueIds(bytes(4), pid=1, salt=1))

        def ask():
            if self.stopped:
                return
            number = self.asked
            self.asked += 1
            message = Message("questions", f"question {number}")
            out = prepare.request(message, client.clock.wall_ms, client.settings.client_id, TIMEOUT_MS)
            promise = core.request(out, timeout_ms=TIMEOUT_MS)
            promise.when_done(partial(ended, number, promise))
            client.timers.after(self._every_ms, ask)

        def ended(number, promise):
            assert number not in self.replies
            assert number not in self.errors
            try:
                self.replies[number] = promise.result().body
            except ClientError as error:
                self.errors[number] = error

        client.timers.after(1000, ask)


def replier(cluster, name):
    def make(client):
        core = ProducerCore(client, ProducerSettings(group=f"repliers-{name}"))
        prepare = Prepare(UniqueIds(bytes(4), pid=2, salt=len(name)))

        def dispatch(batch):
            (message,) = batch.messages
            out = prepare.message(message.reply(b"answer to " + message.body), client.clock.wall_ms)
            core.send(out, lambda outcome: None, timeout_ms=3000)
            consumer.finished(batch, True)

        settings = PushConsumerSettings(group="answering", consume_from=ConsumeFrom.FIRST)
        consumer = PushConsumerCore(client, settings, RemoteOffsets(client, "answering"), dispatch)
        consumer.subscribe("questions", "*", "TAG")
        client.timers.after(500, lambda: start(consumer.start()))

    cluster.client(name, make)


def story(seed):
    cluster = SimCluster(World(seed), groups=2)
    cluster.ready()
    asker = Asker(cluster, every_ms=100)
    for name in ("one", "two"):
        replier(cluster, name)
    cluster.world.run_for(40 * SECOND)
    return cluster, asker


def finish(cluster, asker):
    asker.stopped = True
    cluster.world.run_for(2 * TIMEOUT_MS)
    assert len(asker.replies) + len(asker.errors) == asker.asked, "a request did not end"
    for number, body in asker.replies.items():
        assert body == b"answer to question %d" % number


def test_every_request_is_answered():
    cluster, asker = story(1)
    before = len(asker.errors)
    cluster.world.run_for(30 * SECOND)
    finish(cluster, asker)
    assert len(asker.errors) == before, "once the repliers were there"
    assert len(asker.replies) > 500


@pytest.mark.long
@pytest.mark.parametrize("seed", [2, 3])
def test_brokers_that_die_cost_no_more_than_what_was_under_way(seed):
    cluster, asker = story(seed)
    world = cluster.world
    for name in ("broker-a-0", "broker-b-0"):
        world.kill(name)
        world.run_for(3 * SECOND)
        world.restart(name)
        world.run_for(40 * SECOND)
    before = len(asker.errors)
    world.run_for(20 * SECOND)
    finish(cluster, asker)
    assert len(asker.errors) == before, "it works again"
    assert all(isinstance(error, RequestTimeout | ClientError) for error in asker.errors.values())
    assert len(asker.replies) > asker.asked * 0.8


@pytest.mark.long
def test_an_asker_that_is_cut_off_hears_of_it_in_time():
    cluster, asker = story(4)
    world = cluster.world
    world.net.isolate("asker")
    asked = asker.asked
    world.run_for(20 * SECOND)
    assert asker.asked > asked
    ended = len(asker.replies) + len(asker.errors)
    assert ended >= asked, "what was asked before is over"
    world.net.heal()
    world.run_for(40 * SECOND)
    before = len(asker.errors)
    world.run_for(10 * SECOND)
    finish(cluster, asker)
    assert len(asker.errors) == before
