"""The hashes of a record's keys: its unique id, each of its KEYS, and its tags.

Three functions return the same hashes: `key_hashes` for one record, `batch_hashes` and `run_hashes`
by column for the records of a uniform batch, and for single records that are alike.
"""

from collections.abc import Sequence
from functools import lru_cache
from struct import Struct

from rmqkit.store.log.uniform_batch import BatchProperties
from rmqkit.wire.javahash import TAIL_SIZES, ascii_key_hash, ascii_key_hashes, ascii_run_hashes, index_key_hash
from rmqkit.wire.properties import PROPERTY_KEYS, PROPERTY_TAGS, PROPERTY_UNIQ_KEY, find

_UNIQ_KEY = PROPERTY_UNIQ_KEY.encode()
_UNIQ_KEY_PAIR = _UNIQ_KEY + b"\x01"
_UNIQ_KEY_PAIR_SIZE = len(_UNIQ_KEY_PAIR)
_KEYS = PROPERTY_KEYS.encode()
_KEYS_PAIR = _KEYS + b"\x01"
_TAGS = PROPERTY_TAGS.encode()
#: begins a pair that has no keys, and that Java's hash map returns before the unique id
_LEADING = b"TIMER_DELIVER_MS\x01"
_TAGS_PAIR = _TAGS + b"\x01"
#: prefix that turns tags into a key (Apache's INDEX_TAG_TYPE, since 5.4)
TAG_KEY = "T#"
#: bytes; longer properties are not cached, so that the cache stays small
BEHIND_SIZE_MAX = 256
#: characters of a part of a unique id; Java's ids end with one for the time and one for a counter
_PART = 4


def key_hashes(topic: str, properties: bytes) -> list[int]:
    """Return the hashes of a record's unique id, each of its keys, and its tags.

    Java clients write the unique id first, and often only the unique id differs from one record to
    the next. So the hashes of everything behind it are cached as a whole.
    """
    if properties.startswith(_LEADING):
        properties = properties.partition(b"\x02")[2]
    unique, _, behind = properties.partition(b"\x02")
    if unique[:_UNIQ_KEY_PAIR_SIZE] == _UNIQ_KEY_PAIR and len(behind) <= BEHIND_SIZE_MAX and unique.isascii():
        others = _other_hashes(topic, behind)
        if others is not None and len(unique) > _UNIQ_KEY_PAIR_SIZE:
            return [ascii_key_hash(topic, unique[_UNIQ_KEY_PAIR_SIZE:]), *others]
    return _all_hashes(topic, properties)


def batch_hashes(
    topic: str, properties: BatchProperties, first: int, count: int
) -> tuple[list[int], tuple[int, ...]] | None:
    """Return what `key_hashes` returns for `count` records of a uniform batch, from `first` on.

    The hashes of their unique ids, and the hashes that all of them have besides. None if that
    cannot be said by column: KEYS that differ, ids that are not ASCII, differ in more than eight
    characters, or are very short.
    """
    size, behind = properties.own_size, properties.behind
    own = properties.own[first * size : (first + count) * size]
    differing = properties.id_size - properties.shared_size
    tail = next((each for each in TAIL_SIZES if each >= differing), 0)
    if not 0 < tail <= properties.id_size or properties.is_keyed or not own.isascii():
        return None
    others: tuple[int, ...] | None
    if properties.id_at == _UNIQ_KEY_PAIR_SIZE and len(behind) <= BEHIND_SIZE_MAX:
        others = _other_hashes(topic, behind[1:])
    else:
        others = tuple(_all_hashes(topic, properties[0])[1:])
    if others is None:
        return None
    columns = [own[at::size] for at in range(size - tail, size)]
    return ascii_key_hashes(topic, own[properties.id_at : size - tail], columns), others


def run_hashes(topic: str, properties: Sequence[bytes]) -> tuple[list[int], tuple[int, ...]] | None:
    """Return what `key_hashes` returns for records of one topic, in the form of `batch_hashes`.

    None unless their properties differ only in the last eight characters of their unique ids, and
    the unique id is the first key.
    """
    first = properties[0]
    begin = first.find(b"\x02") + 1 if first.startswith(_LEADING) else 0
    end = first.find(b"\x02", begin)
    id_at, tail_at = begin + _UNIQ_KEY_PAIR_SIZE, end - 2 * _PART
    if tail_at < id_at + _PART or len(first) - end > BEHIND_SIZE_MAX or not first.startswith(_UNIQ_KEY_PAIR, begin):
        return None
    if len(set(map(len, properties))) > 1:
        return None
    layout = _layout(tail_at, len(first) - end)
    heads, middles, tails, behinds = zip(*layout.iter_unpack(b"".join(properties)), strict=True)
    own = b"".join(tails)
    changing = b"".join([*set(middles), own])
    if len(set(heads)) > 1 or len(set(behinds)) > 1 or b"\x02" in changing or not (changing + heads[0]).isascii():
        return None
    others = _other_hashes(topic, first[end + 1 :])
    if others is None:
        return None
    return ascii_run_hashes(topic, first[id_at:tail_at], middles, [own[at::_PART] for at in range(_PART)]), others


@lru_cache(maxsize=64)
def _layout(head_size: int, behind_size: int) -> Struct:
    """Return the layout of properties with two changing parts."""
    return Struct(f"{head_size}s{_PART}s{_PART}s{behind_size}s")


@lru_cache(maxsize=1024)
def _other_hashes(topic: str, properties: bytes) -> tuple[int, ...] | None:
    """Return the hashes of properties behind a unique id; None if they contain another one."""
    return None if _UNIQ_KEY_PAIR in properties else tuple(_all_hashes(topic, properties))


def _all_hashes(topic: str, properties: bytes) -> list[int]:
    hashes = []
    unique = find(properties, _UNIQ_KEY)
    if unique:
        hashes.append(_key_hash(topic, unique))
    if _KEYS_PAIR in properties:
        for key in (find(properties, _KEYS) or b"").split(b" "):
            if key:
                hashes.append(_key_hash(topic, key))
    if _TAGS_PAIR in properties and (tags := find(properties, _TAGS)):
        hashes.append(_tag_hash(topic, tags))
    return hashes


def _key_hash(topic: str, key: bytes) -> int:
    if key.isascii():
        return ascii_key_hash(topic, key)
    return index_key_hash(topic, key.decode("utf-8", "replace"))


@lru_cache(maxsize=4096)
def _tag_hash(topic: str, tags: bytes) -> int:
    return index_key_hash(topic, TAG_KEY + tags.decode("utf-8", "replace"))
