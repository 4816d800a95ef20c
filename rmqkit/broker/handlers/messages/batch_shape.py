"""Decides whether a batch is uniform, and takes it apart by column (`store/log/uniform_batch.py`).

The first message gives the shape: the size of the body, the size of the properties, the place of
the unique id. The properties behind it are compared with those of the last message first: this
comparison finds nearly all batches that are not uniform. Then the columns are compared:

- `behind`, the properties behind the unique id, is the same in all messages.
- The own parts have a \x02 at the same places and nowhere else, and the same bytes from each \x02
  to the \x01 that ends the name. So the names are the same too. Names and tags at the start of the
  part that all share need no comparison.

A batch whose bodies differ in size was decoded message by message before it comes here. If all
sizes are equal, decoding by column costs less than that even for a batch that is not uniform.
"""

from collections.abc import Sequence
from itertools import repeat
from operator import add

from rmqkit.broker.handlers.messages.sent_properties import (
    BEHIND_SIZE_MAX,
    SPECIAL,
    UNIQ,
    UNIQ_PAIR,
    UNIQ_SIZE,
    behind_unique,
)
from rmqkit.store.log.uniform_batch import BatchProperties, UniformBatch
from rmqkit.wire import properties as props
from rmqkit.wire.batch import EqualSizes
from rmqkit.wire.javahash import tags_code_of

#: smaller batches are cheaper on the general path
COUNT_MIN = 6

#: flag, body, properties as sent
Sent = tuple[int, bytes, bytes]


def of_equal_sizes(data: bytes, sizes: EqualSizes) -> UniformBatch | Sequence[Sent] | None:
    """Return the batch in `data`, whose messages may have these sizes.

    Its messages if it is not uniform. None if they differ in flag or sizes.
    """
    first = sizes.properties_of(data, 0)
    split = _split(first)
    if split < 0 or sizes.properties_of(data, sizes.message_count - 1)[split:] != first[split:]:
        split = sizes.properties_size
    columns = sizes.columns(data, split)
    if columns is None:
        return None
    bodies, own, rests = columns
    if split < sizes.properties_size and rests.count(rests[0]) == sizes.message_count:
        uniform = _uniform(sizes.flag, bodies, sizes.body_size, own, rests[0])
        if uniform is not None:
            return uniform
    return list(zip(repeat(sizes.flag), bodies, map(add, own, rests), strict=False))


def of_messages(messages: Sequence[Sent]) -> UniformBatch | None:
    """Return the batch of these messages, whose bodies may differ in size; None if not uniform."""
    flag, _, first = messages[0]
    split = _split(first)
    rest = first[split:]
    if split < 0 or messages[-1][2][split:] != rest:
        return None
    count, size = len(messages), len(first)
    texts = [text for _, _, text in messages]
    if set(map(len, texts)) != {size} or sum(map(bytes.endswith, texts, repeat(rest))) != count:
        return None
    flags, bodies, _ = zip(*messages, strict=True)
    own = [text[:split] for text in texts]
    return _uniform(flag, bodies, 0, own, rest) if flags.count(flag) == count else None


def _split(text: bytes) -> int:
    """Return where the value of UNIQ_KEY ends; -1 if there is no such value, or more than one."""
    if text.startswith(UNIQ_PAIR):
        at = 0
    else:
        at = text.find(UNIQ) + 1
        if at == 0:
            return -1
    end = text.find(b"\x02", at)
    return end if end > at + UNIQ_SIZE and text.count(UNIQ_PAIR) == 1 else -1


def _uniform(flag: int, bodies: Sequence[bytes], body_size: int, own: Sequence[bytes], rest: bytes) -> UniformBatch | None:
    """Return the batch of these columns. `rest` follows each own part, as sent; None if special."""
    one = own[0]
    size = len(one)
    # Without the \x02 that ends the value of UNIQ_KEY.
    sent = rest[1:]
    known = behind_unique(sent) if len(sent) <= BEHIND_SIZE_MAX else behind_unique.__wrapped__(sent)
    if known is None:
        return None
    behind, code = known
    shared = _shared_size(own)
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
            code = tags_code_of(props.find(one + behind, b"TAGS"))
    properties = BatchProperties(joined, size, behind, id_at=id_at, is_keyed=is_keyed)
    return UniformBatch(flag, bodies, body_size, own, properties, code)


def _shared_size(texts: Sequence[bytes]) -> int:
    """Return with how many bytes all of these texts of equal size begin."""
    differing = int.from_bytes(min(texts), "big") ^ int.from_bytes(max(texts), "big")
    return len(texts[0]) - (differing.bit_length() + 7) // 8


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
