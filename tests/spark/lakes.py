"""Rows and batches for tests of lakes: messages as the data source returns them, made by hand."""

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from deltalake import Schema

from rmqkit.spark.columns import COLUMNS, arrow_schema, ddl
from rmqkit.spark.delta.data_files import TaskWriter
from rmqkit.spark.delta.lake_table import Batch, LakeTable
from rmqkit.spark.pipelines.topic_query import Offsets
from rmqkit.spark.source import ranges
from rmqkit.spark.source.ranges import OffsetRange

NOON = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)
HOUR_MS = 3_600_000
SCHEMA = ddl(COLUMNS)
QUERY = "3c1d4b0e-0000-4000-8000-000000000001"


def message(topic, queue, offset, *, at=NOON, epoch="a"):
    """Return the row of one message.

    `epoch` distinguishes messages at the same offset after a topic was deleted and recreated.
    """
    return (
        topic,
        "broker-a",
        queue,
        offset,
        f"{epoch}-{topic}-{queue}-{offset}",
        f"key-{offset % 3}",
        "tag",
        f"body {offset}".encode(),
        {"KEYS": f"key-{offset % 3}", "UNIQ_KEY": "x", "user": "u"},
        at - timedelta(milliseconds=offset + 1),
        at,
        "127.0.0.1:1",
        "127.0.0.1:2",
        0,
        0,
        "master",
    )


def rows(spark, messages):
    return spark.createDataFrame(list(messages), SCHEMA)


def queue_rows(spark, *parts, at=NOON, epoch="a"):
    """Return all messages of the given `OffsetRange`s."""
    return rows(
        spark, [message(each.topic, each.queue, offset, at=at, epoch=epoch) for each in parts for offset in offsets(each)]
    )


def arrow_rows(*parts, at=NOON, epoch="a"):
    """Return the same as one Arrow batch."""
    made = [message(each.topic, each.queue, offset, at=at, epoch=epoch) for each in parts for offset in offsets(each)]
    schema = arrow_schema(COLUMNS)
    columns = zip(*made, strict=True) if made else [()] * len(schema)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([list(each.items()) if isinstance(each, dict) else each for each in column], field.type)
            for column, field in zip(columns, schema, strict=True)
        ],
        schema=schema,
    )


def written(storage, *batches, has_topics=False):
    """Write Arrow batches as one task would; return the reports of the files."""
    writer = TaskWriter(storage, 0, has_topics=has_topics)
    for batch in batches:
        writer.put(batch)
    return writer.close()


def batch_of(storage, number, *parts, query=QUERY, at=NOON, clusters=(), more=(), has_topics=False):
    """Write the rows of these ranges, without Spark, and return the batch that commits them.

    `more` names columns to add, of type bigint.
    """
    rows = arrow_rows(*parts, at=at)
    for name in more:
        rows = rows.append_column(name, pa.array(range(rows.num_rows), pa.int64()))
    return batch_of_rows(storage, number, rows, *parts, query=query, clusters=clusters, has_topics=has_topics)


def batch_of_rows(storage, number, rows, *parts, query=QUERY, clusters=(), has_topics=False):
    """Write an Arrow batch that has the offsets of these ranges; return what commits it."""
    schema = json.loads(Schema.from_arrow(rows.schema).to_json())
    named = {each.topic: clusters for each in parts}
    return Batch(query, number, parts, named, written(storage, rows, has_topics=has_topics), schema)


def ingested(storage, *batches):
    """Commit batches, each a tuple of the arguments of `batch_of`, and return the table."""
    table = LakeTable(storage)
    for number, (parts, named) in enumerate(batches):
        made = batch_of(storage, number, *parts, **named)
        table.commit(lambda state, made=made: made)
    return table


def offsets(part):
    return range(part.begin, part.end)


def part(topic, queue, begin, end):
    return OffsetRange(topic, "broker-a", queue, begin, end)


def batch_offsets(*parts, clusters=()):
    """Return the offsets that Spark's checkpoint has for a batch of these ranges."""
    return Offsets(
        ranges.nested({each.key: each.begin for each in parts}, clusters),
        ranges.nested({each.key: each.end for each in parts}, clusters),
    )


def places(frame):
    """Return (topic, queue, offset) of all rows, sorted."""
    return sorted(tuple(row) for row in frame.select("topic", "queue", "offset").collect())


def expected(*parts):
    return sorted((each.topic, each.queue, offset) for each in parts for offset in offsets(each))


def stored(own, topic):
    """Return all messages of a topic on the brokers, by queue and offset."""
    reader = own.closes(own.pull_consumer(consume_from="first"))
    queues = reader.queues(topic)
    reader.assign(queues)
    wanted = sum(reader.offset_max(queue) - reader.offset_min(queue) for queue in queues)
    found = []
    for _ in range(100):
        if len(found) >= wanted:
            break
        found += reader.poll(100, 1000)
    return sorted(found, key=lambda message: (message.queue.broker_name, message.queue.queue_id, message.queue_offset))
