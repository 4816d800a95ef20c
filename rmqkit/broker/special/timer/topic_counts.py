"""TopicCounts: the timers that wait for each topic, for code 61, metrics and RocketMQ's file.

`config/timermetrics` is what Apache's broker counts on from, if it opens this store. This broker
never counts from it: its index counts again at each start. So only the data version is read. It
moves with the counts, because an Apache slave takes over the counts only when it has moved. A file
that cannot be read therefore does not stop the start.

The file is written if the counts have changed: when the broker stops or changes its role, and else
at most every `SAVE_MS`.

Source: `store/.../timer/TimerMetrics.java`, `broker/.../slave/SlaveSynchronize.java`
(`syncTimerMetrics`).
"""

from collections.abc import Callable

from rmqkit.broker.special.contract import SpecialParts
from rmqkit.broker.special.timer.index import TimerIndex
from rmqkit.runtime.atomic_file import AtomicFile, AtomicFileDamaged
from rmqkit.wire.bodies import DataVersion
from rmqkit.wire.bodies.offsets import TimerMetric, TimerMetrics
from rmqkit.wire.javahash import java_hash

SAVE_MS = 10_000


class TopicCounts:
    """The number of timers that wait, by topic, as it was last asked for."""

    def __init__(self, parts: SpecialParts, index: TimerIndex) -> None:
        self._clock = parts.context.clock
        self._log = parts.context.log
        self._topics = parts.topics
        self._index = index
        self._file = AtomicFile(parts.context.disk, f"{parts.folder}/timermetrics")
        self._hashes: dict[str, int] = {}
        self._known: dict[str, TimerMetric] = {}
        self._version = DataVersion(timestamp=self._clock.wall_ms)
        self._saved: DataVersion | None = None
        self._save_due_ms = 0

    @property
    def save_due_ms(self) -> int | None:
        """When the file may be written next (monotonic ms); None: at once."""
        return self._save_due_ms if self._save_due_ms > self._clock.mono_ms else None

    def load(self) -> None:
        """Read the data version. If no copy of the file can be read, the version starts again."""
        try:
            saved = self._file.load(TimerMetrics.decode)
        except AtomicFileDamaged as error:
            self._log.warning("timer-counts-unreadable", error=str(error), note="the timers are counted again")
            return
        if saved is not None:
            self._version = saved.data_version

    def by_topic(self) -> dict[str, int]:
        """Return the number of timers that wait for each topic, without zeroes.

        Topics whose names have the same Java hash share a count, as in Apache.
        """
        counts, topics = self._index.by_topic, self._topics.by_name
        if not counts:
            return {}
        if len(self._hashes) > 2 * len(topics):
            self._hashes.clear()
        hashes = self._hashes
        found = {}
        for topic in topics:
            key = hashes.get(topic)
            if key is None:
                key = hashes[topic] = java_hash(topic)
            count = counts.get(key, 0)
            if count > 0:
                found[topic] = count
        return dict(sorted(found.items()))

    def metrics(self) -> TimerMetrics:
        """Return the counts, each with the time of its last change, and their data version."""
        counts, wall_ms = self.by_topic(), self._clock.wall_ms
        if counts != {topic: each.count for topic, each in self._known.items()}:
            known = self._known
            self._known = {
                topic: known[topic]
                if topic in known and known[topic].count == count
                else TimerMetric(count=count, time_stamp=wall_ms)
                for topic, count in counts.items()
            }
            self._version = self._version.next_version(wall_ms)
        return TimerMetrics(data_version=self._version, timing_count=self._known)

    def save(self, then: Callable[[], None] | None, *, is_urgent: bool) -> None:
        """Write the file if it is due or `is_urgent`, and the counts have changed. Call `then`."""
        now_ms = self._clock.mono_ms
        if is_urgent or now_ms >= self._save_due_ms:
            self._save_due_ms = now_ms + SAVE_MS
            metrics = self.metrics()
            if metrics.data_version != self._saved:
                self._saved = metrics.data_version
                self._file.save(metrics.encode, then)
                return
        if then is not None:
            then()
