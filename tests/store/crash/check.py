"""Recovers a store from an image of its disk and checks what must hold then.

`CrashCheck.check` starts a fresh engine on the image. It compares the engine with what had been
promised when the image was taken:

- The engine starts. It may refuse only a log damaged below its synced end, with one line.
- Everything reported as durable is there. The log is a prefix of what was put: each message in its
  queue, under its number, found by its key. Nothing that was cut off or deleted comes back.
- A second start finds the same: after a kill, after another power loss, and after a first recovery
  that was interrupted.

Violations are counted and collected as sentences in `broken`; a suite asserts that it is empty.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from rmqkit.config import NodeConfig
from rmqkit.errors import RmqkitError
from rmqkit.store.contract import EngineFactory, StorageEngine
from rmqkit.testing.store_world import FOREVER_MS, StoreWorld, body_of, drain, offset_of, phy_offset_of, put
from tests.store.crash.images import Image
from tests.store.crash.record import Known, Ledger, Promise

#: queue offset, physical offset, body
Row = tuple[int, int, bytes]
Rows = dict[tuple[str, int], list[Row]]
_HOUR_MS = 3_600_000
_BROKEN_MAX = 1000
#: bytes that a master sends at once
_FED = 5000


class QuickWorld(StoreWorld):
    """A world whose disk takes no time: each request is done by the next turn."""

    def begin(self) -> None:
        super().begin()
        self.disk.sync_us = self.disk.change_us = (0, 0)


class Found(NamedTuple):
    """The log range and the queues of a started engine."""

    start: int
    end: int
    rows: Rows


class Flip(NamedTuple):
    """A bit of the record `known` that an image inverts.

    `is_guarded`: a check of the store covers the field.
    """

    known: Known
    field: str
    is_guarded: bool


def found_in(engine: StorageEngine) -> Found:
    rows: Rows = {}
    for queue in engine.queues():
        records = drain(engine, queue.topic, queue.queue_id)
        if records:
            rows[queue.topic, queue.queue_id] = [(offset_of(r), phy_offset_of(r), body_of(r)) for r in records]
    return Found(engine.offset_min, engine.offset_max, rows)


class CrashCheck:
    """Checks images of one life. `make` and `config` describe the engine that recovers."""

    def __init__(self, make: EngineFactory, config: NodeConfig, ledger: Ledger) -> None:
        self.counts: Counter[str] = Counter()
        self.refused = 0
        self.broken: list[str] = []
        self._make = make
        self._config = config
        self._ledger = ledger
        self._seen: set[tuple[int, ...]] = set()

    def is_new(self, image: Image, promise: Promise, count_max: int) -> bool:
        """Return False if an equal image was checked before; several promises may share files."""
        key = image.key, promise.since, promise.durable, count_max
        if key in self._seen:
            return False
        self._seen.add(key)
        return True

    def check(self, image: Image, flip: Flip | None = None) -> None:
        since = image.operation_count - 1 if image.kind == "torn" else image.operation_count
        promise, count_max = self._ledger.at(since)
        if image.kind == "torn":
            count_max = max(count_max, self._ledger.at(image.operation_count)[1])
        if not self.is_new(image, promise, count_max):
            return
        self.counts[image.kind] += 1
        why = self._problem(image, promise, count_max, flip)
        if why and len(self.broken) < _BROKEN_MAX:
            self.broken.append(f"{image.kind} image after {image.operation_count} operations ({image.detail}): {why}")

    # --- one image

    def world(self, image: Image) -> QuickWorld:
        world = QuickWorld(self._make, self._config, seed=image.operation_count)
        world.clock.wall_ms += _HOUR_MS
        world.folder = image.folder()
        world.begin()
        return world

    def _problem(self, image: Image, promise: Promise, count_max: int, flip: Flip | None) -> str:
        world = self.world(image)
        durable = promise.durable if promise.cut < 0 else min(promise.durable, promise.cut)
        number = sum(self.counts.values())
        try:
            if number % 3 == 2:
                self._cut_short(world, number)
            engine = world.start()
        except RmqkitError as error:
            return self._refusal(str(error), durable, flip)
        found = found_in(engine)
        if flip is not None:
            why = self._flipped(found, promise, flip, world)
        else:
            why = self._compare(image, found, engine, promise, count_max) or self._keys(engine, found, promise)
        why = why or self._again(world, found, promise, with_power=bool(number % 2) or image.kind == "kill")
        # After an unguarded flip a queue's last number may be wrong: do not check the next one.
        return why or ("" if flip is not None and not flip.is_guarded else self.goes_on(world, found, promise))

    def goes_on(self, world: QuickWorld, found: Found, promise: Promise) -> str:
        """Check that the store takes another message under the next number.

        If a message was lost, the new one has its size: stale bytes that a recovery left behind the
        end of the log would continue it. Return what is wrong, or "".
        """
        lost = next((known for known in promise.log if known.phy_offset == found.end), None)
        queue = (lost.topic, lost.queue_id) if lost else next(iter(found.rows), ("A", 0))
        body = b"M" * (len(lost.body) if lost else 4)
        rows = found.rows.get(queue, [])
        result = world.engine.append(
            put(*queue, body, properties=properties_of("newone" if lost is None else "M" * len(lost.key)))
        )
        world.settle()
        expected = {**found.rows, queue: [*rows, (result.queue_offset, result.phy_offset, body)]}
        counts = {known.phy_offset: known.count for known in promise.log}
        if rows and result.queue_offset != rows[-1][0] + counts.get(rows[-1][1], 1):
            return f"a message put after the start got number {result.queue_offset} behind {rows[-1][0]}"
        if found_in(world.engine).rows != expected:
            return "after one more put the queues have something else than that and what they had"
        world.kill()
        if differences(found_in(world.start()).rows, expected, promise):
            return "what the start left behind the end of the log came back"
        return ""

    def _cut_short(self, world: QuickWorld, number: int) -> None:
        """Interrupt a recovery at some turn, by a kill or a power loss."""
        world.engine.start()
        for _ in range(number // 3 % 12):
            world.turn()
        if number % 2:
            world.crash()
        else:
            world.kill()

    def _refusal(self, text: str, durable: int, flip: Flip | None) -> str:
        if flip is not None and flip.known.phy_offset_next <= durable and "\n" not in text and "damaged" in text:
            self.refused += 1
            return ""
        return f"the start was refused: {text}"

    def _compare(self, image: Image, found: Found, engine: StorageEngine, promise: Promise, count_max: int) -> str:
        durable = promise.durable if promise.cut < 0 else min(promise.durable, promise.cut)
        log = self._with_refused(promise.log[:count_max], image, found, durable)
        if not engine.offset_synced == engine.offset_written == engine.offset_max:
            return f"what was recovered up to {engine.offset_max} is not durable"
        kept = [known for known in log if found.start <= known.phy_offset and known.phy_offset_next <= found.end]
        missing = [known for known in log if known.phy_offset_next <= durable and known not in kept]
        if missing:
            return f"{len(missing)} messages below {durable} are lost, the first at {missing[0].phy_offset}"
        end = self.end_max(log)
        if found.end > end and (found.end - end > self._file_size or found.end % self._file_size):
            return f"the log ends at {found.end}, nothing was put behind {end}"
        return differences(found.rows, expected_rows(kept, promise), promise)

    def _with_refused(self, log: Sequence[Known], image: Image, found: Found, durable: int) -> Sequence[Known]:
        """Return `log` with the refused puts that the image may still hold.

        The engine overwrites a refused put but does not sync that. After a power loss the put may
        therefore be there, like any put whose reply never arrived. After a kill it must be gone.
        """
        bodies = {row[2] for rows in found.rows.values() for row in rows}
        for since, refused in self._ledger.refused:
            is_open = image.kind != "kill" or image.operation_count < since
            if refused.body in bodies and is_open and refused.phy_offset >= durable:
                before = [known for known in log if known.phy_offset_next <= refused.phy_offset]
                log = [*before, refused, *[known for known in log if known.phy_offset >= refused.phy_offset_next]]
        return log

    def end_max(self, log: Sequence[Known]) -> int:
        """Return the largest log end these messages allow; the end of its file is allowed too."""
        return log[-1].phy_offset_next if log else 0

    @property
    def _file_size(self) -> int:
        return self._config.commit_log.mapped_file_size_commit_log

    def _keys(self, engine: StorageEngine, found: Found, promise: Promise) -> str:
        there = {row[1:] for rows in found.rows.values() for row in rows}
        kept = [known for known in promise.log if (known.phy_offset, known.body) in there]
        for known in (
            (*kept[:1], *kept[len(kept) // 2 :][:1], *kept[-2:]) if self._config.index.message_index_enable else ()
        ):
            hits = engine.query(known.topic, known.key, count_max=8, begin_ms=0, end_ms=FOREVER_MS)
            if [body_of(record) for record in hits.buffers] != [known.body]:
                return f"the message at {known.phy_offset} is not found by its key {known.key}"
        return ""

    def _flipped(self, found: Found, promise: Promise, flip: Flip, world: QuickWorld) -> str:
        """Check a flip: no body changed, earlier messages intact, a guarded field ends the log with
        a warning. Return what is wrong, or ""."""
        sent = {known.body for known in promise.log}
        at = flip.known.phy_offset
        bodies = {row[2] for rows in found.rows.values() for row in rows}
        if not bodies <= sent:
            return f"{flip.field} of the record at {at} was damaged, and a body was served that nobody sent"
        front = [known for known in promise.log if known.phy_offset_next <= at and known.phy_offset_next <= found.end]
        missing = [
            known.phy_offset for known in front if not self._may_be_away(known, promise) and known.body not in bodies
        ]
        if flip.is_guarded and found.end > at:
            return f"{flip.field} of the record at {at} was damaged, the log goes on to {found.end}"
        # A queue offset that becomes 0 looks like a recreated topic; no checksum covers it.
        if found.end < at or (missing and flip.field != "queue offset"):
            return f"{flip.field} of the record at {at} was damaged, and records before it are gone"
        if flip.is_guarded and "commit-log-cut" not in world.notes.events:
            return f"the log was cut at {at} and nobody was told"
        return ""

    def _may_be_away(self, known: Known, promise: Promise) -> bool:
        return known.phy_offset < promise.deleted.get(known.topic, 0)

    def _again(self, world: QuickWorld, found: Found, promise: Promise, *, with_power: bool) -> str:
        if with_power:
            world.crash()
        else:
            world.kill()
        try:
            again = found_in(world.start())
        except RmqkitError as error:
            return f"the second start was refused: {error}"
        if (again.start, again.end) != (found.start, found.end) or differences(again.rows, found.rows, promise):
            return f"a second start found {_summary(again)}, the first {_summary(found)}"
        return ""


class SlaveCheck(CrashCheck):
    """Checks a replica: it recovers a part of the master's log and can append the rest."""

    def __init__(
        self, make: EngineFactory, config: NodeConfig, ledger: Ledger, *, log: bytes, messages: Sequence[Known]
    ) -> None:
        super().__init__(make, config, ledger)
        self._log = log
        self._messages = messages
        self._all = ledger.promises[-1]
        self._rows = expected_rows(messages, self._all)

    def end_max(self, log: Sequence[Known]) -> int:
        following = self._messages[len(log) : len(log) + 1] or self._messages[-1:]
        return following[0].phy_offset_next

    def goes_on(self, world: QuickWorld, found: Found, promise: Promise) -> str:
        engine = world.engine
        if bytes_of(engine) != self._log[found.start : found.end]:
            return "the log is not the master's"
        while (offset := engine.offset_max) < len(self._log):
            if not engine.append_log(offset, self._log[offset : offset + _FED]):
                return f"the log takes nothing at its end {offset}"
            world.turn()
        world.turn()
        if found.start == 0 and (why := differences(found_in(engine).rows, self._rows, self._all)):
            return f"fed from {found.end} on, the queues are not the master's: {why}"
        if bytes_of(engine) != self._log[found.start :]:
            return f"fed from {found.end} on, the log is not the master's"
        return ""


