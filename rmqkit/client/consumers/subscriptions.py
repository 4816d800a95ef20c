"""Shared by push and pull consumers: settings, subscriptions, and the start offset of a queue.

A queue starts at the group's committed offset. Without one, `consume_from` decides:

- `last`: the end; of a retry topic the beginning.
- `first`: offset 0, which the first pull corrects to the first message that is left.
- `timestamp`: found by a search by time; of a retry topic the end.

If no broker can tell the committed offset, the queue does not start, and the caller retries.

Source: `client/.../impl/consumer/RebalancePushImpl.java` (`computePullFromWhereWithException`),
`client/.../impl/factory/MQClientInstance.java` (`checkClientInBroker`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rmqkit.client.access_denials import RETRY_AFTER_DENIED_MS
from rmqkit.client.allocators import Allocator, Average
from rmqkit.client.client import Client, fields
from rmqkit.client.consumers.offset_store import OffsetStore
from rmqkit.errors import AccessDenied, ClientError, PeerUnreachable, RemoteProtocolError
from rmqkit.wire.bodies import EXPRESSION_SQL92, CheckClientBody, ConsumerData, SubscriptionData, parse_subscription
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.schemas.offsets import (
    GetMaxOffsetRequest,
    GetMaxOffsetResponse,
    SearchOffsetRequest,
    SearchOffsetResponse,
)
from rmqkit.wire.topic_names import RETRY_PREFIX

SUSPEND_MS = 15_000
PULL_TIMEOUT_MS = 30_000
RETRY_AFTER_ERROR_MS = 3000
REBALANCE_MS = 20_000
RETRY_AFTER_BUSY_MS = 20
FLOW_CONTROL_MS = 50
MIB = 1024 * 1024
#: Redeliveries before a message goes to the dead letters, if `max_reconsume_times` is -1.
MAX_RECONSUME_TIMES = 16


class ConsumeFrom(StrEnum):
    """Where a group starts in a queue without a committed offset."""

    LAST = "last"
    FIRST = "first"
    TIMESTAMP = "timestamp"


CONSUME_FROM_WIRE: Mapping[ConsumeFrom, str] = {
    ConsumeFrom.LAST: "CONSUME_FROM_LAST_OFFSET",
    ConsumeFrom.FIRST: "CONSUME_FROM_FIRST_OFFSET",
    ConsumeFrom.TIMESTAMP: "CONSUME_FROM_TIMESTAMP",
}


@dataclass(kw_only=True)
class ConsumerSettings:
    """Settings of both kinds of consumers. Limits are Apache's (`DefaultMQPushConsumer`)."""

    group: str
    broadcasting: bool = False
    consume_from: ConsumeFrom = ConsumeFrom.LAST
    #: Unix ms, for `timestamp`.
    consume_timestamp_ms: int = 0
    allocator: Allocator = field(default_factory=Average)
    pull_batch_size: int = 32
    #: Limits for what is held of one queue: messages, bytes, and distance between offsets.
    pull_threshold_for_queue: int = 1000
    pull_threshold_size_for_queue: int = 100 * MIB
    consume_concurrently_max_span: int = 2000
    persist_interval_ms: int = 5000
    #: How long a broker may hold a pull that finds no message, and the timeout of a pull. The
    #: timeout is longer; after it the client notices a stalled broker.
    suspend_ms: int = SUSPEND_MS
    pull_timeout_ms: int = PULL_TIMEOUT_MS
    #: Pause after a failed pull.
    retry_after_error_ms: int = RETRY_AFTER_ERROR_MS
    rebalance_interval_ms: int = REBALANCE_MS

    def pause_ms(self, error: ClientError) -> int:
        """Return how long to wait after a failed pull or pop."""
        if error.code == ResponseCode.FLOW_CONTROL:
            return RETRY_AFTER_BUSY_MS
        if isinstance(error, AccessDenied):
            return max(self.retry_after_error_ms, RETRY_AFTER_DENIED_MS)
        return self.retry_after_error_ms


