"""LockTable: which member of a consumer group holds which queue, for ordered consumption.

A lock is a lease of 60 s. Its client renews it by locking again, and may release it early. Any
client may take an expired lease.

    operation    lease of                       result
    lock         nobody, or expired             granted to the caller
    lock         the caller                     renewed
    lock         another client                 refused
    unlock       the caller (expired or not)    free
    unlock       anybody else                   unchanged
    undo         the attempt, newly taken       free
    undo         the attempt, renewed           as before the attempt
    undo         anything else                  unchanged

An attempt is a number that the caller chooses; 0 means no attempt. In lock mode `strict` a
coordinator asks several brokers for one lock. If too few agree, those that agreed undo what that
attempt changed, and nothing else:

- A lease that the client got earlier stays valid until it expires.
- An `undo` that arrives late finds a newer attempt and leaves it alone.
- Several attempts of one client, through several coordinators, may fail at the same time. So each
  lease links to the lease that it replaced, and that one to its predecessor (`Lease.before`).

The number of locks in the table is limited (`LOCKS_MAX`). `sweep` forgets expired leases: the
broker calls it every 30 s, and `lock` calls it when the table is full.

Source: `broker/.../client/rebalance/RebalanceLockManager.java`. Apache's brokers know no attempts.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rmqkit.wire.bodies.offsets import LeaseCopy
from rmqkit.wire.fastjson import MessageQueue

LOCK_LIVE_MS = 60_000
#: length of the chain of earlier leases kept per lease; the newest are kept
BEHIND_MAX = 8
#: locks of all consumer groups together
LOCKS_MAX = 100_000
#: how long a release that came before its lease counts, and how many are kept; the oldest go
RELEASED_MS = 5_000
RELEASED_MAX = 1_000


class Lease(NamedTuple):
    """A client's hold on a queue.

    `since_ms` is monotonic. `before` is the client's lease that `attempt` replaced, or None.
    """

    client_id: str
    since_ms: int
    attempt: int = 0
    before: "Lease | None" = None


def chain(lease: Lease) -> list[Lease]:
    """Return the lease and its predecessors, newest first."""
    found: list[Lease] = []
    each: Lease | None = lease
    while each is not None:
        found.append(each)
        each = each.before
    return found


def linked(leases: Sequence[Lease]) -> Lease | None:
    """Link leases, newest first: the inverse of `chain`. None if the list is empty."""
    behind: Lease | None = None
    for lease in reversed(leases):
        behind = lease._replace(before=behind)
    return behind


class LockTable:
    """The leases of one broker, by consumer group and queue. `count` is the number of leases."""

    def __init__(self, locks_max: int = LOCKS_MAX) -> None:
        #: lifetime of a lease; simulated clusters use a shorter one
        self.live_ms = LOCK_LIVE_MS
        self.by_group: dict[str, dict[MessageQueue, Lease]] = {}
        self.count = 0
        #: number of changes; a slave copies the leases when it has grown
        self.version = 0
        self._locks_max = locks_max
        #: (group, client, queue) → when another broker passed on its release (monotonic ms)
        self._released: dict[tuple[str, str, MessageQueue], int] = {}

    def lock(
        self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int, attempt: int = 0
    ) -> list[MessageQueue] | None:
        """Lock queues or renew their leases; return those that the client holds now.

        Returns None, and changes nothing, if the table has no room for all of them.
        """
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
        self.version += bool(granted)
        if held:
            self.by_group[group] = held
        return granted

    def _behind(self, known: Lease, now_ms: int) -> Lease | None:
        """Return the chain of a lease without expired leases and within `BEHIND_MAX`."""
        found = [each for each in chain(known)[:BEHIND_MAX] if now_ms - each.since_ms <= self.live_ms]
        return linked(found)

    def _has_room(self, group: str, queues: list[MessageQueue]) -> bool:
        held = self.by_group.get(group, {})
        new = sum(queue not in held for queue in queues)
        return not new or self.count + new <= self._locks_max

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue], attempt: int = 0) -> list[MessageQueue]:
        """Release queues of the client; return those that were released.

        With an attempt, release only what that attempt granted: its answer was the last that the
        client received when it unlocked.
        """
        freed = []
        for queue in queues:
            known = self.lease(group, queue)
            if known is not None and known.client_id == client_id and attempt in (0, known.attempt):
                self._forget(group, queue)
                freed.append(queue)
        self.version += bool(freed)
        return freed

    def release(self, group: str, client_id: str, queues: Sequence[MessageQueue], now_ms: int) -> None:
        """Release queues whose client unlocked them at the broker that granted locks until now.

        The release may overtake the answer that has the lease, so `adopt` leaves such leases out.
        """
        freed = self.unlock(group, client_id, queues)
        for queue in queues:
            if queue not in freed:
                self._released[group, client_id, queue] = now_ms
        while len(self._released) > RELEASED_MAX:
            del self._released[next(iter(self._released))]

    def undo(self, group: str, client_id: str, queues: Iterable[MessageQueue], attempt: int) -> None:
        """Revert what the attempt changed, unless the lease has changed since."""
        for queue in queues:
            known = self.lease(group, queue)
            if known is None or known.client_id != client_id or known.attempt != attempt:
                continue
            if known.before is None:
                self._forget(group, queue)
            else:
                self.by_group[group][queue] = known.before

    def lease(self, group: str, queue: MessageQueue) -> Lease | None:
        """Return the lease of a queue, expired or not, or None."""
        return self.by_group.get(group, {}).get(queue)

    def holds_any(self, group: str, now_ms: int) -> bool:
        """Whether the group has an unexpired lease, so that it consumes in order."""
        held = self.by_group.get(group)
        return held is not None and any(now_ms - lease.since_ms <= self.live_ms for lease in held.values())

    def running(self, now_ms: int) -> int:
        """Return the number of unexpired leases."""
        leases = (lease for held in self.by_group.values() for lease in held.values())
        return sum(now_ms - lease.since_ms <= self.live_ms for lease in leases)

    def copy(self, now_ms: int) -> list[LeaseCopy]:
        """Return the unexpired leases, for another broker of the group."""
        return [
            LeaseCopy(
                group=group,
                client_id=lease.client_id,
                topic=queue.topic,
                broker_name=queue.broker_name,
                queue_id=queue.queue_id,
                age_ms=now_ms - lease.since_ms,
            )
            for group, held in self.by_group.items()
            for queue, lease in held.items()
            if now_ms - lease.since_ms <= self.live_ms
        ]

    def adopt(self, leases: Iterable[LeaseCopy], now_ms: int) -> None:
        """Replace all leases by those of the broker that granted locks until now.

        Leases beyond the limit are left out, and those whose release came first.
        """
        released, self._released = self._released, {}
        self.by_group, self.count = {}, 0
        self.version += 1
        for each in leases:
            if self.count >= self._locks_max:
                return
            queue = MessageQueue(each.topic, each.broker_name, each.queue_id)
            released_ms = released.get((each.group, each.client_id, queue))
            if released_ms is not None and now_ms - released_ms <= RELEASED_MS:
                continue
            held = self.by_group.setdefault(each.group, {})
            self.count += queue not in held
            held[queue] = Lease(each.client_id, now_ms - max(0, each.age_ms))

    def sweep(self, now_ms: int) -> None:
        """Forget expired leases."""
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
