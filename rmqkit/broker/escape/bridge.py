"""Escape: puts messages elsewhere that an acting master may not append to its log.

Special duties call `put` for due messages. Handlers call it for messages that consumers send back
(36). `put` marks the message, passes it to the strategy and counts the result. The caller keeps
the message until the result is PUT_OK, and tries again after any other.

    waiting    messages due and not put, plus those that the strategy itself stores
    escaped    attempts that ended with PUT_OK
    unknown    attempts that may have stored the message, which then may be delivered twice

`escapeStrategy` chooses the strategy. If it is empty, `enableRemoteEscape` does: true means
`auto`, false means `local`.

Source: `broker/.../failover/EscapeBridge.java`.
"""

from collections.abc import Callable
from functools import partial

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.escape.contract import UNKNOWN, EscapeStrategy, Then
from rmqkit.broker.escape.local import Inbox
from rmqkit.broker.escape.rewrite import escaping
from rmqkit.broker.escape.strategies import NONE
from rmqkit.broker.roles.role import RoleState
from rmqkit.config import ActingSettings
from rmqkit.store.contract import Put, PutStatus


def chosen(acting: ActingSettings) -> str:
    """Return the name of the configured strategy."""
    return acting.escape_strategy or ("auto" if acting.remote_escape else "local")


class Escape:
    """A broker's escape: its strategy, its inbox for messages of its neighbours, and the counts."""

    def __init__(
        self,
        context: BrokerContext,
        role: RoleState,
        due_count: Callable[[], int],
        inbox: Inbox,
        strategy: EscapeStrategy,
    ) -> None:
        """`due_count` returns the number of messages that special duties have due and not put."""
        self._role = role
        self._due_count = due_count
        identity = context.config.identity
        self._group = identity.broker_name
        self._by = f"{identity.broker_name}:{identity.broker_id}"
        self.name = chosen(context.config.acting)
        self.inbox = inbox
        self.strategy = strategy
        self.escaped = 0
        self.unknown = 0
        #: attempts without an answer yet
        self.in_flight = 0

    @property
    def is_open(self) -> bool:
        """Whether messages can escape: this broker acts, and its strategy is not `none`."""
        return self._role.is_acting and self.name != NONE

    def put(self, put: Put, origin: str, then: Then, *, level: int = 0) -> None:
        """Try once to put a message. Calls `then` once, possibly before this returns.

        `origin` names where the message waited in this group; ESCAPED_FROM is the broker name and
        `origin`. `level` is the delay level that the message still waits for, 0 if none.
        """
        self.in_flight += 1
        self.strategy.put(escaping(put, f"{self._group}:{origin}", self._by, level), partial(self._ended, then))

    def _ended(self, then: Then, status: PutStatus) -> None:
        self.in_flight -= 1
        self.escaped += status is PutStatus.PUT_OK
        self.unknown += status in UNKNOWN
        then(status)

    def waiting(self) -> int:
        """Return the number of messages due and not escaped, plus those the strategy stores."""
        return (self._due_count() if self._role.is_acting else 0) + self.strategy.waiting()

    @property
    def why(self) -> str:
        """Why the last attempt failed, "" if it succeeded."""
        return str(self.strategy.facts().get("escapeWhy", ""))

    def facts(self) -> dict[str, str]:
        """Return the fields that code 28 (GET_BROKER_RUNTIME_INFO) shows."""
        waiting = self.waiting()
        told = dict(self.strategy.facts())
        why = told.pop("escapeWhy", "")
        return {
            **told,
            "escapeStrategy": self.name,
            "escapeWaiting": str(waiting),
            "escapeWhy": why if waiting else "",
            "escaped": str(self.escaped),
            "escapeUnknown": str(self.unknown),
        }

    def stop(self) -> None:
        self.inbox.stop()
        self.strategy.stop()
