"""LockTable: which member of a group holds which queue, for ordered consumption.

A lock is a lease of 60 s. The same client renews it by asking again; a lease that ran out is anybody's; only its owner
gives it back early. Nothing is stored: after a restart the members lock again, and one of them gets each queue.

    lock      free or run out → the asker's    the asker's → renewed    another's → refused
    unlock    the asker's (run out or not) → free    anything else → nothing

Limits: locks of the whole table, and the sizes of the names in them. What ran out is forgotten by `sweep`, which the
broker calls every 30 s, and at once when the table is full.

Source: `broker/.../client/rebalance/RebalanceLockManager.java`.
"""

from collections.abc import Iterable

from rmqkit.wire.fastjson import MessageQueue

LOCK_LIVE_MS = 60_000
#: locks of all groups
LOCKS_MAX = 100_000


class LockTable:
    def __init__(self, locks_max: int = LOCKS_MAX) -> None:
        #: group → queue → (client id, when it was locked or renewed)
        self.by_group: dict[str, dict[MessageQueue, tuple[str, int]]] = {}
        self.count = 0
        self._locks_max = locks_max

    def lock(self, group: str, client_id: str, queues: Iterable[MessageQueue], now_ms: int) -> list[MessageQueue] | None:
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
            if known is None:
                self.count += 1
            elif known[0] != client_id and now_ms - known[1] <= LOCK_LIVE_MS:
                continue
            held[queue] = client_id, now_ms
            granted.append(queue)
        if held:
            self.by_group[group] = held
        return granted

    def _has_room(self, group: str, queues: list[MessageQueue]) -> bool:
        held = self.by_group.get(group, {})
        new = sum(queue not in held for queue in queues)
        return not new or self.count + new <= self._locks_max

    def unlock(self, group: str, client_id: str, queues: Iterable[MessageQueue]) -> None:
        held = self.by_group.get(group, {})
        for queue in queues:
            known = held.get(queue)
            if known is not None and known[0] == client_id:
                self._forget(group, queue)

    def holds_any(self, group: str, now_ms: int) -> bool:
        """Whether some member of the group has a lease that runs: the group consumes in order."""
        held = self.by_group.get(group)
        return held is not None and any(now_ms - since_ms <= LOCK_LIVE_MS for _, since_ms in held.values())

    def sweep(self, now_ms: int) -> None:
        """Forget what ran out."""
        for group, held in list(self.by_group.items()):
            for queue, (_, since_ms) in list(held.items()):
                if now_ms - since_ms > LOCK_LIVE_MS:
                    self._forget(group, queue)

    def _forget(self, group: str, queue: MessageQueue) -> None:
        held = self.by_group[group]
        del held[queue]
        self.count -= 1
        if not held:
            del self.by_group[group]
