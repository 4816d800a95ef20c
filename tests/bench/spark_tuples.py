"""The reference for the Arrow reader: the same pulls, but one Python tuple per message."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from rmqkit.client.message import MessageExt
from rmqkit.spark.data_sources import RocketMQSource
from rmqkit.spark.decode import DecodedRecords
from rmqkit.spark.options import parse
from rmqkit.spark.source.readers import BatchReader
from rmqkit.spark.source.topic_reader import RangeReader
from rmqkit.wire.record import Record, decode_record

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class TupleSource(RocketMQSource):
    @classmethod
    def name(cls) -> str:
        return "rocketmq-tuples"

    def reader(self, schema: StructType) -> DataSourceReader:
        return TupleReader(parse(self.options, "batch"), schema)


class TupleReader(BatchReader):
    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        return _TupleReader(partition.value, self._options, self._schema).batches()  # type: ignore[return-value]


class _TupleReader(RangeReader):
    def _columns(self, records: DecodedRecords) -> Iterator[Any]:
        broker, read_from = self.range.broker, self.replicas.read_from
        view = records.data.data
        for start in records.starts.tolist():
            record = decode_record(view, start, check_crc=False)
            assert isinstance(record, Record)
            message = MessageExt(record, broker)
            yield (
                record.topic,
                broker,
                record.queue_id,
                record.queue_offset,
                message.msg_id,
                message.keys,
                message.tags,
                message.body,
                message.properties,
                EPOCH + timedelta(milliseconds=record.born_ms),
                EPOCH + timedelta(milliseconds=record.store_ms),
                message.born_host,
                message.store_host,
                record.sys_flag,
                record.reconsume_times,
                read_from,
            )
