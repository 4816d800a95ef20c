"""TransactionCounts: how transactions ended, and which halves wait, for code 28 and metrics.

Halves that wait are counted by topic only when a scrape asks: each half is read once, at most
`READ_PER_LOOK` in one look. Those not read yet are counted under the topic `UNKNOWN`, so that the
sum is right from the start.

Source: `broker/.../transaction/TransactionMetrics.java`, which keeps the counts in a file. They
drift there when the broker is killed.
"""

from collections import Counter
from collections.abc import Set

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.special.transactions.halves import Halves
from rmqkit.broker.special.transactions.rewrite import target
from rmqkit.metrics.histogram import HistogramTable
from rmqkit.store.contract import StorageEngine
from rmqkit.wire.record import Record
from rmqkit.wire.topic_names import HALF_TOPIC

#: halves that one look reads: about 20 ms
READ_PER_LOOK = 500
#: halves whose topics are remembered
REMEMBERED_MAX = 100_000
UNKNOWN = "unknown"
#: upper bounds of the buckets of `latency_s`
LATENCY_BOUNDS_S = (5, 60, 600, 3_600, 43_200, 86_400)


class TransactionCounts:
    """Totals since the start of the broker, and the halves that wait."""

    def __init__(self, context: BrokerContext, store: StorageEngine, halves: Halves) -> None:
        self._clock = context.clock
        self._store = store
        self._halves = halves
        #: by topic
        self.committed: Counter[str] = Counter()
        self.rolled_back: Counter[str] = Counter()
        #: the time from a half's birth to its commit in s, by topic
        self.latency_s: HistogramTable[str] = HistogramTable(LATENCY_BOUNDS_S)
        self.asked = self.no_producer = self.given_up = 0
        #: topics of halves, by their offset
        self._topics: dict[int, str] = {}
        #: the next half to read
        self._next = 0

    def decided(self, half: Record, *, is_commit: bool) -> None:
        """Count the end of a half."""
        topic = _topic(half)
        if not is_commit:
            self.rolled_back[topic] += 1
            return
        self.committed[topic] += 1
        age_ms = self._clock.wall_ms - half.born_ms
        self.latency_s.add(topic, age_ms // 1000 if age_ms > 0 else 0)

    def waiting(self, first: int, finished: Set[int]) -> dict[str, int]:
        """Return the number of halves from `first` on that are not `finished`, by topic."""
        topics, known = self._topics, self._store.queue_range(HALF_TOPIC, 0)
        first = max(first, known.offset_min)
        if not first <= self._next <= known.offset_max:
            topics.clear()
            self._next = first
        for offset in [each for each in topics if each < first]:
            del topics[offset]
        end = min(known.offset_max, self._next + min(READ_PER_LOOK, max(0, REMEMBERED_MAX - len(topics))))
        for entry in self._store.entries(HALF_TOPIC, 0, self._next, end - self._next) if end > self._next else ():
            half = self._halves.of(entry)
            topics[entry.queue_offset] = UNKNOWN if half is None else _topic(half)
            self._next = entry.queue_offset + 1
        found = Counter(topic for offset, topic in topics.items() if offset not in finished)
        left = known.offset_max - self._next - sum(offset >= self._next for offset in finished)
        if left > 0:
            found[UNKNOWN] += left
        return dict(sorted(found.items()))

    def facts(self) -> dict[str, str]:
        """Return the totals as code 28 shows them."""
        return {
            "transactionsCommitted": str(self.committed.total()),
            "transactionsRolledBack": str(self.rolled_back.total()),
            "transactionsAsked": str(self.asked),
            "transactionsNoProducer": str(self.no_producer),
            "transactionsGivenUp": str(self.given_up),
        }


def _topic(half: Record) -> str:
    return (target(half.properties) or (UNKNOWN, 0))[0]
