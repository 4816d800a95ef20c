"""Replies to requests: SEND_REPLY_MESSAGE in both versions, pushed to the client that waits for it.

1. A request is a plain message with the properties REPLY_TO_CLIENT (the requester's client id) and
   CORRELATION_ID.
2. The consumer of the request sends its reply to the topic `<cluster>_REPLY_TOPIC`, with the same
   two properties.
3. The broker pushes the reply to the producer with that client id (PUSH_REPLY_MESSAGE_TO_CLIENT),
   and answers the replier when the producer has it. So the requester must send heartbeats to the
   broker that gets the reply.

With `storeReplyMessageEnable` the reply is stored too, even if the push failed. A reply that was
pushed is then answered when it is as durable as any message.

Source: `broker/.../processor/ReplyMessageProcessor.java`.
"""

from functools import partial
from typing import TYPE_CHECKING

from rmqkit.access.rules import PUB, on_topic
from rmqkit.broker.handlers.messages.send import check_blocked
from rmqkit.broker.names import topic_fault
from rmqkit.runtime.calls import LATER, Answer, Call, CallFailed, Handlers, Outcome, Refused, Response
from rmqkit.store.contract import Put, PutStatus
from rmqkit.wire import properties as props
from rmqkit.wire.codes import MessageSysFlag, RequestCode, ResponseCode
from rmqkit.wire.javahash import tags_code
from rmqkit.wire.schemas.calls import ReplyMessageRequest
from rmqkit.wire.schemas.send import SendMessageRequestV1, SendMessageRequestV2, SendMessageResponse

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView
    from rmqkit.wire.bodies import TopicConfig

SendRequest = SendMessageRequestV1 | SendMessageRequestV2

rows = Handlers()

#: properties dropped before storing: with them the message would not stay in its topic as a reply
_NOT_STORED = frozenset(
    (
        props.PROPERTY_DELAY_TIME_LEVEL,
        props.PROPERTY_TIMER_DELAY_SEC,
        props.PROPERTY_TIMER_DELAY_MS,
        props.PROPERTY_TIMER_DELIVER_MS,
        props.PROPERTY_TRANSACTION_PREPARED,
        props.PROPERTY_INNER_NUM,
        props.PROPERTY_INNER_BASE,
        props.PROPERTY_INNER_MULTI_DISPATCH,
        props.PROPERTY_POP_CK,
        props.PROPERTY_CRC32,
    )
)


@rows.handles(RequestCode.SEND_REPLY_MESSAGE, SendMessageRequestV1, access=on_topic(PUB))
@rows.handles(RequestCode.SEND_REPLY_MESSAGE_V2, SendMessageRequestV2, access=on_topic(PUB))
def reply(broker: "BrokerView", call: Call[SendRequest]) -> Response:
    """Push a reply to the requester, store it if that is enabled, and answer the replier."""
    topic = _checked_topic(broker, call)
    queue_id = call.args.queue_id
    if queue_id < 0:
        queue_id = broker.entropy.randrange(max(1, topic.write_queue_nums))
    properties = props.decode((call.args.properties or "").encode())
    asker = properties.get(props.PROPERTY_MESSAGE_REPLY_TO_CLIENT)
    conn = broker.clients.producer(asker) if asker else None
    if conn is None:
        why = f"push reply message fail, channel of <{asker}> not found."
        if asker is None:
            why = f"reply message properties[{props.PROPERTY_MESSAGE_REPLY_TO_CLIENT}] is null"
        return _finish(broker, call, queue_id, properties, why)
    broker.client_calls.check_room(size=len(call.body))

    def pushed(answer: Answer, outcome: Outcome) -> None:
        ok = not isinstance(outcome, CallFailed) and outcome.is_ok
        if not ok:
            text = outcome.text if isinstance(outcome, CallFailed) else outcome.remark
            broker.log.warning("reply-not-pushed", client=asker, error=text)
        why = "" if ok else f"push reply message to {asker} fail."
        response = _finish(broker, call, queue_id, properties, why)
        if response is not LATER:
            answer(response)

    request, code = _push(broker, call, properties), RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    return call.later(lambda answer: broker.client_calls.call(conn, code, request, call.body, partial(pushed, answer)))


