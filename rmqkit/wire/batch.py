"""Encode and decode batches: many small messages in the body of one send request.

The broker stores each message of a batch as a record of its own. One message is, big-endian:

    i32 size · i32 magic 0 · i32 CRC 0 · i32 flag · i32 size + body · i16 size + properties

Java's broker ignores the first three fields, and so does this module. The request header has the
fields that all messages share: topic, queue, sysFlag and born time.

Source: `common/.../message/MessageDecoder.java` (`encodeMessage`),
`store/.../MessageExtEncoder.java`.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, NamedTuple

from rmqkit.errors import RemoteProtocolError
from rmqkit.wire.properties import PROPERTIES_SIZE_MAX

BATCH_COUNT_MAX = 65536
#: most messages that are unpacked by one call; a layout of that many takes 20 KiB of memory
_COUNT_PER_UNPACK = 128
_FIELDS = 5

_HEAD = Struct(">iiiii")
_FLAG_AND_SIZE = Struct(">12xii")
_FLAG_AND_SIZE_ALONE = Struct(">ii")
_I16 = Struct(">h")
_new = tuple.__new__


class BatchMessage(NamedTuple):
    flag: int
    body: bytes
    properties: bytes


def encode_batch(messages: Iterable[BatchMessage]) -> bytes:
    """Return the body of a batch send.

    Raises ValueError if the properties of a message are longer than 32767 bytes.
    """
    parts: list[bytes] = []
    for flag, body, properties in messages:
        if len(properties) > PROPERTIES_SIZE_MAX:
            raise ValueError(f"properties of {len(properties)} bytes, more than {PROPERTIES_SIZE_MAX}")
        size = _HEAD.size + len(body) + 2 + len(properties)
        parts += (_HEAD.pack(size, 0, 0, flag, len(body)), body, _I16.pack(len(properties)), properties)
    return b"".join(parts)


def decode_batch(data: bytes, *, count_max: int = BATCH_COUNT_MAX) -> list[BatchMessage]:
    """Return the messages of a batch body.

    Raises RemoteProtocolError if a message reaches past the end of the body or there are more than
    `count_max` messages.
    """
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


class EqualSizes(NamedTuple):
    """Says that a batch body may hold `message_count` messages with sizes and flag of the first."""

    message_count: int
    flag: int
    body_size: int
    properties_size: int

    @property
    def size(self) -> int:
        """Bytes of one encoded message."""
        return _HEAD.size + self.body_size + 2 + self.properties_size

    def properties_of(self, data: bytes, number: int) -> bytes:
        end = (number + 1) * self.size
        return data[end - self.properties_size : end]

    def columns(self, data: bytes, split: int) -> tuple[Sequence[bytes], Sequence[bytes], Sequence[bytes]] | None:
        """Return the bodies, the first `split` bytes of each properties text, and the rest of each.

        None if the messages differ in flag or sizes.
        """
        count, flag, body_size, properties_size = self
        sizes_of_one = body_size, split, properties_size - split
        columns: Iterable[Sequence[Any]]
        if count <= _COUNT_PER_UNPACK:
            values = _layout(count, *sizes_of_one).unpack(data)
            columns = [values[field::_FIELDS] for field in range(_FIELDS)]
        else:
            columns = zip(*_layout(1, *sizes_of_one).iter_unpack(data), strict=True)
        flags_and_sizes, bodies, sizes, texts, rests = columns
        flag_and_size = _FLAG_AND_SIZE_ALONE.pack(flag, body_size)
        if flags_and_sizes.count(flag_and_size) != count or sizes.count(properties_size) != count:
            return None
        return bodies, texts, rests


def equal_sizes(data: bytes) -> EqualSizes | None:
    """Return the sizes of the first message if the whole body may consist of such messages.

    None if it cannot, if it has more than `BATCH_COUNT_MAX` messages, or if the first one is torn.
    """
    end = len(data)
    if end < _HEAD.size + 2:
        return None
    flag, body_size = _FLAG_AND_SIZE.unpack_from(data)
    body_end = _HEAD.size + body_size
    if body_size < 0 or body_end + 2 > end:
        return None
    (properties_size,) = _I16.unpack_from(data, body_end)
    count, rest = divmod(end, body_end + 2 + max(properties_size, 0))
    if rest or properties_size < 0 or count > BATCH_COUNT_MAX:
        return None
    return _new(EqualSizes, (count, flag, body_size, properties_size))


@lru_cache(maxsize=64)
def _layout(count: int, body_size: int, split: int, rest: int) -> Struct:
    return Struct(">" + f"12x8s{body_size}sh{split}s{rest}s" * count)


def _torn(index: int) -> RemoteProtocolError:
    return RemoteProtocolError(f"message {index} of a batch reaches past its end")
