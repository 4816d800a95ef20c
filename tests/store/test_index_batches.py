"""What a batch of the index writes, and in how many steps."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.config import IndexSettings
from rmqkit.runtime.ports import Clock
from rmqkit.store.index.entry_batch import Entries
from rmqkit.store.index.files import IndexFiles, Repair
from rmqkit.store.index.index import Index
from rmqkit.wire.fastjson import MessageQueue
from tests.helpers.script import ScriptDisk

NOW_MS = 1_760_000_000_000
BLOCKS_PER_STEP = 64


def applied(count: int) -> tuple[IndexFiles, int]:
    """Return the files after a batch of `count` entries, and the number of steps it took."""
    files = IndexFiles(ScriptDisk(), "index", slot_count=1_000_000, count_max=10_000)
    file = files.open_last(NOW_MS)
    numbers = np.arange(count)
    files.add(Entries(numbers * 7919, numbers * 100, np.full(count, NOW_MS)))
    steps = 1
    while files.apply_some(BLOCKS_PER_STEP):
        steps += 1
    found = [next(file.find(number * 7919, 0, 2 * NOW_MS)) for number in range(count)]
    assert found == [number * 100 for number in range(count)]
    return files, steps


def test_a_small_batch_is_written_in_one_step():
    files, steps = applied(BLOCKS_PER_STEP)
    assert steps == 1
    assert files.batch_size == 0


def test_a_large_batch_takes_a_step_for_some_blocks_at_a_time():
    _, steps = applied(500)
    assert steps > 3


@pytest.mark.parametrize(("records", "is_small"), [(BLOCKS_PER_STEP, True), (500, False)])
def test_only_a_trickle_of_records_is_hashed_and_written_in_one_step_of_the_duty(records, is_small):
    clock = Clock(mono_ms=1_000, wall_ms=NOW_MS)
    index = Index(
        disk=ScriptDisk(),
        clock=clock,
        log=None,
        folder="index",
        settings=IndexSettings(),
        notes=None,
        filled=None,
        broken=None,
        wake=None,
    )
    queue = MessageQueue("t", "broker-a", 0)
    index.extend([(queue, 0, 100 * n, 0, 0, f"UNIQ_KEY\x01{n}\x02".encode(), NOW_MS) for n in range(records)])
    clock.mono_ms += 1_000
    taken = 1
    while (due_ms := index.run(clock.mono_ms)) == clock.mono_ms:
        taken += 1
    assert (taken == 1) is is_small
    assert due_ms == clock.mono_ms + 2_000  # nothing is left, so the next records may wait
    assert index.files.files[-1].count == records + 1


def written_one_by_one(rows: list[tuple[int, int, int]]) -> tuple[dict[int, int], list[tuple[int, int, int, int]]]:
    """Return the slots that are used and the entries, as `IndexFile.putKey` would write them."""
    slots: dict[int, int] = {}
    entries = []
    begin_ms = 0
    for number, (key_hash, phy_offset, store_ms) in enumerate(rows, 1):
        seconds = max(0, store_ms - begin_ms) // 1000 if begin_ms > 0 else 0
        begin_ms = begin_ms or store_ms
        entries.append((key_hash, phy_offset, seconds, slots.get(key_hash % SLOT_COUNT, 0)))
        slots[key_hash % SLOT_COUNT] = number
    return slots, entries


#: three blocks of slots, of which the last one is smaller
SLOT_COUNT = 10_000
HASHES = st.one_of(st.integers(0, 3), st.integers(SLOT_COUNT - 3, SLOT_COUNT + 3), st.integers(0, 2**31 - 1))


@given(st.lists(st.lists(HASHES, min_size=1, max_size=90), min_size=1, max_size=4), st.integers(1, 3))
def test_batches_give_the_file_that_entries_one_by_one_give(batches, blocks):
    files = IndexFiles(ScriptDisk(), "index", slot_count=SLOT_COUNT, count_max=10_000)
    file = files.open_last(NOW_MS)
    rows: list[tuple[int, int, int]] = []
    for hashes in batches:
        more = [(key_hash, 100 * (len(rows) + at), NOW_MS + 700 * (len(rows) + at)) for at, key_hash in enumerate(hashes)]
        rows += more
        files.add(Entries(*np.array(more).T))
        while files.apply_some(blocks):
            pass
    slots, entries = written_one_by_one(rows)
    assert [file.entry(number) for number in range(1, file.count)] == entries
    table = np.frombuffer(file.blocks(0, file.block_count), ">i4")
    assert {int(slot): int(table[slot]) for slot in np.flatnonzero(table)} == slots
    assert file.used_slots == len(slots)
    # A repair computes the same table, and finds an entry whose link is wrong.
    repair = Repair(file)
    while (whole := repair.step()) is None:
        pass
    assert whole
    assert file.used_slots == len(slots)
    file.disk.write(file.path, file.entry_position(len(rows)) + 16, [(len(rows) + 7).to_bytes(4, "big")])
    repair = Repair(file)
    while (whole := repair.step()) is None:
        pass
    assert not whole


def test_a_slot_that_points_beyond_the_entries_counts_as_empty():
    """A crash after the slots of a batch, and before its entries, leaves such slots."""
    files = IndexFiles(ScriptDisk(), "index", slot_count=SLOT_COUNT, count_max=10_000)
    file = files.open_last(NOW_MS)
    file.write_blocks(0, np.array([0, 2, 1], ">i4").tobytes() + bytes(4 * 4093))
    files.add(Entries(np.array([1, 1]), np.array([0, 100]), np.full(2, NOW_MS)))
    while files.apply_some(BLOCKS_PER_STEP):
        pass
    assert [file.entry(number)[3] for number in (1, 2)] == [0, 1]
