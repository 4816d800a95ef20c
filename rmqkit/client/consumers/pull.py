"""One pull: the request, and its answer as a value.

    answer    status         what the caller does
    0         FOUND          takes the messages, goes on at `next_offset`
    19        NO_NEW         goes on at `next_offset` (the broker has waited: long polling)
    20        NO_MATCHED     goes on at `next_offset`, nothing up to there was wanted
    21        OFFSET_ILLEGAL its offset is outside the queue: starts again at `next_offset`

Any other code is a BrokerError, no answer a PeerUnreachable. Messages whose tag is not subscribed to are left out here:
the broker compares hash codes only.

A slave cannot tell an offset that is wrong from one that it has not reached: it says 20 with the offset that was asked for.
Then, unless it sends us elsewhere, the caller gets the answer a moment later and does not ask without end.

An inner batch is one record with several messages in its body (brokers of Apache's with batch queues store them): they
come out as messages of their own, numbered from the record's offset on.

Source: `client/.../impl/consumer/PullAPIWrapper.java`, `impl/MQClientAPIImpl.java` (`processPullResponse`),
`common/.../message/MessageDecoder.java` (`decodeMessage`).
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
#: before an offset that a slave does not have is asked for again
STUCK_MS = 100
_TAGS = props.PROPERTY_TAGS.encode()
_WRAPPED = MessageSysFlag.INNER_BATCH | MessageSysFlag.NEED_UNWRAP
#: what is true of the record alone, not of the messages in it
_OF_RECORD = _WRAPPED | MessageSysFlag.COMPRESSED | MessageSysFlag.COMPRESSION_MASK


class PullStatus(Enum):
    FOUND = ResponseCode.SUCCESS
    NO_NEW = ResponseCode.PULL_NOT_FOUND
    NO_MATCHED = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED


_STATUS = {int(status.value): status for status in PullStatus}


class PullResult(NamedTuple):
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
    """Pull from the broker with that id, or another of its group. `suspend_ms` 0 asks for an answer at once.

    With `send_subscription` the broker filters by what is sent here, else by what heartbeats told it.
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
        # An offset within a batch gets all of it.
        records = [each for each in unwrapped_records(body) if each.queue_offset >= offset]
    return records


def unwrapped_records(body: bytes) -> list[Record]:
    """The records of a pull answer, those of inner batches one by one. Raises CorruptRecord."""
    return [each for record in iter_records(body) for each in _unwrapped(record)]


def _unwrapped(record: Record) -> Iterator[Record]:
    if record.sys_flag & _WRAPPED != _WRAPPED:
        yield record
        return
    try:
        body = record.body
        if record.sys_flag & MessageSysFlag.COMPRESSED:
            body = inflate_body(body, record.sys_flag)
        messages = decode_batch(body)
    except (RemoteProtocolError, CompressionMissing):
        # Better one message that nobody understands than none that anybody hears of.
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
