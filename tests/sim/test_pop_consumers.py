"""Consumers in pop mode in whole clusters: killed and slow workers, lost acks, brokers that die.

The promise: a message is delivered at least once. It is delivered again only if it failed, or if
its worker did not ack it within the invisible time. While it is invisible, nobody else has it.
"""

from collections import Counter, deque
from itertools import pairwise

from rmqkit.client.consumers.pop.consumer import PopConsumerCore
from rmqkit.client.consumers.pop.messages import PopConsumerSettings
from rmqkit.client.consumers.subscriptions import ConsumeFrom
from rmqkit.client.flow import start
from rmqkit.sim.cluster import SimCluster
from rmqkit.sim.world import World
from rmqkit.wire.topic_names import DLQ_PREFIX

SECOND = 1000
INVISIBLE_MS = 10_000
GROUP = "billing"


def number_of(message):
    return int(message.body[:10])


class Workers:
    """The listeners of a group: `threads` calls at a time, each of `work_ms`.

    `began` holds (now, worker, number) of each listener call, `done` the numbers that succeeded.
    """

    def __init__(self, cluster, *, threads=4, work_ms=50, fails=lambda number, times: False, **settings):
        self.world = cluster.world
        self.cluster = cluster
        self.threads, self.work_ms, self.fails = threads, work_ms, fails
        self.settings = {"pop_invisible_time_ms": INVISIBLE_MS, **settings}
        self.began, self.done = [], Counter()
        self.consumers = {}
        self.waiting = {}

    def add(self, name, work_ms=None):
        self.waiting[name], running = deque(), Counter()

        def make(client):
            settings = PopConsumerSettings(group=GROUP, consume_from=ConsumeFrom.FIRST, **self.settings)

            def dispatch(batch):
                self.waiting[name].append(batch)
                next_one()

            def next_one():
                while self.waiting[name] and running["now"] < self.threads:
                    batch = self.waiting[name].popleft()
                    if batch.may_begin(client.clock.mono_ms):
                        begin(batch)
                    else:
                        consumer.undelivered(batch)

            def begin(batch):
                running["now"] += 1
                consumer.began(batch)
                self.began += [(self.world.now_ms, name, number_of(message)) for message in batch.messages]
                client.timers.after(work_ms or self.work_ms, lambda: end(batch))

            def end(batch):
                running["now"] -= 1
                ok = not any(self.fails(number_of(each), each.reconsume_times) for each in batch.messages)
                if ok:
                    self.done.update(number_of(each) for each in batch.messages)
                consumer.finished(batch, ok)
                next_one()

            consumer = self.consumers[name] = PopConsumerCore(client, settings, dispatch)
            consumer.subscribe("orders", "*", "TAG")
            client.timers.after(500, lambda: start(consumer.start()))

        self.cluster.client(name, make)

    def close(self, name):
        """End a worker as `rmqkit.PushConsumer.close` does."""

        def close(client):
            consumer = self.consumers[name]
            consumer.quiesce()
            while self.waiting[name]:
                consumer.undelivered(self.waiting[name].popleft())
            start(consumer.close())

        self.world.call(name, close)

    def calls(self, number):
        """Return the (time, worker) of each listener call of a message."""
        return [(at, name) for at, name, each in self.began if each == number]

    def by_worker(self):
        return Counter(name for _, name, _ in self.began)


def story(seed, *, messages=40, **cluster_settings):
    """Return a cluster and the numbers of the messages that were sent to it."""
    cluster = SimCluster(World(seed), **cluster_settings)
    cluster.ready()
    sender = cluster.producer("sender", "orders", every_ms=20)
    assert cluster.world.run_until(lambda: len(sender.acknowledged) >= messages, 30 * SECOND)
    sender.stop()
    cluster.world.run_for(SECOND)
    return cluster, {sender.bodies[body] for body in sender.acknowledged.values()}


def dead_letters(cluster):
    store = cluster.world.node("broker-a-0").store
    return store.queue_range(DLQ_PREFIX + GROUP, 0).offset_max


def test_workers_share_every_queue_and_nothing_comes_twice():
    cluster, sent = story(1, messages=150)
    workers = Workers(cluster, work_ms=200, pop_threshold_for_queue=8, pop_batch_nums=8)
    for name in ("one", "two", "three"):
        workers.add(name)
    cluster.world.run_for(20 * SECOND)
    assert workers.done.keys() == sent
    assert set(workers.done.values()) == {1}
    assert all(count > 20 for count in workers.by_worker().values())
    assert all(not work.held for consumer in workers.consumers.values() for work in consumer.works.values())


def test_what_a_killed_worker_had_goes_to_the_others_after_the_invisible_time():
    cluster, sent = story(2)
    world = cluster.world
    workers = Workers(cluster)
    workers.add("one", work_ms=60 * SECOND)
    assert world.run_until(lambda: len(workers.began) == workers.threads, 10 * SECOND)
    killed_ms = world.now_ms
    world.kill("one")
    workers.add("two")
    world.run_for(INVISIBLE_MS - 3 * SECOND)
    held = {number for _, name, number in workers.began if name == "one"}
    assert held.isdisjoint(workers.done), "they are invisible"
    world.run_for(10 * SECOND)
    assert workers.done.keys() == sent
    assert set(workers.done.values()) == {1}
    assert all(
        at >= killed_ms + INVISIBLE_MS - SECOND for number in held for at, name in workers.calls(number) if name == "two"
    )


