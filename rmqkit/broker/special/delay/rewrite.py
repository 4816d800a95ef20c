"""Rewrites a delayed message: into its waiting form, and into its delivered form.

A waiting message is stored under SCHEDULE_TOPIC_XXXX in the queue of its level (level - 1). The
properties REAL_TOPIC and REAL_QID hold its own topic and queue. The tags code of its queue entry
is its due time. A level above the highest becomes the highest, also in the property DELAY.

A delivered message has its own topic and queue again. It keeps all its properties, including
REAL_TOPIC, REAL_QID and DELAY: Apache removes them from the message only after it has encoded the
properties that it stores. So a delivered message must go straight into the log. The checks of a
send would delay it a second time.

Source: `broker/.../util/HookUtils.java` (`transformDelayLevelMessage`),
`broker/.../schedule/ScheduleMessageService.java` (`messageTimeUp`).
"""

from collections.abc import Sequence

from rmqkit.store.contract import Put
from rmqkit.wire import properties as props
from rmqkit.wire.javahash import tags_code_of
from rmqkit.wire.record import Record
from rmqkit.wire.topic_names import HALF_TOPIC, SCHEDULE_TOPIC

_DELAY = props.PROPERTY_DELAY_TIME_LEVEL.encode()
_REAL_TOPIC = props.PROPERTY_REAL_TOPIC.encode()
_REAL_QUEUE_ID = props.PROPERTY_REAL_QUEUE_ID.encode()
_TAGS = props.PROPERTY_TAGS.encode()
_CRC = props.PROPERTY_CRC32.encode()


def postponed(put: Put, level: int, levels_ms: Sequence[int], wall_ms: int) -> Put:
    """Return the waiting form of a message, for a level above 0. `wall_ms` is its store time."""
    properties = put.properties
    if level > len(levels_ms):
        level = len(levels_ms)
        properties = props.put(properties, _DELAY, b"%d" % level)
    properties = props.put(properties, _REAL_TOPIC, put.topic.encode())
    properties = props.put(properties, _REAL_QUEUE_ID, b"%d" % put.queue_id)
    return put._replace(
        topic=SCHEDULE_TOPIC,
        queue_id=level - 1,
        properties=properties,
        tags_code=wall_ms + levels_ms[level - 1],
    )


def due(record: Record) -> Put | str:
    """Return the delivered form of a waiting record, or the reason why it cannot be delivered."""
    properties = record.properties
    topic = props.find(properties, _REAL_TOPIC)
    queue_id = props.find(properties, _REAL_QUEUE_ID)
    if topic is None or queue_id is None or not queue_id.isdigit() or int(queue_id) > 0x7FFFFFFF:
        return "its REAL_TOPIC or REAL_QID is missing or invalid"
    try:
        name = topic.decode()
    except UnicodeDecodeError:
        return "its topic is not UTF-8"
    if name in (HALF_TOPIC, SCHEDULE_TOPIC):
        return f"its topic is {name}"
    code = tags_code_of(props.find(properties, _TAGS))
    if _CRC in properties:
        properties = props.remove(properties, _CRC)
    # Keywords cost a microsecond more.
    return Put(
        name, int(queue_id), record.flag, record.sys_flag, record.born_ms, record.born_host, record.store_host,
        record.reconsume_times, 0, record.body, properties, code,
    )  # fmt: skip
