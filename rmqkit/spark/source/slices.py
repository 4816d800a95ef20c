"""Slices of a buffer as Arrow arrays, and the properties of many messages parsed at once.

Both use the layout of an Arrow text array: its bytes and a list of offsets. With the offsets
`begin, end, begin, end...` over the *whole* buffer, every second entry of the array is a wanted
slice. `take` copies just those entries, in C.

The properties of a batch are copied into one buffer, with a separator before those of each record.
One pass over all bytes finds the separators. The text between two `\\x02` is a pair if it has a
name, a `\\x01` and a value (`wire.properties`).
"""

from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Self, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Ints: TypeAlias = "NDArray[np.int64]"
Bytes: TypeAlias = "NDArray[np.uint8]"

INT32_MAX = 2**31 - 1
#: With more distinct names than this in a batch, duplicates are found by sorting.
_FEW_NAMES = 64
#: Size of a name in bytes -> the integer type in which names of this size are compared.
_AS_NUMBER: dict[int, np.dtype[Any]] = {1: np.dtype("u1"), 2: np.dtype("u2"), 4: np.dtype("u4"), 8: np.dtype("u8")}


def gather(data: Bytes, positions: Ints, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the number at each of the positions, which need not be aligned."""
    every = np.ndarray((data.size - dtype.itemsize + 1,), dtype, data, strides=(1,))
    return every[positions].astype(dtype.newbyteorder("="), copy=False)


def slices(data: Bytes, begins: Ints, ends: Ints, kind: pa.DataType) -> pa.Array:
    """Return each `data[begin:end]` as an array of `kind`: binary, or string (unchecked UTF-8)."""
    count = len(begins)
    if not count:
        return pa.array([], kind)
    wanted = np.arange(0, 2 * count, 2, dtype=np.int64)
    if count > 1 and not (begins[1:] >= ends[:-1]).all():
        order = np.argsort(begins, kind="stable")
        wanted[order] = wanted.copy()
        begins, ends = begins[order], ends[order]
    first, last = int(begins[0]), int(ends.max())
    offsets = np.empty(2 * count, np.int64)
    offsets[0::2] = begins
    offsets[1::2] = ends
    offsets -= first
    is_large = last - first > INT32_MAX
    wide = {pa.binary(): pa.large_binary(), pa.string(): pa.large_string()}[kind] if is_large else kind
    buffers = [None, pa.py_buffer(offsets if is_large else offsets.astype(np.int32)), pa.py_buffer(data[first:last])]
    every = pa.Array.from_buffers(wide, 2 * count - 1, buffers)
    taken = every.take(pa.array(wanted))
    return taken.cast(kind) if is_large else taken


def properties(data: Bytes, begins: Ints, ends: Ints) -> "AlikeProperties | MixedProperties":
    """Parse the properties in each `data[begin:end]`.

    The byte before each `begin` must exist; its value is ignored.
    """
    texts, offsets = _joined(data, begins, ends)
    separators = np.flatnonzero((texts - np.uint8(1)) < 2)
    return AlikeProperties.of(texts, offsets, separators) or MixedProperties(texts, offsets, separators)


class AlikeProperties:
    """Properties of records that all have the same names in the same order, as from one producer.

    `separators` has positions, one row per record. Column `2 * i` is the end of pair `i - 1`, and
    column `2 * i + 1` the end of the name of pair `i`. The last column is the end of the last
    value.
    """

    def __init__(self, texts: Bytes, separators: Ints, names: list[bytes]) -> None:
        self._texts = texts
        self._separators = separators
        self._names = names

    @classmethod
    def of(cls, texts: Bytes, offsets: Ints, separators: Ints) -> Self | None:
        count = len(offsets) - 1
        width, rest = divmod(len(separators), count) if count else (0, 1)
        if rest or width < 2:
            return None
        lines = separators.reshape(count, width)
        kinds = texts[separators].reshape(count, width)
        first = kinds[0].tolist()
        if first != ([2, 1] * width)[:width] or not (kinds == kinds[0]).all() or (lines[:, 0] != offsets[:-1]).any():
            return None
        if first[-1] == 1:
            lines = np.column_stack((lines, offsets[1:]))
        elif (lines[:, -1] != offsets[1:] - 1).any():
            return None
        names = []
        for place in range(0, lines.shape[1] - 1, 2):
            begins, ends = lines[:, place] + 1, lines[:, place + 1]
            size = int(ends[0] - begins[0])
            name = texts[begins[0] : ends[0]].tobytes()
            if not size or (ends - begins != size).any() or (lines[:, place + 2] - ends < 2).any():
                return None
            if (gather(texts, begins, np.dtype(f"S{size}")) != name.rstrip(b"\0")).any():
                return None
            names.append(name)
        return cls(texts, lines, names) if len(set(names)) == len(names) else None

    def named(self, name: bytes) -> pa.Array:
        """Return each record's last value of a name (of 1, 2, 4 or 8 bytes), or null."""
        lines = self._separators
        if name not in self._names:
            return pa.nulls(len(lines), pa.string())
        place = 2 * self._names.index(name)
        return slices(self._texts, lines[:, place + 1] + 1, lines[:, place + 2], pa.string())

    def maps(self, kind: pa.MapType) -> pa.Array:
        """Return a map of each record's pairs.

        If a name occurs twice, the last value counts, at the position of the first.
        """
        lines = self._separators
        count, width = len(lines), len(self._names)
        values = slices(self._texts, (lines[:, 1::2] + 1).ravel(), lines[:, 2::2].ravel(), pa.string())
        firsts = pa.array(np.arange(0, count * width + 1, width, dtype=np.int32))
        return pa.MapArray.from_arrays(firsts, _repeated(tuple(self._names), count), values, type=kind)


@lru_cache(maxsize=4)
def _repeated(names: tuple[bytes, ...], count: int) -> pa.Array:
    every = pa.array([name.decode() for name in names], pa.string())
    return every.take(pa.array(np.tile(np.arange(len(names)), count)))


class MixedProperties:
    """Properties of records with any names; used like `AlikeProperties`.

    Pair `i` has the name `texts[name_begins[i]:name_ends[i]]` and the value
    `texts[value_begins[i]:value_ends[i]]`. Record `r` has the pairs from `firsts[r]` up to
    `firsts[r + 1]` (exclusive).
    """

    def __init__(self, texts: Bytes, offsets: Ints, separators: Ints) -> None:
        self.texts = texts
        self.count = len(offsets) - 1
        is_lead = np.zeros(texts.size, np.bool_)
        is_lead[offsets[:-1]] = True
        # Add a separator behind the end, so that every pair has an end.
        at = np.append(separators, texts.size)
        kinds = np.append(texts[separators], np.uint8(2))
        outer = np.flatnonzero(kinds == 2)
        before, after = outer[:-1], outer[1:]
        name_begins, name_ends, value_ends = at[before] + 1, at[before + 1], at[after]
        is_pair = (kinds[before + 1] == 1) & (name_ends > name_begins) & (value_ends > name_ends + 1)
        self.name_begins = name_begins[is_pair]
        self.name_ends = name_ends[is_pair]
        self.value_begins = self.name_ends + 1
        self.value_ends = value_ends[is_pair]
        ordinals = np.append(np.cumsum(is_pair) - is_pair, len(self.name_begins))
        leads = np.flatnonzero(is_lead[at[before]])
        self.firsts = np.append(ordinals[leads], ordinals[-1])

    @cached_property
    def rows(self) -> Ints:
        """The record of each pair."""
        return np.repeat(np.arange(self.count, dtype=np.int64), np.diff(self.firsts))

    def named(self, name: bytes) -> pa.Array:
        sizes = self.name_ends - self.name_begins
        found = np.flatnonzero(sizes == len(name))
        number = _AS_NUMBER[len(name)]
        if found.size:
            wanted = np.frombuffer(name, number)[0]
            found = found[gather(self.texts, self.name_begins[found], number) == wanted]
        pairs = np.full(self.count, -1, np.int64)
        pairs[self.rows[found]] = found
        there = pairs >= 0
        if not there.any():
            return pa.nulls(self.count, pa.string())
        found = pairs[there]
        values = slices(self.texts, self.value_begins[found], self.value_ends[found], pa.string())
        if len(found) == self.count:
            return values
        return values.take(pa.array(np.cumsum(there) - 1, mask=~there))

    def maps(self, kind: pa.MapType) -> pa.Array:
        names = slices(self.texts, self.name_begins, self.name_ends, pa.string())
        values, firsts = np.arange(len(names), dtype=np.int64), self.firsts
        kept = _kept(self.rows, names, self.count)
        if kept is not None:
            is_kept, values = kept
            names = names.filter(pa.array(is_kept))
            firsts = np.append(0, np.cumsum(is_kept))[firsts]
            values = values[is_kept]
        texts = slices(self.texts, self.value_begins[values], self.value_ends[values], pa.string())
        return pa.MapArray.from_arrays(pa.array(firsts.astype(np.int32)), names, texts, type=kind)


def _joined(data: Bytes, begins: Ints, ends: Ints) -> tuple[Bytes, Ints]:
    """Return the texts end to end as valid UTF-8, each behind a `\\x02`, and their offsets.

    The offsets are where each text begins, and the end of the last.
    """
    copied = slices(data, begins - 1, ends, pa.binary())
    offsets = np.frombuffer(copied.buffers()[1], np.int32)[: len(begins) + 1].astype(np.int64)
    texts = np.frombuffer(copied.buffers()[2], np.uint8)[: offsets[-1]].copy()
    texts[offsets[:-1]] = 2
    if (texts < 0x80).all():
        return texts, offsets
    try:
        texts.tobytes().decode()
    except UnicodeDecodeError:
        # As in Java, each invalid byte becomes U+FFFD.
        each = [bytes(texts[a:b]).decode("utf-8", "replace").encode() for a, b in pairwise(offsets)]
        offsets = np.append(0, np.cumsum([len(text) for text in each]))
        texts = np.frombuffer(b"".join(each), np.uint8)
    return texts, offsets


def _kept(rows: Ints, names: pa.Array, count: int) -> tuple[NDArray[np.bool_], Ints] | None:
    """Return a mask of the pairs to keep, and for each pair the pair whose value it has.

    Returns None if no record has a name twice.
    """
    encoded = names.dictionary_encode()
    codes, width = encoded.indices.to_numpy().astype(np.int64), max(1, len(encoded.dictionary))
    keys = rows * width + codes
    if width <= _FEW_NAMES:
        seen = np.zeros(count * width, np.bool_)
        seen[keys] = True
        if np.count_nonzero(seen) == len(keys):
            return None
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])) if len(keys) else order
    if len(starts) == len(keys):
        return None
    lasts = order[np.append(starts[1:], len(keys)) - 1]
    kept = np.zeros(len(keys), np.bool_)
    kept[order[starts]] = True
    values = np.arange(len(keys), dtype=np.int64)
    values[order[starts]] = lasts
    return kept, values
