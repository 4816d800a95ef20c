"""Stores a batch for a BatchCQ topic as one record: its body is what the producer encoded.

The record is an *inner batch*: its sysFlag has the bits INNER_BATCH and NEED_UNWRAP, and its
properties are those of the request, plus MSG_REGION, TRACE_ON, CLUSTER, INNER_NUM, and INNER_BASE
(which the store adds). Consumers unwrap the body. The messages in it are not touched, so that their
tags and keys are unknown to the broker: filters and the index see the properties of the batch.

A batch without a unique id comes from a client that cannot unwrap (before 5.0). Its messages become
records of their own, as on any topic.

Source: `broker/.../SendMessageProcessor.java` (`sendBatchMessage`),
`AbstractSendMessageProcessor.java` (`buildMsgContext`).
"""

from typing import TYPE_CHECKING

from rmqkit.runtime.calls import LATER, Call, Refused, Response
from rmqkit.store.contract import Put, PutStatus
from rmqkit.wire import properties as props
from rmqkit.wire.codes import MessageSysFlag, ResponseCode
from rmqkit.wire.javahash import tags_code_of

if TYPE_CHECKING:
    from rmqkit.broker.handlers.messages.send import SendRequest
    from rmqkit.broker.view import BrokerView

#: limit of messages in an inner batch: queue entries have an i16 for it
INNER_COUNT_MAX = 32_767
#: properties of a sender that are the broker's, or wrong for the new record
_REPLACED = (b"MSG_REGION", b"TRACE_ON", b"CLUSTER", b"INNER_NUM", b"__CRC32#")
_BITS = MessageSysFlag.INNER_BATCH | MessageSysFlag.NEED_UNWRAP


def store(
    broker: "BrokerView", call: "Call[SendRequest]", queue_id: int, *, sys_flag: int, born_host: bytes, count: int
) -> Response:
    """Append the batch of `count` messages in the call's body, and park the call.

    Raises Refused if the batch has too many messages.
    """
    args = call.args
    if count > INNER_COUNT_MAX:
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the batch has {count} messages, the limit for topics with queue.type=BatchCQ is {INNER_COUNT_MAX}",
        )
    properties = (args.properties or "").encode()
    for name in _REPLACED:
        properties = props.remove(properties, name)
    if properties[-1] != 2:
        properties += b"\x02"
    properties += broker.own_properties + b"INNER_NUM\x01%d\x02" % count
    put = Put(
        args.topic,
        queue_id,
        args.flag,
        sys_flag | _BITS,
        args.born_timestamp,
        born_host,
        broker.hosts.store_host,
        args.reconsume_times or 0,
        0,
        bytes(call.body),
        properties,
        tags_code_of(props.find(properties, b"TAGS")),
    )
    call.changed = True
    result = broker.store.append_inner_batch(put, count)
    if result.status is not PutStatus.PUT_OK:
        return broker.puts.refusal(result.status)
    unique = props.find(properties, b"UNIQ_KEY") or b""
    broker.puts.park(call, queue_id, unique, result, props.waits_for_store(properties))
    return LATER
