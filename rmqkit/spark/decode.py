"""Decodes message records into Arrow columns, without a Python object per message.

A pull response (like a commit log) consists of records end to end; the caller knows where each
begins. The fields before the body are at fixed positions, except that each of the two hosts has 8
or 20 bytes, depending on a bit of the record's sysFlag. So one gather over all records yields a
column. Bodies and properties are slices of the buffer (`slices.py`). Columns that were not
requested cost nothing. Without body and properties, only the head of a record is read.

Some cases are handled record by record in Python: compressed bodies, ids of messages whose sender
set none, and texts that are not UTF-8. If a body cannot be decompressed, the row has it as stored,
and a warning is logged. The message is then at least visible.
"""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqkit.errors import CorruptRecord, RemoteProtocolError
from rmqkit.spark.columns import COLUMNS, TEXT_MAP, TIME, arrow_schema
from rmqkit.spark.source.slices import Bytes, Ints, Properties, gather, properties, slices
from rmqkit.wire import properties as props
from rmqkit.wire.codes import MessageSysFlag
from rmqkit.wire.hosts import HOST_V4_SIZE, HOST_V6_SIZE, host_text
from rmqkit.wire.inflate import inflate_body
from rmqkit.wire.msgid import offset_id
from rmqkit.wire.record import (
    MAGIC_V1,
    MAGIC_V2,
    POSITION_BORN_HOST,
    POSITION_BORN_MS,
    POSITION_MAGIC,
    POSITION_PHY_OFFSET,
    POSITION_QUEUE_ID,
    POSITION_QUEUE_OFFSET,
    POSITION_SYS_FLAG,
)

#: Size of the bodies of one batch, in bytes. Arrow's offsets end at 2 GiB.
BATCH_BYTES_MAX = 64 * 1024 * 1024
#: Columns that are decoded from the head of a record alone.
_HEAD_ONLY = COLUMNS.keys() - {"topic", "message_id", "keys", "tags", "body", "properties"}
_V6_MORE = HOST_V6_SIZE - HOST_V4_SIZE
_V6_BITS = MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6
_TIME_MS_MAX = (2**63 - 1) // 1000

_I8, _I16, _I32, _I64 = np.dtype("i1"), np.dtype(">i2"), np.dtype(">i4"), np.dtype(">i8")
_U64 = np.dtype("u8")

log = logging.getLogger("rmqkit.spark")


def batches_of(
    records: "DecodedRecords", names: Sequence[str], constants: Mapping[str, str], bytes_max: int = BATCH_BYTES_MAX
) -> Iterator[pa.RecordBatch]:
    """Decode records into these columns: one batch, or several if bodies exceed `bytes_max`.

    `constants` maps columns that are equal for all rows to their text: `broker` and `read_from`,
    which records do not contain, and `topic` if it is known. The caller has checked that each
    record's magic is right and that its size is within the buffer. Raises CorruptRecord if the
    parts of a record do not add up to its size.
    """
    if "body" not in names or not records.are_compressed.any():
        yield _batch(records, names, constants)
        return
    begin = size = 0
    inflated: dict[int, bytes] = {}
    sizes = records.body_sizes
    for row in range(records.count):
        if records.are_compressed[row]:
            inflated[row] = records.inflated(row)
        row_size = len(inflated[row]) if row in inflated else int(sizes[row])
        if size + row_size > bytes_max and row > begin:
            kept = inflated.pop(row, None)
            yield _batch(records.part(begin, row, inflated), names, constants)
            inflated = {} if kept is None else {row: kept}
            begin, size = row, 0
        size += row_size
    yield _batch(records.part(begin, records.count, inflated), names, constants)


def _batch(records: "DecodedRecords", names: Sequence[str], constants: Mapping[str, str]) -> pa.RecordBatch:
    arrays = []
    for name in names:
        if name in constants:
            arrays.append(_repeated(constants[name], records.count))
        elif name in _MAKERS:
            arrays.append(_MAKERS[name](records))
        else:
            arrays.append(pa.nulls(records.count, COLUMNS[name].arrow_type))
    if not names:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * records.count, pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(names))


