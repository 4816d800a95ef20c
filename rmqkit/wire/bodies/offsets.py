"""Offsets: of all groups (43, consumerOffset.json), of a reset (220, 222), of a topic (202), of a group (208, 221, 223).

Most are maps keyed by a queue, which go over the wire in fastjson's raw form (see `fastjson`).

Source: `remoting/.../protocol/body/{ConsumerOffsetSerializeWrapper,ResetOffsetBody,ResetOffsetBodyForC,
GetConsumerStatusBody}.java`, `remoting/.../protocol/admin/*.java`, Go client `internal/model.go`.
"""

from typing import Any, ClassVar

import msgspec
from msgspec import field

from rmqkit.errors import RemoteProtocolError
from rmqkit.wire import fastjson
from rmqkit.wire.bodies.base import Body
from rmqkit.wire.bodies.versions import DataVersion
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.schema import Int32, Int64


class ConsumerOffsetTable(Body, kw_only=True):
    """The key is `topic@group`, then the queue id.

    `removed` and `reset_table` are rmqkit's: pairs that are gone, and when (wall ms) a queue's offset was last reset. The
    queue ids of the latter are text, as some of Apache's readers cannot pass over unquoted numbers.
    """

    data_version: DataVersion = DataVersion()
    offset_table: dict[str, dict[Int32, Int64]] = field(default_factory=dict)
    removed: list[str] | None = None
    reset_table: dict[str, dict[str, Int64]] | None = None


class DelayOffsetTable(Body, kw_only=True):
    """45 and delayOffset.json: offsets by delay level."""

    data_version: DataVersion = DataVersion()
    offset_table: dict[Int32, Int64] = field(default_factory=dict)


class ResetOffsetBody(Body, kw_only=True):
    """220 and 222. `encode` gives the form for every client but C++."""

    HAS_QUEUES: ClassVar[bool] = True

    offset_table: dict[MessageQueue, Int64] = field(default_factory=dict)

    def encode_for_cpp(self) -> bytes:
        """A list of objects: the C++ client reads JSON strictly (`ResetOffsetBodyForC`)."""
        rows = [
            {"brokerName": queue.broker_name, "offset": offset, "queueId": queue.queue_id, "topic": queue.topic}
            for queue, offset in sorted(self.offset_table.items())
        ]
        return fastjson.dumps({"offsetTable": rows})

    @classmethod
    def decode_any(cls, data: bytes) -> "ResetOffsetBody":
        """Any form: a map (raw or quoted keys), a list of objects, a list of pairs. Raises RemoteProtocolError."""
        table = fastjson.load_as(dict[str, Any], data).get("offsetTable")
        if not isinstance(table, list):
            return cls.decode(data)
        try:
            rows = [msgspec.convert(row, _Row, strict=False) for row in map(_as_row, table)]
        except msgspec.ValidationError as error:
            raise RemoteProtocolError(f"ResetOffsetBody: {error}") from None
        return cls(offset_table={MessageQueue(r.topic, r.broker_name, r.queue_id): r.offset for r in rows})


class _Row(msgspec.Struct, rename="camel"):
    broker_name: str
    offset: Int64
    queue_id: Int32
    topic: str


def _as_row(item: Any) -> Any:
    if isinstance(item, list) and len(item) == 2 and isinstance(item[0], dict):
        return {**item[0], "offset": item[1]}
    return item


class TopicOffset(Body, kw_only=True):
    last_update_timestamp: Int64 = 0
    max_offset: Int64 = 0
    min_offset: Int64 = 0


class TopicStatsTable(Body, kw_only=True):
    """The answer to 202."""

    HAS_QUEUES: ClassVar[bool] = True

    offset_table: dict[MessageQueue, TopicOffset] = field(default_factory=dict)
    topic_put_tps: float = 0.0


class ConsumeProgress(Body, kw_only=True):
    """How far a group is in one queue (`OffsetWrapper`)."""

    broker_offset: Int64 = 0
    consumer_offset: Int64 = 0
    last_timestamp: Int64 = 0
    pull_offset: Int64 = 0


class ConsumeStats(Body, kw_only=True):
    """The answer to 208."""

    HAS_QUEUES: ClassVar[bool] = True

    consume_tps: float = 0.0
    offset_table: dict[MessageQueue, ConsumeProgress] = field(default_factory=dict)


class ConsumerStatus(Body, kw_only=True):
    """Answers to 221 (a client: its queues) and 223 (a broker: by client id) (`GetConsumerStatusBody`)."""

    HAS_QUEUES: ClassVar[bool] = True

    consumer_table: dict[str, dict[MessageQueue, Int64]] = field(default_factory=dict)
    message_queue_table: dict[MessageQueue, Int64] = field(default_factory=dict)
