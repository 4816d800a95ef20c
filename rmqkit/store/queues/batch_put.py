"""Puts of a turn that stand for several records: a uniform batch (`uniform_batch.py`), or a run.

They are in log order among the puts of single records.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

from rmqkit.store.log.uniform_batch import BatchProperties
from rmqkit.store.queues.consume_queue import ConsumeQueue

#: queue, queue offset, physical offset, size, tags code, properties, store time: one record of a
#: turn
Put = tuple[ConsumeQueue, int, int, int, int, bytes, int]


class BatchPut(NamedTuple):
    """The records of a batch, in log order.

    The first two fields are those of a `Put`, with the queue offset of the first record. A negative
    `queue_offset` says that the records get no units, as in a `Put`.
    """

    queue: ConsumeQueue
    queue_offset: int
    phy_offsets: Sequence[int]
    sizes: Sequence[int]
    tags_code: int
    properties: BatchProperties
    store_ms: int
    #: one past the last record. An eighth field also tells the index that this is no `Put`
    phy_next: int

    def rows(self) -> Iterator[Put]:
        """Yield the records one by one, for what cannot take them by column."""
        queue, first, phy_offsets, sizes, tags_code, properties, store_ms, _ = self
        step = 1 if first >= 0 else 0
        for number, (phy_offset, size) in enumerate(zip(phy_offsets, sizes, strict=True)):
            yield queue, first + number * step, phy_offset, size, tags_code, properties[number], store_ms


class RunPut(NamedTuple):
    """The records of a run (`PutRun`), in log order, by column."""

    #: those of the records
    queues: Sequence[ConsumeQueue]
    queue_offsets: Sequence[int]
    phy_offsets: Sequence[int]
    sizes: Sequence[int]
    tags_codes: Sequence[int]
    properties: Sequence[bytes]
    store_ms: int
    #: one past the last record
    phy_next: int

    def rows(self) -> Iterator[Put]:
        """Yield the records one by one."""
        return zip(*self[:6], repeat(self.store_ms), strict=False)


#: a put that stands for several records
ColumnPut = BatchPut | RunPut


def place_of(put: Put | ColumnPut) -> tuple[int, int, int]:
    """Return log offset, end and store time of the last record of a put."""
    if isinstance(put, ColumnPut):
        return put.phy_offsets[-1], put.phy_next, put.store_ms
    _, _, phy_offset, size, _, _, store_ms = put
    return phy_offset, phy_offset + size, store_ms


def queues_of(put: ColumnPut) -> Iterable[ConsumeQueue]:
    """Return the queues of the records of a put."""
    return (put.queue,) if isinstance(put, BatchPut) else dict.fromkeys(put.queues)


def rows_of(puts: Iterable[Put | ColumnPut]) -> list[Put]:
    """Return the puts with each batch and run in its records."""
    rows: list[Put] = []
    for put in puts:
        if isinstance(put, ColumnPut):
            rows.extend(put.rows())
        else:
            rows.append(put)
    return rows
