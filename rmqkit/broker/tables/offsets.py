"""Consumer offsets: the next offset of each group in each queue, and consumerOffset.json.

The table has upstream's form: `topic@group` -> queue id -> offset. The file is written each
`flushConsumerOffsetInterval` if something changed, on a slave soon after it has copied something
(`broker/metadata`), and at a clean stop.

A reset by the server is stored beside the table. It is the answer to the next pull, and is cleared
once the consumer has taken it. Until then commits of that queue are ignored.

Copies: master and slaves send each other offsets, which may be older than the receiver's. So
entries are ordered by (time of the last reset, offset), and the greater one wins on both sides.
Copying therefore never moves an offset back, except by a reset, which beats every commit before it.
The times of resets are saved in the file.

Source: `broker/.../offset/ConsumerOffsetManager.java`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from rmqkit.broker.tables.changes import Changes
from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.runtime.ports import Clock, Disk
from rmqkit.wire.bodies import ConsumerOffsetTable, DataVersion

SEPARATOR = "@"
#: limit of (topic, group) pairs; commits of new pairs above it are refused
PAIRS_MAX = 1_000_000
#: the duty that writes the file
DUTY = "save-offsets"


class OffsetTable:
    """The consumer offsets of all groups."""

    def __init__(self, disk: Disk, clock: Clock, folder: str, version_step: int) -> None:
        self.table: dict[str, dict[int, int]] = {}
        self.version = DataVersion(timestamp=clock.wall_ms)
        #: pending resets: the offset for the group's next pull, by pair and queue id
        self.resets: dict[str, dict[int, int]] = {}
        #: wall time in ms of the last reset, by pair and queue id
        self.reset_ms: dict[str, dict[int, int]] = {}
        self.changes = Changes()
        #: on a slave, the pairs that were committed here and that its master may lack; None
        #: elsewhere
        self.untold: dict[str, None] | None = None
        #: on a slave, called after each commit
        self.on_untold: Callable[[], None] = lambda: None
        self._clock = clock
        self.file = AtomicFile(disk, f"{folder}/consumerOffset.json")
        self._version_step = max(1, version_step)
        self._commits = 0
        self._dirty = False

    def configure(self, version_step: int) -> None:
        """Take changed live settings."""
        self._version_step = max(1, version_step)

    def load(self) -> None:
        """Load the file. Raises AtomicFileDamaged."""
        loaded = self.file.load(ConsumerOffsetTable.decode)
        if loaded is not None:
            self.table.update(loaded.offset_table)
            self.version = loaded.data_version or self.version
            self.reset_ms.update(_numbered(loaded.reset_table or {}))

    @property
    def is_dirty(self) -> bool:
        """Whether something changed since the last save."""
        return self._dirty

    def save(self, then: Callable[[], None] | None = None) -> None:
        """Write the file if something changed since the last save. Call `then` in either case."""
        is_changed, self._dirty = self._dirty, False
        self.file.save_if(is_changed, lambda: self.snapshot().pretty().encode(), then)

    def snapshot(self) -> ConsumerOffsetTable:
        return ConsumerOffsetTable(
            data_version=self.version, offset_table=self.table, reset_table=self._reset_table(self.reset_ms)
        )

    def part(self, keys: Iterable[str]) -> ConsumerOffsetTable:
        """Return the table of some pairs, for a slave; unknown pairs are in `removed`."""
        wanted = list(keys)
        there = [key for key in wanted if key in self.table]
        gone = [key for key in wanted if key not in self.table]
        return ConsumerOffsetTable(
            data_version=self.version,
            offset_table={key: self.table[key] for key in there},
            removed=gone or None,
            reset_table=self._reset_table(there),
        )

    def _reset_table(self, keys: Iterable[str]) -> dict[str, dict[str, int]] | None:
        marks = self.reset_ms
        if not marks:
            return None
        table = {key: {str(each): ms for each, ms in marks[key].items()} for key in keys if key in marks}
        return table or None

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """Return the committed offset, -1 if there is none."""
        queues = self.table.get(topic + SEPARATOR + group)
        return -1 if queues is None else queues.get(queue_id, -1)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Commit an offset; ignored while a reset of the queue is pending.

        False if the table is full.
        """
        key = topic + SEPARATOR + group
        pending = self.resets.get(key)
        if pending is not None and queue_id in pending:
            return True
        queues = self.table.get(key)
        if queues is None:
            if len(self.table) >= PAIRS_MAX:
                return False
            queues = self.table[key] = {}
        queues[queue_id] = offset
        self._dirty = True
        self.changes.note(key)
        if self.untold is not None:
            self.untold[key] = None
            self.on_untold()
        self._commits += 1
        if self._commits % self._version_step == 0:
            self.version = self.version.next_version(self._clock.wall_ms)
        return True

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set an offset as an administrator: the group's next pull of the queue starts there.

        Of several resets the newest counts.
        """
        self.take_reset(group, topic, queue_id)  # commits are ignored while one is pending
        key = topic + SEPARATOR + group
        marks = self.reset_ms.setdefault(key, {})
        marks[queue_id] = max(self._clock.wall_ms, marks.get(queue_id, 0) + 1)
        self.commit(group, topic, queue_id, offset)
        self.resets.setdefault(key, {})[queue_id] = offset

    def merge(self, told: ConsumerOffsetTable, may_take: Callable[[str, int, int], bool] | None = None) -> list[str]:
        """Keep the newer of each offset. Return the pairs where any of ours was newer.

        `may_take(topic, queue_id, offset)` decides whether a newer entry may be copied.
        """
        ahead = []
        marks = _numbered(told.reset_table or {})
        for key, queues in told.offset_table.items():
            if self._merge_pair(key, queues, marks.get(key, {}), may_take):
                ahead.append(key)
        return ahead

    def _merge_pair(
        self,
        key: str,
        told: Mapping[int, int],
        marks: Mapping[int, int],
        may_take: Callable[[str, int, int], bool] | None,
    ) -> bool:
        ours, our_marks = self.table.get(key, {}), self.reset_ms.get(key, {})
        newer: dict[int, int] = {}
        is_ahead = any(queue_id not in told for queue_id in ours)
        for queue_id, offset in told.items():
            theirs = marks.get(queue_id, 0), offset
            known = our_marks.get(queue_id, 0), ours.get(queue_id, -1)
            if theirs > known:
                if may_take is None or may_take(key.partition(SEPARATOR)[0], queue_id, offset):
                    newer[queue_id] = offset
            elif theirs < known:
                is_ahead = True
        if newer and (key in self.table or len(self.table) < PAIRS_MAX):
            self.table.setdefault(key, {}).update(newer)
            taken = {queue_id: marks[queue_id] for queue_id in newer if queue_id in marks}
            if taken:
                self.reset_ms.setdefault(key, {}).update(taken)
            self._dirty = True
            self.changes.note(key)
        return is_ahead

    def follow_version(self, version: DataVersion) -> None:
        """Take the version of the master's table, if it is newer."""
        if version.newer_than(self.version):
            self.version = version
            self._dirty = True

    def cut(self, end: Callable[[str, int], int]) -> None:
        """Move offsets back to queue ends, `end(topic, queue_id)`, after the log was truncated."""
        for key, queues in self.table.items():
            topic = key.partition(SEPARATOR)[0]
            beyond = {
                queue_id: end(topic, queue_id) for queue_id, offset in queues.items() if offset > end(topic, queue_id)
            }
            if beyond:
                queues.update(beyond)
                self._dirty = True
                self.changes.note(key)

    def remove_pairs(self, keys: Iterable[str]) -> None:
        wanted = set(keys)
        if wanted:
            self._remove(wanted.__contains__)

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return the pending reset of a queue and clear it; None if there is none."""
        key = topic + SEPARATOR + group
        pending = self.resets.get(key)
        if pending is None:
            return None
        offset = pending.pop(queue_id, None)
        if not pending:
            del self.resets[key]
        return offset

    def of(self, group: str, topic: str) -> dict[int, int]:
        """Return the group's offsets of a topic by queue id. The caller must not change them."""
        return self.table.get(topic + SEPARATOR + group, {})

    def clone(self, source: str, destination: str, topic: str) -> bool:
        """Copy one group's offsets of a topic to another group. False if the table is full."""
        queues = self.of(source, topic)
        if not queues:
            return True
        key = topic + SEPARATOR + destination
        if key not in self.table and len(self.table) >= PAIRS_MAX:
            return False
        self.table[key] = dict(queues)
        self._dirty = True
        self.changes.note(key)
        return True

    def remove_topic(self, topic: str) -> None:
        self._remove(lambda key: key.split(SEPARATOR, 1)[0] == topic)

    def remove_group(self, group: str) -> None:
        self._remove(lambda key: key.split(SEPARATOR, 1)[-1] == group)

    def groups_of(self, topic: str) -> list[str]:
        return [group for each, group in self.pairs() if each == topic]

    def topics_of(self, group: str) -> list[str]:
        return [topic for topic, each in self.pairs() if each == group]

    def pairs(self) -> Iterator[tuple[str, str]]:
        for key in self.table:
            topic, _, group = key.partition(SEPARATOR)
            yield topic, group

    def _remove(self, hit: Callable[[str], bool]) -> None:
        for key in [key for key in self.table if hit(key)]:
            del self.table[key]
            self.resets.pop(key, None)
            self.reset_ms.pop(key, None)
            if self.untold is not None:
                self.untold.pop(key, None)
            self.changes.note(key)
            self._dirty = True


def _numbered(marks: Mapping[str, Mapping[str, int]]) -> dict[str, dict[int, int]]:
    """Return the table with queue ids as numbers; keys that are no numbers are dropped."""
    return {key: {int(each): ms for each, ms in queues.items() if each.isdecimal()} for key, queues in marks.items()}
