"""One pull: the request, and its response as a value.

    code      status         the caller then
    0         FOUND          takes the messages and continues at `next_offset`
    19        NO_NEW         continues at `next_offset` (the broker has waited: long polling)
    20        NO_MATCHED     continues at `next_offset`; no message before it matched the filter
    21        OFFSET_ILLEGAL restarts at `next_offset`: its offset is outside the queue

Any other code raises BrokerError, and a missing response PeerUnreachable. The broker compares only
hash codes of tags, so messages whose tag is not subscribed to are removed here.

A slave cannot distinguish an invalid offset from one that it has not reached. It returns 20 with
the requested offset. Unless the response also suggests another broker, the result is delayed by
`STUCK_MS`, so that the caller does not pull in a tight loop.

An inner batch is one record with several messages in its body (topics with `queue.type=BatchCQ`).
They become separate messages, numbered from the record's offset.

Source: `client/.../impl/consumer/PullAPIWrapper.java`, `impl/MQClientAPIImpl.java`
(`processPullResponse`), `common/.../message/MessageDecoder.java` (`decodeMessage`).
"""

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from rmqkit.client.client import Client, decoded, fields
from rmqkit.client.consumers.subscriptions import PULL_TIMEOUT_MS, SUSPEND_MS
from rmqkit.client.message import MessageExt
from rmqkit.errors import PeerUnreachable, RemoteProtocolError
from rmqkit.wire import properties as props
from rmqkit.wire.batch import decode_batch
from rmqkit.wire.bodies import SubscriptionData
from rmqkit.wire.codes import MessageSysFlag, PullSysFlag, RequestCode, ResponseCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.inflate import CompressionMissing, inflate_body
from rmqkit.wire.record import Record, iter_records
from rmqkit.wire.schemas.pull import PullMessageRequest, PullMessageResponse

BATCH_SIZE = 32
BATCH_BYTES_MAX = 256 * 1024
#: Delay before an offset that a slave does not have is pulled again.
STUCK_MS = 100
_TAGS = props.PROPERTY_TAGS.encode()
_WRAPPED = MessageSysFlag.INNER_BATCH | MessageSysFlag.NEED_UNWRAP
#: Flags of the record only, not of the messages in it.
_OF_RECORD = _WRAPPED | MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_MASK


class PullStatus(Enum):
    """The kinds of successful responses to a pull."""

    FOUND = ResponseCode.SUCCESS
    NO_NEW = ResponseCode.PULL_NOT_FOUND
    NO_MATCHED = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED


_STATUS = {int(status.value): status for status in PullStatus}


class PullResult(NamedTuple):
    """The response to a pull. `messages` is empty unless the status is FOUND."""

    status: PullStatus
    next_offset: int
    offset_min: int
    offset_max: int
    messages: list[MessageExt]
    suggest_broker_id: int


async def pull(
    client: Client,
    group: str,
    queue: MessageQueue,
    offset: int,
    subscription: SubscriptionData,
    *,
    batch_size: int = BATCH_SIZE,
    suspend_ms: int = SUSPEND_MS,
    timeout_ms: int = PULL_TIMEOUT_MS,
    commit_offset: int | None = None,
    broker_id: int = 0,
    send_subscription: bool = False,
) -> PullResult:
    """Pull from the broker with this id, or from a substitute of its group.

    `suspend_ms` is how long the broker may hold the request; with 0 it responds at once. With
    `send_subscription` the broker filters by the subscription in the request, otherwise by the one
    from heartbeats. Raises BrokerError or PeerUnreachable.
    """
    reader = client.routes.reader(queue.broker_name, broker_id)
    if reader is None:
        client.routes.refresh_soon(queue.topic)
        raise PeerUnreachable(f"no broker of {queue.broker_name} is known", kind="connect", address="")
    flags = PullSysFlag.SUSPEND if suspend_ms else 0
    if commit_offset and reader.is_master:
        flags |= PullSysFlag.COMMIT_OFFSET
    if send_subscription:
        flags |= PullSysFlag.SUBSCRIPTION
    request = PullMessageRequest(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=offset,
        max_msg_nums=batch_size,
        sys_flag=flags,
        commit_offset=commit_offset or 0,
        suspend_timeout_millis=suspend_ms,
        subscription=subscription.sub_string if send_subscription else None,
        sub_version=subscription.sub_version,
        expression_type=subscription.expression_type,
        max_msg_bytes=BATCH_BYTES_MAX,
    )
    try:
        reply = await client.ask(
            reader.address, RequestCode.PULL_MESSAGE, request, timeout_ms=timeout_ms, accept=frozenset(_STATUS)
        )
    except PeerUnreachable:
        client.routes.refresh_soon(queue.topic)
        raise
    answer = fields(reply, PullMessageResponse)
    is_stuck = reply.code == ResponseCode.PULL_RETRY_IMMEDIATELY and answer.next_begin_offset == offset
    if is_stuck and client.routes.reader(queue.broker_name, answer.suggest_which_broker_id) == reader:
        await client.timers.sleep(STUCK_MS)
    messages: list[MessageExt] = []
    if reply.is_ok:
        tags = frozenset(tag.encode() for tag in subscription.tags_set)
        messages = [
            MessageExt(record, queue.broker_name)
            for record in decoded(reply, lambda body: _records(body, offset))
            if not tags or props.find(record.properties, _TAGS) in tags
        ]
    return PullResult(
        _STATUS[reply.code],
        answer.next_begin_offset,
        answer.min_offset,
        answer.max_offset,
        messages,
        answer.suggest_which_broker_id,
    )


def _records(body: bytes, offset: int) -> list[Record]:
    records = list(iter_records(body))
    if any(record.sys_flag & _WRAPPED == _WRAPPED for record in records):
        # A pull at an offset within a batch returns the whole batch.
        records = [each for each in unwrapped_records(body) if each.queue_offset >= offset]
    return records


def unwrapped_records(body: bytes) -> list[Record]:
    """Return the records of a pull response, with inner batches unwrapped. Raises CorruptRecord."""
    return [each for record in iter_records(body) for each in unwrapped(record)]


def unwrapped(record: Record) -> Iterator[Record]:
    """Yield the messages of a record: those in it if it is an inner batch."""
    if record.sys_flag & _WRAPPED != _WRAPPED:
        yield record
        return
    try:
        body = record.body
        if record.sys_flag & MessageSysFlag.COMPRESSED:
            body = inflate_body(body, record.sys_flag)
        messages = decode_batch(body)
    except (RemoteProtocolError, CompressionMissing):
        # Deliver the record undecoded: an unreadable message is better than a lost one.
        yield record
        return
    for number, message in enumerate(messages):
        yield record._replace(
            queue_offset=record.queue_offset + number,
            sys_flag=record.sys_flag & ~_OF_RECORD,
            flag=message.flag,
            body=message.body,
            properties=message.properties,
        )
