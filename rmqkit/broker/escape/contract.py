"""The contract of an escape strategy: where an acting master puts messages that are due.

An acting master never appends to its own log, since the log is its master's. A message whose delay is over, or one that a
consumer sends back, escapes: it is put on another master. Which one, and how, is the strategy's affair; a broker has one,
chosen by `escapeStrategy` (`rmqkit_escape_strategies`).

Who asks keeps the message until it is put. So a strategy never gives up and never counts tries: it says what became of one
attempt, and is asked again later. PUT_OK is a promise: the message is kept somewhere from where it will be delivered,
whatever becomes of this broker's progress. Anything else leaves the message where it is.

Source: `broker/.../failover/EscapeBridge.java`.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from rmqkit.store.contract import Put, PutStatus

Then = Callable[[PutStatus], None]

#: What says of an attempt that it may have been carried out all the same.
UNKNOWN = frozenset((PutStatus.UNKNOWN_ERROR, PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.FLUSH_SLAVE_TIMEOUT))


class Escaping(NamedTuple):
    """A message that has to go to another master.

    `put` is as it is to be stored: its own topic, its properties with ESCAPED_FROM and ESCAPED_BY and without a delay. Its
    queue id is that of this group's topic, which may have more queues than the target's. `origin` names the place it comes
    from ("broker-a:SCHEDULE:3:17"), the same at each attempt. `level` is a delay level that it still has to wait for at the
    other master, 0 for none.
    """

    put: Put
    origin: str
    level: int = 0


class EscapeStrategy(Protocol):
    """What a plug-in offers under a name of its own (hook `rmqkit_escape_strategies`)."""

    def put(self, message: Escaping, then: Then) -> None:
        """Try once to put it. `then` is called once, now or in a later turn: PUT_OK when another master has stored it;
        UNKNOWN_ERROR when it may have; else nobody has."""

    def waiting(self) -> int:
        """Messages that were answered with PUT_OK and that no master has yet: what the strategy itself keeps."""

    def facts(self) -> Mapping[str, str]:
        """What code 28 tells of it. `escapeWhy` is why the last attempt failed, absent or "" when it did not."""

    def stop(self) -> None:
        """The broker stops. Attempts that are not ended yet may be left without an answer."""
