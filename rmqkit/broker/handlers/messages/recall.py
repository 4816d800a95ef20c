"""RECALL_MESSAGE: a producer takes back a timer message before it is due.

The broker stores a delete marker in the timer topic: a message with the same due time whose
property TIMER_DEL_UNIQKEY names the unique key of the message to remove. When both are due, the
marker removes it (`broker/special/timer`). So a recall succeeds even if the message does not exist.

The answer has no status for a marker that is stored less safely than required. With
allAckInSyncStateSet such a marker may be lost in an election, so the answer is an error then, and
the recall is unknown: it may work all the same. Apache's broker answers SUCCESS.

Source: `broker/.../processor/RecallMessageProcessor.java`.
"""

from typing import TYPE_CHECKING

from rmqkit.access.rules import PUB, on_topic
from rmqkit.broker.handlers.messages.timer_sends import TIMERS, due_slot
from rmqkit.broker.puts.answers import STORED
from rmqkit.broker.special.timer.rewrite import DELETE
from rmqkit.config import BrokerRole
from rmqkit.runtime.calls import Answer, Call, Handlers, Refused, Response
from rmqkit.store.contract import Put, PutStatus
from rmqkit.wire import properties as props
from rmqkit.wire.codes import PermName, RequestCode, ResponseCode
from rmqkit.wire.javahash import tags_code
from rmqkit.wire.msgid import RecallHandle
from rmqkit.wire.schemas.send import RecallMessageRequest, RecallMessageResponse
from rmqkit.wire.topic_names import TIMER_TOPIC

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

rows = Handlers()

_TAG = "_RECALL_TAG_"
_UNAVAILABLE = "recall failed, broker service not available"


@rows.handles(RequestCode.RECALL_MESSAGE, RecallMessageRequest, access=on_topic(PUB))
def recall(broker: "BrokerView", call: Call[RecallMessageRequest]) -> Response:
    """Store a delete marker for the message that the handle names."""
    handle = _checked(broker, call.args)
    put = _marker(broker, call, handle)
    out_ms = due_slot(broker, {TIMERS[-1]: handle.time, DELETE.decode(): handle.unique_key})
    if broker.puts.is_full or broker.puts.own_count >= broker.config.limits.waiters_max:
        raise Refused(ResponseCode.SYSTEM_BUSY, "[OVERLOAD]system busy, start flow control for a while")
    call.changing()
    result = broker.timers.append(put, out_ms)

    def ended(answer: Answer, status: PutStatus) -> None:
        if status is PutStatus.PUT_OK or (status in STORED and not broker.config.election.all_ack):
            answer(call.ok(RecallMessageResponse(msg_id=handle.unique_key)))
        else:
            answer(call.error(ResponseCode.SYSTEM_ERROR, f"recall failed, execute error: {status.name}"))

    return call.later(
        lambda answer: broker.puts.await_own(TIMER_TOPIC, result, lambda status: ended(answer, status), copies=True)
    )


def _checked(broker: "BrokerView", args: RecallMessageRequest) -> RecallHandle:
    """Return the handle after all checks, in Apache's order. Raises Refused."""
    config = broker.config
    if not config.timers.recall_enable:
        raise Refused(ResponseCode.NO_PERMISSION, "recall failed, operation is forbidden")
    if config.identity.broker_role is BrokerRole.SLAVE:
        raise Refused(ResponseCode.SLAVE_NOT_AVAILABLE, _UNAVAILABLE)
    is_writeable = config.topics.broker_permission & PermName.PERM_WRITE
    if not is_writeable and not config.timers.recall_when_not_writeable:
        raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, _UNAVAILABLE)
    # Not for the permission of the broker and for too few replicas, whose answers are Apache's.
    if broker.send_blocked_code is ResponseCode.SERVICE_NOT_AVAILABLE:
        raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"{_UNAVAILABLE}: {broker.send_blocked}")
    if broker.replication.acks.too_few:
        raise Refused(ResponseCode.SYSTEM_ERROR, "recall failed, execute error")
    if broker.topics.get(args.topic) is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{args.topic}] not exist")
    try:
        handle = RecallHandle.decode(args.recall_handle)
    except ValueError as error:
        raise Refused(ResponseCode.ILLEGAL_OPERATION, str(error)) from None
    if handle.topic != args.topic:
        raise Refused(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
    if handle.broker_name != config.identity.broker_name:
        raise Refused(ResponseCode.ILLEGAL_OPERATION, _UNAVAILABLE)
    time = handle.time
    left_ms = int(time) - broker.clock.wall_ms if time.isascii() and time.isdigit() and len(time) < 19 else 0
    if not 0 < left_ms < config.timers.max_delay_sec * 1000:
        raise Refused(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
    return handle


def _marker(broker: "BrokerView", call: Call[RecallMessageRequest], handle: RecallHandle) -> Put:
    """Return the delete marker, with its own topic."""
    key = handle.unique_key
    if broker.config.timers.append_topic_for_delete_key:
        key = f"{handle.topic}+{key}"
    wall_ms = broker.clock.wall_ms
    born_host, sys_flag = broker.hosts.of(call.conn)
    try:
        properties = props.encode(
            {
                props.PROPERTY_TIMER_DEL_UNIQKEY: key,
                props.PROPERTY_UNIQ_KEY: handle.unique_key,
                props.PROPERTY_TIMER_DELIVER_MS: handle.time,
                props.PROPERTY_BORN_TIMESTAMP: str(wall_ms),
                props.PROPERTY_PRODUCER_GROUP: call.args.producer_group or "",
                props.PROPERTY_TAGS: _TAG,
            }
        )
    except ValueError:
        raise Refused(ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid") from None
    return Put(
        topic=handle.topic,
        queue_id=0,
        flag=0,
        sys_flag=sys_flag,
        born_ms=wall_ms,
        born_host=born_host,
        store_host=broker.hosts.store_host,
        reconsume_times=0,
        prepared_offset=0,
        body=b"0",
        properties=properties,
        tags_code=tags_code(_TAG),
    )
