"""Consume queue extensions in a folder that Apache's broker 5.5.0 and ours serve in turn.

Both write an extension unit for every entry, with the filter bits of a group that uses SQL92. The
second broker filters by tag with the first one's units, and by the group's registered filter with
its bits. It appends, and then the first broker takes the folder back.
"""

from collections.abc import Iterator
from pathlib import Path
from struct import iter_unpack

import pytest

from rmqkit import Admin, Message, MessageQueue, Producer, PullConsumer, PushConsumer, sql
from rmqkit.store.queues.extension import ADDRESS_MAX
from rmqkit.wire.javahash import tags_code
from tests.interop.exchange import SharedFolder
from tests.interop.until import until

TOPIC, GROUP = "ext", "ext_group"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
EXT_FILE_SIZE = 4096
SETTINGS = {
    "mappedFileSizeCommitLog": str(64 * 1024),
    "mappedFileSizeConsumeQueue": str(20 * 40),
    "mappedFileSizeConsumeQueueExt": str(EXT_FILE_SIZE),
    "enableConsumeQueueExt": "true",
    "enableCalcFilterBitMap": "true",
    "enablePropertyFilter": "true",
    "waitTimeMillsInSendQueue": "10000",
}


class Folder(SharedFolder):
    """A shared folder with one topic, whose messages are numbered."""

    def __init__(self, home: Path) -> None:
        super().__init__(home, SETTINGS)
        self.count = 0

    def write(self, count: int) -> None:
        with Producer("ext", namesrv=self.namesrv, send_msg_timeout_ms=10_000) as producer:
            for number in range(self.count, self.count + count):
                producer.send(
                    Message(TOPIC, f"{number}", tags=f"Tag{number % 3}", properties={"n": str(number)}), queue=QUEUE
                )
        self.count += count

    def read(self, expression: str, wanted: int) -> list[int]:
        """Return the numbers of the messages that match `expression`, from the beginning."""
        found: list[int] = []
        with PullConsumer(namesrv=self.namesrv) as consumer:
            consumer.assign([QUEUE], expression)
            consumer.seek(QUEUE, 0)
            until(
                f"{wanted} messages of {expression}",
                lambda: len(found.__iadd__(map(number_of, consumer.poll(200)))) >= wanted,
            )
        return found

    def consume(self, wanted: list[int]) -> None:
        """Consume as the group, from the beginning, by the filter that its heartbeats register."""
        found: list[int] = []
        with Admin(self.namesrv) as admin:
            admin.set_group_offset(GROUP, QUEUE, 0)
        consumer = PushConsumer(GROUP, namesrv=self.namesrv, consume_from="first")
        try:
            consumer.subscribe(TOPIC, sql("n BETWEEN 50 AND 2000"))
            consumer.start(lambda message: found.append(number_of(message)))
            until("the group's messages", lambda: set(found) >= set(wanted))
            assert sorted(set(found)) == wanted
        finally:
            consumer.close()

    def check(self) -> None:
        for tag in range(3):
            wanted = list(range(tag, self.count, 3))
            assert self.read(f"Tag{tag}", len(wanted)) == wanted
        self.consume(list(range(50, self.count)))

    def units(self) -> list[tuple[int, int]]:
        """Return each entry's tags code and bit map size in bytes, read from the files."""
        ext_paths = sorted((self.store / "consumequeue_ext" / TOPIC / "0").glob("*"))
        ext = b"".join(path.read_bytes() for path in ext_paths)
        first = int(ext_paths[0].name) if ext_paths else 0
        found = []
        for path in sorted((self.store / "consumequeue" / TOPIC / "0").glob("*")):
            for _, size, code in iter_unpack(">qiq", path.read_bytes()):
                if size:
                    assert code <= ADDRESS_MAX
                    at = code + (1 << 63) - first
                    bits = int.from_bytes(ext[at + 18 : at + 20], "big")
                    assert int.from_bytes(ext[at : at + 2], "big") == 20 + bits
                    found.append((int.from_bytes(ext[at + 2 : at + 10], "big", signed=True), bits))
        return found


def number_of(message: object) -> int:
    return int(message.body)  # type: ignore[attr-defined]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    made = Folder(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize(
    ("giver", "taker", "how"),
    [
        ("ours", "apache", "kill"),
        pytest.param("ours", "apache", "clean", marks=pytest.mark.interop_full),
        pytest.param("apache", "ours", "clean", marks=pytest.mark.interop_full),
        pytest.param("apache", "ours", "kill", marks=pytest.mark.interop_full),
    ],
)
def test_units_are_understood_by_the_other_broker(folder: Folder, giver: str, taker: str, how: str) -> None:
    folder.start(giver)
    with Admin(folder.namesrv) as admin:
        admin.create_topic(TOPIC, queue_nums=1)
        admin.create_group(GROUP)
        until("the route", lambda: len(admin.queues(TOPIC)) == 1)
    folder.write(1)
    folder.consume([])
    folder.write(259)
    folder.check()
    # Entries are written every second. A broker rebuilds those that a kill lost from the log.
    until("all entries are written", lambda: how == "clean" or len(folder.units()) == 260)
    folder.stop(how)
    units = folder.units()
    assert [code for code, _ in units] == [tags_code(f"Tag{number % 3}") for number in range(260)]
    assert {bits for _, bits in units[1:]} == {14}

    folder.start(taker)
    folder.check()
    folder.write(60)
    folder.check()
    until("all entries are written", lambda: how == "clean" or len(folder.units()) == 320)
    folder.stop(how)
    assert [code for code, _ in folder.units()] == [tags_code(f"Tag{number % 3}") for number in range(320)]

    folder.start(giver)
    folder.check()
