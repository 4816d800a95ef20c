"""Rewrites a message for its escape.

Added: ESCAPED_FROM, where the message waited, and ESCAPED_BY, the broker that put it. They show in
a count of messages which ones escaped, and how often.

Removed: what another broker would act on, namely a delay that has passed, and the mark of a half
message that has been committed. (Apache keeps that mark, so the other broker takes the message for
a half message again.) A half message itself becomes a prepared message for its own topic: the
other broker makes it a half of its own.

Source: `broker/.../failover/EscapeBridge.java`, `broker/.../schedule/ScheduleMessageService.java`
(`messageTimeUp`).
"""

from rmqkit.broker.escape.contract import Escaping
from rmqkit.broker.special.transactions.rewrite import prepared
from rmqkit.store.contract import Put
from rmqkit.wire import properties as props
from rmqkit.wire.codes import MessageSysFlag
from rmqkit.wire.topic_names import HALF_TOPIC

ESCAPED_FROM = b"ESCAPED_FROM"
ESCAPED_BY = b"ESCAPED_BY"
_GONE = tuple(
    name.encode()
    for name in (
        props.PROPERTY_DELAY_TIME_LEVEL,
        props.PROPERTY_TIMER_DELAY_SEC,
        props.PROPERTY_TIMER_DELAY_MS,
        props.PROPERTY_TIMER_DELIVER_MS,
        props.PROPERTY_TRANSACTION_PREPARED,
    )
)


def escaping(put: Put, origin: str, by: str, level: int = 0) -> Escaping:
    """Return the message as it escapes.

    `by` is this broker's name and id. `level` is the delay level that the message still waits for.
    """
    half = prepared(put) if put.topic == HALF_TOPIC else None
    if half is not None:
        marked = _marked(half.properties, origin, by)
        return Escaping(half._replace(properties=marked), origin, level)
    properties = put.properties
    for name in _GONE:
        if name in properties:
            properties = props.remove(properties, name)
    sys_flag = put.sys_flag & ~MessageSysFlag.TRANSACTION_MASK
    return Escaping(put._replace(properties=_marked(properties, origin, by), sys_flag=sys_flag), origin, level)


def _marked(properties: bytes, origin: str, by: str) -> bytes:
    marked = props.put(props.put(properties, ESCAPED_FROM, origin.encode()), ESCAPED_BY, by.encode())
    # Drop the marks if the properties would become too long: the message matters more.
    return marked if len(marked) <= props.PROPERTIES_SIZE_MAX else properties
