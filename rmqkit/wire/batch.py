"""Split batches: many small messages in the body of one send, made into a record each by the broker.

Each message: i32 size, i32 magic 0, i32 CRC 0, i32 flag, i32 size + body, i16 size + properties (big-endian). The first
three are ignored by Java's broker, and so here. What the messages share (topic, queue, sysFlag, born time) stands in
the request header.

Source: `common/.../message/MessageDecoder.java` (`encodeMessage`), `store/.../MessageExtEncoder.java`.
"""

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from rmqkit.errors import RemoteProtocolError
from rmqkit.wire.properties import PROPERTIES_SIZE_MAX

BATCH_COUNT_MAX = 65536

_HEAD = Struct(">iiiii")
_FLAG_AND_SIZE = Struct(">12xii")
_I16 = Struct(">h")
_new = tuple.__new__


class BatchMessage(NamedTuple):
    flag: int
    body: bytes
    properties: bytes


def encode_batch(messages: Iterable[BatchMessage]) -> bytes:
    """The body of a batch send. Raises ValueError for properties that are too long."""
    parts: list[bytes] = []
    for flag, body, properties in messages:
        if len(properties) > PROPERTIES_SIZE_MAX:
            raise ValueError(f"properties of {len(properties)} bytes, more than {PROPERTIES_SIZE_MAX}")
        size = _HEAD.size + len(body) + 2 + len(properties)
        parts += (_HEAD.pack(size, 0, 0, flag, len(body)), body, _I16.pack(len(properties)), properties)
    return b"".join(parts)


def decode_batch(data: bytes, *, count_max: int = BATCH_COUNT_MAX) -> list[BatchMessage]:
    """The messages of a batch body. Raises RemoteProtocolError when it is cut short, torn or has too many."""
    messages: list[BatchMessage] = []
    read_head, read_size = _FLAG_AND_SIZE.unpack_from, _I16.unpack_from
    head_size = _HEAD.size
    position, end = 0, len(data)
    while position < end:
        if len(messages) == count_max:
            raise RemoteProtocolError(f"batch of more than {count_max} messages")
        body_start = position + head_size
        if body_start + 2 > end:
            raise _torn(len(messages))
        flag, body_size = read_head(data, position)
        body_end = body_start + body_size
        if body_size < 0 or body_end + 2 > end:
            raise _torn(len(messages))
        (properties_size,) = read_size(data, body_end)
        position = body_end + 2 + properties_size
        if properties_size < 0 or position > end:
            raise _torn(len(messages))
        messages.append(_new(BatchMessage, (flag, data[body_start:body_end], data[body_end + 2 : position])))
    return messages


def _torn(index: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"message {index} of a batch reaches past its end")
