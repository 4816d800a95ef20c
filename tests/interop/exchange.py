"""One store folder that Apache's broker and ours serve in turn, and a client's view of it.

Both brokers use the same `.conf`, folder and ports, one after the other. One name server of ours
runs all the time. The files are small, so that the log, the queues and the index roll over. `fill`
writes messages of every kind. `Sight` is everything that a client can see of them.
"""

import itertools
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rmqkit import Admin, Message, MessageExt, MessageQueue, Producer, PullConsumer
from rmqkit.errors import RemoteProtocolError
from rmqkit.wire import fastjson
from rmqkit.wire.bodies import SubscriptionGroupConfig
from tests.interop import apache
from tests.interop.store_sample import SMALL
from tests.interop.until import until

PLAIN, BATCH, DELAY, SCHEDULE = "ex_plain", "ex_batch", "ex_delay", "SCHEDULE_TOPIC_XXXX"
GROUP = "ex_group"
BROKER = "broker-a"
#: delay levels: 18 is two hours, 3 is ten seconds, 1 is one second
NEVER, SOON, AT_ONCE = 18, 3, 1
_SETTINGS = {
    **SMALL,
    "mappedFileSizeCommitLog": str(64 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 40),
    "flushConsumerOffsetInterval": "500",
    "flushDelayOffsetInterval": "500",
    "waitTimeMillsInSendQueue": "10000",
}
_NUMBERS = itertools.count()
#: giver, taker, and how the giver ends
HANDOVERS = [
    ("ours", "apache", "kill"),
    ("apache", "ours", "clean"),
    pytest.param("ours", "apache", "clean", marks=pytest.mark.interop_full),
    pytest.param("apache", "ours", "kill", marks=pytest.mark.interop_full),
]


class OurNodes(apache.ApacheCluster):
    """Our nodes in place of Apache's; they read the same configuration files."""

    def _start(self, node: str, main: str, settings: Mapping[str, str]) -> "subprocess.Popen[str]":
        self.home.mkdir(parents=True, exist_ok=True)
        conf = self.home / f"ours-{node}.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        with open(self.home / f"{node}.out", "ab") as out:
            return subprocess.Popen(
                [*self.prefix, sys.executable, "-m", "rmqkit.process", "--kind", node, "-c", str(conf), "--lifeline", "0"],
                cwd=self.home,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=subprocess.STDOUT,
                text=True,
            )


class SharedFolder:
    """One folder and two brokers, "ours" and "apache". At most one of them runs at a time."""

    def __init__(self, home: Path, settings: Mapping[str, str]) -> None:
        ports = apache.free_ports()
        self.store = home / "store"
        self._brokers = {
            "ours": OurNodes(home=home, ports=ports, broker_properties=settings),
            "apache": apache.ApacheCluster(home=home, ports=ports, broker_properties=settings),
        }
        self._running: apache.ApacheCluster | None = None
        self.namesrv = self._brokers["ours"].namesrv
        self._brokers["ours"].start_nameserver()

    def start(self, whose: str) -> None:
        self._running = self._brokers[whose]
        self._running.start_broker()

    def stop(self, how: str) -> None:
        """Stop the running broker; `how` is "clean" (SIGTERM) or "kill" (SIGKILL)."""
        assert self._running is not None
        self._running.stop_broker(clean=how == "clean")
        self._running = None

    def close(self) -> None:
        for cluster in self._brokers.values():
            cluster.stop()


class Exchange(SharedFolder):
    """A shared folder with messages of every kind."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, _SETTINGS)

    def kept(self, name: str) -> Any:
        """Return the content of a file in the store's config folder.

        Return None if the file is missing or incomplete.
        """
        try:
            return fastjson.loads((self.store / "config" / name).read_bytes())
        except (OSError, RemoteProtocolError):
            return None


class Sight(NamedTuple):
    """A client's view: the topics' records and settings, the group's offsets and settings."""

    records: dict[str, list[tuple[Any, ...]]]
    offsets: dict[int, int | None]
    group: tuple[Any, ...]
    topics: dict[str, tuple[int, int, int]]


def fill(exchange: Exchange) -> None:
    """Write messages of every kind and a group's offsets.

    Two delayed messages are due in two hours, one in 10 s, and one has already been delivered.
    """
    with Admin(exchange.namesrv) as admin, Producer("ex", namesrv=exchange.namesrv, send_msg_timeout_ms=10_000) as producer:
        for name, count in ((PLAIN, 4), (BATCH, 2), (DELAY, 1)):
            admin.create_topic(name, queue_nums=count)
            until(f"a route of {name}", lambda name=name, count=count: len(admin.queues(name)) == count)
        admin.create_group(GROUP, config=SubscriptionGroupConfig(group_name=GROUP, retry_max_times=5))
        write_more(producer, 300)
        for number in range(8):
            producer.send_batch([Message(BATCH, f"{number}-{i}", keys=f"batch{number}", tags="TagB") for i in range(10)])
        producer.send(Message(PLAIN, "compress " * 8192, keys="zip"))
        producer.send(Message(PLAIN, "grüße, 世界 🚀", tags="标签", keys="ключ", properties={"名前": "мир"}, flag=77))
        for queue in sorted(admin.queues(PLAIN)):
            admin.set_group_offset(GROUP, queue, 7 * queue.queue_id)
        for number in range(2):
            producer.send(Message(DELAY, f"never {number}", delay_level=NEVER))
        producer.send(Message(DELAY, "at once", delay_level=AT_ONCE))
        delayed = MessageQueue(DELAY, BROKER, 0)
        until("the delayed message", lambda: admin.offset_max(delayed) == 1)
        until("the group's offsets are kept", lambda: _offsets_kept(exchange))
        until("the progress of the delay level is kept", lambda: _delay_kept(exchange))
        producer.send(Message(DELAY, "soon", delay_level=SOON))


