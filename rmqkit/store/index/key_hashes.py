"""The hashes of a record's keys: its unique id, each of its KEYS, and its tags.

Three functions return the same hashes: `key_hashes` for one record, `batch_hashes` and `run_hashes`
by column for uniform batches that are alike, and for single records that are alike.

By column, the unique ids of all records are a matrix of characters. Java's hash of a text is a sum
of products (`wire/javahash.py`), so the hashes are the product of this matrix and the powers of 31.
numpy computes modulo 2^32 as Java does.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmqkit.store.index.entry_batch import Entries, Numbers
from rmqkit.store.log.uniform_batch import BatchProperties
from rmqkit.wire.javahash import ascii_key_hash, index_key_hash, java_hash
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
_PAIR_END = 2
_ASCII_MAX = 127
_HASH_MAX = 0x7FFFFFFF


class ColumnHashes(NamedTuple):
    """The hashes of the keys of many records."""

    #: those of their unique ids
    hashes: Numbers
    #: the hashes that each of them has besides
    others: tuple[int, ...]

    @property
    def keys(self) -> int:
        """Number of keys of each record."""
        return 1 + len(self.others)

    def entries(self, phy_offsets: Numbers, times_ms: Numbers) -> Entries:
        """Return the entries of these records."""
        if not self.others:
            return Entries(self.hashes, phy_offsets, times_ms)
        hashes = np.empty((len(self.hashes), self.keys), np.int64)
        hashes[:, 0], hashes[:, 1:] = self.hashes, self.others
        return Entries(hashes.ravel(), np.repeat(phy_offsets, self.keys), np.repeat(times_ms, self.keys))


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


class BatchKeys(NamedTuple):
    """What uniform batches must have in common for their keys to be hashed together."""

    topic: str
    own_size: int
    id_at: int
    #: the hashes that each record has besides that of its unique id
    others: tuple[int, ...]


def batch_keys(topic: str, properties: BatchProperties) -> BatchKeys | None:
    """Return the `BatchKeys` of a batch; None if its records have KEYS, which may differ."""
    if properties.is_keyed:
        return None
    if properties.id_at == _UNIQ_KEY_PAIR_SIZE and len(properties.behind) <= BEHIND_SIZE_MAX:
        others = _other_hashes(topic, properties.behind[1:])
    else:
        others = tuple(_all_hashes(topic, properties[0])[1:])
    return None if others is None else BatchKeys(topic, properties.own_size, properties.id_at, others)


def batch_hashes(keys: BatchKeys, batches: Sequence[BatchProperties]) -> ColumnHashes | None:
    """Return what `key_hashes` returns for each record of uniform batches with these keys.

    None if their ids are not ASCII.
    """
    ids = _rows([batch.own for batch in batches], keys.own_size)[:, keys.id_at :]
    hashes = _id_hashes(keys.topic, ids)
    return None if hashes is None else ColumnHashes(hashes, keys.others)


def run_hashes(topic: str, properties: Sequence[bytes]) -> ColumnHashes | None:
    """Return what `key_hashes` returns for each of these records of one topic.

    None unless their properties differ only in their unique ids, of one size, and the unique id is
    the first key.
    """
    first = properties[0]
    begin = first.find(b"\x02") + 1 if first.startswith(_LEADING) else 0
    id_at, end = begin + _UNIQ_KEY_PAIR_SIZE, first.find(b"\x02", begin)
    if end <= id_at or len(first) - end > BEHIND_SIZE_MAX or not first.startswith(_UNIQ_KEY_PAIR, begin):
        return None
    if len(set(map(len, properties))) > 1:
        return None
    rows = _rows(properties, len(first))
    ids = rows[:, id_at:end]
    if (rows[:, :id_at] != rows[0, :id_at]).any() or (rows[:, end:] != rows[0, end:]).any() or (ids == _PAIR_END).any():
        return None
    others = _other_hashes(topic, first[end + 1 :])
    hashes = _id_hashes(topic, ids)
    return None if others is None or hashes is None else ColumnHashes(hashes, others)


def _rows(texts: Sequence[bytes], size: int) -> NDArray[np.uint8]:
    """Return texts of `size` characters as a matrix with a row for each text."""
    return np.frombuffer(b"".join(texts), np.uint8).reshape(-1, size)


def _id_hashes(topic: str, ids: NDArray[np.uint8]) -> Numbers | None:
    """Return `index_key_hash` of each row; None if not all of them are ASCII."""
    if (ids > _ASCII_MAX).any():
        return None
    head, powers = _hash_factors(topic, ids.shape[1])
    hashes = ids.astype(np.uint32) @ powers + head
    # Java's `Math.abs`; the number without an absolute value becomes 0.
    return np.abs(hashes.view(np.int32)).astype(np.int64) & _HASH_MAX


@lru_cache(maxsize=1024)
def _hash_factors(topic: str, size: int) -> tuple[np.uint32, NDArray[np.uint32]]:
    """Return what the topic adds to the hash of a key, and the factor of each of its characters."""
    powers = [pow(31, size - at, 1 << 32) for at in range(size + 1)]
    head = java_hash(f"{topic}#") * powers[0] % (1 << 32)
    return np.uint32(head), np.array(powers[1:], np.uint32)


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
