"""What push and pull consumers have in common: their settings, and where a queue is begun.

Where a queue is begun: at the group's stored offset; without one, by `consume_from`: `last` is the end (of a retry topic
the beginning), `first` is 0, which the first pull corrects to what is still there, `timestamp` is a search by time (of a
retry topic the end). A broker that cannot tell the stored offset starts nothing: the caller tries again.

Source: `client/.../impl/consumer/RebalancePushImpl.java` (`computePullFromWhereWithException`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from rmqkit.client.allocators import Allocator, Average
from rmqkit.client.client import Client, fields
from rmqkit.client.offset_store import OffsetStore
from rmqkit.client.outgoing import RETRY_PREFIX
from rmqkit.errors import ClientError, PeerUnreachable, RemoteProtocolError
from rmqkit.wire.bodies import SubscriptionData, parse_subscription
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.schemas.offsets import (
    GetMaxOffsetRequest,
    GetMaxOffsetResponse,
    SearchOffsetRequest,
    SearchOffsetResponse,
)

RETRY_AFTER_ERROR_MS = 3000
RETRY_AFTER_BUSY_MS = 20
FLOW_CONTROL_MS = 50
MIB = 1024 * 1024


class ConsumeFrom(StrEnum):
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
    """Of both kinds; limits are upstream's (`DefaultMQPushConsumer`)."""

    group: str
    broadcasting: bool = False
    consume_from: ConsumeFrom = ConsumeFrom.LAST
    #: for `timestamp`: wall time in ms
    consume_timestamp_ms: int = 0
    allocator: Allocator = field(default_factory=Average)
    pull_batch_size: int = 32
    #: messages, bytes and span of offsets that are held of one queue
    pull_threshold_for_queue: int = 1000
    pull_threshold_size_for_queue: int = 100 * MIB
    consume_concurrently_max_span: int = 2000
    persist_interval_ms: int = 5000


def subscription(topic: str, expression: str, expression_type: str, wall_ms: int) -> SubscriptionData:
    """Raises ClientError for an expression that means nothing."""
    try:
        return parse_subscription(topic, expression, expression_type, wall_ms)
    except RemoteProtocolError as error:
        raise ClientError(str(error)) from None


async def first_offset(client: Client, offsets: OffsetStore, settings: ConsumerSettings, queue: MessageQueue) -> int:
    """Where to begin a queue. Raises ClientError when nobody can tell."""
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
    request = GetMaxOffsetRequest(topic=queue.topic, queue_id=queue.queue_id)
    reader = client.routes.reader(queue.broker_name)
    if reader is None:
        raise PeerUnreachable(f"no broker of {queue.broker_name} is known", kind="connect", address="")
    reply = await client.ask(reader.address, RequestCode.GET_MAX_OFFSET, request)
    return fields(reply, GetMaxOffsetResponse).offset


async def offset_for_time(client: Client, queue: MessageQueue, timestamp_ms: int) -> int:
    request = SearchOffsetRequest(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms)
    reader = client.routes.reader(queue.broker_name)
    if reader is None:
        raise PeerUnreachable(f"no broker of {queue.broker_name} is known", kind="connect", address="")
    reply = await client.ask(reader.address, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, request)
    return fields(reply, SearchOffsetResponse).offset
