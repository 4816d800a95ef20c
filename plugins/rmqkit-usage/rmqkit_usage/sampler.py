"""The duty: a round over all topics every `intervalMillis`, a bounded piece of it per turn.

A round asks the store for the ends of every queue of every topic (`StorageEngine.queue_range`), and for the sizes of the
newest messages of queues that have grown: at most `SAMPLE` of them each, so bytes are exact for quiet queues and an
estimate for busy ones. Then the history goes to `config/usage.json` (the last one beside it as `.bak`), and the broker goes
on from there after a restart. What came between the last round and a stop is counted by the first round after the start.

A history that cannot be read is said in the log and begun anew: accounting keeps no broker from starting.
"""

from typing import TYPE_CHECKING, Annotated

import msgspec

from rmqkit.runtime.atomic_file import AtomicFile, AtomicFileDamaged
from rmqkit_usage.history import History, is_shorter

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

FILE = "config/usage.json"
QUEUES_PER_TURN = 500
SAMPLE = 16
SAMPLE_SIZE_MAX = 1 << 20


class UsageSettings(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """`plugin.usage.…` of a broker's configuration."""

    #: time between two rounds, in ms
    interval_millis: Annotated[int, msgspec.Meta(ge=100, le=86_400_000)] = 60_000
    #: points kept for each topic; a busy topic's history reaches back this many intervals
    points_max: Annotated[int, msgspec.Meta(ge=2, le=10_000)] = 120
    #: topics that are followed; those that come later are only counted
    topics_max: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1_000


class SampleRound:
    def __init__(self, broker: "BrokerView", settings: UsageSettings) -> None:
        self.settings = settings
        self.history = History(points_max=settings.points_max, topics_max=settings.topics_max)
        self._broker = broker
        self._file = AtomicFile(broker.ports.disk, FILE)
        #: topics that the round under way has not come to, last first
        self._left: list[str] = []
        self._left_out = 0
        self._round_due_ms: int | None = None
        self._load()

    def _load(self) -> None:
        try:
            self._file.load(self.history.take)
        except AtomicFileDamaged as error:
            self._broker.log.warning("usage-begins-anew", reason=str(error))

    def run(self, now_ms: int) -> int:
        """A piece of a round; when to go on."""
        if self._round_due_ms is None:
            self._round_due_ms = now_ms
        if now_ms < self._round_due_ms:
            return self._round_due_ms
        if not self._left:
            self._left = sorted(self._broker.topics.by_name, reverse=True)
            self._left_out = 0
        queues = 0
        while self._left and queues < QUEUES_PER_TURN:
            queues += self._sample(self._left.pop())
        if self._left:
            return now_ms
        self._end_round()
        self._round_due_ms = now_ms + self.settings.interval_millis
        return self._round_due_ms

    def _end_round(self) -> None:
        broker = self._broker
        self.history.end_round(broker.topics.by_name, self._left_out, broker.clock.wall_ms)
        if self._file.error is not None:
            broker.log.warning("usage-not-saved", error=str(self._file.error))
        self._file.save(self.history.encode)

    def _sample(self, topic: str) -> int:
        """Look at one topic; how many queues that were."""
        config = self._broker.topics.get(topic)
        if config is None:
            return 0
        store = self._broker.store
        before = self.history.ends_of(topic)
        # A topic that was given fewer queues still has what is in the others.
        count = max(config.read_queue_nums, config.write_queue_nums, len(before or ()))
        ranges = [store.queue_range(topic, queue_id) for queue_id in range(count)]
        ends = [max(0, queue.offset_max) for queue in ranges]
        kept = sum(end - max(0, queue.offset_min) for end, queue in zip(ends, ranges, strict=True))
        size = 0
        if before is not None:
            known = () if is_shorter(ends, before) else before
            for queue_id, end in enumerate(ends):
                added = end - (known[queue_id] if queue_id < len(known) else 0)
                if added > 0:
                    size += self._size_of_newest(topic, queue_id, ranges[queue_id].offset_min, end, added)
        if not self.history.add(topic, ends, kept, size, self._broker.clock.wall_ms):
            self._left_out += 1
        return count

    def _size_of_newest(self, topic: str, queue_id: int, offset_min: int, end: int, added: int) -> int:
        """Bytes of the `added` newest records of a queue, from those at its end."""
        start = max(end - min(added, SAMPLE), offset_min)
        read = self._broker.store.read(topic, queue_id, start, count_max=end - start, size_max=SAMPLE_SIZE_MAX)
        if not read.message_count:
            return 0
        return round(read.size / read.message_count * added)