def _checked_topic(broker: "BrokerView", call: Call[SendRequest]) -> "TopicConfig":
    """Return the reply topic's configuration. Raises Refused if it takes no replies.

    A reply creates no topic: the reply topic of the broker's cluster exists from the start.
    """
    name = call.args.topic
    check_blocked(broker, call.args)
    fault = topic_fault(name)
    if fault:
        raise Refused(ResponseCode.INVALID_PARAMETER, fault)
    config = broker.topics.get(name)
    if config is None or name in broker.guarded_topics:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] takes no replies at this broker")
    if call.args.queue_id >= max(config.write_queue_nums, config.read_queue_nums):
        raise Refused(ResponseCode.INVALID_PARAMETER, f"request queueId[{call.args.queue_id}] is illegal")
    size_max = broker.config.send.max_message_size
    if not call.body or len(call.body) > size_max:
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"the message is illegal: a body of {len(call.body)} bytes, allowed are 1 to {size_max} (maxMessageSize)",
        )
    return config


def _push(broker: "BrokerView", call: Call[SendRequest], properties: dict[str, str]) -> ReplyMessageRequest:
    args = call.args
    now_ms = broker.clock.wall_ms
    return ReplyMessageRequest(
        producer_group=args.producer_group,
        topic=args.topic,
        default_topic=args.default_topic,
        default_topic_queue_nums=args.default_topic_queue_nums,
        queue_id=args.queue_id,
        sys_flag=args.sys_flag,
        born_timestamp=args.born_timestamp,
        flag=args.flag,
        properties=props.encode({**properties, props.PROPERTY_PUSH_REPLY_TIME: str(now_ms)}).decode(),
        reconsume_times=args.reconsume_times,
        unit_mode=args.unit_mode or False,
        born_host=str(call.conn.peer),
        store_host=broker.address_text,
        store_timestamp=now_ms,
    )


def _finish(broker: "BrokerView", call: Call[SendRequest], queue_id: int, properties: dict[str, str], why: str) -> Response:
    """Store the reply after the push has ended, and return the answer to the replier.

    `why` is the reason if the push failed, else "".
    """
    stored = broker.config.coordination.store_reply_message_enable and not broker.stopping
    if stored and not broker.puts.is_full:
        call.changing()
        put = _put(broker, call, queue_id, properties)
        result = broker.store.append(put)
        if result.status is PutStatus.PUT_OK and not why:
            wait = props.waits_for_store((call.args.properties or "").encode())
            unique = properties.get(props.PROPERTY_UNIQ_KEY, "").encode()
            broker.puts.park(call, queue_id, unique, result, wait)
            return LATER
        if result.status is not PutStatus.PUT_OK:
            broker.log.warning("reply-not-stored", status=result.status.name)
    if why:
        return call.error(ResponseCode.SYSTEM_ERROR, why)
    # Upstream's answer to a reply that is pushed but not stored: clients expect an id.
    return call.ok(SendMessageResponse(msg_id="0", queue_id=queue_id, queue_offset=0))


def _put(broker: "BrokerView", call: Call[SendRequest], queue_id: int, properties: dict[str, str]) -> Put:
    args = call.args
    born_host, v6 = broker.hosts.of(call.conn)
    ours = MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6 | MessageSysFlag.TRANSACTION_MASK
    kept = {name: value for name, value in properties.items() if name not in _NOT_STORED}
    tag = kept.get(props.PROPERTY_TAGS)
    return Put(
        args.topic,
        queue_id,
        args.flag,
        args.sys_flag & ~ours | v6,
        args.born_timestamp,
        born_host,
        broker.hosts.store_host,
        args.reconsume_times or 0,
        0,
        call.body,
        props.encode(kept),
        tags_code(tag) if tag else 0,
    )
