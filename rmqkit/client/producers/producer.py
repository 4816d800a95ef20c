"""Producer: sends prepared messages, and retries attempts that fail.

Each send is one `_SendFlow` object:

    find the route → pick a queue → call the broker → acknowledged: done
                          ▲                         └→ failed: retriable? ──no──► SendFailed
                          └────────────yes────────────────────┘

- Retried: no response (refused, lost, timed out), and responses with one of `retry_response_codes`.
  Another broker is preferred. A send to a given queue or by ordering key is tried once, as in
  Apache: another queue would break the order.
- A refusal by access control ends the send at once with AccessDenied. Apache's producer tries three
  times, because NO_PERMISSION has other meanings too.
- The timeout covers the whole send. Each attempt may use the time that is left, or
  `send_msg_max_timeout_per_request_ms`.
- FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT and SLAVE_NOT_AVAILABLE are results. With
  `retry_another_broker_when_not_store_ok` an attempt at another broker follows; if that fails, the
  earlier result counts.
- `maybe_stored` of a SendFailed: an attempt reached its broker, and the response is unknown or does
  not say whether the message was stored.

In Apache, asynchronous sends stop at any error response. Here, synchronous and asynchronous sends
follow the same rules.

Source: `client/.../impl/producer/DefaultMQProducerImpl.java` (`sendDefaultImpl`, `sendKernelImpl`),
`impl/MQClientAPIImpl.java` (`sendMessageAsync`, `processSendResponse`),
`producer/selector/SelectMessageQueueByHash.java`.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rmqkit.client.access_denials import denial_of
from rmqkit.client.client import RETRIABLE_CODES, Client, refused
from rmqkit.client.fault_policy import FaultPolicy, QueueRing, RoundRobin
from rmqkit.client.flow import Deferred, start
from rmqkit.client.message import MessageExt, SendResult, SendStatus
from rmqkit.client.producers.outgoing_message import OutgoingMessage
from rmqkit.client.routes import DEFAULT_TOPIC, Route
from rmqkit.errors import (
    AccessDenied,
    ClientClosed,
    ClientError,
    InvalidMessage,
    RemoteProtocolError,
    RmqkitError,
    SendFailed,
)
from rmqkit.runtime.calls import CallFailed, Outcome, Reply
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.javahash import java_hash
from rmqkit.wire.msgid import RecallHandle
from rmqkit.wire.schemas.send import (
    RecallMessageRequest,
    RecallMessageResponse,
    SendMessageRequestV2,
    SendMessageResponse,
)

if TYPE_CHECKING:
    from rmqkit.client.producers.trace import ProducerTrace
    from rmqkit.runtime.connection import Connection

STATUS_BY_CODE = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}
#: Response codes of a broker that is not the master (any more). A new route may name the master.
MOVED_CODES = (ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.NO_PERMISSION)
#: Error codes that brokers return before they store anything.
NOT_STORED_CODES = frozenset(
    {
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.VERSION_NOT_SUPPORTED,
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
        ResponseCode.INVALID_PARAMETER,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.GO_AWAY,
    }
)
#: Begins the remark of a SYSTEM_ERROR with which rmqkit's broker refused to store the message.
#: Apache's remark has no colon and no numbers; its DLedger brokers also send it after storing.
NOT_STORED_REMARK = "in-sync replicas not enough: "

SendOutcome = SendResult | ClientError
#: None is the outcome of a one-way send, once a connection has taken it.
SendThen = Callable[[SendOutcome | None], None]


@dataclass(kw_only=True)
class ProducerSettings:
    """Settings of a producer. Names and defaults are those of Apache's `DefaultMQProducer`."""

    group: str
    retry_times_when_send_failed: int = 2
    retry_times_when_send_async_failed: int = 2
    retry_another_broker_when_not_store_ok: bool = False
    retry_response_codes: Collection[int] = RETRIABLE_CODES
    send_msg_max_timeout_per_request_ms: int | None = None
    create_topic_key: str = DEFAULT_TOPIC
    default_topic_queue_nums: int = 4
    fault_policy: FaultPolicy = field(default_factory=RoundRobin)