def bytes_of(engine: StorageEngine) -> bytes:
    """Return the log from its first byte to its end."""
    parts: list[bytes] = []
    offset = engine.offset_min
    while part := bytes(engine.read_log(offset, 1 << 20)):
        parts.append(part)
        offset += len(part)
    return b"".join(parts)


def expected_rows(kept: Sequence[Known], promise: Promise) -> Rows:
    rows: Rows = {}
    for known in kept:
        if known.phy_offset >= promise.deleted.get(known.topic, 0):
            queue = rows.setdefault((known.topic, known.queue_id), [])
            if known.queue_offset == 0:
                # The topic was deleted and recreated.
                queue.clear()
            queue.append((known.queue_offset, known.phy_offset, known.body))
    return rows


def differences(rows: Rows, expected: Rows, promise: Promise) -> str:
    """Return the first difference as a sentence, or "" if there is none.

    Messages of a topic whose deletion is in progress may be there or not.
    """
    for key in sorted({**rows, **expected}):
        topic = key[0]
        going = promise.deleted.get(topic, 0) if topic not in promise.gone else 0
        have = [row for row in rows.get(key, []) if row[1] >= going]
        want = [row for row in expected.get(key, []) if row[1] >= going]
        if have != want:
            at = next((n for n, (a, b) in enumerate(zip(have, want, strict=False)) if a != b), min(len(have), len(want)))
            return f"queue {topic}-{key[1]} has {len(have)} messages of {len(want)}, they differ from the {at}th on"
    return ""


def properties_of(key: str) -> bytes:
    return f"UNIQ_KEY\x01{key}\x02TAGS\x01TagA\x02".encode()


def _summary(found: Found) -> str:
    return f"{sum(map(len, found.rows.values()))} messages in {found.start}..{found.end}"