class DecodedRecords:
    """The fields of many records. Each field is decoded for all records when it is first used.

    Properties and methods behind the head raise CorruptRecord if a record's parts do not add up to
    its size.
    """

    def __init__(self, buffer: Any, starts: Ints, inflated: Mapping[int, bytes] | None = None) -> None:
        self.data: Bytes = np.frombuffer(buffer, np.uint8)
        self.starts = np.asarray(starts, np.int64)
        self.count = len(self.starts)
        self._inflated = inflated

    def _at(self, positions: Ints, dtype: np.dtype[Any]) -> NDArray[Any]:
        return gather(self.data, positions, dtype) if self.count else np.empty(0, dtype.newbyteorder("="))

    def part(self, begin: int, end: int, inflated: Mapping[int, bytes]) -> "DecodedRecords":
        """Return rows [begin, end). `inflated` maps a row here to its decompressed body."""
        of_part = {row - begin: body for row, body in inflated.items()}
        return DecodedRecords(self.data, self.starts[begin:end], of_part)

    def check(self, names: Collection[str]) -> None:
        """Raise CorruptRecord if a record has a wrong magic, or cannot yield these columns."""
        magics = self._at(self.starts + POSITION_MAGIC, _I32)
        self._refuse((magics != MAGIC_V1) & (magics != MAGIC_V2))
        if not _HEAD_ONLY.issuperset(names):
            _ = self._properties

    # --- before the hosts

    @cached_property
    def queue_ids(self) -> NDArray[np.int32]:
        return self._at(self.starts + POSITION_QUEUE_ID, _I32)

    @cached_property
    def queue_offsets(self) -> Ints:
        return self._at(self.starts + POSITION_QUEUE_OFFSET, _I64)

    @cached_property
    def phy_offsets(self) -> Ints:
        return self._at(self.starts + POSITION_PHY_OFFSET, _I64)

    @cached_property
    def sys_flags(self) -> NDArray[np.int32]:
        return self._at(self.starts + POSITION_SYS_FLAG, _I32)

    @cached_property
    def born_ms(self) -> Ints:
        return self._at(self.starts + POSITION_BORN_MS, _I64)

    @cached_property
    def are_compressed(self) -> NDArray[np.bool_]:
        are: NDArray[np.bool_] = (self.sys_flags & MessageSysFlag.COMPRESSED) != 0
        return are

    @cached_property
    def has_v6(self) -> bool:
        return bool((self.sys_flags & _V6_BITS).any())

    # --- behind the born host

    @cached_property
    def _born_ends(self) -> Ints:
        ends = self.starts + (POSITION_BORN_HOST + HOST_V4_SIZE)
        if self.has_v6:
            ends += np.where(self.sys_flags & MessageSysFlag.BORN_HOST_V6, _V6_MORE, 0)
        return ends

    @cached_property
    def _store_ends(self) -> Ints:
        ends = self._born_ends + (8 + HOST_V4_SIZE)
        if self.has_v6:
            ends += np.where(self.sys_flags & MessageSysFlag.STORE_HOST_V6, _V6_MORE, 0)
            self._refuse(ends + 16 + 3 > self._ends)
        return ends

    @cached_property
    def store_ms(self) -> Ints:
        return self._at(self._born_ends, _I64)

    @cached_property
    def reconsume_times(self) -> NDArray[np.int32]:
        return self._at(self._store_ends, _I32)

    def born_hosts(self) -> pa.Array:
        return self._hosts(self.starts + POSITION_BORN_HOST, self._born_ends)

    def store_hosts(self) -> pa.Array:
        return self._hosts(self._born_ends + 8, self._store_ends)

    def _hosts(self, begins: Ints, ends: Ints) -> pa.Array:
        """Format each distinct host once, because few hosts send many messages."""
        if not self.has_v6 and self.count:
            packed = self._at(begins, _U64)
            if (packed == packed[0]).all():
                return _repeated(host_text(packed[:1].tobytes()), self.count)
        encoded = slices(self.data, begins, ends, pa.binary()).dictionary_encode()
        texts = pa.array([host_text(packed.as_py()) for packed in encoded.dictionary], pa.string())
        return texts.take(encoded.indices)

    # --- body, topic, properties

    @cached_property
    def _body_begins(self) -> Ints:
        return self._store_ends + 16

    @cached_property
    def body_sizes(self) -> Ints:
        """Sizes of the bodies as stored, in bytes. Raises CorruptRecord, as everything below."""
        sizes = self._at(self._store_ends + 12, _I32).astype(np.int64)
        self._refuse((sizes < 0) | (self._body_begins + sizes + 3 > self._ends))
        return sizes

    @cached_property
    def _ends(self) -> Ints:
        ends: Ints = self.starts + self._at(self.starts, _I32)
        return ends

    @cached_property
    def _topics(self) -> tuple[Ints, Ints]:
        """Begin and end position of each topic."""
        fields = self._body_begins + self.body_sizes
        are_v2 = self._at(self.starts + POSITION_MAGIC, _I32) == MAGIC_V2
        begins = fields + 1
        sizes = self._at(fields, _I8).astype(np.int64)
        if are_v2.any():
            sizes = np.where(are_v2, self._at(fields, _I16), sizes)
            begins += are_v2
        self._refuse((sizes < 0) | (begins + sizes + 2 > self._ends))
        return begins, begins + sizes

    @cached_property
    def _properties(self) -> tuple[Ints, Ints]:
        field = self._topics[1]
        self._refuse(field + 2 + self._at(field, _I16) != self._ends)
        return field + 2, self._ends

    def _refuse(self, are_bad: NDArray[np.bool_]) -> None:
        if are_bad.any():
            row = int(np.flatnonzero(are_bad)[0])
            raise CorruptRecord(
                f"the parts of the record of queue offset {self.queue_offsets[row]}, physical offset "
                f"{self.phy_offsets[row]}, do not add up to its size"
            )

    @cached_property
    def properties(self) -> Properties:
        return properties(self.data, *self._properties)

    def topics(self) -> pa.Array:
        encoded = slices(self.data, *self._topics, pa.binary()).dictionary_encode()
        texts = pa.array([topic.as_py().decode("utf-8", "replace") for topic in encoded.dictionary], pa.string())
        return texts.take(encoded.indices)

    def keys(self) -> pa.Array:
        return self._property(props.PROPERTY_KEYS)

    def tags(self) -> pa.Array:
        return self._property(props.PROPERTY_TAGS)

    def _property(self, name: str) -> pa.Array:
        return self.properties.named(name.encode())

    def message_ids(self) -> pa.Array:
        ids = self._property(props.PROPERTY_UNIQ_KEY)
        if not ids.null_count:
            return ids
        begins, texts = self._born_ends + 8, ids.to_pylist()
        for row in np.flatnonzero(ids.is_null()):
            store_host = self.data[begins[row] : self._store_ends[row]].tobytes()
            texts[row] = offset_id(store_host, int(self.phy_offsets[row]))
        return pa.array(texts, pa.string())

    def bodies(self) -> pa.Array:
        ends = self._body_begins + self.body_sizes
        if not self.count or not self.are_compressed.any():
            return slices(self.data, self._body_begins, ends, pa.binary())
        inflated = self._inflated
        if inflated is None:
            inflated = {int(row): self.inflated(int(row)) for row in np.flatnonzero(self.are_compressed)}
        plain = slices(self.data, self._body_begins, np.where(self.are_compressed, self._body_begins, ends), pa.binary())
        rows = np.arange(self.count, dtype=np.int64)
        rows[list(inflated)] = self.count + np.arange(len(inflated))
        return pa.concat_arrays([plain, pa.array(inflated.values(), pa.binary())]).take(pa.array(rows))

    def inflated(self, row: int) -> bytes:
        """Return the decompressed body of a row, or the body as stored if that fails.

        Raises CompressionMissing if the library for its compression is not installed.
        """
        begin = int(self._body_begins[row])
        body = self.data[begin : begin + int(self.body_sizes[row])].tobytes()
        try:
            return inflate_body(body, int(self.sys_flags[row]))
        except RemoteProtocolError as error:
            offset = self.queue_offsets[row]
            log.warning(
                "the body of queue %s offset %s cannot be decompressed and is returned as stored: %s",
                self.queue_ids[row],
                offset,
                error,
            )
            return body

    def property_maps(self) -> pa.Array:
        return self.properties.maps(TEXT_MAP)


def _times(times_ms: Ints) -> pa.Array:
    """Convert ms to timestamps. A time beyond their range (a wrong sender's clock) becomes null."""
    are_beyond = (times_ms > _TIME_MS_MAX) | (times_ms < -_TIME_MS_MAX)
    mask = are_beyond if are_beyond.any() else None
    return pa.array(times_ms * 1000, pa.int64(), mask=mask).view(TIME)


def _repeated(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


_MAKERS: dict[str, Callable[[DecodedRecords], pa.Array]] = {
    "topic": DecodedRecords.topics,
    "queue": lambda records: pa.array(records.queue_ids),
    "offset": lambda records: pa.array(records.queue_offsets),
    "message_id": DecodedRecords.message_ids,
    "keys": DecodedRecords.keys,
    "tags": DecodedRecords.tags,
    "body": DecodedRecords.bodies,
    "properties": DecodedRecords.property_maps,
    "born_time": lambda records: _times(records.born_ms),
    "store_time": lambda records: _times(records.store_ms),
    "born_host": DecodedRecords.born_hosts,
    "store_host": DecodedRecords.store_hosts,
    "sys_flag": lambda records: pa.array(records.sys_flags),
    "reconsume_times": lambda records: pa.array(records.reconsume_times),
}