class ProducerCore:
    """The sans-IO producer of one group."""

    def __init__(self, client: Client, settings: ProducerSettings) -> None:
        self.client = client
        self.settings = settings
        self.closed = False
        #: Records acknowledged sends. None if traces are off.
        self.trace: ProducerTrace | None = None
        #: Topics that were sent to. Their routes are watched.
        self._topics: dict[str, None] = {}
        self._rings: dict[str, QueueRing] = {}
        client.add_producer(settings.group)

    def send(
        self,
        outgoing: OutgoingMessage,
        then: SendThen,
        *,
        timeout_ms: int,
        retry_times: int | None = None,
        queue: MessageQueue | None = None,
        ordering_key: str | None = None,
        oneway: bool = False,
    ) -> None:
        """Start a send. `then` is called exactly once, perhaps before this returns."""
        if self.closed or self.client.stopping:
            then(ClientClosed(f"producer {self.settings.group} is closed"))
            return
        settings = self.settings
        retries = settings.retry_times_when_send_failed if retry_times is None else retry_times
        if queue is not None or ordering_key is not None or oneway:
            retries = 0
        deadline_ms = self.client.clock.mono_ms + timeout_ms
        sending = _SendFlow(self, outgoing, then, deadline_ms, 1 + retries, queue, ordering_key, oneway)
        if outgoing.topic not in self._topics:
            self._topics[outgoing.topic] = None
            self.client.routes.watch(outgoing.topic)
        route = self.client.routes.routes.get(outgoing.topic)
        if route is not None and route.publish:
            sending.attempt(route)
        else:
            start(sending.find_route(), sending.fail)

    def request(
        self,
        outgoing: OutgoingMessage,
        *,
        timeout_ms: int,
        queue: MessageQueue | None = None,
        ordering_key: str | None = None,
    ) -> Deferred[MessageExt]:
        """Send a request (`Prepare.request`) and return a promise of the reply.

        Without a reply the promise fails with RequestTimeout.
        """
        settings, routes = self.settings, self.client.routes

        async def clusters() -> tuple[str, ...]:
            topic, default = outgoing.topic, settings.create_topic_key
            return (await routes.find_to_publish(topic, default, settings.default_topic_queue_nums)).clusters

        def send(left_ms: int, then: SendThen) -> None:
            self.send(outgoing, then, timeout_ms=left_ms, queue=queue, ordering_key=ordering_key)

        if self.closed or self.client.stopping:
            refused_at_once: Deferred[MessageExt] = Deferred()
            refused_at_once.fail(ClientClosed(f"producer {settings.group} is closed"))
            return refused_at_once
        return self.client.requests.ask(self, outgoing, lambda: start(clusters()), send, timeout_ms)

    async def recall(self, handle: str, timeout_ms: int) -> str:
        """Recall the timer message of this handle, and return its id.

        Raises InvalidMessage for a handle that is not one, ClientError if its broker has no master
        or refuses.

        Source: `DefaultMQProducerImpl.recallMessage`.
        """
        try:
            named = RecallHandle.decode(handle)
        except ValueError as error:
            raise InvalidMessage(f"{error}: {handle[:100]!r}; the answer to the send has it (recall_handle)") from None
        client = self.client
        await client.routes.fetch(named.topic)
        address = client.routes.master(named.broker_name)
        if address is None:
            raise ClientError(f"{named.broker_name}, which has the message, has no master")
        began_ms = client.clock.wall_ms
        request = RecallMessageRequest(producer_group=self.settings.group, topic=named.topic, recall_handle=handle)
        try:
            reply = await client.ask(address, RequestCode.RECALL_MESSAGE, request, timeout_ms=timeout_ms)
        except ClientError:
            if self.trace is not None:
                self.trace.recalled(named, began_ms, success=False)
            raise
        if self.trace is not None:
            self.trace.recalled(named, began_ms, success=True)
        return reply.read(RecallMessageResponse).msg_id

    def ring(self, route: Route) -> QueueRing:
        """Return the round robin of a topic.

        It starts at a random queue, so that producers do not all use the same queue at the same
        time.
        """
        ring = self._rings.get(route.topic)
        if ring is None:
            index = self.client.ports.entropy.randrange(len(route.publish))
            ring = self._rings[route.topic] = QueueRing(route.publish, index)
        elif ring.queues is not route.publish:
            ring.queues = route.publish
        return ring

    async def close(self) -> None:
        """Unregister the group. Sends in flight still end by themselves."""
        if not self.closed:
            self.closed = True
            self.client.requests.drop(self, ClientClosed(f"producer {self.settings.group} is closed"))
            for topic in self._topics:
                self.client.routes.unwatch(topic)
            await self.client.remove_producer(self.settings.group)


