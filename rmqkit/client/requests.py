"""Requests, which are messages that a consumer answers, and their replies.

    request:  heartbeats where the reply may arrive → send the message → wait for reply or timeout
    reply:    the consumer sends `message.reply(body)` to `<cluster>_REPLY_TOPIC`;
              a broker pushes it here (326)

A request is a plain message with three properties:

- CORRELATION_ID: here the message id, so any log can match a reply with its request
- REPLY_TO_CLIENT: the id of this client
- TTL: the timeout in ms

The reply may go through any broker of the cluster, and that broker knows this client only by its
heartbeats. So the client keeps the route of the reply topic fresh. Before the first request of a
topic it sends a heartbeat to every broker and waits for the responses.

A request ends exactly once: with the reply, with the error of its send, or with RequestTimeout.
Replies that arrive later are acknowledged and dropped, as in Apache.

Source: `client/.../producer/{RequestFutureHolder,RequestResponseFuture}.java`,
`impl/producer/DefaultMQProducerImpl.java` (`request`, `prepareSendRequest`),
`impl/ClientRemotingProcessor.java` (`receiveReplyMessage`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rmqkit.client.flow import Deferred, start
from rmqkit.client.message import MessageExt, reply_topic
from rmqkit.client.producers.outgoing_message import OutgoingMessage
from rmqkit.client.timers import Timer
from rmqkit.errors import ClientError, RequestTimeout, RmqkitError

if TYPE_CHECKING:
    from rmqkit.client.client import Client

#: Requests of one client that may wait for a reply.
WAITING_MAX = 20_000


@dataclass(slots=True, eq=False)
class _PendingReply:
    """A request that waits for its reply. `who` is its producer; `sent` if the send was
    acknowledged.
    """

    topic: str
    who: object
    promise: Deferred[MessageExt] = field(default_factory=Deferred)
    sent: bool = False
    timer: Timer | None = None


class Requests:
    """The pending requests of one client."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        #: Pending requests by correlation id.
        self._waiting: dict[str, _PendingReply] = {}
        #: Topics that requests may be sent to at once.
        self._ready: dict[str, None] = {}
        #: Reply topics whose routes are watched.
        self._reply_topics: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def ask(
        self,
        who: object,
        outgoing: OutgoingMessage,
        find_clusters: Callable[[], Deferred[tuple[str, ...]]],
        send: Callable[[int, Callable[[Any], None]], None],
        timeout_ms: int,
    ) -> Deferred[MessageExt]:
        """Send a request of the producer `who` and return a promise of the reply.

        Once replies can arrive, calls `send(timeout_ms, then)`. The promise fails with
        RequestTimeout after `timeout_ms`, with the error of the send, or with ClientError if too
        many requests wait.
        """
        waiting = _PendingReply(outgoing.topic, who)
        if len(self._waiting) >= WAITING_MAX:
            waiting.promise.fail(ClientError(f"{WAITING_MAX} requests of this client already wait for replies"))
            return waiting.promise
        clock = self._client.clock
        deadline_ms = clock.mono_ms + timeout_ms
        self._waiting[outgoing.msg_id] = waiting
        waiting.timer = self._client.timers.after(timeout_ms, lambda: self._late(outgoing.msg_id, timeout_ms))

        async def begin() -> None:
            if outgoing.topic not in self._ready:
                await self._prepare(outgoing.topic, await find_clusters())
            left_ms = deadline_ms - clock.mono_ms
            if left_ms > 0 and outgoing.msg_id in self._waiting:
                send(left_ms, sent)

        def sent(outcome: Any) -> None:
            if isinstance(outcome, RmqkitError):
                self._fail(outgoing.msg_id, outcome)
            else:
                waiting.sent = True

        start(begin(), lambda error: self._fail(outgoing.msg_id, error))
        return waiting.promise

    def replied(self, correlation_id: str, message: MessageExt) -> bool:
        """Resolve the request that a reply belongs to. Returns False if no request waits for it."""
        waiting = self._end(correlation_id)
        if waiting is None:
            return False
        waiting.promise.resolve(message)
        return True

    def drop(self, who: object | None, error: RmqkitError) -> None:
        """Fail the pending requests of the producer `who`, or all of them if it is None."""
        for correlation_id, waiting in list(self._waiting.items()):
            if who is None or waiting.who is who:
                self._fail(correlation_id, error)

    async def _prepare(self, topic: str, clusters: tuple[str, ...]) -> None:
        client = self._client
        for cluster in clusters:
            name = reply_topic(cluster)
            if name not in self._reply_topics:
                self._reply_topics[name] = None
                client.routes.watch(name)
                try:
                    await client.routes.find(name)
                except ClientError as error:
                    client.log.warning("no-reply-topic", cluster=cluster, error=str(error))
        await client.heartbeats.beat_all()
        self._ready[topic] = None

    def _late(self, correlation_id: str, timeout_ms: int) -> None:
        waiting = self._waiting.get(correlation_id)
        if waiting is None:
            return
        text = f"request to {waiting.topic} was stored, but no reply came within {timeout_ms} ms"
        if not waiting.sent:
            text = f"request to {waiting.topic} was not acknowledged within {timeout_ms} ms"
        self._fail(correlation_id, RequestTimeout(text, topic=waiting.topic, timeout_ms=timeout_ms, sent=waiting.sent))

    def _fail(self, correlation_id: str, error: RmqkitError) -> None:
        waiting = self._end(correlation_id)
        if waiting is not None:
            waiting.promise.fail(error)

    def _end(self, correlation_id: str) -> _PendingReply | None:
        waiting = self._waiting.pop(correlation_id, None)
        if waiting is not None and waiting.timer is not None:
            waiting.timer.cancel()
        return waiting
