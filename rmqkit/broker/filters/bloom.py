"""Bit maps that say in advance which groups may want a message (`enableCalcFilterBitMap`).

Each group that filters a topic by an expression has k of m bits, by a hash of `group#topic`. When a
message arrives, its bit map gets the bits of all groups whose expressions are true. If not all bits
of a group are set, the group's pulls need not read the record. k and m follow from the accepted
rate f of false hits (`maxErrorRateOfBloomFilter`, percent) and the expected number n of groups
(`expectConsumerNumUseFilter`).

    k = ceil(ln(f) / ln(0.5))        m = ceil(n · log2(1/f) · log2(e)), a multiple of 8
    bit i of 1..k = h1 + i·h2 as an int32, inverted when negative, mod m
    h1, h2 = low and high half of the first 64 bits of murmur3_128

Source: `filter/.../util/{BloomFilter,BitsArray}.java`; Guava's `Hashing.murmur3_128`.
"""

from math import ceil, e, log

from rmqkit.wire.bodies.filters import BloomData

_MASK = (1 << 64) - 1
_C1, _C2 = 0x87C37B91114253D5, 0x4CF5AD432745937F


class Bloom:
    """The sizes of all bit maps of a broker: k (`hashes`) and m (`bits`)."""

    def __init__(self, *, error_percent: int, groups: int) -> None:
        """`error_percent` 1 to 99, `groups` at least 1."""
        error = error_percent / 100
        self.hashes = ceil(log(error) / log(0.5))
        bits = ceil(groups * (log(1 / error) / log(2)) * (log(e) / log(2)))
        self.bits = 8 * ceil(bits / 8)

    def data(self, group: str, topic: str) -> BloomData:
        """Return the bits of a group in the bit maps of a topic."""
        return BloomData(bit_num=self.bits, bit_pos=bit_positions(f"{group}#{topic}", self.hashes, self.bits))

    def is_valid(self, data: BloomData | None) -> bool:
        """Return whether the bits were computed with the same k and m."""
        return data is not None and data.bit_num == self.bits and len(data.bit_pos or ()) == self.hashes


def bit_positions(text: str, hashes: int, bits: int) -> list[int]:
    """Return `hashes` bit numbers below `bits`; the formula is in the head of this module."""
    hash64 = murmur3_64(text.encode("utf-8", "replace"))
    low, high = hash64 & 0xFFFFFFFF, hash64 >> 32
    found = []
    for i in range(1, hashes + 1):
        combined = (low + i * high) & 0xFFFFFFFF
        if combined & 0x80000000:
            combined ^= 0xFFFFFFFF
        found.append(combined % bits)
    return found


def mask_of(data: BloomData) -> int:
    """Return the bits as a number, ordered as in `int.from_bytes(bit_map, "little")`.

    Source: `BitsArray.position`.
    """
    mask = 0
    for position in data.bit_pos or ():
        mask |= 1 << position
    return mask


def murmur3_64(data: bytes) -> int:
    """Return the first 64 bits of murmur3_x64_128 with seed 0, like Guava's `asLong`."""
    h1 = h2 = 0
    blocks = len(data) // 16
    for at in range(0, blocks * 16, 16):
        h1 = (_rotl(h1 ^ _mix1(int.from_bytes(data[at : at + 8], "little")), 27) + h2) & _MASK
        h1 = (h1 * 5 + 0x52DCE729) & _MASK
        h2 = (_rotl(h2 ^ _mix2(int.from_bytes(data[at + 8 : at + 16], "little")), 31) + h1) & _MASK
        h2 = (h2 * 5 + 0x38495AB5) & _MASK
    rest = data[blocks * 16 :]
    h1 ^= _mix1(int.from_bytes(rest[:8], "little"))
    h2 ^= _mix2(int.from_bytes(rest[8:], "little"))
    h1 ^= len(data)
    h2 ^= len(data)
    h1 = (h1 + h2) & _MASK
    h2 = (h2 + h1) & _MASK
    return (_final(h1) + _final(h2)) & _MASK


def _mix1(block: int) -> int:
    return _rotl(block * _C1 & _MASK, 31) * _C2 & _MASK


def _mix2(block: int) -> int:
    return _rotl(block * _C2 & _MASK, 33) * _C1 & _MASK


def _rotl(number: int, count: int) -> int:
    return (number << count | number >> (64 - count)) & _MASK


def _final(number: int) -> int:
    number = (number ^ number >> 33) * 0xFF51AFD7ED558CCD & _MASK
    number = (number ^ number >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return number ^ number >> 33