def test_an_ack_that_a_broken_network_swallows_is_repeated():
    cluster, sent = story(3)
    world = cluster.world
    workers = Workers(cluster, work_ms=500)
    workers.add("one")
    assert world.run_until(lambda: len(workers.began) == workers.threads, 10 * SECOND)
    world.net.partition(["one"], ["broker-a-0"])
    world.run_for(4 * SECOND)
    world.net.heal()
    world.run_for(40 * SECOND)
    assert workers.done.keys() == sent
    assert set(workers.done.values()) == {1}


def test_a_broker_that_is_killed_loses_no_message_and_no_ack_that_it_answered():
    cluster, sent = story(4)
    world = cluster.world
    workers = Workers(cluster, threads=1, work_ms=200)
    workers.add("one")
    assert world.run_until(lambda: len(workers.done) >= 10, 10 * SECOND)
    acked = set(workers.done) - {number for _, _, number in workers.began[-2:]}
    world.kill("broker-a-0")
    world.run_for(3 * SECOND)
    world.restart("broker-a-0")
    world.run_for(60 * SECOND)
    assert workers.done.keys() == sent
    assert all(len(workers.calls(number)) == 1 for number in acked)


def test_a_slow_worker_gets_no_second_message_by_a_handle_that_has_expired():
    """The slow one holds what it cannot work on in time. The quick one gets that, and once only."""
    cluster, sent = story(5)
    world = cluster.world
    workers = Workers(cluster, threads=1)
    workers.add("slow", work_ms=INVISIBLE_MS + 5 * SECOND)
    assert world.run_until(lambda: workers.began, 10 * SECOND)
    workers.add("quick")
    world.run_for(60 * SECOND)
    assert workers.done.keys() == sent
    assert {number for number, times in workers.done.items() if times > 1} <= {
        number for _, name, number in workers.began if name == "slow"
    }
    assert workers.consumers["slow"].expired_count > 0
    starts = sorted(at for at, name, _ in workers.began if name == "slow")
    assert all(later - earlier >= INVISIBLE_MS for earlier, later in pairwise(starts))


def test_a_worker_that_takes_more_than_it_can_begin_takes_less():
    """Each message that expires in the wait counts as failed. None may end in the dead letters."""
    cluster, sent = story(10, messages=60)
    world = cluster.world
    workers = Workers(cluster, threads=2, work_ms=3 * SECOND, max_reconsume_times=8)
    workers.add("one")
    world.run_for(180 * SECOND)
    assert workers.done.keys() == sent
    assert not dead_letters(cluster)
    assert min(work.room for work in workers.consumers["one"].works.values()) < 10


def test_a_failed_message_waits_10_seconds_and_ends_in_the_dead_letters():
    cluster, sent = story(6, messages=10)
    world = cluster.world
    workers = Workers(
        cluster, fails=lambda number, times: number == 3 or (number == 5 and not times), max_reconsume_times=1
    )
    workers.add("one")
    world.run_for(30 * SECOND)
    assert workers.done.keys() == sent - {3}
    for number in (3, 5):
        first, second = [at for at, _ in workers.calls(number)]
        assert 9 * SECOND <= second - first <= 16 * SECOND
    assert dead_letters(cluster) == 1


def test_a_message_that_kills_its_workers_ends_in_the_dead_letters():
    cluster, _ = story(7, messages=1)
    world = cluster.world
    workers = Workers(cluster, max_reconsume_times=1)
    for name in ("one", "two"):
        workers.add(name, work_ms=60 * SECOND)
        assert world.run_until(lambda name=name: workers.by_worker()[name], 30 * SECOND)
        world.kill(name)
    workers.add("three")
    world.run_for(20 * SECOND)
    assert not workers.done
    assert workers.by_worker() == {"one": 1, "two": 1}
    assert dead_letters(cluster) == 1


def test_a_worker_that_stops_gives_back_what_no_listener_had():
    cluster, sent = story(8)
    world = cluster.world
    times = []
    workers = Workers(cluster, threads=1, fails=lambda number, count: times.append(count))
    workers.add("one", work_ms=2 * SECOND)
    assert world.run_until(lambda: workers.done, 10 * SECOND)
    waiting = workers.consumers["one"].works
    assert sum(work.held for work in waiting.values()) > 20
    workers.close("one")
    workers.add("two")
    world.run_for(INVISIBLE_MS - 3 * SECOND)
    assert len(workers.done) >= len(sent) - 1
    assert set(times) == {0}, "it does not count as failed"


def test_workers_go_on_at_the_slave_that_acts_for_a_killed_master():
    """Acks that the master answered more than a second before its death count there too."""
    cluster, sent = story(9, messages=60, groups=2, replicas=2, acting=True, fast=True)
    world = cluster.world
    workers = Workers(cluster, threads=2, work_ms=200, pop_threshold_for_queue=4, pop_batch_nums=4)
    workers.add("one")
    workers.add("two")
    assert world.run_until(lambda: len(workers.done) >= 25, 20 * SECOND)
    acked = {number for at, _, number in workers.began if at < world.now_ms - 1500}
    world.kill("broker-a-0")
    world.run_for(30 * SECOND)
    assert workers.done.keys() == sent
    assert all(workers.done[number] == 1 for number in acked)
    world.restart("broker-a-0")
    world.run_for(20 * SECOND)
    assert all(workers.done[number] == 1 for number in acked)
    assert sum(workers.done.values()) <= len(sent) + 16, "only what was in flight comes again"
