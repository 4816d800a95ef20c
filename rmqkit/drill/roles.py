"""Rows about roles: what each node says of its own, at the first and the last look at each state it was in.

    told     a look at a node that answered
    silent   a look that was not answered

Looks are many and states few. So a row is written when a state is seen first, and, once another one is seen, one more for
the last look at the state before: between these two a node certainly was what it said. `flush` writes the last looks
that are still open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rmqkit.drill.history import FAIL, OK, History

#: the names under which a broker tells of its role (code 28)
ROLE, ONLINE, MEMBERS, WHY, SINCE, STAGE = (
    "role",
    "roleOnline",
    "roleMembers",
    "roleWhy",
    "roleSince",
    "roleStage",
)


class _Look(NamedTuple):
    invoke_ms: int
    complete_ms: int
    outcome: str
    value: str
    extra: Mapping[str, Any]

    @property
    def state(self) -> tuple[object, ...]:
        return self.outcome, self.value, *(self.extra.get(key) for key in ("members", "boot", "since"))


class RoleRows:
    """One watcher a node; any number of nodes. `now_ms` of two looks at one node never goes back."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._last: dict[str, tuple[str, _Look, bool]] = {}

    def told(
        self,
        node: str,
        broker: str,
        broker_id: int,
        *,
        role: str,
        online: str,
        members: Iterable[int],
        invoke_ms: int,
        complete_ms: int | None = None,
        why: str = "",
        boot: str = "",
        since_ms: int | None = None,
    ) -> None:
        """`members` are the ids that the node takes for alive, `since_ms` when its role last changed: so a change and back
        between two looks is seen, too."""
        extra = {"members": sorted(members), "broker_id": broker_id, "why": why, "boot": boot, "since": since_ms}
        done_ms = invoke_ms if complete_ms is None else complete_ms
        self._add(node, broker, _Look(invoke_ms, done_ms, OK, f"{role}/{online}", extra))

    def silent(self, node: str, broker: str, invoke_ms: int, complete_ms: int | None = None) -> None:
        done_ms = invoke_ms if complete_ms is None else complete_ms
        self._add(node, broker, _Look(invoke_ms, done_ms, FAIL, "", {}))

    def state(self, node: str) -> str:
        """ "acting/online"; "" when the node does not answer, or was not looked at."""
        known = self._last.get(node)
        return known[1].value if known else ""

    def members(self, node: str) -> list[int]:
        """What it took for alive at the last look."""
        known = self._last.get(node)
        return list(known[1].extra.get("members", ())) if known else []

    def flush(self) -> None:
        for node, (broker, look, written) in list(self._last.items()):
            if not written:
                self._write(node, broker, look)
                self._last[node] = (broker, look, True)

    def _add(self, node: str, broker: str, look: _Look) -> None:
        known = self._last.get(node)
        is_new = known is None or known[1].state != look.state
        if is_new:
            if known is not None and not known[2]:
                self._write(node, broker, known[1])
            self._write(node, broker, look)
        self._last[node] = (broker, look, is_new)

    def _write(self, node: str, broker: str, look: _Look) -> None:
        self._history.add(
            "role",
            client=node,
            key=look.value.partition("/")[0],
            value=look.value,
            invoke_ms=look.invoke_ms,
            complete_ms=look.complete_ms,
            outcome=look.outcome,
            broker=broker,
            **look.extra,
        )
