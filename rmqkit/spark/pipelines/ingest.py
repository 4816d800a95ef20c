"""Ingests topics into a lake: a streaming query whose batches are commits of a Delta table.

    # read up to the current end of the topic
    ingest(spark, ["orders"], "/data/orders", namesrv="127.0.0.1:9876")
    # follow the topic until stopped
    ingest(spark, ["orders"], "s3://bucket/orders", follow=True, storage_options={…})

The same call continues where the last one ended: its checkpoint is stored in the lake, under the
names of its topics. Without a checkpoint, the query begins where the lake ends. A message that is
read twice is in the lake once (see `batches`).

On an object store, which Spark cannot write without a jar, the checkpoint is temporary unless the
caller names one: each run begins where the lake ends.

With `format="iceberg"` the lake is an Iceberg table (`iceberg_table`), with the same promises.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from rmqkit.errors import ConfigError
from rmqkit.spark.delta.iceberg_table import IcebergTable
from rmqkit.spark.delta.lake_table import LakeTable
from rmqkit.spark.delta.storage import LakeStorage
from rmqkit.spark.options import SourceOptions, parse
from rmqkit.spark.pipelines import batches
from rmqkit.spark.pipelines.progress import PipelineProgress, run_batches
from rmqkit.spark.pipelines.query_checkpoint import QueryCheckpoint
from rmqkit.spark.source.ranges import Ends

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHECKPOINTS = "_lake/checkpoints"
TRIGGER = "10 seconds"
SOURCE = "rocketmq"
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
    Raises ConfigError, LakeConflict, LakeDamaged, and the exception of the query
    (StreamingQueryException).
    """
    names = [topics] if isinstance(topics, str) else sorted(dict.fromkeys(topics))
    if not names or not all(names):
        raise ConfigError("name a topic to ingest")
    table = table_at(path, format, storage_options)
    with _checkpoint(spark, table.storage, checkpoint, names) as place:
        given = _source_options(names, namesrv, options, table)
        parsed = parse(given, "stream")
        # Resolve the name servers here: the environment of Spark's processes may name others.
        given["namesrv"] = ";".join(parsed.namesrv)
        rows = spark.readStream.format(SOURCE).options(**given).load()
        run = _Run(table, place, _starts(parsed))

        def report(progress: PipelineProgress) -> None:
            run.done.offsets = progress.offsets
            if on_progress:
                on_progress(progress)

        run_batches(rows, run.add, place, trigger=trigger if follow else None, on_progress=report, stop=stop)
        run.done.query = place.query_id() or ""
        return run.done


def table_at(path: str | os.PathLike[str], format: str, options: Mapping[str, str] | None) -> batches.BatchTable:
    """Return the table of a format at a place, where there may be none yet. Needs no Spark.

    Raises ConfigError for an unknown format, or if it is not possible here.
    """
    if format not in FORMATS:
        raise ConfigError(f"format {format}: choose from {', '.join(FORMATS)}")
    return FORMATS[format](LakeStorage(path, options))


@contextlib.contextmanager
def _checkpoint(
    spark: SparkSession, storage: LakeStorage, given: str | os.PathLike[str] | None, topics: Sequence[str]
) -> Iterator[QueryCheckpoint]:
    """Yield the checkpoint of a run; one that nobody could find again is removed at the end."""
    if given is not None or storage.is_local:
        yield QueryCheckpoint(os.fspath(given or storage.full(default_checkpoint(topics))), spark)
        return
    with tempfile.TemporaryDirectory(prefix="rmqkit-ingest-", ignore_cleanup_errors=True) as folder:
        yield QueryCheckpoint(folder, is_kept=False)


def default_checkpoint(topics: Sequence[str]) -> str:
    """Return the path of the checkpoint of these topics, relative to the lake."""
    readable = "+".join(topics).replace("%", "_")[:60]
    return f"{CHECKPOINTS}/{readable}-{hashlib.sha256(','.join(topics).encode()).hexdigest()[:12]}"


def _source_options(
    topics: Sequence[str],
    namesrv: str | None,
    options: Mapping[str, str] | None,
    table: batches.BatchTable,
) -> dict[str, str]:
    given = {key: str(value) for key, value in (options or {}).items()}
    if namesrv:
        given["namesrv"] = namesrv
    given["subscribe"] = ",".join(topics)
    chosen = {key.lower() for key in given}
    if not chosen & {"startingoffsets", "startingtimestamp"}:
        given["startingOffsets"] = batches.unread(table.state(), topics)
    return given


def _starts(options: SourceOptions) -> Ends:
    """Return the start offsets of the queues for which the options name one."""
    chosen = options.starting_offsets
    return {} if isinstance(chosen, str) else {key: offset for key, offset in chosen.items() if offset >= 0}


class _Run:
    """Writes each micro-batch, and adds it to `done`."""

    def __init__(self, table: batches.BatchTable, checkpoint: QueryCheckpoint, starts: Ends) -> None:
        self._table = table
        self._checkpoint = checkpoint
        self._starts = starts
        self.done = IngestResult(path=table.storage.uri, checkpoint=checkpoint.uri, query="")

    def add(self, rows: DataFrame, batch: int) -> None:
        query = self._checkpoint.query_id()
        if query is None:
            raise ConfigError(f"{self._checkpoint.uri} has no checkpoint any more: it was removed while the query ran")
        offsets = self._checkpoint.offsets_of(batch, self._starts)
        kept = query if self._checkpoint.is_kept else None
        added = batches.add(self._table, rows, query=kept, batch=batch, offsets=offsets)
        self.done.batches += added.is_new
        self.done.rows += added.rows
        self.done.files += added.files
        self.done.bytes += added.size
        self.done.repeated += added.repeated
