"""One pop: the request, and its response as a value.

    code       status     the caller then
    0          FOUND      takes the messages and pops again at once
    210, 19    NOTHING    pops again at once (the broker has waited: long polling)
    209        FULL       pops again after a pause: too many pops wait at the broker

Any other code raises BrokerError, and a missing response PeerUnreachable.

Each message gets its receipt handle. The broker puts the handle of a redelivered message into the
property POP_CK. For all others the response tells, by flag and queue, where the pop began to read
(`startOffsetInfo`), and the client builds the handle. Brokers before 4.9.4 send no such text: there
the first message of a queue is where the pop began.

`bornTime` is 0, which stands for the broker's clock. Java's clients send their own clock, and a
broker whose clock is ahead by more than the poll time then answers every pop at once.

The retry topic of pulls (`%RETRY%<group>`) is popped like any other: it has what members in pull
mode failed on, and dead letters that were requeued. Its handles have the flag of a retry topic, but
their topic is this one.

The broker compares only hash codes of tags, so messages whose tag is not subscribed to are marked
`unwanted`.

Source: `client/.../impl/MQClientAPIImpl.java` (`processPopResponse`),
`client/.../impl/consumer/PullAPIWrapper.java` (`popAsync`),
`remoting/.../protocol/header/ExtraInfoUtil.java`.
"""

from enum import Enum, auto
from typing import NamedTuple

from rmqkit.client.client import Client, decoded, fields
from rmqkit.client.consumers.pop.messages import PopConsumerSettings, PoppedMessage, PopWork
from rmqkit.client.consumers.subscriptions import ConsumeFrom
from rmqkit.client.message import MessageExt
from rmqkit.errors import PeerUnreachable, RemoteProtocolError
from rmqkit.wire import properties as props
from rmqkit.wire.bodies import SubscriptionData
from rmqkit.wire.bodies.pop import ReceiptHandle, decode_handle, flag_of, real_topic
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.record import Record, iter_records
from rmqkit.wire.schemas.pop import PopMessageRequest, PopMessageResponse
from rmqkit.wire.topic_names import RETRY_PREFIX

INIT_MIN, INIT_MAX = 0, 1
FLAGS = ("0", "1", "2")
_TAGS = props.PROPERTY_TAGS.encode()
_POP_CK = props.PROPERTY_POP_CK.encode()


class PopStatus(Enum):
    """The kinds of successful responses to a pop."""

    FOUND = auto()
    NOTHING = auto()
    FULL = auto()


_STATUS = {
    int(ResponseCode.SUCCESS): PopStatus.FOUND,
    int(ResponseCode.POLLING_TIMEOUT): PopStatus.NOTHING,
    int(ResponseCode.PULL_NOT_FOUND): PopStatus.NOTHING,
    int(ResponseCode.POLLING_FULL): PopStatus.FULL,
}


class PopResult(NamedTuple):
    """The response to a pop. Without messages unless the status is FOUND."""

    status: PopStatus
    messages: list[PoppedMessage]
    #: Messages whose tag is not subscribed to.
    unwanted: list[PoppedMessage]


async def pop(client: Client, settings: PopConsumerSettings, work: PopWork, subscription: SubscriptionData) -> PopResult:
    """Pop from the broker of a queue. Raises BrokerError or PeerUnreachable."""
    queue = work.queue
    request = PopMessageRequest(
        consumer_group=settings.group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        max_msg_nums=min(settings.pop_batch_nums, work.room),
        invisible_time=settings.pop_invisible_time_ms,
        poll_time=settings.suspend_ms,
        born_time=0,
        init_mode=INIT_MIN if settings.consume_from is ConsumeFrom.FIRST else INIT_MAX,
        exp_type=subscription.expression_type,
        exp=subscription.sub_string,
    )
    sent_ms = client.clock.mono_ms
    try:
        reply = await client.ask(
            client.routes.address_to_read(queue.broker_name),
            RequestCode.POP_MESSAGE,
            request,
            timeout_ms=settings.pull_timeout_ms,
            accept=frozenset(_STATUS),
        )
    except PeerUnreachable:
        client.routes.refresh_soon(queue.topic)
        raise
    if not reply.is_ok:
        return PopResult(_STATUS[reply.code], [], [])
    arrived_ms = client.clock.mono_ms
    delayed_ms = max(0, arrived_ms - sent_ms - settings.suspend_ms)
    answer = fields(reply, PopMessageResponse)
    popped = decoded(reply, lambda body: with_handles(body, answer, queue.broker_name))
    deadline_ms = arrived_ms + answer.invisible_time - delayed_ms
    retry_of_pulls = RETRY_PREFIX + settings.group
    tags = frozenset(tag.encode() for tag in subscription.tags_set)
    messages: list[PoppedMessage] = []
    unwanted: list[PoppedMessage] = []
    for record, handle, receipt in popped:
        message = MessageExt(record, queue.broker_name)
        if queue.topic == retry_of_pulls:
            topic = queue.topic
            message.topic = message.properties.get(props.PROPERTY_RETRY_TOPIC, topic)
        else:
            topic = real_topic(queue.topic, settings.group, handle.flag)
            message.topic = queue.topic
        message.queue = MessageQueue(topic, queue.broker_name, handle.queue_id)
        is_wanted = not tags or props.find(record.properties, _TAGS) in tags
        (messages if is_wanted else unwanted).append(PoppedMessage(message, handle, receipt, deadline_ms, work))
    return PopResult(PopStatus.FOUND, messages, unwanted)


def with_handles(body: bytes, answer: PopMessageResponse, broker_name: str) -> list[tuple[Record, ReceiptHandle, str]]:
    """Return each record with its handle, also as text.

    Raises CorruptRecord, RemoteProtocolError or ValueError if it cannot be decoded.
    """
    starts: dict[tuple[str, int], int] = {}
    for part in filter(None, (answer.start_offset_info or "").split(";")):
        flag, queue_id, offset = part.split(" ")
        starts[flag, int(queue_id)] = int(offset)
    found = []
    for record in iter_records(body):
        given = props.find(record.properties, _POP_CK)
        if given is not None:
            receipt = given.decode()
            handle = decode_handle(receipt)
            if handle.flag not in FLAGS:
                raise RemoteProtocolError(f"{handle.flag!r} is no flag of a receipt handle")
            if handle.offset < 0:
                handle = handle._replace(offset=record.queue_offset)
        else:
            flag = flag_of(record.topic)
            start = starts.setdefault((flag, record.queue_id), record.queue_offset)
            handle = ReceiptHandle(
                start,
                answer.pop_time,
                answer.invisible_time,
                answer.revive_qid,
                flag,
                broker_name,
                record.queue_id,
                record.queue_offset,
            )
            receipt = handle.encode()
        found.append((record, handle, receipt))
    return found
