"""The sink of the data source `rocketmq`: executors send rows as messages.

Delivery is at least once. If a task fails half-way, Spark runs it again from its first row, and
what it sent before remains. Therefore each message carries the property DEDUP_KEY, made from the
position of its row:

    <query id>/<batch id>/<partition>/<row>     in a stream
    <run id>//<partition>/<row>                 in a batch

A row that is sent again has the same key, as long as the input has the same order (after a random
`repartition` it does not). Consumers that must process each row once remember these keys.

The driver checks the columns before anything is sent. It creates the writer, which is pickled and
runs in the workers (`write`). `commit` and `abort` run on the driver again. There is nothing to
commit: a message is stored when it is sent.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from rmqkit.client.message import Message
from rmqkit.errors import ConfigError
from rmqkit.spark import tables
from rmqkit.spark.columns import COLUMNS as MESSAGE_COLUMNS
from rmqkit.spark.options import SourceOptions, parse
from rmqkit.spark.sink.pace import PLACE_KEY, SharedPace
from rmqkit.spark.sink.row_sender import RowSender, WriteFailed, kept
from rmqkit.suggestions import suggest
from rmqkit.wire.properties import PROPERTY_KEYS, PROPERTY_TAGS, RESERVED_NAMES

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

DEDUP_KEY = "DEDUP_KEY"
#: Column -> its allowed types (Spark's `typeName`), as listed in docs/spark.md.
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
    "delay_ms": ("integer", "long", "short"),
    "deliver_at": ("timestamp", "long"),
}
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True)
class Sent(WriterCommitMessage):
    """Result of a task: the number of rows that were acknowledged."""

    rows: int


class BatchWriter(DataSourceArrowWriter):
    """Writes the rows of a batch to topics: `df.write.format("rocketmq")`. Raises ConfigError."""

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ConfigError("mode overwrite: a topic keeps its messages, nothing can be overwritten; use mode append")
        self.options = _options(given, schema)
        #: Set on the driver, so that all attempts of all tasks have the same id.
        self.run_id = self.options.run_id or uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        return _send(self.options, f"{self.run_id}/", iterator)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _aborted(messages, f"run {self.run_id}")


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a stream to topics: `df.writeStream.format("rocketmq")`.

    Raises ConfigError.
    """

    def __init__(self, given: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            why = "each batch would send the whole result again, and a topic keeps its messages"
            raise ConfigError(f"output mode complete: {why}; use output mode update or append")
        self.options = _options(given, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Sent:
        from pyspark.taskcontext import TaskContext

        context = TaskContext.get()
        assert context is not None
        query = self.options.run_id or context.getLocalProperty(QUERY_ID)
        return _send(self.options, f"{query}/{context.getLocalProperty(BATCH_ID)}", iterator)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _aborted(messages, f"batch {batchId}")


# --- on the driver


def _options(given: Mapping[str, str], schema: StructType) -> SourceOptions:
    """Check options and columns, and return the options. Raises ConfigError.

    A table created in SQL has all columns of a message. Those that cannot be sent are ignored.
    """
    kept_options = tables.options_to_write(given, schema)
    options = parse(given if kept_options is None else {**kept_options, **given}, "sink")
    types = {field.name: field.dataType.typeName() for field in schema.fields}
    if kept_options is not None:
        types = {name: kind for name, kind in types.items() if name in COLUMNS or name not in MESSAGE_COLUMNS}
    _check_columns(types, options.topic)
    return options


def _check_columns(types: Mapping[str, str], topic: str) -> None:
    for name, kind in types.items():
        if name not in COLUMNS:
            hint = suggest(name, COLUMNS, "select only columns of {known}")
            if name == "delay":
                hint = ": use delay_ms, deliver_at, or delay_level (1 to 18 by default)"
            raise ConfigError(f"column {name} is not known{hint}")
        if kind not in COLUMNS[name]:
            raise ConfigError(f"column {name} is {kind}, but must be {' or '.join(COLUMNS[name])}: cast it")
    if "body" not in types:
        raise ConfigError(
            "column body is missing: add the body of the messages, binary or string (`to_json(struct(*)) AS body`)"
        )
    if "topic" not in types and not topic:
        raise ConfigError("option topic is missing, and there is no column topic: set one of them")
    if "queue" in types and "ordering_key" in types:
        raise ConfigError("columns queue and ordering_key exclude each other: choose one")
    if "broker" in types and "queue" not in types:
        raise ConfigError("column broker needs the column queue, which is missing")


def _aborted(messages: Sequence[WriterCommitMessage | None], what: str) -> None:
    """Print how many messages remain, because nothing can be withdrawn.

    This is not an exception: Spark would show it instead of the error of the row.
    """
    sent = [message for message in messages if isinstance(message, Sent)]
    rows = sum(message.rows for message in sent)
    if rows:
        text = f"{what} failed after {rows} rows of {len(sent)} other tasks had been sent; these messages remain"
        print(f"rmqkit: {text}. If sent again, they have the same {DEDUP_KEY}", file=sys.stderr, flush=True)


# --- in the workers


def _send(options: SourceOptions, run: str, batches: Iterator[pa.RecordBatch]) -> Sent:
    """Send the rows of this task. Raises ConfigError if the driver does not serve its pace."""
    from pyspark.taskcontext import TaskContext

    context = TaskContext.get()
    partition = context.partitionId() if context is not None else 0
    with ExitStack() as at_end:
        pace = None
        if options.messages_per_second:
            place = context.getLocalProperty(PLACE_KEY) if context is not None else None
            if place is None:
                raise ConfigError(
                    "option messagesPerSecond: this Spark session does not serve the pace that its tasks share; create it "
                    "with rmqkit.spark.session(), or call rmqkit.spark.serve_pace(spark) before"
                )
            pace = at_end.enter_context(closing(SharedPace(place, run.partition("/")[0], options.messages_per_second)))
        sending = RowSender(kept(options), options, f"partition {partition}", pace)
        for number, row in enumerate(row for batch in batches for row in batch.to_pylist()):
            try:
                message = _message(row, options.topic, f"{run}/{partition}/{number}")
            except ValueError as error:
                raise WriteFailed(f"{sending.place}, row {number}: {error}") from None
            sending.put(number, message, row.get("queue"), row.get("broker"), row.get("ordering_key"))
        sending.finish()
    return Sent(sending.acknowledged)


def _message(row: Mapping[str, Any], topic: str, dedup_key: str) -> Message:
    """Make the message of a row. Raises ValueError.

    Properties reserved by RocketMQ are left out: rows that were read from a topic have them. Of
    these, KEYS and TAGS are used if the row has no column `keys` or `tags`.
    """
    body = row["body"]
    if body is None:
        raise ValueError("body is null")
    topic = row.get("topic") or topic
    if not topic:
        raise ValueError("topic is null, and option topic is not set")
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
        delay_ms=row.get("delay_ms") or 0,
        deliver_at=row.get("deliver_at"),
    )
