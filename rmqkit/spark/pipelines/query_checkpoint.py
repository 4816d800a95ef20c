"""What Spark has written into the checkpoint of a streaming query: its id, and offsets of batches.

A checkpoint lies on this machine or on a file system of Spark's JVM (`hdfs://`, `s3a://` with its
jar).
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqkit.spark.delta.storage import LakeDamaged, LakeStorage
from rmqkit.spark.source import ranges

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Offsets(NamedTuple):
    """The offset range [begin, end) of a batch; both map topic -> broker -> queue -> offset."""

    begin: dict[str, Any]
    end: dict[str, Any]


class QueryCheckpoint:
    """The checkpoint at a path or URI; it need not exist yet. One that `is_kept` can be resumed."""

    def __init__(self, path: str, spark: SparkSession | None = None, *, is_kept: bool = True) -> None:
        self.is_kept = is_kept
        place = LakeStorage(path)
        self._local = Path(place.uri) if place.is_local else None
        self._spark: Any = spark
        #: as Spark takes it
        self.uri = f"file://{place.uri}" if place.is_local else place.uri

    def query_id(self) -> str | None:
        """Return the id of the query that owns the checkpoint, None for a new checkpoint."""
        content = self._read("metadata")
        return None if content is None else str(json.loads(content)["id"])

    def offsets_of(self, batch: int, starts: Mapping[ranges.QueueKey, int] | None = None) -> Offsets:
        """Return the offsets that Spark recorded before it ran the batch.

        Spark does not record where batch 0 begins. For it `begin` is taken from `starts`, for the
        queues that `starts` names. Raises LakeDamaged if there are no offsets for the batch.
        """
        end = self._offsets(batch)
        if end is None:
            raise LakeDamaged(f"{self.uri}/offsets/{batch} is missing: the checkpoint does not belong to a running query")
        if batch:
            return Offsets(self._offsets(batch - 1) or {}, end)
        ends = ranges.flat(end)
        return Offsets(ranges.nested({key: min(at, ends[key]) for key, at in (starts or {}).items() if key in ends}), end)

    def _offsets(self, batch: int) -> dict[str, Any] | None:
        content = self._read(f"offsets/{batch}")
        if content is None:
            return None
        # Spark writes a version line, a line about the query, then a line per source. We have one.
        lines = content.decode().splitlines()
        if len(lines) != 3 or lines[0] != "v1":
            raise LakeDamaged(f"{self.uri}/offsets/{batch} does not have Spark's format for the offsets of one source")
        return json.loads(lines[2]) or {}

    def _read(self, name: str) -> bytes | None:
        if self._local is not None:
            path = self._local / name
            return path.read_bytes() if path.exists() else None
        hadoop = self._spark._jvm.org.apache.hadoop.fs.Path(f"{self.uri}/{name}")
        files = hadoop.getFileSystem(self._spark._jsc.hadoopConfiguration())
        if not files.exists(hadoop):
            return None
        stream = files.open(hadoop)
        try:
            return bytes(self._spark._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()


@contextlib.contextmanager
def opened(path: str | None, spark: SparkSession) -> Iterator[QueryCheckpoint]:
    """Yield the checkpoint at a path; without one, a temporary one that is removed at the end."""
    if path is not None:
        yield QueryCheckpoint(path, spark)
        return
    with tempfile.TemporaryDirectory(prefix="rmqkit-checkpoint-", ignore_cleanup_errors=True) as folder:
        yield QueryCheckpoint(folder, is_kept=False)
