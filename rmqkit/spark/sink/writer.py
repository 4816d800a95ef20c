"""The sink of the data source `rocketmq`: rows become messages, sent by the executors.

At least once: a task that failed half-way is run again from its first row, and what it had sent stays. So each message
carries the property DEDUP_KEY, made from where its row stands: `<query id>/<batch id>/<partition>/<row>` in a stream,
`<run id>//<partition>/<row>` in a batch. A row that comes again has the same key as long as the input is the same (a
`repartition` at random is not). Consumers that must not work twice remember these keys.

Columns are checked on the driver, before anything is sent. A writer is made there, pickled, and works in the workers
(`write`); `commit` and `abort` run on the driver again. There is nothing to commit: a message is stored when it is sent.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from rmqkit.client.message import Message
from rmqkit.errors import ConfigError
from rmqkit.spark import tables
from rmqkit.spark.columns import COLUMNS as MESSAGE_COLUMNS
from rmqkit.spark.options import SourceOptions, parse
from rmqkit.spark.sink.row_sender import RowSender, SendSettings, WriteFailed, kept
from rmqkit.suggestions import suggest
from rmqkit.wire.properties import PROPERTY_KEYS, PROPERTY_TAGS, RESERVED_NAMES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

DEDUP_KEY = "DEDUP_KEY"
#: column -> the types it may have (Spark's `typeName`), as docs/spark.md lists them
COLUMNS: dict[str, tuple[str, ...]] = {
    "topic": ("string",),
    "body": ("binary", "string"),
    "keys": ("string", "array"),
    "tags": ("string",),
    "properties": ("map",),
    "queue": ("integer", "long", "short"),
    "broker": ("string",),
    "ordering_key": ("string",),
    "delay_level": ("integer", "long", "short"),
}
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True)
class Sent(WriterCommitMessage):
    """What a task did. `statuses`: acknowledged rows by status. `repeated`: how often a row was sent again."""

    partition: int
    statuses: Mapping[str, int]
    repeated: int

    @property
    def rows(self) -> int:
        return sum(self.statuses.values())


class BatchWriter(DataSourceArrowWriter):
    """`df.write.format("rocketmq")`."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        options, self.plan = _plan(given, schema)
        #: made here, on the driver: every try of every task has the same
        self.run_id = options.run_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        return _send(self.plan, f"{self.run_id}/", iterator)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _aborted(messages, f"run {self.run_id}")


class StreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("rocketmq")`."""

    def __init__(self, given: Mapping[str, str], schema: StructType) -> None:
        options, self.plan = _plan(given, schema)
        self.run_id = options.run_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        from pyspark.taskcontext import TaskContext

        context = TaskContext.get()
        assert context is not None
        query = self.run_id or context.getLocalProperty(QUERY_ID)
        return _send(self.plan, f"{query}/{context.getLocalProperty(BATCH_ID)}", iterator)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _aborted(messages, f"batch {batchId}")


def writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """For `DataSource.writer`. Raises ConfigError."""
    if overwrite:
        raise ConfigError("mode overwrite: a topic keeps what it has, nothing can be overwritten; use mode append")
    return BatchWriter(given, schema)


def stream_writer(given: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamWriter:
    """For `DataSource.streamWriter`. Raises ConfigError."""
    if overwrite:
        raise ConfigError(
            "output mode complete: each batch would send the whole result anew, and a topic keeps what it has; "
            "use output mode update or append"
        )
    return StreamWriter(given, schema)


# --- on the driver


@dataclass(frozen=True)
class _Plan:
    """What the workers have to know. `topic` is for rows without one."""

    settings: SendSettings
    topic: str
    columns: tuple[str, ...]


def _plan(given: Mapping[str, str], schema: StructType) -> tuple[SourceOptions, _Plan]:
    """Raises ConfigError. A table has all columns of a message: those that cannot be sent are left out."""
    kept_options = tables.options_to_write(given, schema)
    options = parse(given if kept_options is None else {**kept_options, **given}, "sink")
    types = {field.name: field.dataType.typeName() for field in schema.fields}
    if kept_options is not None:
        types = {name: kind for name, kind in types.items() if name in COLUMNS or name not in MESSAGE_COLUMNS}
    _check_columns(types, options.topic)
    settings = SendSettings(
        namesrv=options.namesrv,
        group=options.producer_group,
        is_ok_required=options.required_status == "send_ok",
        wait_ms=options.max_wait_for_broker,
        timeout_ms=options.request_timeout,
        per_second=options.messages_per_second,
    )
    return options, _Plan(settings, options.topic, tuple(schema.fieldNames()))


def _check_columns(types: Mapping[str, str], topic: str) -> None:
    for name, kind in types.items():
        if name not in COLUMNS:
            raise ConfigError(_unknown(name))
        if kind not in COLUMNS[name]:
            raise ConfigError(f"column {name} is {kind}, and has to be {' or '.join(COLUMNS[name])}: cast it")
    if "body" not in types:
        raise ConfigError("column body is missing: what messages hold, binary or string (`to_json(struct(*)) AS body`)")
    if "topic" not in types and not topic:
        raise ConfigError("option topic is missing, and there is no column topic")
    if "queue" in types and "ordering_key" in types:
        raise ConfigError("columns queue and ordering_key exclude each other: choose one")
    if "broker" in types and "queue" not in types:
        raise ConfigError("column broker says whose queue the column queue means, which is missing")


def _unknown(name: str) -> str:
    if name in ("delay_ms", "delay"):
        return f"column {name} is not known: brokers delay by level, in column delay_level (1 to 18 as they come)"
    return f"column {name} is not known{suggest(name, COLUMNS, 'select what is to be sent from {known}')}"


def _aborted(messages: Sequence[WriterCommitMessage | None], what: str) -> None:
    """Nothing can be taken back, so it is said what stays. Not raised: Spark would show that instead of the row's error."""
    sent = [message for message in messages if isinstance(message, Sent)]
    rows = sum(message.rows for message in sent)
    if rows:
        text = f"{what} failed after {rows} rows of {len(sent)} other tasks had been sent, which stay"
        print(f"rmqkit: {text}; sent again they have the same {DEDUP_KEY}", file=sys.stderr, flush=True)


# --- in the workers


def _send(plan: _Plan, run: str, batches: Iterator[pa.RecordBatch]) -> Sent:
    from pyspark.taskcontext import TaskContext

    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    sending = RowSender(kept(plan.settings), plan.settings, f"partition {partition}")
    number = 0
    for batch in batches:
        for row in _rows(batch, plan.columns):
            try:
                message = _message(row, plan.topic, f"{run}/{partition}/{number}")
            except ValueError as error:
                raise WriteFailed(f"partition {partition}, row {number}: {error}") from None
            sending.put(
                number,
                message,
                queue=row.get("queue"),
                broker=row.get("broker"),
                ordering_key=row.get("ordering_key"),
            )
            number += 1
    sending.finish()
    return Sent(partition, sending.counts(), sending.repeated)


def _rows(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    columns = [column.to_pylist() for column in batch.columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def _message(row: Mapping[str, Any], topic: str, dedup_key: str) -> Message:
    """Properties of RocketMQ's own, as a message that was read has them, are left out; KEYS and TAGS count where there is
    no column of theirs. Raises ValueError."""
    body = row["body"]
    if body is None:
        raise ValueError("body is null")
    topic = row.get("topic") or topic
    if not topic:
        raise ValueError("topic is null, and there is no option topic")
    given = dict(row.get("properties") or ())
    properties = {name: value for name, value in given.items() if name not in RESERVED_NAMES and value is not None}
    properties[DEDUP_KEY] = dedup_key
    keys = row["keys"] if "keys" in row else given.get(PROPERTY_KEYS)
    if isinstance(keys, list):
        keys = [key for key in keys if key]
    return Message(
        topic,
        body,
        keys=keys or None,
        tags=(row["tags"] if "tags" in row else given.get(PROPERTY_TAGS)) or None,
        properties=properties,
        delay_level=row.get("delay_level") or 0,
    )
