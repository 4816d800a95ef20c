"""Admin: pop consumption, what is in flight and which mode a group has.

Brokers keep the mode of a group per topic. It is a hint for Java's push consumers
(`setClientRebalance(false)`); consumers of rmqkit choose their own mode.

Source: `tools/.../command/consumer/SetConsumeModeSubCommand.java`.
"""

from typing import NamedTuple

from rmqkit.client.admin.groups import AdminCore
from rmqkit.client.client import decoded
from rmqkit.errors import NoRoute
from rmqkit.wire import bodies
from rmqkit.wire.codes import OwnRequestCode, RequestCode
from rmqkit.wire.schemas.pop import GetPopInFlightRequest

MODES = ("pull", "pop")


class InFlightMessage(NamedTuple):
    """A message that was popped and not acked.

    Attributes:
        broker: The broker that keeps it.
        topic: The topic of its queue: a retry topic if the message was redelivered.
        queue_id: Its queue.
        offset: Its offset in the queue.
        client_id: Who popped it: a client id or an address. "" if the broker does not know.
        deliveries: How often it was delivered, this time included.
        popped_ms: When it was popped, as Unix ms.
        visible_ms: When it is delivered again unless it is acked, as Unix ms.
    """

    broker: str
    topic: str
    queue_id: int
    offset: int
    client_id: str
    deliveries: int
    popped_ms: int
    visible_ms: int


class InFlight(NamedTuple):
    """What a group has in flight.

    Attributes:
        messages: The messages, those first that are visible again first. Each broker lists at most
            1,000.
        total: How many there are at all brokers.
    """

    messages: list[InFlightMessage]
    total: int


async def pop_in_flight(admin: AdminCore, group: str, topic: str | None = None) -> InFlight:
    """Return the messages that a group popped and did not ack.

    Args:
        group: The consumer group.
        topic: Only messages of this topic, redelivered ones included. None: of all topics.

    Raises:
        BrokerError: With code 3 (REQUEST_CODE_NOT_SUPPORTED) if a broker is not rmqkit's.

    Example:
        Print who works on what:

            for each in admin.pop_in_flight("billing").messages:
                print(each.client_id, each.topic, each.offset)
    """
    found: list[InFlightMessage] = []
    total = 0
    request = GetPopInFlightRequest(consumer_group=group, topic=topic)
    for broker in sorted(await admin.masters()):
        reply = await admin.ask_broker(broker, OwnRequestCode.GET_POP_IN_FLIGHT, request)
        answer = decoded(reply, bodies.PopInFlight.decode)
        total += answer.total
        for each in answer.messages:
            row = InFlightMessage(
                broker,
                each.topic,
                each.queue_id,
                each.offset,
                each.client_id,
                each.count,
                each.pop_time,
                each.invisible_until,
            )
            found.append(row)
    return InFlight(sorted(found, key=lambda each: each.visible_ms), total)


async def request_modes(admin: AdminCore, group: str) -> dict[str, str]:
    """Return the mode of a group by topic, `pull` or `pop`, where an administrator set one.

    Args:
        group: The consumer group.
    """
    found: dict[str, str] = {}
    for broker in sorted(await admin.masters()):
        reply = await admin.ask_broker(broker, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        table = decoded(reply, bodies.MessageRequestModeTable.decode).message_request_mode_map
        for topic, by_group in table.items():
            if group in by_group:
                found[topic] = by_group[group].mode.lower()
    return dict(sorted(found.items()))


async def set_request_mode(admin: AdminCore, group: str, topic: str, mode: str, *, share_queue_num: int = 0) -> list[str]:
    """Set whether Java's push consumers of a group pull or pop a topic.

    Args:
        group: The consumer group.
        topic: The topic.
        mode: `pull` or `pop`.
        share_queue_num: With `pop`, each member also pops the queues of that many other members.
            0: all members pop all queues.

    Returns:
        The brokers that have the mode now: the masters that have the topic.

    Raises:
        NoRoute: If no name server knows the topic.
        BrokerError: If a broker does not know the topic or group, or the mode.
    """
    body = bodies.MessageRequestMode(
        consumer_group=group, mode=mode.upper(), pop_share_queue_num=share_queue_num, topic=topic
    ).encode()
    masters = await admin.masters()
    brokers = sorted({queue.broker_name for queue in await admin.queues(topic)} & masters.keys())
    if not brokers:
        raise NoRoute(f"topic {topic} is at no master that is up")
    for broker in brokers:
        await admin.ask_broker(broker, RequestCode.SET_MESSAGE_REQUEST_MODE, body=body)
    return brokers