def heartbeat_of(
    settings: ConsumerSettings, consume_type: str, subscriptions: Mapping[str, SubscriptionData]
) -> ConsumerData:
    """Return a consumer's part of a heartbeat."""
    return ConsumerData(
        group_name=settings.group,
        consume_type=consume_type,
        message_model="BROADCASTING" if settings.broadcasting else "CLUSTERING",
        consume_from_where=CONSUME_FROM_WIRE[settings.consume_from],
        subscription_data_set=list(subscriptions.values()),
    )


class Sql(str):
    """An expression of type SQL92, accepted wherever an expression is."""

    __slots__ = ()

    expression_type = EXPRESSION_SQL92


def sql(expression: str) -> Sql:
    """Return a filter that selects messages by their properties.

    The broker evaluates it, and needs `enablePropertyFilter`.

    Args:
        expression: A condition in SQL92, with property names as variables. At most 8192 characters.

    Example:
        Consume only some orders:

            consumer.subscribe("orders", sql("price BETWEEN 10 AND 20 AND region = 'eu'"))
    """
    return Sql(expression)


def subscription(topic: str, expression: str, expression_type: str, wall_ms: int) -> SubscriptionData:
    """Return the subscription to a topic. Raises ClientError for an invalid expression."""
    if not isinstance(expression, str):
        # A list of tags would be taken for the name of one tag, and no message would come.
        raise ClientError(f"the filter {expression!r} is no text: join tags, as in 'created || paid'; '*' is all messages")
    if isinstance(expression, Sql):
        expression_type = expression.expression_type
    try:
        return parse_subscription(topic, str(expression), expression_type, wall_ms)
    except RemoteProtocolError as error:
        raise ClientError(str(error)) from None


async def check_filter(client: Client, group: str, data: SubscriptionData) -> None:
    """Ask the brokers of a topic to check a filter (46).

    Tag filters are always valid. A broker that does not respond is skipped: its pulls will report
    an invalid filter. Raises BrokerError whose text says what is invalid.
    """
    if data.is_tag_type:
        return
    try:
        route = await client.routes.find(data.topic)
    except ClientError:
        return
    body = CheckClientBody(client_id=client.settings.client_id, group=group, subscription_data=data).encode()
    for name in sorted(route.brokers):
        reader = client.routes.reader(name)
        if reader is None:
            continue
        try:
            await client.ask(reader.address, RequestCode.CHECK_CLIENT_CONFIG, body=body)
        except PeerUnreachable as error:
            client.log.warning("filter-not-checked", group=group, topic=data.topic, broker=name, error=str(error))


async def first_offset(client: Client, offsets: OffsetStore, settings: ConsumerSettings, queue: MessageQueue) -> int:
    """Return the start offset of a queue. Raises ClientError if no broker can tell."""
    stored = await offsets.read(queue)
    if stored is not None and stored >= 0:
        return stored
    is_retry = queue.topic.startswith(RETRY_PREFIX)
    match settings.consume_from:
        case ConsumeFrom.FIRST:
            return 0
        case ConsumeFrom.TIMESTAMP if not is_retry:
            return await offset_for_time(client, queue, settings.consume_timestamp_ms)
        case ConsumeFrom.LAST if is_retry:
            return 0
        case _:
            return await offset_max(client, queue)


async def offset_max(client: Client, queue: MessageQueue) -> int:
    """Return the offset of the next message that the broker will store in a queue."""
    request = GetMaxOffsetRequest(topic=queue.topic, queue_id=queue.queue_id)
    reply = await client.ask(client.routes.address_to_read(queue.broker_name), RequestCode.GET_MAX_OFFSET, request)
    return fields(reply, GetMaxOffsetResponse).offset


async def offset_for_time(client: Client, queue: MessageQueue, timestamp_ms: int) -> int:
    """Return the offset of the first message stored at `timestamp_ms` (Unix ms) or later."""
    request = SearchOffsetRequest(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms)
    address = client.routes.address_to_read(queue.broker_name)
    reply = await client.ask(address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, request)
    return fields(reply, SearchOffsetResponse).offset
