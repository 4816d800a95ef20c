"""Records the disk operations of a store's life, so that `CrashCheck` can end it at every point.

    work = MasterWork(make, config)
    work.put("A", 0, 300)
    work.turn()
    work.sync()
    check = work.enumerate()       # a CrashCheck: counts, broken

`MasterWork` puts messages; `SlaveWork` appends a master's log in pieces of any size.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from random import Random

from rmqkit.broker.handlers.messages.batch_shape import of_messages
from rmqkit.config import NodeConfig
from rmqkit.sim.disk import SimDisk
from rmqkit.sim.folder import SimFolder
from rmqkit.store.contract import EngineFactory, PutStatus, StoreWriteError
from rmqkit.store.queues.batch_put import rows_of
from rmqkit.testing.store_world import StoreWorld, put, run_of, store_config
from rmqkit.wire.batch import BatchMessage, encode_batch
from rmqkit.wire.codes import MessageSysFlag
from tests.store.crash.check import CrashCheck, Flip, SlaveCheck, bytes_of, properties_of
from tests.store.crash.images import Image, Platter, all_images
from tests.store.crash.record import Known, Ledger, Operation, RecordingDisk

#: field -> (position in a record with IPv4 hosts, size, whether a check of the store covers it)
FIELDS = {
    "size": (0, 4, True),
    "magic": (4, 4, True),
    "body CRC": (8, 4, True),
    "queue id": (12, 4, False),
    "flag": (16, 4, False),
    "queue offset": (20, 8, False),
    "physical offset": (28, 8, True),
    "sysFlag": (36, 4, False),
    "born time": (40, 8, False),
    "born host": (48, 8, False),
    "store time": (56, 8, False),
    "store host": (64, 8, False),
    "reconsume times": (72, 4, False),
    "prepared offset": (76, 8, False),
    "body size": (84, 4, True),
}
_BODY_AT = 88
RECORDS_FLIPPED = 3


def fields_of(known: Known) -> Iterator[tuple[str, int, int, bool]]:
    """Yield each field of a `MasterWork` record: name, position, size, whether it is guarded."""
    for name, (at, size, is_guarded) in FIELDS.items():
        yield name, at, size, is_guarded
    topic_at = _BODY_AT + len(known.body)
    properties_at = topic_at + 1 + len(known.topic) + 2
    yield "body", _BODY_AT, len(known.body), True
    yield "topic size", topic_at, 1, True
    yield "topic", topic_at + 1, len(known.topic), False
    yield "properties size", properties_at - 2, 2, True
    yield "properties", properties_at, known.phy_offset_next - known.phy_offset - properties_at, False


class RecordedWorld(StoreWorld):
    """A `StoreWorld` that records its operations; after a restart it continues the same record."""

    def __init__(self, make: EngineFactory, config: NodeConfig, *, seed: int) -> None:
        self.operations: list[Operation] = []
        #: called before each operation
        self.before: Callable[[], None] = lambda: None
        super().__init__(make, config, seed=seed)

    def port(self, disk: SimDisk) -> RecordingDisk:
        # Slow enough that other work continues meanwhile.
        disk.sync_us, disk.change_us = (1500, 6000), (500, 3000)
        return RecordingDisk(disk, self.operations, lambda: self.before())


class _Work:
    def __init__(self, make: EngineFactory, config: NodeConfig | None = None, *, seed: int = 1) -> None:
        self.make = make
        self.config = config or store_config()
        self.world = RecordedWorld(make, self.config, seed=seed)
        self.random = Random(f"{seed}/work")
        #: the content of the disk before the first operation
        self.base = SimFolder()
        self.ledger = Ledger(self.world.operations)
        self.engine = self.world.start()
        self.world.before = self._before_operation

    @property
    def operations(self) -> list[Operation]:
        return self.world.operations

    def turn(self, ms: int = 1) -> None:
        self.world.turn(ms)
        self.note()

    def run(self, ms: int, step_ms: int = 10) -> None:
        for _ in range(-(-ms // step_ms)):
            self.turn(step_ms)

    def until(self, wanted: Callable[[], object]) -> None:
        for _ in range(10_000):
            if wanted():
                return
            self.turn()
        raise AssertionError("it did not come to pass")

    def note(self) -> None:
        if self.engine.ready:
            self.ledger.note_durable(self.engine.offset_synced)
        self.ledger.note()

    def _before_operation(self) -> None:
        if self.engine is self.world.engine:  # it has started; perhaps it stops now
            self.ledger.note_durable(self.engine.offset_synced)

    def cut(self, back: int) -> None:
        """Cut off the last `back` messages."""
        self.turn()
        at = self.ledger.log[-back].phy_offset
        ended: list[OSError | None] = []

        def end(error: OSError | None) -> None:
            ended.append(error)
            self.ledger.end_cut()

        self.ledger.begin_cut(at)
        self.engine.truncate(at, end)
        self.until(lambda: ended)
        assert ended == [None]

    def restart(self) -> None:
        """Stop cleanly and start again."""
        self.turn()
        self.engine = self.world.restart()
        self.note()

    def checker(self, make: EngineFactory | None = None) -> CrashCheck:
        return CrashCheck(make or self.make, self.config, self.ledger)

    def enumerate(
        self,
        *,
        share: int = 1,
        part: int = 0,
        kinds: Sequence[str] = (),
        begin: int = 0,
        make: EngineFactory | None = None,
        is_enough: bool = False,
    ) -> CrashCheck:
        """Check every image, or every `share`-th from the `part`-th on.

        `kinds` limits the check to these kinds, `begin` to images from that operation on.
        `is_enough` stops at the first violation. `make`: the engine that recovers, if not ours.
        """
        check = self.checker(make)
        for number, (image, flip) in enumerate(self.images()):
            if number % share == part and image.operation_count >= begin and (not kinds or image.kind in kinds):
                check.check(image, flip)
                if is_enough and check.broken:
                    break
        return check

    def images(self) -> Iterator[tuple[Image, Flip | None]]:
        for image in all_images(self.operations, self.base):
            yield image, None


class MasterWork(_Work):
    count = 0

    # --- actions

    def put(self, topic: str, queue_id: int, size: int) -> Known:
        """Give a message to the engine; the next turn settles it."""
        body, key = self._next(size)
        result = self.engine.append(put(topic, queue_id, body, properties=properties_of(key)))
        assert result.status is PutStatus.PUT_OK, result
        known = Known(result.phy_offset, result.phy_offset_next, topic, queue_id, result.queue_offset, body, key)
        self.ledger.log.append(known)
        return known

    def put_batch(self, topic: str, queue_id: int, sizes: Sequence[int], *, is_uniform: bool = False) -> None:
        made = [self._next(size) for size in sizes]
        sent = [(0, body, properties_of(key)) for body, key in made]
        messages = of_messages(sent) if is_uniform else [(*each, 0) for each in sent]
        assert messages is not None
        result = self.engine.append_batch(put(topic, queue_id), messages)
        assert result.status is PutStatus.PUT_OK, result
        ends = [*result.phy_offsets[1:], result.phy_offset_next]
        for number, (body, key) in enumerate(made):
            at = result.phy_offsets[number], ends[number]
            self.ledger.log.append(Known(*at, topic, queue_id, result.queue_offset + number, body, key))

    def put_inner_batch(self, topic: str, queue_id: int, sizes: Sequence[int]) -> None:
        """Put a batch as one record, for a topic with `queue.type=BatchCQ`."""
        body = encode_batch(BatchMessage(0, self._next(size)[0], b"") for size in sizes)
        key, count = f"id{self.count:06d}", len(sizes)
        properties = properties_of(key) + b"INNER_NUM\x01%d\x02" % count
        bits = MessageSysFlag.INNER_BATCH | MessageSysFlag.NEED_UNWRAP
        result = self.engine.append_inner_batch(put(topic, queue_id, body, properties=properties, sys_flag=bits), count)
        assert result.status is PutStatus.PUT_OK, result
        at = result.phy_offset, result.phy_offset_next
        self.ledger.log.append(Known(*at, topic, queue_id, result.queue_offset, body, key, count))

    def put_run(self, sizes: Sequence[int]) -> None:
        """Put messages for two topics with two queues each, as a run."""
        made = [self._next(size) for size in sizes]
        queues = [("AB"[number % 3 == 2], number % 2) for number in range(len(sizes))]
        puts = [put(*queue, body, properties=properties_of(key)) for queue, (body, key) in zip(queues, made, strict=True)]
        assert len(self.engine.append_run(run_of(puts))) == len(puts)
        rows = rows_of(self.engine.log._puts)[-len(puts) :]
        for (_, offset, phy_offset, size, *_), queue, (body, key) in zip(rows, queues, made, strict=True):
            self.ledger.log.append(Known(phy_offset, phy_offset + size, *queue, offset, body, key))

    def _next(self, size: int) -> tuple[bytes, str]:
        self.count += 1
        return f"{self.count}|".encode() + bytes([97 + self.count % 26]) * size, f"id{self.count:06d}"

    def sync(self) -> None:
        """Wait, like SYNC_FLUSH, until everything put so far is durable."""
        self.world.settle()
        end = self.engine.offset_written
        told: list[bool] = []

        def tell(durable: bool) -> None:
            told.append(durable)
            if durable:
                self.ledger.note_durable(end)
                self.ledger.note()

        self.engine.sync(end, tell)
        self.until(lambda: told)
        assert told == [True]

    def fail_put(self, topic: str, size: int, code: int) -> None:
        """Let the disk refuse the write of a message, so that it is not stored."""
        self.turn()
        body, key = self._next(size)
        result = self.engine.append(put(topic, 0, body, properties=properties_of(key)))
        assert result.status is PutStatus.PUT_OK
        self.world.disk.fail("write", code=code)
        try:
            self.world.settle()
        except StoreWriteError:
            at = result.phy_offset, result.phy_offset_next
            self.ledger.refused.append((len(self.operations), Known(*at, topic, 0, result.queue_offset, body, key)))
            self.note()
        else:
            raise AssertionError("the write did not fail")

    def delete(self, topic: str) -> None:
        self.turn()
        end = self.engine.offset_max
        self.ledger.deleted[topic] = end
        self.ledger.note()
        self.engine.delete_topics([topic])
        for _ in range(50):
            self.turn()
        self.ledger.gone[topic] = end
        self.ledger.note()

    def crash(self) -> None:
        """Lose power and start. The record begins again with the operations of that recovery."""
        before = self.ledger
        self.world.crash()
        self.base = copy.deepcopy(self.world.folder)
        self.operations.clear()
        self.ledger = Ledger(self.operations, before.durable)
        self.ledger.deleted, self.ledger.gone = dict(before.deleted), dict(before.gone)
        self.engine = self.world.start()
        end = self.engine.offset_max
        self.ledger.log += [known for known in before.log if known.phy_offset_next <= end]
        first = self.ledger.promises[0]
        self.ledger.promises[0] = first._replace(
            message_count=len(self.ledger.log), deleted=dict(before.deleted), gone=dict(before.gone)
        )
        self.note()

    # --- flips

    def images(self) -> Iterator[tuple[Image, Flip | None]]:
        yield from super().images()
        yield from self.flips()

    def flips(self) -> Iterator[tuple[Image, Flip | None]]:
        """Invert one bit of each field of the last three records.

        This happens whenever these records, or the durable part of the disk, change.
        """
        file_size = self.config.commit_log.mapped_file_size_commit_log
        platter = Platter(self.base)
        before: tuple[tuple[Known, ...], int, int] = (), 0, 0
        for number, operation in enumerate(self.operations):
            platter.apply(number, operation)
            promise, _ = self.ledger.at(number + 1)
            records = tuple(promise.log[: promise.message_count][-RECORDS_FLIPPED:])
            state = records, promise.durable, len(platter.durable)
            if promise.cut >= 0 or state == before:
                continue
            before = state
            whole = platter.whole(number + 1, "flip")
            for known in records:
                path = f"{self.config.paths.store_path_commit_log}/{known.phy_offset - known.phy_offset % file_size:020d}"
                for name, at, size, is_guarded in fields_of(known):
                    byte, bit = at + self.random.randrange(size), self.random.randrange(8)
                    image = whole.flipped(path, known.phy_offset % file_size + byte, bit, f"{name} of {known.phy_offset}")
                    yield image, Flip(known, name, is_guarded)


class SlaveWork(_Work):
    """A replica of `master`, whose life is complete. `append` gives it the next bytes."""

    def __init__(self, make: EngineFactory, config: NodeConfig, master: MasterWork, *, seed: int = 1) -> None:
        super().__init__(make, config, seed=seed)
        self.log = bytes_of(master.engine)
        self.end = len(self.log)
        self.messages = list(master.ledger.log)
        # A replica is not notified when a topic is deleted. Its records stay until the first
        # records of the recreated topic arrive.
        self.ledger.deleted = dict(master.ledger.deleted)
        self.ledger.note()

    @property
    def offset(self) -> int:
        return self.engine.offset_max

    def append(self, size: int) -> None:
        """Append the next bytes, up to the end of their log file; the next turn settles them."""
        file_size = self.config.commit_log.mapped_file_size_commit_log
        offset = self.offset
        size = min(size, file_size - offset % file_size)
        assert self.engine.append_log(offset, self.log[offset : offset + size])
        have = len(self.ledger.log)
        self.ledger.log += [known for known in self.messages[have:] if known.phy_offset_next <= self.offset]

    def checker(self, make: EngineFactory | None = None) -> SlaveCheck:
        return SlaveCheck(make or self.make, self.config, self.ledger, log=self.log, messages=self.messages)
