"""Reading a range of a queue as Arrow batches: what runs in Spark's workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

if TYPE_CHECKING:
    from rmqkit.spark.ranges import QueueRange


class ReadSettings(msgspec.Struct, frozen=True):
    """How a range is read. Goes to the workers pickled.

    `when_down`: with no broker of a group to be reached, `wait` up to `wait_ms` or `fail` at once. `time_from_ms` and
    `time_to_ms` bound the store time, the second exclusively. `decode_json_schema` is Spark's JSON text of a struct whose
    columns, and `_corrupt`, come after `columns`.
    """

    namesrv: tuple[str, ...]
    columns: tuple[str, ...]
    tags: str = "*"
    fail_on_data_loss: bool = True
    when_down: str = "wait"
    wait_ms: int = 120_000
    request_timeout_ms: int = 5_000
    batch_rows: int = 8192
    time_from_ms: int | None = None
    time_to_ms: int | None = None
    decode_json_schema: str = ""


def read_range(queue_range: QueueRange, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
    """The messages of [begin, end) of one queue in the order of their offsets, as batches of about `batch_rows` rows.

    Raises DataLoss for messages that are gone, ClientError when no broker of the group can be reached.
    """
    raise NotImplementedError
