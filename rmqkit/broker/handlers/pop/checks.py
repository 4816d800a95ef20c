"""What the requests of pop check, in upstream's order, since it decides which code a client gets.

A slave serves none of them, unless it acts for its master. A broker that returns serves none
either. Nor does an acting slave while it hands over to its master: the master could miss what the
slave still accepts.

Invisible times are limited to `INVISIBLE_MS_MAX`. Upstream, a longer one fails later and without an
error: the checkpoint is a timer message, and timers have this limit (`timerMaxDelaySec`).

Source: `broker/.../processor/{PopMessageProcessor,AckMessageProcessor}.java`,
`NotificationProcessor.java`, `PeekMessageProcessor.java`.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

from rmqkit.broker.filters.contract import FilterError
from rmqkit.broker.filters.pull_filter import EVERYTHING, PullFilter, by_filter, by_tags
from rmqkit.broker.handlers.messages.pull import TAG_TYPES, check_filters_allowed
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import Refused
from rmqkit.wire.bodies import parse_subscription
from rmqkit.wire.bodies.pop import ReceiptHandle, decode_handle
from rmqkit.wire.codes import PermName, ResponseCode

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView
    from rmqkit.wire.bodies import TopicConfig

#: 3 days
INVISIBLE_MS_MAX = 259_200_000


def check_serves(broker: "BrokerView") -> None:
    """Raise Refused if this broker serves no pops: it is neither a master nor an acting one."""
    if not broker.revive.is_on:
        ip = broker.config.network.broker_ip1
        raise Refused(
            ResponseCode.SERVICE_NOT_AVAILABLE,
            f"the broker[{ip}] serves no pops: it is not the master of its group and does not act for it",
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


@lru_cache(maxsize=4096)
def _tags(topic: str, expression: str) -> PullFilter:
    return by_tags(tuple(parse_subscription(topic, expression).code_set))


def checked_filter(broker: "BrokerView", topic: str, kind: str | None, expression: str | None) -> PullFilter:
    """Return the filter of a pop or notification. Raises Refused if its expression is invalid."""
    if not expression:
        return EVERYTHING
    try:
        if kind in TAG_TYPES:
            return _tags(topic, expression)
        check_filters_allowed(broker, kind)
        return by_filter(broker.filters.filters.compile(str(kind), expression))
    except (FilterError, RemoteProtocolError, ValueError) as error:
        remark = f"parse the consumer's subscription failed: {error}"
        raise Refused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark) from None