def write_more(producer: Producer, count: int) -> None:
    """Send `count` plain messages; each has a unique number in its keys."""
    for _ in range(count):
        number = next(_NUMBERS)
        producer.send(
            Message(
                PLAIN,
                f"message {number} " + "x" * (number % 700),
                keys=[f"number{number}", "common"],
                tags=f"Tag{number % 5}",
                properties={"n": str(number)},
            )
        )


def _offsets_kept(exchange: Exchange) -> bool:
    kept = exchange.kept("consumerOffset.json") or {}
    return len(kept.get("offsetTable", {}).get(f"{PLAIN}@{GROUP}", {})) == 4


def _delay_kept(exchange: Exchange) -> bool:
    kept = exchange.kept("delayOffset.json") or {}
    return bool(kept.get("offsetTable", {}).get(str(AT_ONCE)) == 1)


def sight(exchange: Exchange) -> Sight:
    with Admin(exchange.namesrv) as admin:
        queues = sorted(admin.queues(PLAIN))
        configs = {name: admin.topic_config(name, BROKER) for name in (PLAIN, BATCH, DELAY)}
        group = admin.group_config(GROUP, BROKER)
        assert group is not None
        return Sight(
            {name: records(exchange.namesrv, name) for name in (PLAIN, BATCH, DELAY)},
            {queue.queue_id: admin.group_offset(GROUP, queue) for queue in queues},
            (group.group_name, group.retry_max_times, group.consume_enable),
            {name: (c.read_queue_nums, c.write_queue_nums, c.perm) for name, c in configs.items() if c is not None},
        )


def records(namesrv: str, topic: str) -> list[tuple[Any, ...]]:
    """Return every record of the topic, from the beginning to the end of each queue."""
    with Admin(namesrv) as admin, PullConsumer(namesrv=namesrv) as consumer:
        queues = consumer.queues(topic)
        wanted = sum(admin.offset_max(queue) - admin.offset_min(queue) for queue in queues)
        consumer.assign(queues)
        for queue in queues:
            consumer.seek_to_begin(queue)
        found: list[MessageExt] = []
        until(f"{wanted} messages of {topic}", lambda: len(found.__iadd__(consumer.poll(200))) >= wanted)
        return sorted(map(_seen, found))


def _seen(message: MessageExt) -> tuple[Any, ...]:
    return (
        message.queue_id,
        message.queue_offset,
        message.commit_log_offset,
        message.body,
        sorted(message.properties.items()),
        message.flag,
        message.born_timestamp_ms,
        message.store_timestamp_ms,
        message.born_host,
        message.store_host,
        message.reconsume_times,
        message.record.size,
    )


def expect_found_by_key(exchange: Exchange, *, early: bool) -> None:
    """Expect to find the newest message by its key and the oldest by its offset id.

    With `early`, old messages must also be found by key and by unique id. After a kill they need
    not be: Apache's broker then deletes the index files that its checkpoint does not cover. It
    rebuilds entries only from the log file where its recovery begins (`IndexService.load`), in its
    own folders as in ours.
    """
    with Admin(exchange.namesrv) as admin, PullConsumer(namesrv=exchange.namesrv) as consumer:
        queues = sorted(consumer.queues(PLAIN))
        newest = max((admin.message_at(q, admin.offset_max(q) - 1) for q in queues), key=lambda m: m.commit_log_offset)
        oldest = admin.message_at(queues[0], 0)
        seen = admin.view_message(oldest.offset_msg_id)
        assert seen is not None
        assert seen.body == oldest.body
        keys = [message.keys.split()[0] for message in ((newest, oldest) if early else (newest,)) if message.keys]
        for key in (*keys, *(("zip", "ключ") if early else ())):
            until(f"the index has {key}", lambda key=key: len(admin.query_messages(PLAIN, key)) == 1)
        if early:
            (found,) = admin.query_messages(PLAIN, "ключ")
            assert found.body.decode() == "grüße, 世界 🚀"
            (same,) = admin.query_messages(PLAIN, found.msg_id, unique=True)
            assert same.queue_offset == found.queue_offset
            assert len(admin.query_messages(BATCH, "batch3")) == 10


def expect_soon(exchange: Exchange, *, once: bool) -> None:
    """Expect the 10 s message to arrive and the two-hour messages not to.

    With `once`, it must arrive exactly once.
    """
    bodies: list[bytes] = []

    def came() -> bool:
        bodies[:] = [record[3] for record in records(exchange.namesrv, DELAY)]
        return b"soon" in bodies

    until("the delayed message", came)
    assert set(bodies) == {b"at once", b"soon"}, bodies
    if once:
        assert bodies == [b"at once", b"soon"]
    with Admin(exchange.namesrv) as admin:
        assert admin.offset_max(MessageQueue(SCHEDULE, BROKER, NEVER - 1)) == 2
