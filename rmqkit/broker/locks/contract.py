"""The contract of a lock mode: it grants the queue locks that ordered consumption needs.

Each broker has one lock mode. `lockMode` chooses it; `lockInStrictMode=true` means `strict`. The
mode handles the requests LOCK_BATCH_MQ (41) and UNLOCK_BATCH_MQ (42). The package's `LOCK_MODES`
lists the built-in modes:

- `loose`: the broker decides alone. Its slaves copy the locks about every 0.5 s, and a returning
  master takes them over. Two members of a consumer group can hold one queue after a takeover if the
  lock was granted just before it, or if brokers disagree which of them serves.
- `strict`: a quorum of the broker group decides (`locks/strict.py`).

A mode may ask other brokers before it answers, so `then` may be called in a later turn. A granted
lock is a lease of `LOCK_LIVE_MS`, and the client renews it before it expires. A mode need not
remember a lease for longer.

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
#: (group, topic, queue id, connection) → why an offset committed over this connection is rejected,
#: "" if it is accepted
CommitGuard = Callable[[str, str, int, Connection], str]
NO_ROOM = "too many queues are locked on this broker"


class Locked(Protocol):
    """Callback for the outcome of a lock request.

    `outcome` is the list of queues that the client holds now, or the text of an error. `more` is
    sent to the caller beside the queues, as the object `rmqkit` of the answer.
    """

    def __call__(self, outcome: Sequence[MessageQueue] | str, more: More = NOTHING_MORE) -> None: ...


class LockMode(Protocol):
    """A lock mode. Plug-ins register theirs by name with the hook `rmqkit_lock_modes`.

    `more` is the object `rmqkit` of a request. Brokers and clients of the mode send it beside
    Apache's fields.
    """

    def start(self) -> None:
        """Start to serve. The broker's files can be read from now on."""

    def stop(self, then: Callable[[], None]) -> None:
        """Stop; no request follows. Call `then` once everything that must survive is on disk."""

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
        """Lock the queues or renew their leases. Call `then` once, now or later.

        `only_this_broker`: the caller is another broker of the group, not a client.
        """

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
        """Release the queues that the client holds; ignore those that it does not hold."""

    def holds_any(self, group: str, now_ms: int) -> bool:
        """Whether any queue is locked for the consumer group, which then consumes in order."""

    def sweep(self, now_ms: int) -> None:
        """Forget expired leases. The broker calls this every 30 s."""

    def facts(self, now_ms: int) -> Mapping[str, str]:
        """Return facts for `rmqkit broker status`.

        `lockHeld` is the number of unexpired leases on this broker. `lockVotesFrom` is the time in
        ms until this broker may grant locks, 0 if it may now.
        """


class Loose:
    """The lock mode `loose`: this broker decides alone.

    Slaves copy the leases about every 0.5 s (`metadata/metadata_server.py`). A returning master
    takes over those of the slave that acted (`roles/handover.py`).
    """

    def __init__(self, table: LockTable | None = None) -> None:
        self.table = LockTable() if table is None else table

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
        if only_this_broker:
            self.table.release(group, client_id, queues, now_ms)
        else:
            self.table.unlock(group, client_id, queues)

    def holds_any(self, group: str, now_ms: int) -> bool:
        return self.table.holds_any(group, now_ms)

    def sweep(self, now_ms: int) -> None:
        self.table.sweep(now_ms)

    def facts(self, now_ms: int) -> Mapping[str, str]:
        return {"lockHeld": str(self.table.running(now_ms)), "lockVotesFrom": "0"}


def lock_mode_of(config: NodeConfig) -> str:
    """Return the name of the configured lock mode.

    Apache's `lockInStrictMode=true` means `lockMode=strict`.
    """
    named = config.coordination.lock_mode
    return "strict" if named == "loose" and config.acting.lock_in_strict_mode else named
