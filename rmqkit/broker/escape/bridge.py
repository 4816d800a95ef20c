"""Escape: the way out of a broker that acts for its master, for messages that may not go into its log.

Who has one asks `put`: the delay levels of what is due, sends back (36); timers and transactions will. It is marked, handed
to the strategy, and counted; whoever asked keeps it until the answer is PUT_OK, and asks again.

    waiting    due and not put, and what the strategy keeps itself
    escaped    answered with PUT_OK
    unknown    attempts that may have been carried out: such a message can come twice

The settings choose the strategy: `escapeStrategy`, else `enableRemoteEscape` true is `auto` and false is `local`.

Source: `broker/.../failover/EscapeBridge.java`.
"""

from functools import partial
from typing import TYPE_CHECKING, Protocol

from rmqkit.broker.escape.contract import UNKNOWN, EscapeStrategy, Then
from rmqkit.broker.escape.local import Inbox
from rmqkit.broker.escape.rewrite import escaping
from rmqkit.broker.escape.strategies import NONE
from rmqkit.config import ActingSettings
from rmqkit.store.contract import Put, PutStatus

if TYPE_CHECKING:
    from rmqkit.broker.node import Broker
    from rmqkit.broker.view import BrokerView


class MakesStrategy(Protocol):
    def __call__(self, broker: "BrokerView") -> EscapeStrategy: ...


def chosen(acting: ActingSettings) -> str:
    """The name of the strategy that the settings ask for."""
    return acting.escape_strategy or ("auto" if acting.remote_escape else "local")


class Escape:
    def __init__(self, broker: "Broker", make: MakesStrategy) -> None:
        self._broker = broker
        identity = broker.config.identity
        self._by = f"{identity.broker_name}:{identity.broker_id}"
        self.name = chosen(broker.config.acting)
        self.inbox = Inbox(broker.view)
        self.escaped = 0
        self.unknown = 0
        #: attempts that have no answer yet
        self.under_way = 0
        self.strategy = make(broker.view)

    @property
    def is_open(self) -> bool:
        """Whether this broker acts for its master and has a way out."""
        return self._broker.role.is_acting and self.name != NONE

    def put(self, put: Put, origin: str, then: Then, *, level: int = 0) -> None:
        """Try once; `then` is called once, perhaps before this returns. `origin` is its place in this group: what comes
        behind the broker name of ESCAPED_FROM. `level` is a delay level that it still has to wait for."""
        name = self._broker.config.identity.broker_name
        self.under_way += 1
        self.strategy.put(escaping(put, f"{name}:{origin}", self._by, level), partial(self._ended, then))

    def _ended(self, then: Then, status: PutStatus) -> None:
        self.under_way -= 1
        self.escaped += status is PutStatus.PUT_OK
        self.unknown += status in UNKNOWN
        then(status)

    def waiting(self) -> int:
        """Messages that are due and have not escaped, and those that the strategy keeps."""
        broker = self._broker
        return (broker.special.due_count() if broker.role.is_acting else 0) + self.strategy.waiting()

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
