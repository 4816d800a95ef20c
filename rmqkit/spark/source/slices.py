"""Slices of a buffer as Arrow arrays, and the properties of many messages parsed at once.

Both use the layout of an Arrow text array: its bytes and a list of offsets. With the offsets
`begin, end, begin, end...` over the *whole* buffer, every second entry of the array is a wanted
slice. `take` copies just those entries, in C.

The properties of a batch are copied into one buffer, with a separator before those of each record.
One pass over all bytes finds the separators. The text between two `\\x02` is a pair if it has a
name, a `\\x01` and a value (`wire.properties`).
"""

from functools import lru_cache
from itertools import pairwise
from typing import Any, Self, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Ints: TypeAlias = "NDArray[np.int64]"
Bytes: TypeAlias = "NDArray[np.uint8]"

INT32_MAX = 2**31 - 1


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

    def __init__(self, texts: Bytes, separators: Ints, names: list[str]) -> None:
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
            names.append(name.decode())
        return cls(texts, lines, names) if len(set(names)) == len(names) else None

    def named(self, name: str) -> pa.Array:
        """Return each record's last value of a name, or null."""
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
def _repeated(names: tuple[str, ...], count: int) -> pa.Array:
    return pa.array(names, pa.string()).take(pa.array(np.tile(np.arange(len(names)), count)))


class MixedProperties:
    """Properties of records with any names; used like `AlikeProperties`.

    Record `r` has the pairs from `firsts[r]` up to `firsts[r + 1]` (exclusive).
    """

    def __init__(self, texts: Bytes, offsets: Ints, separators: Ints) -> None:
        # Add a separator behind the end, so that every pair has an end.
        at, kinds = np.append(separators, texts.size), np.append(texts[separators], np.uint8(2))
        outer = np.flatnonzero(kinds == 2)
        begins, name_ends, ends = at[outer[:-1]] + 1, at[outer[:-1] + 1], at[outer[1:]]
        are_pairs = (kinds[outer[:-1] + 1] == 1) & (name_ends > begins) & (ends > name_ends + 1)
        begins, name_ends, ends = begins[are_pairs], name_ends[are_pairs], ends[are_pairs]
        self._names = slices(texts, begins, name_ends, pa.string()).dictionary_encode()
        self._values = slices(texts, name_ends + 1, ends, pa.string())
        self._firsts: Ints = np.searchsorted(begins, offsets)
        self._codes = self._names.indices.to_numpy()
        #: The record of each pair.
        self._rows: Ints = np.repeat(np.arange(len(offsets) - 1), np.diff(self._firsts))

    def named(self, name: str) -> pa.Array:
        found = np.flatnonzero(self._codes == self._names.dictionary.index(name).as_py())
        pairs = np.full(len(self._firsts) - 1, -1)
        pairs[self._rows[found]] = found
        return self._values.take(pa.array(pairs, mask=pairs < 0))

    def maps(self, kind: pa.MapType) -> pa.Array:
        firsts, names, values = self._firsts, self._names.dictionary_decode(), self._values
        keys = self._rows * len(self._names.dictionary) + self._codes
        if (np.diff(np.sort(keys, kind="stable")) == 0).any():
            begins = np.unique(keys, return_index=True)[1]
            lasts = len(keys) - 1 - np.unique(keys[::-1], return_index=True)[1]
            order = np.argsort(begins)
            firsts = np.searchsorted(begins[order], firsts)
            names, values = names.take(pa.array(begins[order])), values.take(pa.array(lasts[order]))
        return pa.MapArray.from_arrays(pa.array(firsts.astype(np.int32)), names, values, type=kind)


def _joined(data: Bytes, begins: Ints, ends: Ints) -> tuple[Bytes, Ints]:
    """Return the texts end to end as valid UTF-8, each behind a `\\x02`, and their offsets.

    The offsets are where each text begins, and the end of the last.
    """
    copied = slices(data, begins - 1, ends, pa.binary())
    offsets = np.frombuffer(copied.buffers()[1], np.int32)[: len(begins) + 1].astype(np.int64)
    texts = np.frombuffer(copied.buffers()[2], np.uint8)[: offsets[-1]].copy()
    texts[offsets[:-1]] = 2
    try:
        buffers = [None, copied.buffers()[1], pa.py_buffer(texts)]
        pa.Array.from_buffers(pa.string(), len(begins), buffers).validate(full=True)
    except pa.ArrowInvalid:
        # As in Java, each invalid byte becomes U+FFFD.
        each = [bytes(texts[a:b]).decode("utf-8", "replace").encode() for a, b in pairwise(offsets)]
        offsets = np.append(0, np.cumsum([len(text) for text in each]))
        texts = np.frombuffer(b"".join(each), np.uint8)
    return texts, offsets
