"""Offsets of all groups, of a reset, of a topic or of one group, and progress of special duties.

All groups: 43 and consumerOffset.json. Reset: 220, 222. Topic: 202. Group: 208, 221, 223.
Progress: 45, 61.

Most bodies are maps keyed by a queue, which the wire carries in fastjson's raw form (see
`fastjson`).

Source: `remoting/.../protocol/body/{ConsumerOffsetSerializeWrapper,ResetOffsetBody}.java`,
`remoting/.../protocol/body/{ResetOffsetBodyForC,GetConsumerStatusBody}.java`,
`remoting/.../protocol/admin/*.java`, Go client `internal/model.go`.
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


class LeaseCopy(msgspec.Struct, rename="camel", kw_only=True):
    """rmqkit's: a client's lock of a queue, `age_ms` after it was granted or renewed."""

    group: str
    client_id: str
    topic: str
    broker_name: str
    queue_id: Int32
    age_ms: Int64


class ConsumerOffsetTable(Body, kw_only=True):
    """Offsets by `topic@group`, then by queue id.

    `removed`, `reset_table` and `leases` are rmqkit's: the deleted `topic@group` pairs, when (wall
    ms) a queue's offset was last reset, and the queue locks that an acting slave hands over to its
    master. Queue ids in `reset_table` are text, since some of Apache's readers cannot skip unquoted
    numbers.
    """

    data_version: DataVersion = DataVersion()
    leases: list[LeaseCopy] | None = None
    offset_table: dict[str, dict[Int32, Int64]] = field(default_factory=dict)
    removed: list[str] | None = None
    reset_table: dict[str, dict[str, Int64]] | None = None


class DelayOffsetTable(Body, kw_only=True):
    """45 and delayOffset.json: offsets by delay level."""

    data_version: DataVersion = DataVersion()
    offset_table: dict[Int32, Int64] = field(default_factory=dict)


class TimerMetric(msgspec.Struct, rename="camel", kw_only=True):
    """How many timer messages of one topic wait, and when that was counted."""

    count: Int64 = 0
    time_stamp: Int64 = 0


class TimerMetrics(Body, kw_only=True):
    """61: the waiting timer messages by topic (`TimerMetrics.TimerMetricsSerializeWrapper`)."""

    data_version: DataVersion = DataVersion()
    timing_count: dict[str, TimerMetric] = field(default_factory=dict)


class ResetOffsetBody(Body, kw_only=True):
    """220 and 222. `encode` writes the form for every client but C++."""

    HAS_QUEUES: ClassVar[bool] = True

    offset_table: dict[MessageQueue, Int64] = field(default_factory=dict)

    def encode_for_cpp(self) -> bytes:
        """Return a list of objects (`ResetOffsetBodyForC`).

        The C++ client only reads strict JSON.
        """
        rows = [
            {"brokerName": queue.broker_name, "offset": offset, "queueId": queue.queue_id, "topic": queue.topic}
            for queue, offset in sorted(self.offset_table.items())
        ]
        return fastjson.dumps({"offsetTable": rows})

    @classmethod
    def decode_any(cls, data: bytes) -> "ResetOffsetBody":
        """Decode any form: a map (raw or quoted keys), a list of objects, a list of pairs.

        Raises RemoteProtocolError.
        """
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
    """The response to 202."""

    HAS_QUEUES: ClassVar[bool] = True

    offset_table: dict[MessageQueue, TopicOffset] = field(default_factory=dict)
    topic_put_tps: float = 0.0


class ConsumeProgress(Body, kw_only=True):
    """The progress of a group in one queue (`OffsetWrapper`)."""

    broker_offset: Int64 = 0
    consumer_offset: Int64 = 0
    last_timestamp: Int64 = 0
    pull_offset: Int64 = 0


class ConsumeStats(Body, kw_only=True):
    """The response to 208."""

    HAS_QUEUES: ClassVar[bool] = True

    consume_tps: float = 0.0
    offset_table: dict[MessageQueue, ConsumeProgress] = field(default_factory=dict)


class ConsumerStatus(Body, kw_only=True):
    """The response to 221 and 223 (`GetConsumerStatusBody`).

    A client answers 221 with `message_queue_table`, a broker answers 223 with `consumer_table`, by
    client id.
    """

    HAS_QUEUES: ClassVar[bool] = True

    consumer_table: dict[str, dict[MessageQueue, Int64]] = field(default_factory=dict)
    message_queue_table: dict[MessageQueue, Int64] = field(default_factory=dict)
