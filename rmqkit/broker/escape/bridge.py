"""Escape: the way out of a broker that acts for its master, for messages that may not go into its log.

Special duties ask `put` for what is due, and handlers for messages that consumers send back (36). The message is marked,
handed to the strategy, and counted. The caller keeps it until the answer is PUT_OK, and asks again.

    waiting    due and not put, and what the strategy keeps itself
    escaped    answered with PUT_OK
    unknown    attempts that may have been carried out: such a message can come twice

The settings choose the strategy: `escapeStrategy`, else `enableRemoteEscape` true is `auto` and false is `local`.

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
    """The name of the strategy that the settings ask for."""
    return acting.escape_strategy or ("auto" if acting.remote_escape else "local")


class Escape:
    def __init__(
        self,
        context: BrokerContext,
        role: RoleState,
        due_count: Callable[[], int],
        inbox: Inbox,
        strategy: EscapeStrategy,
    ) -> None:
        """`due_count` is how many messages of special duties are due and not put."""
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
        #: attempts that have no answer yet
        self.in_flight = 0

    @property
    def is_open(self) -> bool:
        """Whether this broker acts for its master and has a way out."""
        return self._role.is_acting and self.name != NONE

    def put(self, put: Put, origin: str, then: Then, *, level: int = 0) -> None:
        """Try once; `then` is called once, perhaps before this returns. `origin` is its place in this group: what comes
        behind the broker name of ESCAPED_FROM. `level` is a delay level that it still has to wait for."""
        self.in_flight += 1
        self.strategy.put(escaping(put, f"{self._group}:{origin}", self._by, level), partial(self._ended, then))

    def _ended(self, then: Then, status: PutStatus) -> None:
        self.in_flight -= 1
        self.escaped += status is PutStatus.PUT_OK
        self.unknown += status in UNKNOWN
        then(status)

    def waiting(self) -> int:
        """Messages that are due and have not escaped, and those that the strategy keeps."""
        return (self._due_count() if self._role.is_acting else 0) + self.strategy.waiting()

    @property
    def why(self) -> str:
        """Why the last attempt failed."""
        return str(self.strategy.facts().get("escapeWhy", ""))

    def facts(self) -> dict[str, str]:
        """What code 28 tells of it."""
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
