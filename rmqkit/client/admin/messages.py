"""Admin, single messages: find one by any id, see which groups consumed it, redeliver it.

An offset id and a unique id look alike (`wire/msgid.py`). If the first bytes of an id are the
address of a broker of this cluster, that broker is asked first. Otherwise, or if it does not have
the message, the id is taken for a unique id, which each topic has an index of.

Source:
`tools/.../admin/DefaultMQAdminExtImpl.{messageTrackDetail,consumed,consumeMessageDirectly}`,
`tools/.../command/message/QueryMsgByUniqueKeySubCommand.java`.
"""

from typing import NamedTuple

from rmqkit.client.admin.groups import AdminCore
from rmqkit.client.client import decoded
from rmqkit.client.message import MessageExt
from rmqkit.errors import BrokerError, ClientError, NoRoute, RemoteProtocolError
from rmqkit.runtime.connection import Address
from rmqkit.wire.bodies import SUB_ALL, ConsumeMessageDirectlyResult, ConsumerConnection
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.msgid import decode_offset_id
from rmqkit.wire.schemas.calls import ConsumeMessageDirectlyRequest
from rmqkit.wire.topic_names import DLQ_PREFIX, RETRY_PREFIX

#: Time for a member's listener to consume the message.
DIRECTLY_TIMEOUT_MS = 15_000
#: Retry and dead letter topics hold copies of messages, so they are searched last.
_COPIES = (RETRY_PREFIX, DLQ_PREFIX)


class Track(NamedTuple):
    """Whether one group has consumed a message. `online` if the group has members online.

    `state` is one of

    - CONSUMED
    - CONSUMED_BUT_FILTERED: the group is past it, but its subscription excludes the tag
    - NOT_CONSUME_YET
    - CONSUME_BROADCASTING: only the members know
    - UNKNOWN: the group has no offset in that queue
    """

    group: str
    state: str
    online: bool


async def find_message(admin: AdminCore, msg_id: str, topic: str | None = None) -> MessageExt | None:
    """Return a message by its offset id or its unique id, or None if no broker has it (any more).

    Args:
        msg_id: The id, in hex.
        topic: The topic of a unique id. None: search every topic of the cluster.

    Raises:
        ClientError: If the text is not an id.
        NoRoute: If `topic` is unknown.

    Example:
        Find the message of an earlier send:

            message = admin.find_message(result.msg_id, "orders")
    """
    try:
        place = decode_offset_id(msg_id)
    except RemoteProtocolError as error:
        raise ClientError(str(error)) from None
    info = await admin.cluster_info()
    addresses = {address for group in info.broker_addr_table.values() for address in group.broker_addrs.values()}
    if str(Address(place.host, place.port)) in addresses:
        found = await admin.view_message(msg_id)
        if found is not None and found.offset_msg_id == msg_id.upper():
            return found
    topics = [topic] if topic is not None else sorted(await admin.topics(), key=lambda name: name.startswith(_COPIES))
    for each in topics:
        try:
            hits = await admin.query_messages(each, msg_id, unique=True, count_max=1)
        except NoRoute:
            if topic is not None:
                raise
            continue
        if hits:
            return hits[0]
    return None


async def message_track(admin: AdminCore, message: MessageExt) -> list[Track]:
    """Return, for each group that consumes the message's topic or has, whether it consumed the
    message.

    Args:
        message: The message.
    """
    tracks = []
    for group in await admin.groups_of_topic(message.queue.topic):
        members = await admin.consumer_connections(group)
        offset = await admin.group_offset(group, message.queue)
        tracks.append(Track(group, _state(message, offset, members), members is not None))
    return tracks


def _state(message: MessageExt, offset: int | None, members: ConsumerConnection | None) -> str:
    if members is not None and members.message_model == "BROADCASTING":
        return "CONSUME_BROADCASTING"
    if offset is None:
        return "UNKNOWN"
    if offset <= message.queue_offset:
        return "NOT_CONSUME_YET"
    wanted = members.subscription_table.get(message.queue.topic) if members is not None else None
    if wanted is None or not wanted.tags_set or wanted.sub_string == SUB_ALL or message.tags in wanted.tags_set:
        return "CONSUMED"
    return "CONSUMED_BUT_FILTERED"


async def consume_directly(
    admin: AdminCore, group: str, message: MessageExt, client_id: str | None = None
) -> tuple[str, ConsumeMessageDirectlyResult]:
    """Have one member of a group consume a message now. Offsets do not change.

    Args:
        group: The consumer group.
        message: The message, from `find_message` for example.
        client_id: The member. None: the online member with the smallest client id.

    Returns:
        The member's client id, and the outcome that it reports.

    Raises:
        ClientError: If no member is online.
        BrokerError: If the member cannot be reached.
    """
    if client_id is None:
        members = await admin.consumer_connections(group)
        if members is None or not members.connection_set:
            raise ClientError(f"no member of group {group} is online, so none can consume the message")
        client_id = min(each.client_id for each in members.connection_set)
    request = ConsumeMessageDirectlyRequest(
        consumer_group=group,
        client_id=client_id,
        msg_id=message.offset_msg_id,
        broker_name=message.broker_name,
        topic=message.queue.topic,
    )
    address = Address.parse(message.store_host)
    code = RequestCode.CONSUME_MESSAGE_DIRECTLY
    reply = await admin.client.ask(address, code, request, timeout_ms=DIRECTLY_TIMEOUT_MS)
    if not reply.body:
        raise BrokerError(f"{address} answered without a result", code=reply.code, remark=reply.remark)
    return client_id, decoded(reply, ConsumeMessageDirectlyResult.decode)
