"""A power loss after every disk operation of a store's life, with every combination of what the disk may have kept.

`make test` looks at a fixed sample, `make crash` (RMQKIT_CRASH_SHARE=1) at all of it, on all cores.
"""

import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from tests.store.crash_lives import LIVES

SHARE = int(os.environ.get("RMQKIT_CRASH_SHARE", "17"))
#: images of each life, and of each kind over all lives: no fewer, or the enumeration has become empty
IMAGES_MIN = {
    "mixed": 6000,
    "small_files": 6500,
    "sync_flush": 6500,
    "recovering": 2500,
    "slave": 1800,
    "slave_small_files": 2700,
}
KINDS_MIN = {
    "synced": 400,
    "pages": 9000,
    "stale": 1500,
    "names": 1000,
    "torn": 500,
    "changes": 40,
    "flip": 10_000,
    "kill": 150,
}
_counted: Counter[str] = Counter()


def part_of(name: str, share: int, part: int) -> tuple[int, dict[str, int], int, list[str]]:
    """Disk operations, images by kind, refused starts, what did not hold."""
    work = LIVES[name]()
    check = work.enumerate(share=share, part=part)
    return len(work.operations), dict(check.counts), check.refused, check.broken


def parts_of(name: str) -> list[tuple[int, dict[str, int], int, list[str]]]:
    workers = min(4, os.cpu_count() or 1) if SHARE == 1 else 1
    if workers == 1:
        return [part_of(name, SHARE, 0)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(part_of, [name] * workers, [workers] * workers, range(workers)))


@pytest.mark.parametrize("name", LIVES)
def test_every_image_recovers(name):
    parts = parts_of(name)
    counts = sum((Counter(counts) for _, counts, _, _ in parts), Counter())
    broken = [sentence for *_, sentences in parts for sentence in sentences]
    refused = sum(refused for _, _, refused, _ in parts)
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
    print(
        f"\n{name}: {parts[0][0]} disk operations, {counts.total()} images recovered ({kinds}), "
        f"{refused} refused for damage below the synced end, {len(broken)} broken"
    )
    assert broken == []
    assert counts.total() >= IMAGES_MIN[name] // (SHARE + 1)
    _counted.update(counts)


def test_every_kind_of_image_was_there():
    """After the tests above, in the same process."""
    if not _counted:
        pytest.skip("the lives above were not chosen")
    print(f"\n{_counted.total()} images: {dict(sorted(_counted.items()))}")
    for kind, count in KINDS_MIN.items():
        assert _counted[kind] >= count // (SHARE * 2), kind


def test_the_lives_meet_what_they_are_for():
    """Rolls, full disks, deletions, cuts and clean stops are among the operations."""
    work = LIVES["small_files"]()
    kinds = Counter(operation.kind for operation in work.operations)
    paths = {operation.path for operation in work.operations}
    assert kinds["write"] > 80
    assert kinds["synced"] > 30
    assert kinds["removed"] == 2
    assert sum("/commitlog/" in path for path in paths) >= 6
    assert sum("/index/" in path for path in paths) >= 2
    assert "/store/config/consumeQueueEnds.json" in paths
    assert any(promise.cut >= 0 for promise in work.ledger.promises)
    assert work.ledger.gone == {"B": work.ledger.gone["B"]}
    assert len({id(promise.log) for promise in work.ledger.promises}) == 2
