"""Batch reads: all messages between the begin and the end of a query, planned once.

`reader` returns a plain reader or, with `pushdown=true`, one that accepts filters. They are
separate classes because Spark refuses a reader with `pushFilters` unless its setting is on, and the
process that plans cannot see that setting.
"""

import logging
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from rmqkit.spark.options import SourceOptions
from rmqkit.spark.rows import PartitionReader
from rmqkit.spark.source import bounds
from rmqkit.spark.source.pushdown import EVERYTHING, ScanBounds, narrowed, narrowing_of
from rmqkit.spark.source.query_plan import whole_look
from rmqkit.spark.source.ranges import OffsetRange, waiting
from rmqkit.spark.source.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


log = logging.getLogger("rmqkit.spark")


def reader(options: SourceOptions, schema: "StructType") -> DataSourceReader:
    """Return the reader for the option `pushdown`. Raises ConfigError."""
    return FilteringReader(options, schema) if options.pushdown else BatchReader(options, schema)


def plan(options: SourceOptions, view: Topics, narrowing: ScanBounds = EVERYTHING) -> list[OffsetRange]:
    """Return the ranges of a batch, split into Spark's partitions.

    Raises NoRoute, ConfigError, DataLoss or BrokerDown.
    """
    seen = whole_look(options, view)
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

    It returns every filter to Spark, which applies them all. So what is read may include more
    messages than the filters allow.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        self._narrowing = narrowing_of(filters)
        if self._narrowing.tags and self._options.tags == "*":
            self._options = replace(self._options, tags=" || ".join(self._narrowing.tags))
        return filters
