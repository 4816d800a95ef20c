"""Topics with `queue.type=BatchCQ` in a folder that Apache's broker 5.5.0 and ours serve in turn.

The brokers change after SIGTERM and kill -9. The second broker serves every message, finds messages
by time, continues the offsets, and appends. Then the first one takes its folder back. Both write
the same bytes into `batchconsumequeue/`.

A slave of either make follows a master of the other.

The checks of Apache's client with such topics, those of its `BatchSendIT`, run in
`test_java_client.py` (`driver/.../BatchChecks.java`).
"""

from collections.abc import Iterator
from pathlib import Path
from struct import Struct

import pytest

from rmqkit import Admin, Message, MessageQueue, Producer, PullConsumer
from tests.interop.exchange import HANDOVERS, SharedFolder
from tests.interop.groups import SMALL_FILES, TOPICS, Group
from tests.interop.until import until

TOPIC = "batches"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
UNIT = Struct(">qiqqqhii")
#: Apache's slave copies the tables 60 to 63 s after its start, and every 60 s after that.
FIRST_COPY_S = 180.0
SETTINGS = {
    "mappedFileSizeCommitLog": str(64 * 1024),
    "mapperFileSizeBatchConsumeQueue": str(46 * 20),
    "waitTimeMillsInSendQueue": "10000",
}


class Folder(SharedFolder):
    """A shared folder with one topic, whose messages are numbered."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, SETTINGS)
        self.count = 0

    def create_topic(self) -> None:
        with Admin(self.namesrv) as admin:
            admin.create_topic(TOPIC, queue_nums=1, attributes={"queue.type": "BatchCQ"})
            until("a route", lambda: len(admin.queues(TOPIC)) == 1)

    def write(self, batches: int) -> None:
        """Send batches of 1 to 9 messages, and a single message after each."""
        with Producer("batches", namesrv=self.namesrv, send_msg_timeout_ms=10_000) as producer:
            for number in range(batches):
                bodies = [f"{self.count + each}" for each in range(number % 9 + 1)]
                result = producer.send_batch([Message(TOPIC, body, keys=f"k{body}") for body in bodies], queue=QUEUE)
                assert (result.queue_offset, result.msg_id.count(",")) == (self.count, 0)
                self.count += len(bodies)
                assert producer.send(Message(TOPIC, f"{self.count}"), queue=QUEUE).queue_offset == self.count
                self.count += 1

    def check(self) -> None:
        """Expect every message at its offset, and the offsets of the queue."""
        found: list[tuple[int, bytes]] = []
        with Admin(self.namesrv) as admin, PullConsumer(namesrv=self.namesrv) as consumer:
            assert (admin.offset_min(QUEUE), admin.offset_max(QUEUE)) == (0, self.count)
            consumer.assign([QUEUE])
            consumer.seek(QUEUE, 5)
            until(
                "all messages",
                lambda: len(found.__iadd__((m.queue_offset, m.body) for m in consumer.poll(200))) >= self.count - 5,
            )
            assert found == [(number, b"%d" % number) for number in range(5, self.count)]
            middle = admin.message_at(QUEUE, self.count // 2)
            assert middle is not None
            first = admin.message_at(QUEUE, admin.offset_for_time(QUEUE, middle.store_timestamp_ms))
            assert first is not None
            assert first.queue_offset <= middle.queue_offset
            assert first.store_timestamp_ms == middle.store_timestamp_ms

    def units(self) -> list[tuple[int, ...]]:
        return units_of(self.store)


def units_of(store: Path) -> list[tuple[int, ...]]:
    """Return the units in the queue's files, without the empty rest of the last one."""
    paths = sorted((store / "batchconsumequeue" / TOPIC / "0").glob("*"))
    data = b"".join(path.read_bytes() for path in paths)
    return [unit for unit in UNIT.iter_unpack(data[: len(data) - len(data) % UNIT.size]) if unit[1]]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(("giver", "taker", "how"), HANDOVERS)
def test_the_other_broker_takes_the_folder_over(folder: Folder, giver: str, taker: str, how: str) -> None:
    folder.start(giver)
    folder.create_topic()
    folder.write(30)
    folder.check()
    folder.stop(how)
    before = folder.units() if how == "clean" else []

    folder.start(taker)
    folder.check()
    folder.write(10)
    folder.check()
    folder.stop(how)
    after = folder.units() if how == "clean" else []
    assert after[: len(before)] == before
    for phy_offset, size, _, store_ms, base, count, compacted, reserved in after:
        assert min(phy_offset + 1, size, store_ms, base + 1, count) > 0
        assert (compacted, reserved) == (-1, 0)

    folder.start(giver)
    folder.check()
    folder.write(3)
    folder.check()
    assert not (folder.store / "consumequeue" / TOPIC).exists()
    folder.stop("clean")
    assert [unit[4] for unit in folder.units()] == sorted({unit[4] for unit in folder.units()})
    assert sum(unit[5] for unit in folder.units()) == folder.count


@pytest.mark.parametrize(("master", "slave"), [("ours", "apache"), ("apache", "ours")])
def test_a_slave_of_the_other_make_builds_the_same_queue(tmp_path: Path, master: str, slave: str) -> None:
    """The slave knows the topic before the records: Apache's would make a plain queue otherwise."""
    group = Group(tmp_path, master=master, slave=slave, settings={**SMALL_FILES, **SETTINGS})
    try:
        group.master.start()
        with Admin(group.namesrv) as admin:
            admin.create_topic(TOPIC, queue_nums=1, attributes={"queue.type": "BatchCQ"})
            until("a route", lambda: len(admin.queues(TOPIC)) == 1)
        group.slave.start()
        until(
            "the slave knows the topic",
            lambda: TOPIC in group.slave.table(TOPICS)["topicConfigTable"],
            deadline_s=FIRST_COPY_S,
        )
        with Producer("batches", namesrv=group.namesrv, send_msg_timeout_ms=10_000) as producer:
            for number in range(30):
                result = producer.send_batch([Message(TOPIC, f"{each}") for each in range(number % 9 + 1)], queue=QUEUE)
                assert result.is_ok
                assert producer.send(Message(TOPIC, "single"), queue=QUEUE).is_ok
        until("the slave has it all", group.same_end)
        group.expect_same_logs()
        until("its queue has it all", lambda: group.slave.offset_max(TOPIC, 0) == group.master.offset_max(TOPIC, 0) > 0)
        until(
            "both queues are on disk", lambda: len(units_of(group.slave.store)) == len(units_of(group.master.store)) == 60
        )
        assert units_of(group.slave.store) == units_of(group.master.store)
    finally:
        group.close()
