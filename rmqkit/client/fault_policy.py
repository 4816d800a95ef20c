"""Fault policies: choose the broker of a producer's next attempt from the outcomes of recent ones.

A policy gets the outcome of every attempt and picks a queue for the next one. The built-in
policies:

- `none`: round robin over the queues that skips the broker that just failed (Apache's default).
- `latency`: avoids a broker that was slow or failed, for a time that grows with its latency, by the
  table of Apache 5.x.
- `latency-4x`: the same with the table of 4.x, which avoids a broker for minutes.

With a latency table the policy picks the first queue in round-robin order whose broker is:

1. available and not the one that just failed, else
2. reachable and not the one that just failed, else
3. any broker.

Availability depends on time. A broker becomes unreachable when it responds with an error, and
reachable again with its next success. An unknown broker is available.

Source: `client/.../latency/MQFaultStrategy.java` (selectOneMessageQueue,
computeNotAvailableDuration), `LatencyFaultToleranceImpl.java`,
`impl/producer/TopicPublishInfo.java`; the table of 4.x is in the same class of 4.9.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from rmqkit.wire.fastjson import MessageQueue


@dataclass(slots=True, eq=False)
class QueueRing:
    """The queues of a topic and the position of the round robin."""

    queues: Sequence[MessageQueue]
    index: int

    def next(self) -> MessageQueue:
        """Advance by one and return the queue there."""
        self.index += 1
        return self.queues[self.index % len(self.queues)]

    def next_with(self, wanted: Callable[[MessageQueue], bool]) -> MessageQueue | None:
        """Return the next queue for which `wanted` is true, or None after one round."""
        for _ in self.queues:
            queue = self.next()
            if wanted(queue):
                return queue
        return None


class FaultPolicy(Protocol):
    """The interface of a fault policy. Plug-ins register one by name (`rmqkit_fault_policies`)."""

    def pick(self, ring: QueueRing, broker_failed: str | None, now_ms: int) -> MessageQueue:
        """Return the queue of the next attempt.

        `broker_failed` is the broker of the previous attempt, or None for the first one.
        """

    def update(self, broker_name: str, latency_ms: int, *, isolate: bool, reachable: bool, now_ms: int) -> None:
        """Record that an attempt ended after `latency_ms`.

        With `isolate` the attempt failed, and its latency means nothing. `reachable` is False if
        the broker responded with an error.
        """


class RoundRobin:
    """`none`: the next queue that is not on the broker that just failed."""

    def pick(self, ring: QueueRing, broker_failed: str | None, now_ms: int) -> MessageQueue:
        return _not_on(ring, broker_failed) or ring.next()

    def update(self, broker_name: str, latency_ms: int, *, isolate: bool, reachable: bool, now_ms: int) -> None:
        pass


class LatencyTable(NamedTuple):
    """How long a broker is unavailable after an attempt of a given latency.

    A latency of at least `latency_max_ms[i]` makes it unavailable for `not_available_ms[i]`. A
    failed attempt counts as a latency of `isolated_as_ms`. With `shortens` (4.x) a fast attempt
    ends an earlier pause; without it (5.x) a pause can only be extended.
    """

    latency_max_ms: tuple[int, ...]
    not_available_ms: tuple[int, ...]
    isolated_as_ms: int
    shortens: bool

    def not_available_for_ms(self, latency_ms: int) -> int:
        """Return the pause after an attempt of this latency, in ms."""
        for limit_ms, pause_ms in zip(reversed(self.latency_max_ms), reversed(self.not_available_ms), strict=True):
            if latency_ms >= limit_ms:
                return pause_ms
        return 0


TABLE_5X = LatencyTable(
    (50, 100, 550, 1800, 3000, 5000, 15_000),
    (0, 0, 2000, 5000, 6000, 10_000, 30_000),
    isolated_as_ms=10_000,
    shortens=False,
)
TABLE_4X = LatencyTable(
    (50, 100, 550, 1000, 2000, 3000, 15_000),
    (0, 0, 30_000, 60_000, 120_000, 180_000, 600_000),
    isolated_as_ms=30_000,
    shortens=True,
)


class LatencyFault:
    """`latency` and `latency-4x`: avoid brokers that were slow or failed."""

    def __init__(self, table: LatencyTable) -> None:
        self.table = table
        #: Monotonic ms by broker name.
        self.available_from_ms: dict[str, int] = {}
        self.unreachable: dict[str, None] = {}

    def pick(self, ring: QueueRing, broker_failed: str | None, now_ms: int) -> MessageQueue:
        available, unreachable = self.available_from_ms, self.unreachable
        return (
            ring.next_with(lambda q: available.get(q.broker_name, 0) <= now_ms and q.broker_name != broker_failed)
            or ring.next_with(lambda q: q.broker_name not in unreachable and q.broker_name != broker_failed)
            or ring.next()
        )

    def update(self, broker_name: str, latency_ms: int, *, isolate: bool, reachable: bool, now_ms: int) -> None:
        pause_ms = self.table.not_available_for_ms(self.table.isolated_as_ms if isolate else latency_ms)
        if self.table.shortens or (pause_ms and now_ms + pause_ms > self.available_from_ms.get(broker_name, 0)):
            self.available_from_ms[broker_name] = now_ms + pause_ms
        if reachable:
            self.unreachable.pop(broker_name, None)
        else:
            self.unreachable[broker_name] = None


def _not_on(ring: QueueRing, broker_name: str | None) -> MessageQueue | None:
    if broker_name is None:
        return ring.next()
    return ring.next_with(lambda queue: queue.broker_name != broker_name)


#: Name to factory, in the form that plug-ins use.
FAULT_POLICIES: Mapping[str, Callable[[], FaultPolicy]] = {
    "none": RoundRobin,
    "latency": lambda: LatencyFault(TABLE_5X),
    "latency-4x": lambda: LatencyFault(TABLE_4X),
}
