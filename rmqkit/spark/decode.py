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
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from rmqkit.errors import CorruptRecord, RemoteProtocolError
from rmqkit.spark.columns import TEXT_MAP, TIME
from rmqkit.spark.source.slices import AlikeProperties, Bytes, Ints, MixedProperties, gather, properties, slices
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
    POSITION_FLAG,
    POSITION_MAGIC,
    POSITION_PHY_OFFSET,
    POSITION_QUEUE_ID,
    POSITION_QUEUE_OFFSET,
    POSITION_SIZE,
    POSITION_SYS_FLAG,
)

#: Size of a record with IPv4 hosts and without body, topic and properties, in bytes.
RECORD_SIZE_MIN = 91
#: Size of the bodies of one batch, in bytes. Arrow's offsets end at 2 GiB.
BATCH_BYTES_MAX = 64 * 1024 * 1024
_V6_MORE = HOST_V6_SIZE - HOST_V4_SIZE
_V6_BITS = MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6
_TIME_MS_MAX = (2**63 - 1) // 1000

_I8, _I16, _I32, _I64 = np.dtype("i1"), np.dtype(">i2"), np.dtype(">i4"), np.dtype(">i8")
_U64 = np.dtype("u8")

log = logging.getLogger("rmqkit.spark")


def batches_of(
    records: "DecodedRecords", schema: pa.Schema, constants: Mapping[str, Any], bytes_max: int = BATCH_BYTES_MAX
) -> Iterator[pa.RecordBatch]:
    """Decode records into these columns: one batch, or several if bodies exceed `bytes_max`.

    `constants` maps columns that are equal for all rows to their value, as `broker` and
    `read_from`, which records do not contain. The caller has checked that the size of each record
    is within the buffer. Raises CorruptRecord if the parts of a record do not add up to its size.
    """
    are_broken = records.are_broken(schema.names)
    if are_broken.any():
        raise CorruptRecord(records.damage(int(np.argmax(are_broken))))
    if "body" not in schema.names or not records.are_compressed.any():
        yield _batch(records, schema, constants)
        return
    begin = size = 0
    inflated: dict[int, bytes] = {}
    sizes = records.parts.body_ends - records.parts.bodies
    for row in range(records.count):
        body = records.inflated(row) if records.are_compressed[row] else None
        row_size = int(sizes[row]) if body is None else len(body)
        if size + row_size > bytes_max and row > begin:
            yield _batch(DecodedRecords(records.data, records.starts[begin:row], inflated), schema, constants)
            inflated, begin, size = {}, row, 0
        if body is not None:
            inflated[row - begin] = body
        size += row_size
    yield _batch(DecodedRecords(records.data, records.starts[begin:], inflated), schema, constants)


def _batch(records: "DecodedRecords", schema: pa.Schema, constants: Mapping[str, Any]) -> pa.RecordBatch:
    constants = {name: None for name in schema.names if name not in _MAKERS} | dict(constants)
    arrays = [
        pa.repeat(pa.scalar(constants[field.name], field.type), records.count)
        if field.name in constants
        else _MAKERS[field.name](records)
        for field in schema
    ]
    if not arrays:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * records.count, pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class RecordParts(NamedTuple):
    """Positions of records in their buffer, and `ok`: whether the parts add up to the record."""

    bodies: Ints
    body_ends: Ints
    topics: Ints
    properties: Ints
    ok: NDArray[np.bool_]


