"""The duty: a round over all topics every `intervalMillis`, in bounded pieces, one per turn.

A round reads the ends of every queue of every topic (`StorageEngine.queue_range`). Of each queue
that has grown it also reads the sizes of the newest messages, at most `SAMPLE` of them. So the byte
counts are exact for quiet queues, and estimates for busy ones.

After each round the history is saved in `config/usage.json`, with the previous one as `.bak`. A
broker continues with it after a restart, and its first round counts what arrived between the last
round and the stop.

If the history cannot be read, the broker logs `usage-begins-anew` and starts an empty one: usage
must never keep a broker from starting.
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
    """The settings `plugin.usage.…` of a broker."""

    #: time between two rounds, in ms
    interval_millis: Annotated[int, msgspec.Meta(ge=100, le=86_400_000)] = 60_000
    #: most points of each topic; the history of a busy topic covers this many intervals
    points_max: Annotated[int, msgspec.Meta(ge=2, le=10_000)] = 120
    #: most topics to follow; further topics are only counted
    topics_max: Annotated[int, msgspec.Meta(ge=1, le=100_000)] = 1_000


class SampleRound:
    """Samples the topics of one broker in rounds."""

    def __init__(self, broker: "BrokerView", settings: UsageSettings) -> None:
        self.settings = settings
        self.history = History(points_max=settings.points_max, topics_max=settings.topics_max)
        self._broker = broker
        self._file = AtomicFile(broker.ports.disk, FILE)
        #: topics that the current round has not sampled yet, in reverse order
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
        """Do a piece of a round. Return when to run next."""
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
        """Sample one topic. Return the number of its queues."""
        config = self._broker.topics.get(topic)
        if config is None:
            return 0
        store = self._broker.store
        before = self.history.ends_of(topic)
        # A topic whose number of queues was reduced still has the messages of its former queues.
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
        """Return the size in bytes of the `added` newest records of a queue.

        It is estimated from the last `SAMPLE` records.
        """
        start = max(end - min(added, SAMPLE), offset_min)
        read = self._broker.store.read(topic, queue_id, start, count_max=end - start, size_max=SAMPLE_SIZE_MAX)
        if not read.message_count:
            return 0
        return round(read.size / read.message_count * added)
