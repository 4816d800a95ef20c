"""The contract of an escape strategy: it decides where an acting master puts messages that are due.

An acting master never appends to its own log, because that log is a copy of its master's. So a
message whose delay has passed, or that a consumer sends back, escapes: it is put on another
master. The strategy decides on which one, and how. Each broker has one strategy, chosen by
`escapeStrategy`. Plug-ins add strategies with the hook `rmqkit_escape_strategies`.

The caller keeps the message until it is put. So a strategy neither retries nor counts attempts: it
reports the result of one attempt, and the caller tries again later. PUT_OK is a promise: the
message is stored where it will be delivered from, even if this broker's progress is lost. After
any other result the message stays with the caller.

Source: `broker/.../failover/EscapeBridge.java`.
"""

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import msgspec

from rmqkit.broker.special.contract import UNKNOWN as UNKNOWN
from rmqkit.broker.special.contract import Then as Then
from rmqkit.store.contract import Put


class Escaping(NamedTuple):
    """A message that must be put on another master.

    `put` is the message as the other master stores it: with its own topic, with ESCAPED_FROM and
    ESCAPED_BY, without a delay. Its queue id is of this group's topic, which may have more queues
    than the target's topic. `origin` names where the message waited ("broker-a:SCHEDULE:3:17"); it
    is the same in each attempt. `level` is the delay level that the message still waits for at the
    other master, 0 if none.
    """

    put: Put
    origin: str
    level: int = 0


class EscapeStrategy(Protocol):
    """An escape strategy, registered by name with the hook `rmqkit_escape_strategies`."""

    def put(self, message: Escaping, then: Then) -> None:
        """Try once to put the message. Call `then` once, now or in a later turn.

        PUT_OK: another master has stored it. A status in `UNKNOWN`: another master may have stored
        it. Any other status: no master has stored it.
        """

    def waiting(self) -> int:
        """Return the number of messages that the strategy itself stores.

        They were answered with PUT_OK, and no master has them yet.
        """

    def facts(self) -> Mapping[str, str]:
        """Return the fields that code 28 (GET_BROKER_RUNTIME_INFO) shows.

        `escapeWhy` says why the last attempt failed; it is absent or "" if the attempt succeeded.
        """

    def stop(self) -> None:
        """Stop. Attempts in flight may remain unanswered."""


def facts_of(why: str, put_counts: Mapping[str, int]) -> dict[str, str]:
    """Return the facts of a strategy: why its last attempt failed, and its puts by broker name."""
    return {"escapeWhy": why, "escapedTo": msgspec.json.encode(put_counts, order="sorted").decode()}
