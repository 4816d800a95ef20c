"""LockTable: which member of a group holds which queue, for ordered consumption.

A lock is a lease of 60 s. The same client renews it by asking again; a lease that ran out is anybody's; only its owner
gives it back early.

    lock      free or run out → the asker's    the asker's → renewed    another's → refused
    unlock    the asker's (run out or not) → free    anything else → nothing
    undo      what one attempt took → free    what it renewed → as it was before    anything else → nothing

An attempt is a number that the asker made up, 0 for none. Where several brokers are asked for one lock and too few of
them agree, the others take back what that attempt has changed, and nothing but that: a lease that the client got before
runs on to its end, and an `undo` that comes late finds a later attempt and leaves it alone. Several attempts of one
client may fail at once, by way of several brokers, so what is behind an attempt is kept with what was behind that.

Limits: locks of the whole table, and the sizes of the names in them. What ran out is forgotten by `sweep`, which the
broker calls every 30 s, and at once when the table is full.

Source: `broker/.../client/rebalance/RebalanceLockManager.java`; attempts are ours.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rmqkit.wire.fastjson import MessageQueue

LOCK_LIVE_MS = 60_000
#: leases behind an attempt that are remembered, the youngest
BEHIND_MAX = 8
#: locks of all groups
LOCKS_MAX = 100_000


class Lease(NamedTuple):
    """Who holds a queue, since when (monotonic), by which attempt; and what that attempt found."""

    client_id: str
    since_ms: int
    attempt: int = 0
    before: "Lease | None" = None


def chain(lease: Lease) -> list[Lease]:
    """A lease and those behind it, the youngest first."""
    found: list[Lease] = []
    each: Lease | None = lease
    while each is not None:
        found.append(each)
        each = each.before
    return found


def linked(leases: Sequence[Lease]) -> Lease | None:
    """The other way round: the first, with the others behind it; None for none."""
    behind: Lease | None = None
    for lease in reversed(leases):
        behind = lease._replace(before=behind)
    return behind


class LockTable:
    def __init__(self, locks_max: int = LOCKS_MAX) -> None:
        #: how long a lease runs; simulated clusters have shorter ones
        self.live_ms = LOCK_LIVE_MS
        self.by_group: dict[str, dict[MessageQueue, Lease]] = {}
        self.count = 0
        self._locks_max = locks_max

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int, attempt: int = 0
    ) -> list[MessageQueue] | None:
        """Those of the queues that the client holds now; None when there is no room, and nothing is changed."""
        wanted = list(dict.fromkeys(queues))
        if not self._has_room(group, wanted):
            self.sweep(now_ms)
            if not self._has_room(group, wanted):
                return None
        held = self.by_group.get(group, {})
        granted = []
        for queue in wanted:
            known = held.get(queue)
            before = None
            if known is None:
                self.count += 1
            elif known.client_id == client_id:
                before = self._behind(known, now_ms) if attempt else None
            elif now_ms - known.since_ms <= self.live_ms:
                continue
            held[queue] = Lease(client_id, now_ms, attempt, before)
            granted.append(queue)
        if held:
            self.by_group[group] = held
        return granted

    def _behind(self, known: Lease, now_ms: int) -> Lease | None:
        """The lease, with those behind it that run."""
        found = [each for each in chain(known)[:BEHIND_MAX] if now_ms - each.since_ms <= self.live_ms]
        return linked(found)

    def _has_room(self, group: str, queues: list[MessageQueue]) -> bool:
        held = self.by_group.get(group, {})
        new = sum(queue not in held for queue in queues)
        return not new or self.count + new <= self._locks_max

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue], attempt: int = 0) -> list[MessageQueue]:
        """Those that were freed. With an attempt only what that attempt granted, as its answer was the last that the client
        has seen."""
        freed = []
        for queue in queues:
            known = self.lease(group, queue)
            if known is not None and known.client_id == client_id and attempt in (0, known.attempt):
                self._forget(group, queue)
                freed.append(queue)
        return freed

    def undo(self, group: str, client_id: str, queues: Iterable[MessageQueue], attempt: int) -> None:
        """Take back what the attempt has changed, as far as nothing has changed it since."""
        for queue in queues:
            known = self.lease(group, queue)
            if known is None or known.client_id != client_id or known.attempt != attempt:
                continue
            if known.before is None:
                self._forget(group, queue)
            else:
                self.by_group[group][queue] = known.before

    def lease(self, group: str, queue: MessageQueue) -> Lease | None:
        """What is known of a queue, whether it runs or not."""
        return self.by_group.get(group, {}).get(queue)

    def holds_any(self, group: str, now_ms: int) -> bool:
        """Whether some member of the group has a lease that runs: the group consumes in order."""
        held = self.by_group.get(group)
        return held is not None and any(now_ms - lease.since_ms <= self.live_ms for lease in held.values())

    def running(self, now_ms: int) -> int:
        """How many leases run."""
        leases = (lease for held in self.by_group.values() for lease in held.values())
        return sum(now_ms - lease.since_ms <= self.live_ms for lease in leases)

    def sweep(self, now_ms: int) -> None:
        """Forget what ran out."""
        for group, held in list(self.by_group.items()):
            for queue, lease in list(held.items()):
                if now_ms - lease.since_ms > self.live_ms:
                    self._forget(group, queue)

    def _forget(self, group: str, queue: MessageQueue) -> None:
        held = self.by_group[group]
        del held[queue]
        self.count -= 1
        if not held:
            del self.by_group[group]
