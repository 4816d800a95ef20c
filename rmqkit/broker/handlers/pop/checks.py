"""What the requests of pop check, in upstream's order, since it decides which code a client gets.

A slave serves none of them: what they store must be in the log of the group's master. While a slave
acts for its master, it only hands messages out again that the master had given (`special/pop`).

Invisible times are limited to `INVISIBLE_MS_MAX`. Upstream, a longer one fails later and without a
word: the checkpoint is a timer message, and timers have this limit (`timerMaxDelaySec`).

Source: `broker/.../processor/{PopMessageProcessor,AckMessageProcessor}.java`,
`NotificationProcessor.java`, `PeekMessageProcessor.java`.
"""

from typing import TYPE_CHECKING

from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import Refused
from rmqkit.wire.bodies.pop import ReceiptHandle, decode_handle
from rmqkit.wire.codes import PermName, ResponseCode

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView
    from rmqkit.wire.bodies import TopicConfig

#: 3 days
INVISIBLE_MS_MAX = 259_200_000


def check_master(broker: "BrokerView") -> None:
    """Raise Refused if this broker cannot store checkpoints and acks."""
    if broker.replication.is_slave or not broker.revive.is_on:
        ip = broker.config.network.broker_ip1
        raise Refused(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"the broker[{ip}] is not the master of its group: only a master serves pops",
        )


def check_invisible_time(invisible_ms: int) -> None:
    if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
        raise Refused(
            ResponseCode.INVALID_PARAMETER, f"invisibleTime {invisible_ms} is not between 0 and {INVISIBLE_MS_MAX} ms"
        )


def check_readable(broker: "BrokerView", *, is_pop: bool) -> None:
    """Raise Refused if brokerPermission forbids reads."""
    if not broker.config.topics.broker_permission & PermName.PERM_READ:
        ip = broker.config.network.broker_ip1
        if is_pop:
            raise Refused(ResponseCode.NO_PERMISSION, f"the broker[{ip}] pop message is forbidden")
        raise Refused(ResponseCode.NO_PERMISSION, f"the broker[{ip}] peeking message is forbidden")


def checked_topic(broker: "BrokerView", topic: str, queue_id: int, group: str) -> "TopicConfig":
    """Return a topic that the group may read. Raises Refused.

    A negative queue id stands for all queues.
    """
    config = broker.topics.get(topic)
    if config is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!")
    if not config.perm & PermName.PERM_READ:
        raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{topic}] peeking message is forbidden")
    if queue_id >= config.read_queue_nums:
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:[{config.read_queue_nums}]",
        )
    known = broker.groups.get(group)
    if known is None:
        raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{group}] does not exist")
    if not known.consume_enable:
        raise Refused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group}")
    if broker.groups.forbidden and not broker.groups.may_read(group, topic):
        raise Refused(ResponseCode.NO_PERMISSION, f"the consumer group[{group}] is forbidden for topic[{topic}]")
    return config


def check_queue(broker: "BrokerView", topic: str, queue_id: int) -> None:
    """Raise Refused if an ack names no queue of a topic."""
    config = broker.topics.get(topic)
    if config is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!")
    if not 0 <= queue_id < config.read_queue_nums:
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"queueId[{queue_id}] is illegal, topic:[{topic}] topicConfig.readQueueNums:[{config.read_queue_nums}]",
        )


def checked_handle(text: str) -> ReceiptHandle:
    """Return a receipt handle. Raises Refused if it is malformed."""
    try:
        return decode_handle(text)
    except RemoteProtocolError as error:
        raise Refused(ResponseCode.SYSTEM_ERROR, str(error)) from None
