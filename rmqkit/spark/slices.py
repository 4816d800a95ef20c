"""Slices of a buffer as Arrow arrays, and the properties of many messages split at once.

Both rest on one trick: an Arrow text array is its bytes and a list of offsets, so with the offsets `begin, end, begin,
end...` every second entry of an array over the *whole* buffer is a slice that is wanted; `take` copies just those, in C.

The properties of a batch are copied into one buffer, each record's with a separator before it. The separators are found
by one look at all bytes; what lies between two `\\x02` is a pair when it has a name, a `\\x01` and a value
(`wire.properties`).
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Ints: TypeAlias = "NDArray[np.int64]"
Bytes: TypeAlias = "NDArray[np.uint8]"

INT32_MAX = 2**31 - 1
#: with more names than this in a batch, duplicates are looked for by sorting
_FEW_NAMES = 64
#: names are compared as numbers of their size
_AS_NUMBER: dict[int, np.dtype[Any]] = {1: np.dtype("u1"), 2: np.dtype("u2"), 4: np.dtype("u4"), 8: np.dtype("u8")}


def gather(data: Bytes, positions: Ints, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The number that stands at each of the positions, wherever that is."""
    every = np.ndarray((data.size - dtype.itemsize + 1,), dtype, data, strides=(1,))
    return every[positions].astype(dtype.newbyteorder("="), copy=False)


def slices(data: Bytes, begins: Ints, ends: Ints, kind: pa.DataType) -> pa.Array:
    """`data[begin:end]` for each, as an array of `kind`: binary, or string, which is not checked to be UTF-8."""
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


class PropertyTexts:
    """The properties of many records: pairs of name and value in the order of the records.

    `data` holds all texts; pair `i` is `data[name_begins[i]:name_ends[i]]` and `data[value_begins[i]:value_ends[i]]`.
    The pairs of record `r` are those from `firsts[r]` to `firsts[r + 1]`.
    """

    def __init__(self, data: Bytes, begins: Ints, ends: Ints) -> None:
        """Of the texts `data[begin:end]`; the byte before each is not looked at and must be there."""
        self.count = len(begins)
        texts, offsets = _joined(data, begins, ends)
        self.data = texts
        found = np.flatnonzero((texts - np.uint8(1)) < 2)
        is_lead = np.zeros(texts.size, np.bool_)
        is_lead[offsets[:-1]] = True
        # One separator more behind the end, so that every pair has an end.
        at = np.append(found, texts.size)
        kinds = np.append(texts[found], np.uint8(2))
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

    def pairs_named(self, name: bytes) -> Ints:
        """For each record the last pair of that name (of 1, 2, 4 or 8 bytes), -1 without one."""
        sizes = self.name_ends - self.name_begins
        of_size = np.flatnonzero(sizes == len(name))
        number = _AS_NUMBER[len(name)]
        if of_size.size:
            wanted = np.frombuffer(name, number)[0]
            of_size = of_size[gather(self.data, self.name_begins[of_size], number) == wanted]
        pairs = np.full(self.count, -1, np.int64)
        pairs[self.rows[of_size]] = of_size
        return pairs

    def values(self, pairs: Ints) -> pa.Array:
        """The values of these pairs as text, null for -1."""
        there = pairs >= 0
        if not there.any():
            return pa.nulls(len(pairs), pa.string())
        found = pairs[there]
        texts = slices(self.data, self.value_begins[found], self.value_ends[found], pa.string())
        if len(found) == len(pairs):
            return texts
        return texts.take(pa.array(np.cumsum(there) - 1, mask=~there))

    def maps(self, kind: pa.MapType) -> pa.Array:
        """A map of each record's pairs; of two with one name the last value wins, in the place of the first."""
        names = slices(self.data, self.name_begins, self.name_ends, pa.string())
        values, firsts = np.arange(len(names), dtype=np.int64), self.firsts
        kept = _kept(self.rows, names, self.count)
        if kept is not None:
            is_kept, values = kept
            names = names.filter(pa.array(is_kept))
            firsts = np.append(0, np.cumsum(is_kept))[firsts]
            values = values[is_kept]
        texts = slices(self.data, self.value_begins[values], self.value_ends[values], pa.string())
        return pa.MapArray.from_arrays(pa.array(firsts.astype(np.int32)), names, texts, type=kind)


def _joined(data: Bytes, begins: Ints, ends: Ints) -> tuple[Bytes, Ints]:
    """The texts end to end, each with `\\x02` before it, as valid UTF-8; and where each begins and the last ends."""
    copied = slices(data, begins - 1, ends, pa.binary())
    offsets = np.frombuffer(copied.buffers()[1], np.int32)[: len(begins) + 1].astype(np.int64)
    texts = np.frombuffer(copied.buffers()[2], np.uint8)[: offsets[-1]].copy()
    texts[offsets[:-1]] = 2
    if (texts < 0x80).all():
        return texts, offsets
    try:
        texts.tobytes().decode()
    except UnicodeDecodeError:
        # As Java reads them: each bad byte is U+FFFD.
        each = [bytes(texts[a:b]).decode("utf-8", "replace").encode() for a, b in pairwise(offsets)]
        offsets = np.append(0, np.cumsum([len(text) for text in each]))
        texts = np.frombuffer(b"".join(each), np.uint8)
    return texts, offsets


def _kept(rows: Ints, names: pa.Array, count: int) -> tuple[NDArray[np.bool_], Ints] | None:
    """Which pairs stay, and for each the pair whose value it has; None when no record has a name twice."""
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