class DecodedRecords:
    """The fields of many records. Each field is decoded for all records when it is first used.

    Records that are broken (`are_broken`) have no right values; other records can be used.
    `inflated` maps each row with a compressed body to that body, decompressed.
    """

    def __init__(self, buffer: Any, starts: "Ints | Sequence[int]", inflated: Mapping[int, bytes] = {}) -> None:
        self.data: Bytes = np.frombuffer(buffer, np.uint8)
        self.starts = np.asarray(starts, np.int64)
        self.count = len(self.starts)
        self._inflated = inflated

    def _at(self, positions: Ints, dtype: np.dtype[Any]) -> NDArray[Any]:
        return gather(self.data, positions, dtype) if self.count else np.empty(0, dtype.newbyteorder("="))

    def at(self, mask: NDArray[np.bool_]) -> "DecodedRecords":
        """Return the records that the mask selects."""
        return DecodedRecords(self.data, self.starts[mask])

    def are_broken(self, names: Collection[str]) -> NDArray[np.bool_]:
        """Return which records have a wrong magic, or cannot yield these columns."""
        if not _HEAD_ONLY.issuperset(names):
            return ~self.parts.ok
        return ~self._have_magic | (self._store_ends + 19 > self.ends)

    def damage(self, row: int) -> str:
        """Return the text of an error about a broken record."""
        queue_offset, offset = self.head(POSITION_QUEUE_OFFSET)[row], self.head(POSITION_PHY_OFFSET)[row]
        where = f"queue offset {queue_offset}, physical offset {offset}"
        return f"the parts of the record of {where}, do not add up to its size"

    # --- before the hosts

    def head(self, position: int, dtype: np.dtype[Any] = _I64) -> NDArray[Any]:
        """Return the numbers at this position of the records' heads."""
        return self._at(self.starts + position, dtype)

    @cached_property
    def _magics(self) -> NDArray[np.int32]:
        return self.head(POSITION_MAGIC, _I32)

    @cached_property
    def _have_magic(self) -> NDArray[np.bool_]:
        have: NDArray[np.bool_] = (self._magics == MAGIC_V1) | (self._magics == MAGIC_V2)
        return have

    @cached_property
    def sizes(self) -> Ints:
        return self.head(POSITION_SIZE, _I32).astype(np.int64)

    @cached_property
    def ends(self) -> Ints:
        return self.starts + self.sizes

    @cached_property
    def sys_flags(self) -> NDArray[np.int32]:
        return self.head(POSITION_SYS_FLAG, _I32)

    @cached_property
    def are_compressed(self) -> NDArray[np.bool_]:
        return (self.sys_flags & MessageSysFlag.COMPRESSED).astype(np.bool_)

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
        return ends

    @cached_property
    def store_ms(self) -> Ints:
        return self._at(self._born_ends, _I64)

    def hosts(self, begins: Ints, ends: Ints) -> pa.Array:
        """Format each distinct host once, because few hosts send many messages."""
        if not self.has_v6 and self.count:
            packed = self._at(begins, _U64)
            if (packed == packed[0]).all():
                return pa.repeat(pa.scalar(host_text(packed[:1].tobytes()), pa.string()), self.count)
        return self._texts(begins, ends, host_text)

    def _texts(self, begins: Ints, ends: Ints, text_of: Callable[[bytes], str]) -> pa.Array:
        """Return the text of each slice. Each distinct slice is converted once."""
        encoded = slices(self.data, begins, ends, pa.binary()).dictionary_encode()
        return pa.array(map(text_of, encoded.dictionary.to_pylist()), pa.string()).take(encoded.indices)

    # --- body, topic, properties

    @cached_property
    def parts(self) -> RecordParts:
        """Where the parts of the records begin. The buffer must have all bytes of each record."""
        ends, last = self.ends, self.data.size - 4
        are_v2 = self._magics == MAGIC_V2
        bodies = self._store_ends + 16
        sizes = self._at(np.minimum(bodies - 4, last), _I32)
        ok = self._have_magic & (sizes >= 0) & (bodies + sizes + 3 <= ends)
        # The positions of a broken record are moved to its begin, so that they are in the buffer.
        body_ends = np.where(ok, bodies + sizes, self.starts)
        topic_sizes = self._at(body_ends, _I8).astype(np.int64)
        if are_v2.any():
            topic_sizes = np.where(are_v2, self._at(body_ends, _I16), topic_sizes)
        topics = body_ends + 1 + are_v2
        properties = topics + topic_sizes + 2
        ok &= (topic_sizes >= 0) & (properties <= ends)
        ok &= self._at(np.where(ok, properties - 2, self.starts), _I16) == ends - properties
        return RecordParts(bodies, body_ends, topics, properties, ok)

    @cached_property
    def properties(self) -> AlikeProperties | MixedProperties:
        return properties(self.data, self.parts.properties, self.ends)

    def topics(self) -> pa.Array:
        return self._texts(self.parts.topics, self.parts.properties - 2, lambda topic: topic.decode("utf-8", "replace"))

    def message_ids(self) -> pa.Array:
        ids = self.properties.named(props.PROPERTY_UNIQ_KEY)
        if not ids.null_count:
            return ids
        begins, texts, offsets = self._born_ends + 8, ids.to_pylist(), self.head(POSITION_PHY_OFFSET)
        for row in np.flatnonzero(ids.is_null()):
            store_host = self.data[begins[row] : self._store_ends[row]].tobytes()
            texts[row] = offset_id(store_host, int(offsets[row]))
        return pa.array(texts, pa.string())

    def bodies(self) -> pa.Array:
        begins, ends, inflated = self.parts.bodies, self.parts.body_ends, self._inflated
        if not inflated:
            return slices(self.data, begins, ends, pa.binary())
        plain = slices(self.data, begins, np.where(self.are_compressed, begins, ends), pa.binary())
        rows = np.arange(self.count, dtype=np.int64)
        rows[list(inflated)] = self.count + np.arange(len(inflated))
        return pa.concat_arrays([plain, pa.array(inflated.values(), pa.binary())]).take(pa.array(rows))

    def inflated(self, row: int) -> bytes:
        """Return the decompressed body of a row, or the body as stored if that fails.

        Raises CompressionMissing if the library for its compression is not installed.
        """
        body = self.data[self.parts.bodies[row] : self.parts.body_ends[row]].tobytes()
        try:
            return inflate_body(body, int(self.sys_flags[row]))
        except RemoteProtocolError as error:
            log.warning(
                "the body of queue %s offset %s cannot be decompressed and is returned as stored: %s",
                self.head(POSITION_QUEUE_ID, _I32)[row],
                self.head(POSITION_QUEUE_OFFSET)[row],
                error,
            )
            return body


