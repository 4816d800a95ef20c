"""Builds checkpoint and ack records: messages of the revive topic, with Apache's properties.

Source: `broker/.../processor/PopMessageProcessor.java` (`buildCkMsg`, `genCkUniqueId`),
`AckMessageProcessor.appendAck`.
"""

from rmqkit.store.contract import Put
from rmqkit.wire import properties as props
from rmqkit.wire.bodies.pop import TAG_ACK, TAG_BATCH_ACK, TAG_CHECKPOINT, PopAck, PopCheckpoint
from rmqkit.wire.codes import MessageSysFlag
from rmqkit.wire.hosts import HOST_V6_SIZE
from rmqkit.wire.javahash import tags_code

#: a checkpoint record's delivery time is earlier than its due time by this, in ms
EARLY_MS = 1000


def checkpoint_put(checkpoint: PopCheckpoint, topic: str, revive_queue: int, wall_ms: int, host: bytes) -> Put:
    """Return the record of a checkpoint, for a revive queue of the revive `topic`."""
    each = checkpoint
    unique = (each.topic, each.queue_id, each.start, each.group, each.pop_ms, each.broker_name, "ck")
    return _put(each.encode(), TAG_CHECKPOINT, unique, each.revive_ms - EARLY_MS, topic, revive_queue, wall_ms, host)


def ack_put(ack: PopAck, due_ms: int, topic: str, revive_queue: int, wall_ms: int, host: bytes) -> Put:
    """Return the record of an ack; `due_ms` is the due time of its checkpoint."""
    unique = (ack.topic, ack.queue_id, ack.offset, ack.group, ack.pop_ms, ack.broker_name, "ack")
    tag = TAG_ACK if ack.offsets is None else TAG_BATCH_ACK
    return _put(ack.encode(), tag, unique, due_ms, topic, revive_queue, wall_ms, host)


def hosts_flag(born: bytes, store: bytes) -> int:
    """Return the sysFlag bits of a message with these hosts."""
    flag = MessageSysFlag.BORN_HOST_V6 if len(born) == HOST_V6_SIZE else 0
    return flag | (MessageSysFlag.STORE_HOST_V6 if len(store) == HOST_V6_SIZE else 0)


def _put(
    body: bytes,
    tag: bytes,
    unique: tuple[str | int, ...],
    due_ms: int,
    topic: str,
    revive_queue: int,
    wall_ms: int,
    host: bytes,
) -> Put:
    properties = props.encode(
        {
            props.PROPERTY_TAGS: tag.decode(),
            props.PROPERTY_TIMER_DELIVER_MS: str(due_ms),
            props.PROPERTY_UNIQ_KEY: "@".join(map(str, unique)),
        }
    )
    return Put(
        topic=topic,
        queue_id=revive_queue,
        flag=0,
        sys_flag=hosts_flag(host, host),
        born_ms=wall_ms,
        born_host=host,
        store_host=host,
        reconsume_times=0,
        prepared_offset=0,
        body=body,
        properties=properties,
        tags_code=tags_code(tag.decode()),
    )
