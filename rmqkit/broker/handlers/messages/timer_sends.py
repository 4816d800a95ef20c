"""Sends with a due time: TIMER_DELAY_SEC, TIMER_DELAY_MS or TIMER_DELIVER_MS, in this order.

`due_slot` checks the time, and `store` appends the message to the timer topic. Its answer carries
the recall handle. A time that has passed makes the message a plain one; a recall with such a time
is refused.

Source: `broker/.../util/HookUtils.java` (`transformTimerMessage`),
`broker/.../processor/SendMessageProcessor.java` (`attachRecallHandle`).
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rmqkit.broker.special.timer.rewrite import floored
from rmqkit.runtime.calls import LATER, Call, Refused, Response
from rmqkit.store.contract import Put, PutStatus
from rmqkit.wire import properties as props
from rmqkit.wire.codes import ResponseCode
from rmqkit.wire.msgid import encode_handle
from rmqkit.wire.topic_names import RETRY_PREFIX, TIMER_TOPIC

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

#: names of the properties, the first of which counts
TIMERS = (props.PROPERTY_TIMER_DELAY_SEC, props.PROPERTY_TIMER_DELAY_MS, props.PROPERTY_TIMER_DELIVER_MS)
_LONG_MAX = 0x7FFFFFFFFFFFFFFF


def due_slot(broker: "BrokerView", properties: Mapping[str, str]) -> int:
    """Return the slot, in ms, that a message with one of `TIMERS` waits for; 0: it is due now.

    Raises Refused.
    """
    if props.PROPERTY_TIMER_OUT_MS in properties:
        return 0  # it has waited already
    deliver_ms = _deliver_ms(properties, broker.clock.wall_ms)
    return slot_at(broker, deliver_ms, is_marker=props.PROPERTY_TIMER_DEL_UNIQKEY in properties)


def slot_at(broker: "BrokerView", deliver_ms: int | None, *, is_marker: bool) -> int:
    """Return what `due_slot` does for this due time; None is no valid time.

    `is_marker`: the message takes another one back.
    """
    config, wall_ms = broker.config.timers, broker.clock.wall_ms
    if not config.wheel_enable:
        raise Refused(ResponseCode.SYSTEM_ERROR, "accurate timer message is not enabled, timerWheelEnable is false")
    max_ms = config.max_delay_sec * 1000
    if deliver_ms is None or deliver_ms - wall_ms > max_ms:
        raise _illegal(max_ms)
    if deliver_ms <= wall_ms:
        if is_marker:
            raise _illegal(max_ms)
        return 0
    out_ms = floored(deliver_ms, config.precision_ms)
    if broker.timers.is_crowded(out_ms):
        limit = config.congest_num_each_slot
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"timer message is under flow control, max num limit is {2 * limit} or the current value is greater than "
            f"{limit} and less than {2 * limit}, trigger random flow control",
        )
    return out_ms


def _deliver_ms(properties: Mapping[str, str], wall_ms: int) -> int | None:
    """Return when the message is due, None if that is no number of 64 bits."""
    for name in TIMERS:
        if name in properties:
            break
    text = properties[name]
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19 or abs(int(text)) > _LONG_MAX:
        return None
    if name == props.PROPERTY_TIMER_DELIVER_MS:
        return int(text)
    return wall_ms + int(text) * (1000 if name == props.PROPERTY_TIMER_DELAY_SEC else 1)


def _illegal(max_ms: int) -> Refused:
    return Refused(
        ResponseCode.MESSAGE_ILLEGAL,
        f"timer message illegal, the delay time should not be bigger than the max delay {max_ms}ms; or if set del msg, "
        "the delay time should be bigger than the current time",
    )


def store(broker: "BrokerView", call: Call[Any], put: Put, out_ms: int, unique: bytes, wait: bool) -> Response:
    """Append a message for the slot `out_ms`, and park the call as a send does."""
    result = broker.timers.append(put, out_ms)
    if result.status is not PutStatus.PUT_OK:
        return broker.puts.refusal(result.status)
    handle = b""
    if not put.topic.startswith(RETRY_PREFIX):
        # One more than the slot: rounding it down finds the same slot again.
        handle = encode_handle(put.topic, broker.config.identity.broker_name, out_ms + 1, unique)
    call.args.topic = TIMER_TOPIC  # counted there now, and in its own topic on delivery
    broker.puts.park(call, put.queue_id, unique, result, wait, handle)
    return LATER
