"""Records the role that each node reports: one row for the first and the last poll of each state.

    told     a poll that the node answered
    silent   a poll without an answer

There are many polls but few states. So `RoleRows` writes a row for the first poll that shows a
state. Once a poll shows another state, it writes a second row, for the last poll of the previous
state. Between these two rows the node certainly was in that state. `flush` writes the last poll of
each node if it has no row yet.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from rmqkit.drill.history import FAIL, OK, History


class _Poll(NamedTuple):
    invoke_ms: int
    complete_ms: int
    outcome: str
    value: str
    extra: Mapping[str, Any]

    @property
    def state(self) -> tuple[object, ...]:
        get = self.extra.get
        return self.outcome, self.value, get("members"), get("boot"), get("since"), get("epoch")


class RoleRows:
    """The role rows of any number of nodes.

    The times of the polls of one node never decrease.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        #: node → broker name, its last poll, whether that poll has a row, its state
        self._last: dict[str, tuple[str, _Poll, bool, tuple[object, ...]]] = {}

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
        epoch: int | None = None,
    ) -> None:
        """Record an answer.

        `members` are the broker ids that the node sees alive. `since_ms` is when its role last
        changed: it shows a change and its reversal between two polls. `epoch` is given in
        controller mode.
        """
        extra = {"members": sorted(members), "broker_id": broker_id, "why": why, "boot": boot, "since": since_ms}
        if epoch is not None:
            extra["epoch"] = epoch
        done_ms = invoke_ms if complete_ms is None else complete_ms
        self._add(node, broker, _Poll(invoke_ms, done_ms, OK, f"{role}/{online}", extra))

    def silent(self, node: str, broker: str, invoke_ms: int, complete_ms: int | None = None) -> None:
        """Record a poll without an answer."""
        done_ms = invoke_ms if complete_ms is None else complete_ms
        self._add(node, broker, _Poll(invoke_ms, done_ms, FAIL, "", {}))

    def state(self, node: str) -> str:
        """Return the state at the last poll, for instance "acting/online".

        Return "" if the node did not answer, or was not polled yet.
        """
        known = self._last.get(node)
        return known[1].value if known else ""

    def members(self, node: str) -> list[int]:
        """Return the broker ids that the node saw alive at the last poll."""
        known = self._last.get(node)
        return list(known[1].extra.get("members", ())) if known else []

    def flush(self) -> None:
        """Write the last poll of each node that has no row yet."""
        for node, (broker, look, written, state) in list(self._last.items()):
            if not written:
                self._write(node, broker, look)
                self._last[node] = (broker, look, True, state)

    def _add(self, node: str, broker: str, look: _Poll) -> None:
        known, state = self._last.get(node), look.state
        is_new = known is None or known[3] != state
        if is_new:
            if known is not None and not known[2]:
                self._write(node, broker, known[1])
            self._write(node, broker, look)
        self._last[node] = (broker, look, is_new, state)

    def _write(self, node: str, broker: str, look: _Poll) -> None:
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
