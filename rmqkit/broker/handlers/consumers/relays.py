"""Requests of administrators that the broker relays to clients: info, direct consumption, reset.

- Running info (307) and consuming one message directly (309) go to one member of a group, whose
  answer is returned.
- Status (223) asks all members (221) and collects their answers. A member that does not answer is
  left out.
- A reset by clients (220) goes to each member as a one-way request, in the format that the member's
  language reads.

Source: `broker/.../processor/AdminBrokerProcessor.java` (`getConsumerRunningInfo`,
`consumeMessageDirectly`, `getConsumerStatus`), `broker/.../client/net/Broker2Client.java`
(`resetOffset`, `getConsumeStatus`).
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from rmqkit.access.rules import GET, SUB, every, named, on_group, on_topic
from rmqkit.broker.client_calls import is_older
from rmqkit.broker.handlers.demands import STORED_SUB, stored_in
from rmqkit.broker.tables.clients import ClientChannel, ConsumerGroup
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import Answer, Call, CallFailed, Handlers, Outcome, Refused, Response
from rmqkit.wire.bodies import ConsumerStatus, MessageQueue, ResetOffsetBody
from rmqkit.wire.codes import Language, RequestCode, ResponseCode, Version
from rmqkit.wire.msgid import decode_offset_id
from rmqkit.wire.schemas.calls import ConsumeMessageDirectlyRequest, GetConsumerRunningInfoRequest
from rmqkit.wire.schemas.groups import GetConsumerStatusRequest
from rmqkit.wire.schemas.offsets import ResetOffsetRequest

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

rows = Handlers()

STATUS_TIMEOUT_MS = 5_000
_CPP = ("CPP", Language.CPP)


@rows.handles(RequestCode.GET_CONSUMER_RUNNING_INFO, GetConsumerRunningInfoRequest, access=on_group(GET))
def running_info(broker: "BrokerView", call: Call[GetConsumerRunningInfoRequest]) -> Response:
    return broker.client_calls.forward(call, call.args.consumer_group, call.args.client_id)


@rows.handles(RequestCode.CONSUME_MESSAGE_DIRECTLY, ConsumeMessageDirectlyRequest, access=every(on_group(SUB), STORED_SUB))
def consume_directly(broker: "BrokerView", call: Call[ConsumeMessageDirectlyRequest]) -> Response:
    """Let a member consume one stored message and return its answer.

    The request gets the record as its body, and the sysFlags of the topic and the group.
    """
    args = call.args
    try:
        place = decode_offset_id(args.msg_id or "")
    except RemoteProtocolError as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from None
    record = broker.store.record(place.phy_offset)
    if record is None:
        raise Refused(
            ResponseCode.SYSTEM_ERROR, f"no message at {place.phy_offset} of {broker.config.identity.broker_name}"
        )
    if call.caller is not None:
        call.demand(stored_in(record, SUB))
    args.broker_name = broker.config.identity.broker_name
    topic = broker.topics.get(args.topic) if args.topic else None
    group = broker.groups.by_name.get(args.consumer_group)
    args.topic_sys_flag = topic.topic_sys_flag if topic is not None else None
    args.group_sys_flag = group.group_sys_flag if group is not None else None
    return broker.client_calls.forward(call, args.consumer_group, args.client_id or "", bytes(record))


@rows.handles(
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    GetConsumerStatusRequest,
    access=named(("topic", on_topic(GET)), ("group", on_group(GET, field="group"))),
)
def consumer_status(broker: "BrokerView", call: Call[GetConsumerStatusRequest]) -> Response:
    """Return the offset of each queue as reported by each member.

    With `client_addr`, which is a client id, only that member is asked.
    """
    args = call.args
    group = broker.clients.consumers.get(args.group)
    if group is None:
        return call.error(ResponseCode.SYSTEM_ERROR, f"No Any Consumer online in the consumer group: [{args.group}]")
    members = {each.client_id: each for each in group.members.values() if args.client_addr in (None, "", each.client_id)}
    _check_versions(members.values())
    broker.client_calls.check_room(len(members))
    found: dict[str, dict[MessageQueue, int]] = {}
    waiting = dict.fromkeys(members)

    def gather(answer: Answer, client_id: str, outcome: Outcome) -> None:
        del waiting[client_id]
        if not isinstance(outcome, CallFailed) and outcome.is_ok and outcome.body:
            try:
                found[client_id] = ConsumerStatus.decode(outcome.body).message_queue_table
            except RemoteProtocolError as error:
                broker.log.warning("consumer-status-unreadable", group=args.group, client=client_id, error=str(error))
        if not waiting:
            answer(gathered())

    def gathered() -> Response:
        table = {client_id: found[client_id] for client_id in members if client_id in found}
        return call.ok(body=ConsumerStatus(consumer_table=table).encode())

    def begin(answer: Answer) -> None:
        asked = GetConsumerStatusRequest(topic=args.topic, group=args.group)
        for client_id, member in members.items():
            broker.client_calls.call(
                member.conn,
                RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
                asked,
                b"",
                partial(gather, answer, client_id),
                timeout_ms=STATUS_TIMEOUT_MS,
            )

    return call.later(begin) if members else gathered()


def reset_by_clients(
    broker: "BrokerView", call: Call[ResetOffsetRequest], table: Mapping[MessageQueue, int]
) -> dict[MessageQueue, int]:
    """Send new offsets to every member of the group, and return the offsets that were sent.

    Unless the reset is forced, no offset moves forward. Raises Refused, for example if no member is
    online.
    """
    args = call.args
    offsets_sent: dict[MessageQueue, int] = {}
    for queue, offset in table.items():
        consumed = broker.offsets.query(args.group, args.topic, queue.queue_id)
        if consumed < 0:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"THe consumer group <{args.group}> not exist")
        offsets_sent[queue] = offset if args.is_force or offset < consumed else consumed
    group = broker.clients.consumers.get(args.group)
    if group is None:
        remark = f"Consumer not online, so can not reset offset, Group: {args.group} Topic: {args.topic}"
        raise Refused(ResponseCode.CONSUMER_NOT_ONLINE, f"{remark} Timestamp: {args.timestamp}")
    _check_versions(group.members.values())
    call.changing()
    _send_reset(broker, group, args, ResetOffsetBody(offset_table=offsets_sent))
    return offsets_sent


def _send_reset(broker: "BrokerView", group: ConsumerGroup, args: ResetOffsetRequest, body: ResetOffsetBody) -> None:
    note = {"topic": args.topic, "group": args.group, "timestamp": str(args.timestamp), "isForce": "true"}
    for member in group.members.values():
        # Upstream uses the format of the requester, which a member in another language cannot read.
        text = body.encode_for_cpp() if member.language in _CPP else body.encode()
        broker.remoting.oneway(member.conn, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, note, text)


def _check_versions(members: Iterable[ClientChannel]) -> None:
    for member in members:
        if is_older(member, Version.V3_0_7_SNAPSHOT):
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the client does not support this feature. version={member.version}")
