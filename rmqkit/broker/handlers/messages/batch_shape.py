"""Decides whether a batch is uniform, and takes it apart by column (`store/uniform_batch.py`).

The first message gives the shape: the size of the body, the size of the properties, the place of
the unique id. The last message must have the same, which is checked first: so nearly all batches
that are not uniform cost two reads. Then the columns are compared:

- `behind`, the properties behind the unique id, is the same in all messages.
- The own parts have a \x02 at the same places and nowhere else, and the same bytes from each \x02
  to the \x01 that ends the name. So the names are the same too. Names and tags at the start of the
  part that all share need no comparison.

A batch whose bodies differ in size was decoded message by message before it comes here.
"""

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct

from rmqkit.broker.handlers.messages.sent_properties import (
    BEHIND_SIZE_MAX,
    SPECIAL,
    UNIQ,
    UNIQ_PAIR,
    UNIQ_SIZE,
    behind_unique,
)
from rmqkit.store.uniform_batch import BatchProperties, UniformBatch
from rmqkit.wire import properties as props
from rmqkit.wire.batch import BatchMessage, EqualSizes
from rmqkit.wire.javahash import tags_code

#: smaller batches are cheaper on the general path
COUNT_MIN = 4


def of_equal_sizes(data: bytes, sizes: EqualSizes) -> UniformBatch | None:
    """Return the batch in `data`, whose messages may have these sizes; None if it is not uniform."""
    first = sizes.properties_of(data, 0)
    split = _split(first)
    if split is None or sizes.properties_of(data, sizes.count - 1)[split:] != first[split:]:
        return None
    columns = sizes.columns(data, split)
    return None if columns is None else _uniform(sizes.flag, columns[0], sizes.body_size, columns[1], first)


def of_messages(messages: Sequence[BatchMessage]) -> UniformBatch | None:
    """Return the batch of these messages, whose bodies may differ in size; None if not uniform."""
    flag, _, first = messages[0]
    split = _split(first)
    if split is None or messages[-1].properties[split:] != first[split:]:
        return None
    flags, bodies, texts = zip(*messages, strict=True)
    count, size = len(messages), len(first)
    if flags.count(flag) != count or set(map(len, texts)) != {size}:
        return None
    own, behind = zip(*_halves(split, size - split).iter_unpack(b"".join(texts)), strict=True)
    return _uniform(flag, bodies, 0, own, first) if behind.count(first[split:]) == count else None


@lru_cache(maxsize=64)
def _halves(first: int, second: int) -> Struct:
    return Struct(f"{first}s{second}s")


def _split(text: bytes) -> int | None:
    """Return where the value of UNIQ_KEY ends; None if there is no such value, or more than one."""
    at = 0 if text.startswith(UNIQ_PAIR) else text.find(UNIQ) + 1
    if (at == 0 and not text.startswith(UNIQ_PAIR)) or text.count(UNIQ_PAIR) != 1:
        return None
    end = text.find(b"\x02", at)
    return end if end > at + UNIQ_SIZE else None


def _uniform(flag: int, bodies: Sequence[bytes], body_size: int, own: Sequence[bytes], first: bytes) -> UniformBatch | None:
    """Return the batch of these columns; `first` has the properties of the first message, as sent."""
    one = own[0]
    size = len(one)
    rest = first[size + 1 :]
    known = behind_unique(rest) if len(rest) <= BEHIND_SIZE_MAX else behind_unique.__wrapped__(rest)
    if known is None:
        return None
    behind, code = known
    least, greatest = min(own), max(own)
    differing = int.from_bytes(least, "big") ^ int.from_bytes(greatest, "big")
    shared = size - (differing.bit_length() + 7) // 8
    joined = b"".join(own)
    id_at = one.rfind(UNIQ_PAIR) + UNIQ_SIZE
    is_keyed = False
    if id_at == UNIQ_SIZE:
        if shared < id_at or b"\x02" in joined:
            return None
    else:
        before = one[: id_at - UNIQ_SIZE]
        if SPECIAL(b"\x02" + before) or not _names_match(joined, one, len(own), shared):
            return None
        is_keyed = b"KEYS\x01" in before
        if b"TAGS\x01" in before:
            tag = props.find(one + behind, b"TAGS")
            code = tags_code(tag.decode("utf-8", "replace")) if tag else 0
    properties = BatchProperties(joined, size, behind, id_at=id_at, shared_size=shared, is_keyed=is_keyed)
    return UniformBatch(flag, bodies, body_size, own, properties, code)


def _names_match(joined: bytes, one: bytes, count: int, shared: int) -> bool:
    """Return whether all own parts have the names of the first one, `one`, and its tags."""
    size = len(one)
    if joined.count(b"\x02") != one.count(b"\x02") * count:
        return False
    begin = 0
    while begin < size:
        end = one.find(b"\x02", begin)
        end = size if end < 0 else end
        value = one.find(b"\x01", begin, end) + 1
        compared = end if value == 0 or one[begin:value] == b"TAGS\x01" else value
        for at in range(max(begin - 1, shared), compared):
            if joined[at::size].count(one[at]) != count:
                return False
        begin = end + 1
    return True
