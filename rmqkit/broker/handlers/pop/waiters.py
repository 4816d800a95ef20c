"""PopWaiters: pops and notifications that wait for a message.

A waiter belongs to a topic, a group and a queue; queue -1 waits for any. It is woken by an arrival
in its topic, or in one of the group's retry topics. Of each group, an arrival wakes one waiter:
first one of queue -1, then one of its own queue; after a redelivery, one of any queue.

Tags are matched before the wake. A woken pop that finds nothing waits again.

A woken pop appends a checkpoint. But arrivals come at the end of a turn, after its write. So they
are noted, and a duty (`run`) wakes the waiters in the next turn.

Source: `broker/.../longpolling/PopLongPollingService.java`.
"""

from collections.abc import Callable, Iterable

from rmqkit.runtime.connection import Connection
from rmqkit.runtime.duties import Duties
from rmqkit.runtime.ports import Clock
from rmqkit.runtime.waiters import ArrivalWaiter, ArrivalWaiters

#: a topic and a group, joined by a character that neither may have
Pair = str
ANY_QUEUE = -1


def pair_of(topic: str, group: str) -> Pair:
    return f"{topic}@{group}"


class PopWaiters:
    """Waiting pops, or waiting notifications."""

    def __init__(self, duties: Duties, clock: Clock, name: str, waiters_max: int) -> None:
        """`name` is the duty's name."""
        self._duties, self._clock, self.name = duties, clock, name
        #: what to wake in the next turn: topic, queue id, tags code of an arrival
        self._arrivals: list[tuple[str, int, int]] = []
        #: what to wake in the next turn: topic, group, and queue ids in the order of their try
        self._left: list[tuple[str, str, tuple[int, ...]]] = []
        self.calls = ArrivalWaiters(waiters_max)
        #: by name of a topic or retry topic: the pairs that want its messages
        self._pairs: dict[str, dict[Pair, None]] = {}
        #: queue ids with waiters, by pair
        self._queues: dict[Pair, dict[int, None]] = {}

    @property
    def count(self) -> int:
        return self.calls.count

    def number(self, topic: str, group: str, queue_id: int) -> int:
        """Return how many wait for this topic, group and queue."""
        return len(self.calls.by_key.get((pair_of(topic, group), queue_id), ()))

    def park(
        self,
        topic: str,
        group: str,
        queue_id: int,
        *,
        retry_topics: Iterable[str],
        deadline_ms: int,
        conn: Connection,
        match: Callable[[int], bool] | None,
        wake: Callable[[bool], None],
    ) -> bool:
        """Let a call wait. Returns False if the table is full."""
        pair = pair_of(topic, group)
        if not self.calls.park(ArrivalWaiter((pair, queue_id), 0, deadline_ms, conn, match, wake)):
            return False
        self._queues.setdefault(pair, {})[queue_id] = None
        for name in (topic, *retry_topics):
            self._pairs.setdefault(name, {})[pair] = None
        self._duties.wake(self.name, deadline_ms)
        return True

    def arrived(self, topic: str, queue_id: int, tags_code: int, record_count: int = 1) -> None:
        """Note arrived records, each for one waiter of each group that waits for it."""
        if topic in self._pairs:
            self._arrivals += [(topic, queue_id, tags_code)] * record_count
            self._duties.wake(self.name, self._clock.mono_ms)

    def wake(self, topic: str, group: str, *queue_ids: int) -> None:
        """Note that messages are left, for one waiter of a group: of the first queue with one."""
        self._left.append((topic, group, queue_ids))
        self._duties.wake(self.name, self._clock.mono_ms)

    def run(self, now_ms: int) -> int | None:
        """Wake those that were noted, and those whose time is over. Return the next deadline."""
        left, self._left = self._left, []
        for topic, group, queue_ids in left:
            self._wake(pair_of(topic, group), queue_ids, None)
        arrivals, self._arrivals = self._arrivals, []
        for topic, queue_id, tags_code in arrivals:
            self._arrived(topic, queue_id, tags_code)
        return self.calls.expire(now_ms)

    def _arrived(self, topic: str, queue_id: int, tags_code: int) -> None:
        for pair in list(self._pairs.get(topic, ())):
            if not self._is_waiting(pair):
                del self._pairs[topic][pair]
                if not self._pairs[topic]:
                    del self._pairs[topic]
            elif pair.partition("@")[0] == topic:
                self._wake(pair, (ANY_QUEUE, queue_id), tags_code)
            else:
                self._wake(pair, (ANY_QUEUE, *self._queues[pair]), None)

    def wake_topic(self, topic: str) -> None:
        """Wake every waiter of a topic, which was deleted."""
        for pair in list(self._pairs.get(topic, ())):
            for queue_id in list(self._queues.get(pair, ())):
                self.calls.wake_all((pair, queue_id))

    def wake_all(self) -> None:
        """Wake every waiter."""
        for key in list(self.calls.by_key):
            self.calls.wake_all(key)

    def _is_waiting(self, pair: Pair) -> bool:
        """Return whether anything waits for a pair; forget its queues without waiters."""
        queues = self._queues.get(pair, {})
        for queue_id in [each for each in queues if (pair, each) not in self.calls.by_key]:
            del queues[queue_id]
        if not queues:
            self._queues.pop(pair, None)
        return bool(queues)

    def _wake(self, pair: Pair, queue_ids: Iterable[int], tags_code: int | None) -> None:
        for queue_id in queue_ids:
            for waiter in self.calls.by_key.get((pair, queue_id), ()):
                if tags_code is None or waiter.match is None or waiter.match(tags_code):
                    self.calls.end(waiter, True)
                    return
