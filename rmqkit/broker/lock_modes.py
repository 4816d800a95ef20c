"""Lock modes: who grants the locks by which the members of a group consume queues in order.

A broker has one, chosen by `lockMode`; the requests LOCK_BATCH_MQ and UNLOCK_BATCH_MQ come here. The built-in ones:

- `loose`: the broker grants on its own. Two members can hold one queue for a moment when a slave takes over from its
  master, since the locks are not replicated.

A mode may ask others before it answers (`then` may be called in a later turn), so a quorum is possible. What a mode
granted holds for `LOCK_LIVE_MS` and is asked for again before; no mode has to keep anything beyond that.

Source: `broker/.../processor/AdminBrokerProcessor.java` (`lockBatchMQ`, `unlockBatchMQ`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from rmqkit.broker.locks import LockTable
from rmqkit.wire.fastjson import MessageQueue

if TYPE_CHECKING:
    from rmqkit.broker.node import Broker

#: what became of a request: the queues that the client holds now, or why there is no answer
Locked = Callable[[Sequence[MessageQueue] | str], None]


class LockMode(Protocol):
    """What a plug-in offers under a name of its own (hook `rmqkit_lock_modes`)."""

    def lock(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        *,
        only_this_broker: bool,
        now_ms: int,
        then: Locked,
    ) -> None:
        """Lock or renew; `then` is called once, now or later. With `only_this_broker` a broker of the group asks."""

    def unlock(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], *, only_this_broker: bool, now_ms: int
    ) -> None:
        """Give back; what the client does not hold is left as it is."""

    def holds_any(self, group: str, now_ms: int) -> bool:
        """Whether any queue is locked for the group: it consumes in order."""

    def sweep(self, now_ms: int) -> None:
        """Forget what ran out; called every 30 s."""


class Loose:
    """`loose`: this broker alone decides."""

    def __init__(self) -> None:
        self.table = LockTable()

    def lock(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        *,
        only_this_broker: bool,
        now_ms: int,
        then: Locked,
    ) -> None:
        granted = self.table.lock(group, client_id, queues, now_ms)
        then("too many queues are locked on this broker" if granted is None else granted)

    def unlock(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], *, only_this_broker: bool, now_ms: int
    ) -> None:
        self.table.unlock(group, client_id, queues)

    def holds_any(self, group: str, now_ms: int) -> bool:
        return self.table.holds_any(group, now_ms)

    def sweep(self, now_ms: int) -> None:
        self.table.sweep(now_ms)


def _loose(broker: "Broker") -> LockMode:
    return Loose()


LOCK_MODES: Mapping[str, Callable[["Broker"], LockMode]] = {"loose": _loose}
