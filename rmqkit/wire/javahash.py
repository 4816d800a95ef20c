"""Java's `String.hashCode`, which RocketMQ stores on disk.

It is used for the tag codes in consume queues and the key hashes in index files.

h = u0 * 31^(n-1) + ... + u(n-1) over UTF-16 units, as a signed 32-bit number. Hashes compose: if a
precedes b, h(ab) = h(a) * 31^len(b) + h(b). So the hash of a long key is assembled from caches: all
keys of one client share their head, and those of one millisecond share all but the last four
characters. The remainder is a sum of products, computed by built-in functions in C.

Source: `common/.../message/MessageExtBrokerInner.java` (`tagsString2tagsCode`),
`store/.../index/IndexFile.java` (`indexKeyHashMethod`).
"""

from functools import lru_cache
from operator import mul

_MASK = 0xFFFFFFFF
_TAIL_SIZE = 4
_MIDDLE_SIZE = 8
_POWERS = tuple(pow(31, _MIDDLE_SIZE - 1 - position) for position in range(_MIDDLE_SIZE))
_POWER_TAIL = pow(31, _TAIL_SIZE)
_POWER_MIDDLE = pow(31, _MIDDLE_SIZE)


def java_hash(text: str) -> int:
    """Return what Java's `text.hashCode()` returns: -2**31 to 2**31 - 1."""
    return _signed(_unsigned(text))


@lru_cache(maxsize=4096)
def tags_code(tag: str) -> int:
    """Return the tag code that a consume queue entry holds for a message; 0 for the empty tag."""
    return java_hash(tag)


@lru_cache(maxsize=4096)
def tags_code_of(tags: bytes | None) -> int:
    """Return the tag code of a message with this value of TAGS; 0 if it is absent."""
    return java_hash(tags.decode("utf-8", "replace")) if tags else 0


def index_key_hash(topic: str, key: str) -> int:
    """Return the key hash of an index entry for `topic#key`.

    It is never negative. It is 0 for -2**31, the only 32-bit number without an absolute value.
    """
    if key.isascii():
        return ascii_key_hash(topic, key.encode())
    return _absolute(_unsigned(f"{topic}#{key}"))


def ascii_key_hash(topic: str, key: bytes) -> int:
    """Return `index_key_hash` for a key of ASCII characters."""
    if len(key) <= _MIDDLE_SIZE + _TAIL_SIZE:
        return _absolute(_unsigned(f"{topic}#{key.decode('ascii')}"))
    tail = key[-4] * 29791 + key[-3] * 961 + key[-2] * 31 + key[-1]
    number = (_hash_without_tail(topic, key[:-_TAIL_SIZE]) + tail) & _MASK
    return number if number < 0x80000000 else _absolute(number)


def _absolute(number: int) -> int:
    """Return Java's `Math.abs` of a 32-bit number given modulo 2**32, but 0 for -2**31."""
    if number < 0x80000000:
        return number
    return 0x100000000 - number if number > 0x80000000 else 0


@lru_cache(maxsize=1024)
def _hash_without_tail(topic: str, key: bytes) -> int:
    middle: int = sum(map(mul, key[-_MIDDLE_SIZE:], _POWERS))
    number: int = (_head(topic, key[:-_MIDDLE_SIZE]) * _POWER_MIDDLE + middle) * _POWER_TAIL & _MASK
    return number


@lru_cache(maxsize=4096)
def _head(topic: str, key: bytes) -> int:
    return _unsigned(f"{topic}#{key.decode('ascii')}")


def _unsigned(text: str) -> int:
    """Return the hash modulo 2**32."""
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
