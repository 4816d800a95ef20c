"""Rewrites a timer message: into its waiting form, and into its delivered or rolled form.

A waiting message is stored in queue 0 of `rmq_sys_wheel_timer`. TIMER_OUT_MS is its slot, in ms;
REAL_TOPIC and REAL_QID are its own topic and queue.

A delivered message has its own topic and queue again. It keeps its properties, as in Apache, and
gains TIMER_ENQUEUE_MS and TIMER_DEQUEUE_MS. TIMER_OUT_MS is what stops a second delay. A rolled
message stays in the timer topic: it is stored again, because its time is too far away to wait for
it in one go.

Source: `broker/.../util/HookUtils.java` (`transformTimerMessage`),
`store/.../timer/TimerMessageStore.java` (`convert`, `convertMessage`).
"""

from functools import lru_cache

from rmqkit.broker.special.delay.rewrite import due
from rmqkit.store.contract import Put
from rmqkit.wire import properties as props
from rmqkit.wire.record import Record
from rmqkit.wire.topic_names import TIMER_TOPIC

OUT = props.PROPERTY_TIMER_OUT_MS.encode()
DELETE = props.PROPERTY_TIMER_DEL_UNIQKEY.encode()
REAL_TOPIC = props.PROPERTY_REAL_TOPIC.encode()
ENQUEUED = props.PROPERTY_TIMER_ENQUEUE_MS.encode()
DEQUEUED = props.PROPERTY_TIMER_DEQUEUE_MS.encode()
ROLLED = props.PROPERTY_TIMER_ROLL_TIMES.encode()
REAL_QUEUE_ID = props.PROPERTY_REAL_QUEUE_ID.encode()
#: what a waiting message gains
_WAITING = b"%b\x01%%d\x02%b\x01%%b\x02%b\x01%%d\x02" % (OUT, REAL_TOPIC, REAL_QUEUE_ID)
#: what a delivered message gains
DELIVERED = b"%b\x01%%d\x02%b\x01%%d\x02" % (ENQUEUED, DEQUEUED)
#: Long.MAX_VALUE as the time of a message that never waited in the wheel
NEVER_MS = 0x7FFFFFFFFFFFFFFF
_new = tuple.__new__


def floored(deliver_ms: int, precision_ms: int) -> int:
    """Return the slot of a due time, in ms: the greatest multiple of the precision below it.

    The slot is read one unit later, so nothing is delivered early.
    """
    return (deliver_ms - 1) // precision_ms * precision_ms


def waiting(put: Put, out_ms: int) -> Put:
    """Return the waiting form of a message for the slot `out_ms`."""
    topic, queue_id, flag, sys_flag, born_ms, born_host, store_host, times, prepared_offset, body, properties, code = put
    if b"REAL_" in properties or OUT in properties or properties[-1:] != b"\x02":
        properties = props.put(properties, OUT, b"%d" % out_ms)
        properties = props.put(properties, REAL_TOPIC, topic.encode())
        properties = props.put(properties, REAL_QUEUE_ID, b"%d" % queue_id)
    else:
        properties += _gained(out_ms, topic, queue_id)  # the same in one step
    # Costs a third of `_replace`.
    return _new(
        Put,
        (
            TIMER_TOPIC, 0, flag, sys_flag, born_ms, born_host, store_host, times, prepared_offset, body, properties, code,
        ),
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _gained(out_ms: int, topic: str, queue_id: int) -> bytes:
    """Return what a waiting message gains. Cached: timers of one topic share their slots."""
    return _WAITING % (out_ms, topic.encode(), queue_id)


def delivered(record: Record, enqueued_ms: int, now_ms: int) -> Put | str:
    """Return the delivered form of a record, or the reason why it cannot be delivered."""
    put = due(record)
    if isinstance(put, str):
        return put
    if put.topic == TIMER_TOPIC:
        return f"its topic is {TIMER_TOPIC}"
    properties = put.properties
    if ENQUEUED in properties or DEQUEUED in properties or properties[-1:] != b"\x02":
        properties = props.put(properties, ENQUEUED, b"%d" % enqueued_ms)
        properties = props.put(properties, DEQUEUED, b"%d" % now_ms)
    else:
        properties += DELIVERED % (enqueued_ms, now_ms)  # the same in one step
    return _new(Put, (*put[:-2], properties, put[-1]))


def rolled(record: Record, enqueued_ms: int, now_ms: int) -> Put | str:
    """Return the form of a record in which it waits for its next turn of the wheel."""
    put = due(record)
    if isinstance(put, str):
        return put
    times = props.find(put.properties, ROLLED) or b"0"
    properties = props.put(put.properties, ENQUEUED, b"%d" % enqueued_ms)
    properties = props.put(properties, ROLLED, b"%d" % (int(times) + 1 if times.isdigit() else 1))
    properties = props.put(properties, DEQUEUED, b"%d" % now_ms)
    return put._replace(topic=TIMER_TOPIC, queue_id=0, properties=properties)
