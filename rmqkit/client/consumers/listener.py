"""What consumers with a listener have in common, for the code that runs listeners.

`PushConsumerCore` pulls, `PopConsumerCore` pops. Both hand a `ListenerCall` of their own kind to
`dispatch`, and want to know what became of it.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from rmqkit.client.message import MessageExt
from rmqkit.wire.fastjson import MessageQueue


class ListenerCall(Protocol):
    """The input of one listener call."""

    messages: list[MessageExt]
    #: Set for a message that an administrator sent.
    answer: Callable[[bool, str], None] | None
    #: When the listener began, in monotonic ms.
    started_ms: int | None

    def may_begin(self, now_ms: int) -> bool:
        """Return whether a listener may still get it at this time, in monotonic ms."""


B = TypeVar("B", contravariant=True)


class ListenerConsumer(Protocol[B]):
    """A consumer whose calls are of the type `B`."""

    #: No requests for more messages. Messages that are held are still delivered.
    suspended: bool

    @property
    def works(self) -> Mapping[MessageQueue, Any]:
        """The queues that it works on."""

    def subscribe(self, topic: str, expression: str, expression_type: str) -> None:
        """Subscribe to a topic. Raises ClientError for an invalid expression."""

    async def check(self, topic: str, expression: str, expression_type: str) -> None:
        """If started: ask brokers to check a subscription. Raises ClientError if it is invalid."""

    def unsubscribe(self, topic: str) -> None:
        """Unsubscribe from a topic."""

    async def start(self) -> None:
        """Join the group. Raises ClientError."""

    def quiesce(self) -> None:
        """Stop asking for messages and delivering. Outcomes of running listeners still count."""

    async def close(self) -> None:
        """Leave the group."""

    def began(self, batch: B) -> None:
        """Record that a listener begins with a call. The thread of the listener may call this."""

    def finished(self, batch: B, ok: bool, error: str = "") -> None:
        """Process the outcome of a call."""

    def undelivered(self, batch: B) -> None:
        """Process a call that no listener will see."""
