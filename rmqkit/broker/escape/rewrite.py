"""What a message looks like when it escapes.

It says where it comes from (ESCAPED_FROM) and which broker has put it (ESCAPED_BY), so that whoever counts can see that it
escaped, how often and to whom. It loses what another broker would act upon: a delay that is over, and the mark of a half
message that was committed long ago (upstream keeps that one, and the message is taken for a half message again).

Source: `broker/.../failover/EscapeBridge.java`, `broker/.../schedule/ScheduleMessageService.java` (`messageTimeUp`).
"""

from rmqkit.broker.escape.contract import Escaping
from rmqkit.store.contract import Put
from rmqkit.wire import properties as props
from rmqkit.wire.codes import MessageSysFlag

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
    """`by` is the broker's name and id; `level` the delay level it still has to wait for."""
    properties = put.properties
    for name in _GONE:
        if name in properties:
            properties = props.remove(properties, name)
    marked = props.put(props.put(properties, ESCAPED_FROM, origin.encode()), ESCAPED_BY, by.encode())
    # Whoever filled them to the brim gets the message without the marks rather than not at all.
    fits = len(marked) <= props.PROPERTIES_SIZE_MAX
    sys_flag = put.sys_flag & ~MessageSysFlag.TRANSACTION_MASK
    return Escaping(put._replace(properties=marked if fits else properties, sys_flag=sys_flag), origin, level)
