"""Ingests topics into a lake: a streaming query whose batches are commits of a Delta table.

    # read up to the current end of the topic
    ingest(spark, ["orders"], "/data/orders", namesrv="127.0.0.1:9876")
    # follow the topic until stopped
    ingest(spark, ["orders"], "s3://bucket/orders", follow=True, storage_options={…})

The same call continues where the last one ended: its checkpoint is stored in the lake, under the
names of its topics. Without a checkpoint, the query begins where the lake ends. So it does on an
object store, which Spark cannot write without a jar, unless the caller names a checkpoint. A
message that is read twice is in the lake once (see `batches`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession

from rmqkit.errors import ConfigError
from rmqkit.spark.delta.iceberg_table import IcebergTable
from rmqkit.spark.delta.lake_table import LakeTable
from rmqkit.spark.delta.storage import LakeStorage
from rmqkit.spark.options import parse
from rmqkit.spark.pipelines import batches, topic_query
from rmqkit.spark.pipelines.progress import PipelineProgress

CHECKPOINTS = "_lake/checkpoints"
TRIGGER = "10 seconds"
FORMATS: Mapping[str, Callable[[LakeStorage], batches.BatchTable]] = {"delta": LakeTable, "iceberg": IcebergTable}


class IngestResult(msgspec.Struct, kw_only=True):
    """The result of an ingest.

    `repeated` counts messages that were read again and left out. `offsets` maps topic -> broker ->
    queue to the offset that is read next; None if no batch ended. `bytes` is the size of the files
    written.
    """

    path: str
    checkpoint: str
    query: str
    batches: int = 0
    rows: int = 0
    files: int = 0
    bytes: int = 0
    repeated: int = 0
    offsets: dict[str, Any] | None = None


def ingest(
    spark: SparkSession,
    topics: str | Sequence[str],
    path: str | os.PathLike[str],
    *,
    namesrv: str | None = None,
    follow: bool = False,
    options: Mapping[str, str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    format: str = "delta",
    trigger: str = TRIGGER,
    storage_options: Mapping[str, str] | None = None,
    on_progress: Callable[[PipelineProgress], None] | None = None,
    stop: Callable[[], bool] | None = None,
) -> IngestResult:
    """Ingest the messages of the topics into the lake at `path`.

    Without `follow`, the ingest ends at the topics' current end. With it, a batch runs every
    `trigger` until `stop` returns True or the user presses Ctrl-C.

    `options` are those of the data source (docs/spark.md), `storage_options` those of deltalake for
    an object store. A `checkpoint` given by the caller must always be used with the same `path`.
    With the `format` iceberg the lake is an Iceberg table, with the same promises. Raises
    ConfigError, LakeConflict, LakeDamaged, and the query's exception (StreamingQueryException).
    """
    names = [topics] if isinstance(topics, str) else sorted(dict.fromkeys(topics))
    if not names or not all(names):
        raise ConfigError("name a topic to ingest")
    table = table_at(path, format, storage_options)
    if checkpoint is None and table.storage.is_local:
        checkpoint = table.storage.full(default_checkpoint(names))
    with topic_query.opened(checkpoint, spark) as place:
        unread = batches.unread(table.state(), names)
        given = topic_query.query_options("stream", options, namesrv, start=unread, subscribe=",".join(names))
        chosen = parse(given, "stream").starting_offsets
        starts = {} if isinstance(chosen, str) else {key: offset for key, offset in chosen.items() if offset >= 0}
        done = IngestResult(path=table.storage.uri, checkpoint=place.uri, query="")

        def add(rows: DataFrame, batch: int) -> None:
            query = place.query_id()
            if query is None:
                raise ConfigError(f"{place.uri} has no checkpoint any more: it was removed while the query ran")
            offsets = place.offsets_of(batch, starts)
            added = batches.add(table, rows, query=query if place.is_kept else None, batch=batch, offsets=offsets)
            if added is not None:
                done.batches += 1
                done.rows += added.rows
                done.files += added.files
                done.bytes += added.size
                done.repeated += added.repeated

        rows = spark.readStream.format(topic_query.FORMAT).options(**given).load()
        interval = trigger if follow else None
        done.offsets = topic_query.run_batches(rows, add, place, trigger=interval, on_progress=on_progress, stop=stop)
        done.query = place.query_id() or ""
        return done


def table_at(path: str | os.PathLike[str], format: str, options: Mapping[str, str] | None) -> batches.BatchTable:
    """Return the table of a format at a place, where there may be none yet. Needs no Spark.

    Raises ConfigError for an unknown format, or if it is not possible here.
    """
    if format not in FORMATS:
        raise ConfigError(f"format {format}: choose from {', '.join(FORMATS)}")
    return FORMATS[format](LakeStorage(path, options))


def default_checkpoint(topics: Sequence[str]) -> str:
    """Return the path of the checkpoint of these topics, relative to the lake."""
    readable = "+".join(topics).replace("%", "_")[:60]
    return f"{CHECKPOINTS}/{readable}-{hashlib.sha256(','.join(topics).encode()).hexdigest()[:12]}"
