"""Streaming reads: `query_plan.py` behind Spark's interface.

One reader lives in Spark's streaming process on the driver and owns the client. Pickled copies of
it read in the workers. Therefore it connects only when Spark first asks for offsets, and a copy has
no connection. Spark does not call `stop` when a query ends: it ends the streaming process.
"""

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from rmqkit.spark.options import SourceOptions
from rmqkit.spark.rows import PartitionReader
from rmqkit.spark.source.query_plan import StreamPlan
from rmqkit.spark.source.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class StreamReader(PartitionReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the batches of a stream on the driver."""

    def __init__(self, options: SourceOptions, schema: "StructType") -> None:
        super().__init__(options, schema)
        self._topics: Topics | None = None
        self._plan: StreamPlan | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_topics": None, "_plan": None}

    @property
    def _planning(self) -> StreamPlan:
        if self._plan is None:
            self._topics = Topics(self._options)
            self._plan = StreamPlan(self._options, self._topics)
        return self._plan

    def initialOffset(self) -> dict[str, Any]:
        return self._planning.begin()

    def getDefaultReadLimit(self) -> ReadLimit:
        return read_limit(self._options)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        # Spark passes back the one limit of `read_limit`, or none with Trigger.Once. The plan
        # applies all limits of the options together.
        return self._planning.advance(start, limited=not isinstance(limit, ReadAllAvailable))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._planning.latest()

    def prepareForTriggerAvailableNow(self) -> None:
        self._planning.freeze()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(each) for each in self._planning.ranges(start, end)]

    def commit(self, end: dict[str, Any]) -> None:
        self._planning.done(end)

    def stop(self) -> None:
        if self._topics is not None:
            self._topics.close()
            self._topics = self._plan = None


def read_limit(options: SourceOptions) -> ReadLimit:
    """Return the first limit of the options: Spark can be given only one."""
    if options.max_messages_per_trigger:
        return ReadMaxRows(options.max_messages_per_trigger)
    if options.max_bytes_per_trigger:
        return ReadMaxBytes(options.max_bytes_per_trigger)
    if options.min_messages_per_trigger:
        return ReadMinRows(options.min_messages_per_trigger)
    return ReadAllAvailable()
