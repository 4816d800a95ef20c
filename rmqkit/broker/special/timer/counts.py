"""TimerCounts: how many timers wait, and how many come and go, for code 28 and metrics."""

from rmqkit.broker.special.contract import SpecialParts
from rmqkit.broker.special.timer.delivery import TimerDelivery
from rmqkit.broker.special.timer.index import TimerIndex
from rmqkit.broker.special.timer.topic_counts import TopicCounts
from rmqkit.wire.topic_names import TIMER_TOPIC

#: span of the rates
WINDOW_MS = 10_000


class RateMeter:
    """Counts in two windows: the current one, and the one before it."""

    def __init__(self) -> None:
        self._begin_ms = 0
        self._count = 0
        self._before = 0

    def add(self, count: int, now_ms: int) -> None:
        self._turn(now_ms)
        self._count += count

    def text(self, now_ms: int) -> str:
        """Return the rate as code 28 shows it."""
        self._turn(now_ms)
        share = 1 - (now_ms - self._begin_ms) / WINDOW_MS
        return f"{(self._count + self._before * share) * 1000 / WINDOW_MS:.1f}"

    def _turn(self, now_ms: int) -> None:
        passed = (now_ms - self._begin_ms) // WINDOW_MS
        if passed > 0:
            self._before = self._count if passed == 1 else 0
            self._count = 0
            self._begin_ms += passed * WINDOW_MS


class TimerCounts:
    """The counts of one broker's timers."""

    def __init__(self, parts: SpecialParts, index: TimerIndex, delivery: TimerDelivery) -> None:
        self._context = parts.context
        self._store = parts.store
        self._index = index
        self._delivery = delivery
        self.topics = TopicCounts(parts, index)
        self.indexed, self.put = RateMeter(), RateMeter()

    @property
    def waiting(self) -> int:
        """The number of timers that wait, late ones included."""
        return max(0, self._index.wheel.count) + len(self._delivery.late)

    @property
    def unread(self) -> int:
        """The number of timers that are stored and not indexed."""
        if not self._context.config.timers.wheel_enable or not self._store.ready:
            return 0
        return max(0, self._store.queue_range(TIMER_TOPIC, 0).offset_max - self._index.next)

    def within(self, first_s: int, end_s: int) -> int:
        """Return the number of timers that are due from `first_s` to `end_s` seconds from now."""
        precision_ms = self._index.precision_ms
        now = self._context.clock.wall_ms // precision_ms
        first, end = (now + each * 1000 // precision_ms for each in (first_s, end_s))
        return self._index.wheel.count_between(first, end)

    @property
    def unread_ms(self) -> int:
        """The age of the oldest timer that is stored and not indexed, in ms; 0 if there is none."""
        if not self.unread:
            return 0
        stored_ms = self._store.store_time(TIMER_TOPIC, 0, self._index.next)
        return max(0, self._context.clock.wall_ms - stored_ms) if stored_ms > 0 else 0

    def facts(self, now_ms: int) -> dict[str, str]:
        return {
            "timerOffsetBehind": str(self.unread),
            "timerCongestNum": str(self.waiting),
            "timerEnqueueTps": self.indexed.text(now_ms),
            "timerDequeueTps": self.put.text(now_ms),
            "timerLate": str(len(self._delivery.late)),
        }
