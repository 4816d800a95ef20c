"""Measures Spark's own cost: returns the same batch again and again, until the topic's row count.

Only the first batch of each partition is read, so no Python reader can be faster than this one.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rmqkit.spark.data_sources import RocketMQSource
from rmqkit.spark.options import parse
from rmqkit.spark.source.readers import BatchReader


class PrebuiltSource(RocketMQSource):
    @classmethod
    def name(cls) -> str:
        return "rocketmq-prebuilt"

    def reader(self, schema: StructType) -> DataSourceReader:
        return PrebuiltReader(parse(self.options, "batch"), schema)


class PrebuiltReader(BatchReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = partition.value.end - partition.value.begin
        first = next(iter(super().read(partition)))
        while left:
            batch = first.slice(0, left)
            left -= batch.num_rows
            yield batch
