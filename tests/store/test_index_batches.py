"""How many steps a batch of the index takes: one for a small batch, several for a large one."""

from rmqkit.store.index.files import Entries, IndexFiles
from tests.helpers.script import ScriptDisk

NOW_MS = 1_760_000_000_000
BLOCKS_PER_STEP = 64


def applied(count: int) -> tuple[IndexFiles, int]:
    """Return the files after a batch of `count` entries, and the number of steps it took."""
    files = IndexFiles(ScriptDisk(), "index", slot_count=1_000_000, count_max=10_000)
    file = files.open_last(NOW_MS)
    hashes, phy_offsets = [number * 7919 for number in range(count)], [number * 100 for number in range(count)]
    files.add(Entries(hashes, phy_offsets, [NOW_MS] * count))
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
