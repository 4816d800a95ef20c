"""Spark's readers of topics: they plan batches and streams on the driver, and read in the workers.

A batch reads all messages between the begin and the end of a query and is planned once. With
`pushdown=true` its reader accepts filters. That is a class of its own because Spark refuses a
reader with `pushFilters` unless its setting is on, and the process that plans cannot see that
setting.

A stream is planned by `query_plan.py`. One reader lives in Spark's streaming process on the driver
and owns the client. Pickled copies of it read in the workers. Therefore it connects only when Spark
first asks for offsets, and a copy has no connection. Spark does not call `stop` when a query ends:
it ends the streaming process.
"""

from __future__ import annotations

import gc
import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from rmqkit.spark.columns import row_schema
from rmqkit.spark.options import SourceOptions
from rmqkit.spark.source import bounds
from rmqkit.spark.source.pushdown import EVERYTHING, ScanBounds, narrowed, narrowing_of
from rmqkit.spark.source.query_plan import StreamPlan
from rmqkit.spark.source.ranges import OffsetRange, waiting
from rmqkit.spark.source.topic_reader import RangeReader
from rmqkit.spark.source.topics import Topics

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

#: The module that Spark's workers run as `__main__`.
SPARK_DAEMON = "pyspark.daemon"

log = logging.getLogger("rmqkit.spark")


class PartitionReader:
    """The part of a batch's and a stream's reader that runs in the workers. Raises ConfigError."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = row_schema(options, schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range; none for None, which Spark passes for an empty batch."""
        if partition.value is not None:
            yield from RangeReader(partition.value, self._options, self._schema).batches()
            exempt_modules_from_gc()


@cache
def exempt_modules_from_gc() -> None:
    """Exclude the objects that a Spark worker has by now from garbage collection, once per process.

    Spark's workers collect garbage after every task (`pyspark/daemon.py`), each time over all
    objects of the imported modules. That took a fifth of the time of a task that reads 50,000
    messages.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == SPARK_DAEMON:
        gc.freeze()


def plan(options: SourceOptions, view: Topics, narrowing: ScanBounds = EVERYTHING) -> list[OffsetRange]:
    """Return the ranges of a batch, split into Spark's partitions.

    Raises NoRoute, ConfigError, DataLoss or BrokerDown.
    """
    seen = StreamPlan(options, view).complete_snapshot()
    bounds.check_topics(options, seen, view)
    for topic, broker in sorted({(key.topic, key.broker) for key in seen.ends} - seen.by_master):
        log.warning("the batch ends where a slave of broker %s (topic %s) ends; it may be behind its master", broker, topic)
    begins = bounds.begins_of(options, view, seen)
    ends = bounds.ends_of(options, view, seen, begins)
    begins, ends = narrowed(narrowing, begins, ends, lambda time_ms: bounds.found_by_time(view, seen, time_ms))
    return options.partitions(waiting(begins, ends))


class BatchReader(PartitionReader, DataSourceReader):
    """Plans a batch on the driver."""

    _narrowing = EVERYTHING

    def partitions(self) -> list[InputPartition]:
        with closing(Topics(self._options)) as view:
            return [InputPartition(each) for each in plan(self._options, view, self._narrowing)]


class FilteringReader(BatchReader):
    """A batch reader that uses filters to read less.

    Some messages that it reads may not match the filters. So it returns every filter to Spark,
    which applies them all to the rows.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._narrowing = narrowing_of(filters)
        if not self._options.tags:
            self._options = replace(self._options, tags=self._narrowing.tags)
        return filters


class StreamReader(PartitionReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the batches of a stream on the driver."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_plan"}

    @cached_property
    def _plan(self) -> StreamPlan:
        return StreamPlan(self._options, Topics(self._options))

    def initialOffset(self) -> dict[str, Any]:
        return self._plan.begin()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the first limit of the options: Spark can be given only one."""
        options = self._options
        if options.max_messages_per_trigger:
            return ReadMaxRows(options.max_messages_per_trigger)
        if options.max_bytes_per_trigger:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_messages_per_trigger:
            return ReadMinRows(options.min_messages_per_trigger)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        # Spark passes back its one limit, or none with Trigger.Once. The plan applies all limits of
        # the options together.
        return self._plan.advance(start, limited=not isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._plan.latest()

    def prepareForTriggerAvailableNow(self) -> None:
        self._plan.freeze()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(each) for each in self._plan.ranges(start, end)]

    def commit(self, end: dict[str, Any]) -> None:
        self._plan.done(end)

    def stop(self) -> None:
        plan: StreamPlan | None = self.__dict__.pop("_plan", None)
        if plan is not None:
            plan.view.close()
