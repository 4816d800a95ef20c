"""Consumers while the master is down: they continue at the slave, return to the master, and
repeat at most one second of progress."""

from rmqkit.client.client import Client
from rmqkit.client.consumers.offset_store import RemoteOffsets
from rmqkit.client.consumers.pull_consumer import PullConsumerCore, PullConsumerSettings
from rmqkit.client.consumers.subscriptions import ConsumeFrom
from rmqkit.client.flow import start
from rmqkit.sim.cluster import SimCluster
from tests.broker.metadata.test_metadata import commit, copied, offset
from tests.broker.replica_group import NS, Group

SECOND = 1000
#: interval of commits; messages per second
COMMIT_MS = 500
RATE = 20


class Reader:
    """A member of the group `CG` on its own machine; `got` lists (queue id, offset) in order."""

    def __init__(self, cluster: SimCluster, name: str) -> None:
        self.name = name
        self.got: list[tuple[int, int]] = []
        cluster.client(name, self._begin)

    def _begin(self, client: Client) -> None:
        settings = PullConsumerSettings(group="CG", consume_from=ConsumeFrom.FIRST, persist_interval_ms=COMMIT_MS)
        core = PullConsumerCore(client, settings, RemoteOffsets(client, "CG"))

        async def consume() -> None:
            await core.subscribe("T", "*", "TAG")
            while not client.stopping:
                self.got += [(each.queue_id, each.queue_offset) for each in await core.poll(timeout_ms=200)]

        client.timers.after(500, lambda: start(consume()))


class Story:
    def __init__(self, seed: int) -> None:
        self.group = Group(seed=seed, slaveReadEnable=True).in_sync()
        self.group.send()
        copied(self.group)
        self.world = self.group.world
        self.cluster = SimCluster(self.world, nameservers=0, groups=0)
        self.cluster.nameservers = [NS]
        self.readers: list[Reader] = []

    def reader(self) -> Reader:
        reader = Reader(self.cluster, f"reader-{len(self.readers)}")
        self.readers.append(reader)
        return reader

    def run(self, ms: int, *, strict: tuple[str, ...] = ("broker-0", "broker-1")) -> None:
        """Run and check that no committed offset at the `strict` brokers falls."""
        before = {name: dict(self._offsets(name)) for name in strict}
        for _ in range(ms // 50):
            self.world.run_for(50)
            for name in strict:
                now = self._offsets(name)
                assert all(now.get(queue_id, -1) >= offset for queue_id, offset in before[name].items()), name
                before[name] = dict(now)

    def _offsets(self, name: str) -> dict[int, int]:
        return self.group.node(name).offsets.of("CG", "T") if self.world.is_alive(name) else {}

    def next_after(self, reader: Reader) -> dict[int, int]:
        found: dict[int, int] = {}
        for queue_id, queue_offset in reader.got:
            found[queue_id] = max(queue_offset + 1, found.get(queue_id, 0))
        return found

    def check_taken_over(self, before: Reader, after: Reader) -> None:
        assert after.got, "nothing came after the takeover"
        again = [each for each in after.got if each in set(before.got)]
        assert len(again) <= RATE * 2, "more was delivered again than a second of progress"
        for queue_id, reached in self.next_after(before).items():
            first = min((at for each, at in after.got if each == queue_id), default=reached)
            assert first <= reached, f"messages from {reached} to {first} of queue {queue_id} were left out"


def test_consumption_goes_on_from_the_slave_and_returns_without_a_rollback():
    story = Story(seed=3)
    producer = story.cluster.producer("producer", "T", every_ms=SECOND // RATE)
    first = story.reader()
    commit(story.group, 1, name="Idle")
    story.run(8 * SECOND)
    assert len(first.got) > 100
    # A backlog that only the slave has once the master is dead.
    story.world.kill(first.name)
    story.run(2 * SECOND)
    # The master saves offsets every 5 s, so this one is not saved when it dies. It was copied to
    # the slave, and its group commits nothing more.
    commit(story.group, 25, name="Idle")
    story.run(SECOND)
    story.world.kill("broker-0")
    second = story.reader()
    story.run(6 * SECOND, strict=("broker-1",))
    story.check_taken_over(first, second)
    assert len(producer.acknowledged) - len(first.got) > RATE * 2
    assert set(first.got) | set(second.got) >= {place[1:] for place in producer.acknowledged}

    commit(story.group, 20, name="There", node="broker-1")
    reached = dict(story.group.slave.offsets.of("CG", "T"))
    story.world.restart("broker-0")
    story.group.until(lambda: story.group.master.offsets.table)
    assert offset(story.group, "broker-0", "Idle") == 1
    story.run(2 * SECOND, strict=("broker-1",))
    at_master = story.group.master.offsets.of("CG", "T")
    assert all(at_master.get(queue_id, -1) >= reached[queue_id] for queue_id in reached)
    for node in ("broker-0", "broker-1"):
        assert (offset(story.group, node, "Idle"), offset(story.group, node, "There")) == (25, 20)
    story.run(10 * SECOND)
    story.world.kill(second.name)
    third = story.reader()
    story.run(4 * SECOND)
    producer.stop()
    story.run(3 * SECOND)
    story.check_taken_over(second, third)
    everything = {*first.got, *second.got, *third.got}
    assert everything >= {place[1:] for place in producer.acknowledged}
    pulls = story.group.master.remoting.counts
    assert pulls.get(11, 0) > 10, "consumers are back at the master"