def _times(times_ms: Ints) -> pa.Array:
    """Convert ms to timestamps. A time beyond their range (a wrong sender's clock) becomes null."""
    are_beyond = (times_ms > _TIME_MS_MAX) | (times_ms < -_TIME_MS_MAX)
    mask = are_beyond if are_beyond.any() else None
    return pa.array(times_ms * 1000, pa.int64(), mask=mask).view(TIME)


_MAKERS: dict[str, Callable[[DecodedRecords], pa.Array]] = {
    "topic": DecodedRecords.topics,
    "queue": lambda records: pa.array(records.head(POSITION_QUEUE_ID, _I32)),
    "offset": lambda records: pa.array(records.head(POSITION_QUEUE_OFFSET)),
    "message_id": DecodedRecords.message_ids,
    "keys": lambda records: records.properties.named(props.PROPERTY_KEYS),
    "tags": lambda records: records.properties.named(props.PROPERTY_TAGS),
    "body": DecodedRecords.bodies,
    "properties": lambda records: records.properties.maps(TEXT_MAP),
    "born_time": lambda records: _times(records.head(POSITION_BORN_MS)),
    "store_time": lambda records: _times(records.store_ms),
    "born_host": lambda records: records.hosts(records.starts + POSITION_BORN_HOST, records._born_ends),
    "store_host": lambda records: records.hosts(records._born_ends + 8, records._store_ends),
    "sys_flag": lambda records: pa.array(records.sys_flags),
    "reconsume_times": lambda records: pa.array(records._at(records._store_ends, _I32)),
    "flag": lambda records: pa.array(records.head(POSITION_FLAG, _I32)),
    "prepared_offset": lambda records: pa.array(records._at(records._store_ends + 4, _I64)),
    "physical_offset": lambda records: pa.array(records.head(POSITION_PHY_OFFSET)),
    "size": lambda records: pa.array(records.sizes),
}
#: Columns that are decoded from the head of a record alone.
_HEAD_ONLY = _MAKERS.keys() - {"topic", "message_id", "keys", "tags", "body", "properties"} | {"broker", "read_from"}
