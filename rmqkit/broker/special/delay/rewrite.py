"""What a delayed message looks like while it waits, and when its time has come.

Waiting, a message is stored under SCHEDULE_TOPIC_XXXX in the queue of its level (level - 1); its own topic and queue are
in the properties REAL_TOPIC and REAL_QID, and the tags code of its queue entry is the time when it is due. A level above
the highest becomes the highest, also in the property DELAY.

Delivered, it has its topic and queue again and all of its properties, those three included: upstream takes them out of
the message only after it has made the text that is stored. So a delivered message goes straight into the log, never
through the checks of a send again, or it would be delayed a second time.

Source: `broker/.../util/HookUtils.java` (`transformDelayLevelMessage`), `broker/.../schedule/ScheduleMessageService.java`
(`messageTimeUp`).
"""

from collections.abc import Sequence

from rmqkit.store.contract import Put
from rmqkit.wire import properties as props
from rmqkit.wire.javahash import tags_code
from rmqkit.wire.record import Record
from rmqkit.wire.topic_names import HALF_TOPIC, SCHEDULE_TOPIC

_DELAY = props.PROPERTY_DELAY_TIME_LEVEL.encode()
_REAL_TOPIC = props.PROPERTY_REAL_TOPIC.encode()
_REAL_QUEUE_ID = props.PROPERTY_REAL_QUEUE_ID.encode()
_TAGS = props.PROPERTY_TAGS.encode()
_CRC = props.PROPERTY_CRC32.encode()


def postponed(put: Put, level: int, levels_ms: Sequence[int], wall_ms: int) -> Put:
    """The message as it waits, for a level above 0; `wall_ms` is its store time."""
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
    """The message as it is delivered, or why this record cannot be one."""
    properties = record.properties
    topic = props.find(properties, _REAL_TOPIC)
    queue_id = props.find(properties, _REAL_QUEUE_ID)
    if topic is None or queue_id is None or not queue_id.isdigit() or int(queue_id) > 0x7FFFFFFF:
        return "it does not say where it belongs"
    try:
        name = topic.decode()
    except UnicodeDecodeError:
        return "its topic is not UTF-8"
    if name in (HALF_TOPIC, SCHEDULE_TOPIC):
        return f"its topic is {name}"
    tags = props.find(properties, _TAGS)
    if _CRC in properties:
        properties = props.remove(properties, _CRC)
    return Put(
        topic=name,
        queue_id=int(queue_id),
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_ms=record.born_ms,
        born_host=record.born_host,
        store_host=record.store_host,
        reconsume_times=record.reconsume_times,
        prepared_offset=0,
        body=record.body,
        properties=properties,
        tags_code=tags_code(tags.decode("utf-8", "replace")) if tags else 0,
    )
