"""Java's `String.hashCode`, which RocketMQ stores on disk: tag codes in consume queues, keys in index files.

h = u0 * 31^(n-1) + ... + u(n-1) over UTF-16 units, as a signed 32-bit number. It composes: with a before b,
h(ab) = h(a) * 31^len(b) + h(b). So the hash of a long key is put together from the hash of its head, which all keys of
one client share and a cache knows, and of short chunks of its tail, of which there are few different ones.

Source: `common/.../message/MessageExtBrokerInner.java` (`tagsString2tagsCode`), `store/.../index/IndexFile.java`
(`indexKeyHashMethod`).
"""

from functools import lru_cache

_MASK = 0xFFFFFFFF
_TAIL_SIZE = 12
_CHUNK_SIZE = 4
_POWER_TAIL = pow(31, _TAIL_SIZE)
_POWER_2_CHUNKS = pow(31, 2 * _CHUNK_SIZE)
_POWER_CHUNK = pow(31, _CHUNK_SIZE)
_CACHE_SIZE = 65536


def java_hash(text: str) -> int:
    """`text.hashCode()` as Java gives it: -2**31 to 2**31 - 1."""
    return _signed(_unsigned(text))


@lru_cache(maxsize=4096)
def tags_code(tag: str) -> int:
    """What a consume queue entry holds for a message's tag; 0 for none."""
    return java_hash(tag)


def index_key_hash(topic: str, key: str) -> int:
    """The key hash of an index entry for `topic#key`: never negative, 0 for the one number without an absolute value."""
    if len(key) > _TAIL_SIZE and key.isascii():
        tail = key[-_TAIL_SIZE:]
        hashed = _signed(
            _prefix(topic, key[:-_TAIL_SIZE]) * _POWER_TAIL
            + _chunk(tail[:4]) * _POWER_2_CHUNKS
            + _chunk(tail[4:8]) * _POWER_CHUNK
            + _chunk(tail[8:])
        )
    else:
        hashed = java_hash(f"{topic}#{key}")
    return 0 if hashed == -0x80000000 else abs(hashed)


@lru_cache(maxsize=_CACHE_SIZE)
def _chunk(text: str) -> int:
    return _unsigned(text)


@lru_cache(maxsize=_CACHE_SIZE)
def _prefix(topic: str, head: str) -> int:
    return _unsigned(f"{topic}#{head}")


def _unsigned(text: str) -> int:
    """The hash modulo 2**32."""
    hashed = 0
    if text.isascii():
        for unit in text.encode("ascii"):
            hashed = (hashed * 31 + unit) & _MASK
    else:
        units = text.encode("utf-16-le", "surrogatepass")
        for position in range(0, len(units), 2):
            hashed = (hashed * 31 + (units[position] | units[position + 1] << 8)) & _MASK
    return hashed


def _signed(number: int) -> int:
    number &= _MASK
    return number - 0x100000000 if number > 0x7FFFFFFF else number
