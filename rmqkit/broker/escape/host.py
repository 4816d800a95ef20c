"""EscapeHost: the part of a broker that escape strategies and inboxes use.

A plug-in's strategy gets the whole `BrokerView` (`docs/plugins.md`). The built-in strategies
declare here what they use, so that this package does not depend on the rest of the broker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from rmqkit.broker.escape.contract import Then
from rmqkit.broker.roles.role import RoleState
from rmqkit.broker.special.delay.delivery import DelayDelivery
from rmqkit.broker.special.transactions.checks import TransactionChecks
from rmqkit.broker.tables.topics import TopicTable
from rmqkit.config import NodeConfig
from rmqkit.runtime.connection import Address
from rmqkit.runtime.duties import Duties
from rmqkit.runtime.ports import Clock, Log
from rmqkit.runtime.remoting import Remoting
from rmqkit.store.contract import PutResult, StorageEngine

if TYPE_CHECKING:
    from rmqkit.broker.escape.local import Inbox


class HasNameservers(Protocol):
    @property
    def nameservers(self) -> Sequence[Address]: ...


class AwaitsPuts(Protocol):
    def await_own(self, topic: str, result: PutResult, then: Then, *, copies: bool = ...) -> None: ...


class HasInbox(Protocol):
    @property
    def inbox(self) -> Inbox: ...


class EscapeHost(Protocol):
    """The part of a broker that this package uses; `BrokerView` provides more."""

    @property
    def name(self) -> str: ...
    @property
    def config(self) -> NodeConfig: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def log(self) -> Log: ...
    @property
    def duties(self) -> Duties: ...
    @property
    def remoting(self) -> Remoting: ...
    @property
    def address_text(self) -> str: ...
    @property
    def registration(self) -> HasNameservers: ...
    @property
    def role(self) -> RoleState: ...
    @property
    def topics(self) -> TopicTable: ...
    @property
    def store(self) -> StorageEngine: ...
    @property
    def puts(self) -> AwaitsPuts: ...
    @property
    def delay(self) -> DelayDelivery: ...
    @property
    def transactions(self) -> TransactionChecks: ...
    @property
    def escape(self) -> HasInbox: ...
    @property
    def send_blocked(self) -> str: ...
    @property
    def serving(self) -> bool: ...
    @property
    def stopping(self) -> bool: ...
    @property
    def neighbours(self) -> Sequence[EscapeHost]:
        """The other brokers of this process."""
