"""Requests: messages that somebody consumes and answers, and the replies that come back.

    request:  heartbeats where the reply may arrive → send the message → wait for the reply or the end of the time
    reply:    the consumer sends `message.reply(body)` to `<cluster>_REPLY_TOPIC`; a broker pushes it here (326)

A request is a plain message with three properties: CORRELATION_ID (here the id of the message, so a reply can be told to
its request in any log), REPLY_TO_CLIENT (this client's id) and TTL. The broker that gets the reply knows this client by
its heartbeats alone, and it may be any broker of the cluster: so the route of the reply topic is learned and kept, and
before the first request of a topic every broker has had a heartbeat.

A request ends once: with the reply, with the error of its send, or with RequestTimeout. A reply that nobody waits for any
more is taken and dropped, as upstream does.

Source: `client/.../producer/{RequestFutureHolder,RequestResponseFuture}.java`, `impl/producer/DefaultMQProducerImpl.java`
(`request`, `prepareSendRequest`), `impl/ClientRemotingProcessor.java` (`receiveReplyMessage`).
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

#: requests of one client that wait for their replies
WAITING_MAX = 20_000


@dataclass(slots=True, eq=False)
class _PendingReply:
    topic: str
    who: object
    promise: Deferred[MessageExt] = field(default_factory=Deferred)
    sent: bool = False
    timer: Timer | None = None


class Requests:
    def __init__(self, client: "Client") -> None:
        self._client = client
        #: by correlation id
        self._waiting: dict[str, _PendingReply] = {}
        #: topics that a request was prepared for, and the reply topics that are watched for them
        self._ready: dict[str, None] = {}
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
        """`who` asks; `send(timeout_ms, then)` sends the message once everything is ready for the reply."""
        waiting = _PendingReply(outgoing.topic, who)
        if len(self._waiting) >= WAITING_MAX:
            waiting.promise.fail(ClientError(f"{WAITING_MAX} requests of this client wait for replies already"))
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
        """A reply has come; whether somebody waits for it."""
        waiting = self._end(correlation_id)
        if waiting is None:
            return False
        waiting.promise.resolve(message)
        return True

    def drop(self, who: object | None, error: RmqkitError) -> None:
        """Who asked (None: everybody) waits no longer."""
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
