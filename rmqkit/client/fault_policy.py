"""Fault policies: which broker a producer tries next, given how each one did lately.

A policy is told the outcome of every try and picks a queue for the next one. The built-in ones, by name:

- `none`: round robin over the queues, past the broker that just failed (upstream's default).
- `latency`: a broker that was slow or failed is left alone for a while that grows with its latency, by the table of 5.x.
- `latency-4x`: the same with the table of 4.x, which isolates for minutes.

With a latency table the choice is: available and not the one that just failed, then reachable and not that one, then
any. Availability is by time; reachability is lost with a broker's error answer and comes back with the next success.
A broker that is in no table is available.

Source: `client/.../latency/MQFaultStrategy.java` (selectOneMessageQueue, computeNotAvailableDuration),
`LatencyFaultToleranceImpl.java`, `impl/producer/TopicPublishInfo.java`; the table of 4.x is the same class of 4.9.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from rmqkit.wire.fastjson import MessageQueue


@dataclass(slots=True, eq=False)
class QueueRing:
    """The queues of a topic and the place of the round robin among them."""

    queues: Sequence[MessageQueue]
    index: int

    def next(self) -> MessageQueue:
        self.index += 1
        return self.queues[self.index % len(self.queues)]

    def next_with(self, wanted: Callable[[MessageQueue], bool]) -> MessageQueue | None:
        """The next queue that is wanted, within one round."""
        for _ in self.queues:
            queue = self.next()
            if wanted(queue):
                return queue
        return None


class FaultPolicy(Protocol):
    """What a plug-in offers under a name of its own (hook `rmqkit_fault_policies`)."""

    def pick(self, ring: QueueRing, broker_failed: str | None, now_ms: int) -> MessageQueue:
        """The queue of the next try. `broker_failed` is the broker of the try before, None for the first."""

    def update(self, broker_name: str, latency_ms: int, *, isolate: bool, reachable: bool, now_ms: int) -> None:
        """A try ended after `latency_ms`. `isolate`: it failed, so its own latency says nothing."""


class RoundRobin:
    """`none`: the next queue that is not on the broker that just failed."""

    def pick(self, ring: QueueRing, broker_failed: str | None, now_ms: int) -> MessageQueue:
        return _not_on(ring, broker_failed) or ring.next()

    def update(self, broker_name: str, latency_ms: int, *, isolate: bool, reachable: bool, now_ms: int) -> None:
        pass


class LatencyTable(NamedTuple):
    """`not_available_ms[i]` follows a latency of at least `latency_max_ms[i]`; a failure counts as `isolated_as_ms`.

    `shortens`: a good try ends a rest that is still running (4.x); otherwise a rest only ever grows (5.x).
    """

    latency_max_ms: tuple[int, ...]
    not_available_ms: tuple[int, ...]
    isolated_as_ms: int
    shortens: bool

    def not_available_for_ms(self, latency_ms: int) -> int:
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
    """`latency`, `latency-4x`: brokers that were slow or failed rest for a while."""

    def __init__(self, table: LatencyTable) -> None:
        self.table = table
        #: by broker name
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


#: name -> factory, the shape in which plug-ins register theirs
FAULT_POLICIES: Mapping[str, Callable[[], FaultPolicy]] = {
    "none": RoundRobin,
    "latency": lambda: LatencyFault(TABLE_5X),
    "latency-4x": lambda: LatencyFault(TABLE_4X),
}
