"""Admin, single messages: one by whichever id is known, who has consumed it, and giving it to one member again.

An offset id and a unique id look alike (`wire/msgid.py`). An id whose first bytes are the address of a broker of this
cluster is looked up there first; then it is taken for a unique id, which an index has by topic.

Source: `tools/.../admin/DefaultMQAdminExtImpl.{messageTrackDetail,consumed,consumeMessageDirectly}`,
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

#: a member's listener has this long for the message it is given directly
DIRECTLY_TIMEOUT_MS = 15_000
#: copies of a message under topics of the broker's own making are looked for last
_COPIES = (RETRY_PREFIX, DLQ_PREFIX)


class Track(NamedTuple):
    """Whether one group has consumed a message.

    `state` is CONSUMED, CONSUMED_BUT_FILTERED (it went past it: its subscription does not want that tag),
    NOT_CONSUME_YET, CONSUME_BROADCASTING (only the members know) or UNKNOWN (the group has no offset there).
    """

    group: str
    state: str
    online: bool


async def find_message(admin: AdminCore, msg_id: str, topic: str | None = None) -> MessageExt | None:
    """A message by its offset id or its unique id, None when it is not there (any more).

    With `topic` a unique id is looked up in that topic only, else in every topic of the cluster. Raises ClientError for
    what can be no id.
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
    """Which groups have consumed a message: those that consume its topic, or have."""
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
    """Give one message to the listener of one member of a group, now; which member, and how its listener ended.

    Without `client_id` it is the first one that is online. Offsets do not change. Raises ClientError when nobody is there,
    BrokerError when the member cannot be reached.
    """
    if client_id is None:
        members = await admin.consumer_connections(group)
        if members is None or not members.connection_set:
            raise ClientError(f"nobody of group {group} is online, so nobody can consume the message")
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
