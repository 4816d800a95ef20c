"""Consumer offsets: how far each group has consumed each queue, and consumerOffset.json.

Kept as upstream keeps it, `topic@group` -> queue id -> offset; written every `flushConsumerOffsetInterval` when
something changed, and at a clean stop. A server-side reset is stored beside it: it is answered to the next pull and
clears itself when the consumer has taken it; until then commits of that queue are ignored.

Source: `broker/.../offset/ConsumerOffsetManager.java`.
"""

from collections.abc import Callable, Iterator

from rmqkit.runtime.kept import KeptFile
from rmqkit.runtime.ports import Clock, Disk
from rmqkit.wire.bodies import ConsumerOffsetTable, DataVersion

SEPARATOR = "@"
#: (topic, group) pairs kept at most; a commit beyond it is refused
PAIRS_MAX = 1_000_000


class OffsetTable:
    def __init__(self, disk: Disk, clock: Clock, folder: str, version_step: int) -> None:
        self.table: dict[str, dict[int, int]] = {}
        self.version = DataVersion(timestamp=clock.wall_ms)
        self.resets: dict[str, dict[int, int]] = {}
        self._clock = clock
        self._file = KeptFile(disk, f"{folder}/consumerOffset.json")
        self._version_step = max(1, version_step)
        self._commits = 0
        self._dirty = False

    def configure(self, version_step: int) -> None:
        """Live settings have changed."""
        self._version_step = max(1, version_step)

    def load(self) -> None:
        """Raises KeptFileDamaged."""
        loaded = self._file.load(ConsumerOffsetTable.decode)
        if loaded is not None:
            self.table.update(loaded.offset_table)
            self.version = loaded.data_version or self.version

    def save(self, then: Callable[[], None] | None = None) -> None:
        """Write when something changed since the last save; `then` is called in either case."""
        if self._dirty or self._file.busy or self._file.error is not None:
            self._dirty = False
            self._file.save(lambda: self.snapshot().pretty().encode(), then)
        elif then is not None:
            then()

    def snapshot(self) -> ConsumerOffsetTable:
        return ConsumerOffsetTable(data_version=self.version, offset_table=self.table)

    def query(self, group: str, topic: str, queue_id: int) -> int:
        """The committed offset, or -1."""
        queues = self.table.get(topic + SEPARATOR + group)
        return -1 if queues is None else queues.get(queue_id, -1)

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """False when the table is full."""
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
        self._commits += 1
        if self._commits % self._version_step == 0:
            self.version = self.version.next_version(self._clock.wall_ms)
        return True

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Set an offset from outside; the group's next pull of the queue is sent there. The newest of several counts."""
        self.take_reset(group, topic, queue_id)  # commits are ignored while one is pending
        self.commit(group, topic, queue_id, offset)
        self.resets.setdefault(topic + SEPARATOR + group, {})[queue_id] = offset

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The pending reset of a queue, which ends by being taken."""
        key = topic + SEPARATOR + group
        pending = self.resets.get(key)
        if pending is None:
            return None
        offset = pending.pop(queue_id, None)
        if not pending:
            del self.resets[key]
        return offset

    def of(self, group: str, topic: str) -> dict[int, int]:
        """The group's offsets of a topic by queue id; not to be changed."""
        return self.table.get(topic + SEPARATOR + group, {})

    def clone(self, source: str, destination: str, topic: str) -> bool:
        """Give a group the offsets that another has; False when the table is full."""
        queues = self.of(source, topic)
        if not queues:
            return True
        key = topic + SEPARATOR + destination
        if key not in self.table and len(self.table) >= PAIRS_MAX:
            return False
        self.table[key] = dict(queues)
        self._dirty = True
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
            self._dirty = True