@dataclass(slots=True, eq=False)
class _SendFlow:
    """One send, from the route to its outcome."""

    producer: ProducerCore
    outgoing: OutgoingMessage
    then: SendThen
    deadline_ms: int
    tries_max: int
    queue_wanted: MessageQueue | None
    ordering_key: str | None
    oneway: bool
    tries: int = 0
    queue: MessageQueue | None = None
    conn: "Connection | None" = None
    broker_failed: str | None = None
    try_began_ms: int = 0
    maybe_stored: bool = False
    result: SendResult | None = None
    failure: ClientError | None = None
    failures: list[str] = field(default_factory=list)

    # --- attempts

    async def find_route(self) -> None:
        """Find a route to publish to, then make the first attempt."""
        settings, routes = self.producer.settings, self.producer.client.routes
        topic = self.outgoing.topic
        route = await routes.find_to_publish(topic, settings.create_topic_key, settings.default_topic_queue_nums)
        self.attempt(route)

    def attempt(self, route: Route) -> None:
        """Make one attempt, or give up if the time is over."""
        client = self.producer.client
        now_ms = client.clock.mono_ms
        left_ms = self.deadline_ms - now_ms
        if left_ms <= 0:
            self.give_up("the time was over")
            return
        queue = self.queue = self._pick(route, now_ms)
        address = client.routes.master(queue.broker_name)
        self.tries += 1
        self.try_began_ms = now_ms
        if address is None:
            self._no_master(queue)
            return
        outgoing = self.outgoing
        code = outgoing.code
        header = self._header(queue, client.clock.wall_ms)
        if self.oneway:
            client.remoting.oneway(address, code, header, outgoing.body)
            self.then(None)
            return
        limit_ms = self.producer.settings.send_msg_max_timeout_per_request_ms
        if limit_ms is not None and self.tries < self.tries_max:
            left_ms = min(left_ms, limit_ms)
        conn = self.conn = client.remoting.link(address)
        client.send_began(conn)
        client.remoting.call(conn, code, header, outgoing.body, timeout_ms=left_ms, then=self._answered)

    def _pick(self, route: Route, now_ms: int) -> MessageQueue:
        if self.queue_wanted is not None:
            return self.queue_wanted
        if self.ordering_key is not None:
            return route.publish[abs(java_hash(self.ordering_key)) % len(route.publish)]
        producer = self.producer
        return producer.settings.fault_policy.pick(producer.ring(route), self.broker_failed, now_ms)

    def _header(self, queue: MessageQueue, wall_ms: int) -> SendMessageRequestV2:
        outgoing, settings = self.outgoing, self.producer.settings
        return SendMessageRequestV2(
            producer_group=settings.group,
            topic=outgoing.topic,
            default_topic=settings.create_topic_key,
            default_topic_queue_nums=settings.default_topic_queue_nums,
            queue_id=queue.queue_id,
            sys_flag=outgoing.sys_flag,
            born_timestamp=wall_ms,
            flag=outgoing.flag,
            properties=outgoing.properties,
            reconsume_times=outgoing.reconsume_times,
            unit_mode=False,
            max_reconsume_times=outgoing.max_reconsume_times,
            batch=outgoing.is_batch,
            broker_name=queue.broker_name,
        )

    # --- outcomes

    def _answered(self, outcome: Outcome) -> None:
        conn, queue = self.conn, self.queue
        assert conn is not None
        assert queue is not None
        client = self.producer.client
        client.send_ended(conn)
        latency_ms = client.clock.mono_ms - self.try_began_ms
        if isinstance(outcome, CallFailed):
            self._update_policy(queue, latency_ms, isolate=True, reachable=True)
            self._no_answer(outcome, queue)
        elif outcome.code in STATUS_BY_CODE:
            self._update_policy(queue, latency_ms, isolate=False, reachable=True)
            self._stored(outcome, queue)
        else:
            is_denied = denial_of(outcome, self.outgoing.code) is not None
            self._update_policy(queue, latency_ms, isolate=not is_denied, reachable=is_denied)
            self._refused(outcome, queue)

    def _update_policy(self, queue: MessageQueue, latency_ms: int, *, isolate: bool, reachable: bool) -> None:
        now_ms = self.producer.client.clock.mono_ms
        policy = self.producer.settings.fault_policy
        policy.update(queue.broker_name, latency_ms, isolate=isolate, reachable=reachable, now_ms=now_ms)

    def _stored(self, reply: Reply, queue: MessageQueue) -> None:
        try:
            read = reply.read(SendMessageResponse)
        except RemoteProtocolError as error:
            self.maybe_stored = True
            self._failed(ClientError(f"{reply.address} sent an acknowledgement that cannot be decoded: {error}"), queue)
            return
        status = STATUS_BY_CODE[ResponseCode(reply.code)]
        self.result = SendResult(
            status,
            read.batch_uniq_id or self.outgoing.msg_id,
            read.msg_id,
            MessageQueue(self.outgoing.topic, queue.broker_name, read.queue_id),
            read.queue_offset,
            read.transaction_id,
            read.msg_region,
            read.recall_handle,
        )
        trace = self.producer.trace
        if trace is not None and read.trace_on is not False:
            clock = self.producer.client.clock
            cost_ms = clock.mono_ms - self.try_began_ms
            ordered = self.ordering_key is not None
            trace.stored(self.outgoing, self.result, str(reply.address), clock.wall_ms - cost_ms, cost_ms, ordered)
        settings = self.producer.settings
        if status is SendStatus.SEND_OK or not settings.retry_another_broker_when_not_store_ok:
            self.then(self.result)
        else:
            self.maybe_stored = True
            self._failed(ClientError(f"{queue.broker_name} answered {status}"), queue)

    def _refused(self, reply: Reply, queue: MessageQueue) -> None:
        error = refused(reply, self.outgoing.code)
        if isinstance(error, AccessDenied):
            # Another try has the same result, here and at other brokers.
            error.maybe_stored = self.maybe_stored
            self.then(self.result or error)
            return
        if reply.code not in NOT_STORED_CODES and not error.remark.startswith(NOT_STORED_REMARK):
            self.maybe_stored = True
        if reply.code == ResponseCode.GO_AWAY:
            self.producer.client.retire_link(reply.address)
        if reply.code in MOVED_CODES:
            self.producer.client.routes.refresh_soon(self.outgoing.topic)
        self._failed(error, queue, again=reply.code in self.producer.settings.retry_response_codes)

    def _no_answer(self, failed: CallFailed, queue: MessageQueue) -> None:
        if failed.maybe_done:
            self.maybe_stored = True
        self.producer.client.routes.refresh_soon(self.outgoing.topic)
        self._failed(ClientError(f"{queue.broker_name} at {failed.address}: {failed.text}"), queue)

    def _no_master(self, queue: MessageQueue) -> None:
        self.producer.client.routes.refresh_soon(self.outgoing.topic)
        self._failed(ClientError(f"{queue.broker_name} has no master"), queue)

    def _failed(self, error: ClientError, queue: MessageQueue, *, again: bool = True) -> None:
        self.failure = error
        self.failures.append(str(error))
        self.broker_failed = queue.broker_name
        route = self.producer.client.routes.routes.get(self.outgoing.topic)
        if again and self.tries < self.tries_max and route is not None and route.publish:
            self.attempt(route)
        else:
            self.give_up("")

    def give_up(self, why: str) -> None:
        """End the send with the earlier result, or with SendFailed. `why` counts if no attempt
        failed.
        """
        if self.result is not None:
            self.then(self.result)
            return
        topic = self.outgoing.topic
        route = self.producer.client.routes.routes.get(topic)
        reasons = "; ".join(dict.fromkeys(self.failures)) or why
        last = self.failure
        text = (
            f"send to {topic} failed after {self.tries} {'try' if self.tries == 1 else 'tries'} ({reasons}); "
            f"{'it may have been stored' if self.maybe_stored else 'it was not stored'}"
        )
        brokers = dict.fromkeys(queue.broker_name for queue in route.publish) if route is not None else {}
        if len(brokers) == 1 and (last is None or last.code is None):
            text += f"; {next(iter(brokers))} is the only broker of this topic: bring it back, or add another broker group"
        self.then(
            SendFailed(
                text,
                topic=topic,
                tries=self.tries,
                code=last.code if last is not None else None,
                remark=last.remark if last is not None else "",
                maybe_stored=self.maybe_stored,
            )
        )

    def fail(self, error: RmqkitError) -> None:
        """End the send: there is no route."""
        self.then(error if isinstance(error, ClientError) else ClientError(str(error)))
