"""Lock modes: who grants the locks by which the members of a group consume queues in order.

A broker has one, chosen by `lockMode` (`lockInStrictMode=true` says `strict`); the requests LOCK_BATCH_MQ and
UNLOCK_BATCH_MQ come here. The built-in ones (`LOCK_MODES` of the package):

- `loose`: the broker grants on its own. Two members can hold one queue for a moment when a slave takes over from its
  master, since the locks are not replicated.
- `strict`: a quorum of the broker's group grants (`locks/strict.py`).

A mode may ask others before it answers (`then` may be called in a later turn). What a mode granted holds for
`LOCK_LIVE_MS` and is asked for again before; no mode has to keep anything beyond that.

Source: `broker/.../processor/AdminBrokerProcessor.java` (`lockBatchMQ`, `unlockBatchMQ`).
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

from rmqkit.broker.locks.lock_table import LockTable
from rmqkit.config import NodeConfig
from rmqkit.runtime.connection import Connection
from rmqkit.wire.fastjson import MessageQueue

More = Mapping[str, Any]
NOTHING_MORE: More = MappingProxyType({})
#: (group, topic, queue id, connection) → why an offset that comes by this connection is not taken, "" when it is
CommitGuard = Callable[[str, str, int, Connection], str]
NO_ROOM = "too many queues are locked on this broker"


class Locked(Protocol):
    """What became of a request: the queues that the client holds now, or a text that says why there is no answer.

    `more` goes to the asker beside the queues, as the object `rmqkit` of the answer.
    """

    def __call__(self, outcome: Sequence[MessageQueue] | str, more: More = NOTHING_MORE) -> None: ...


class LockMode(Protocol):
    """What a plug-in offers under a name of its own (hook `rmqkit_lock_modes`).

    `more` is the object `rmqkit` of a request: what this mode's own brokers and clients say beside upstream's fields.
    """

    def start(self) -> None:
        """The broker serves from now on: its files can be read."""

    def stop(self, then: Callable[[], None]) -> None:
        """The broker ends and is asked nothing more; `then` is called when what has to be kept is kept."""

    def lock(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        *,
        only_this_broker: bool,
        now_ms: int,
        then: Locked,
        more: More = NOTHING_MORE,
    ) -> None:
        """Lock or renew; `then` is called once, now or later. With `only_this_broker` a broker of the group asks."""

    def unlock(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        *,
        only_this_broker: bool,
        now_ms: int,
        more: More = NOTHING_MORE,
    ) -> None:
        """Give back; what the client does not hold is left as it is."""

    def holds_any(self, group: str, now_ms: int) -> bool:
        """Whether any queue is locked for the group: it consumes in order."""

    def sweep(self, now_ms: int) -> None:
        """Forget what ran out; called every 30 s."""

    def facts(self, now_ms: int) -> Mapping[str, str]:
        """For people: `lockHeld`, leases that run here; `lockVotesFrom`, ms until this broker may grant, 0 when it may."""


class Loose:
    """`loose`: this broker alone decides."""

    def __init__(self) -> None:
        self.table = LockTable()

    def start(self) -> None:
        pass

    def stop(self, then: Callable[[], None]) -> None:
        then()

    def lock(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        *,
        only_this_broker: bool,
        now_ms: int,
        then: Locked,
        more: More = NOTHING_MORE,
    ) -> None:
        granted = self.table.lock(group, client_id, queues, now_ms)
        then(NO_ROOM if granted is None else granted)

    def unlock(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        *,
        only_this_broker: bool,
        now_ms: int,
        more: More = NOTHING_MORE,
    ) -> None:
        self.table.unlock(group, client_id, queues)

    def holds_any(self, group: str, now_ms: int) -> bool:
        return self.table.holds_any(group, now_ms)

    def sweep(self, now_ms: int) -> None:
        self.table.sweep(now_ms)

    def facts(self, now_ms: int) -> Mapping[str, str]:
        return {"lockHeld": str(self.table.running(now_ms)), "lockVotesFrom": "0"}


def lock_mode_of(config: NodeConfig) -> str:
    """The name that the settings choose. `lockInStrictMode` is upstream's word for `lockMode=strict`."""
    named = config.coordination.lock_mode
    return "strict" if named == "loose" and config.acting.lock_in_strict_mode else named
