"""One pull: the request, and its answer as a value.

    answer    status         what the caller does
    0         FOUND          takes the messages, goes on at `next_offset`
    19        NO_NEW         goes on at `next_offset` (the broker has waited: long polling)
    20        NO_MATCHED     goes on at `next_offset`, nothing up to there was wanted
    21        OFFSET_ILLEGAL its offset is outside the queue: starts again at `next_offset`

Any other code is a BrokerError, no answer a PeerUnreachable. Messages whose tag is not subscribed to are left out here:
the broker compares hash codes only.

Source: `client/.../impl/consumer/PullAPIWrapper.java`, `impl/MQClientAPIImpl.java` (`processPullResponse`).
"""

from enum import Enum
from typing import NamedTuple

from rmqkit.client.client import Client, decoded, fields
from rmqkit.client.message import MessageExt
from rmqkit.errors import PeerUnreachable
from rmqkit.wire import properties as props
from rmqkit.wire.bodies import SubscriptionData
from rmqkit.wire.codes import PullSysFlag, RequestCode, ResponseCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.record import iter_records
from rmqkit.wire.schemas.pull import PullMessageRequest, PullMessageResponse

BATCH_SIZE = 32
BATCH_BYTES_MAX = 256 * 1024
SUSPEND_MS = 15_000
TIMEOUT_MS = 30_000
_TAGS = props.PROPERTY_TAGS.encode()


class PullStatus(Enum):
    FOUND = ResponseCode.SUCCESS
    NO_NEW = ResponseCode.PULL_NOT_FOUND
    NO_MATCHED = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_ILLEGAL = ResponseCode.PULL_OFFSET_MOVED


_STATUS = {int(status.value): status for status in PullStatus}


class Pulled(NamedTuple):
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
    commit_offset: int | None = None,
    broker_id: int = 0,
    send_subscription: bool = False,
) -> Pulled:
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
            reader.address, RequestCode.PULL_MESSAGE, request, timeout_ms=TIMEOUT_MS, accept=frozenset(_STATUS)
        )
    except PeerUnreachable:
        client.routes.refresh_soon(queue.topic)
        raise
    answer = fields(reply, PullMessageResponse)
    messages: list[MessageExt] = []
    if reply.is_ok:
        tags = frozenset(tag.encode() for tag in subscription.tags_set)
        messages = [
            MessageExt(record, queue.broker_name)
            for record in decoded(reply, lambda body: list(iter_records(body)))
            if not tags or props.find(record.properties, _TAGS) in tags
        ]
    return Pulled(
        _STATUS[reply.code],
        answer.next_begin_offset,
        answer.min_offset,
        answer.max_offset,
        messages,
        answer.suggest_which_broker_id,
    )
