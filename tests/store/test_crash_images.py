"""Loses power after every disk operation of a store's life, for every image the disk may leave.

`make test` checks every 59th image, `make test-long` every 29th, and `make crash`
(RMQKIT_CRASH_SHARE=1) all of them, on all cores.
"""

import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from tests.store.crash.lives import LIVES

SHARES = [int(os.environ.get("RMQKIT_CRASH_SHARE", "59")), pytest.param(29, marks=pytest.mark.long)]
MASTER_MIN = {"synced": 80, "pages": 1900, "stale": 380, "names": 240, "torn": 110, "changes": 8, "flip": 3500, "kill": 40}
#: life -> kind -> least number of images; fewer mean that the enumeration lost its cases
IMAGES_MIN = {
    "mixed": MASTER_MIN,
    "small_files": MASTER_MIN,
    "sync_flush": MASTER_MIN,
    "recovering": {"pages": 800, "stale": 100, "torn": 30, "flip": 1200, "kill": 10},
    "refused": {"pages": 100, "stale": 60, "torn": 45, "flip": 550, "kill": 30},
    "batches": {
        "synced": 80,
        "pages": 1700,
        "stale": 330,
        "names": 220,
        "torn": 90,
        "changes": 8,
        "flip": 1800,
        "kill": 110,
    },
    "slave": {"synced": 70, "pages": 1200, "stale": 250, "names": 180, "torn": 100, "kill": 25},
    "slave_small_files": {"synced": 70, "pages": 1900, "stale": 300, "names": 180, "torn": 100, "kill": 35},
}


def part_of(name: str, share: int, part: int) -> tuple[int, dict[str, int], int, list[str]]:
    """Return the number of disk operations, images by kind, refused starts, and violations."""
    work = LIVES[name]()
    check = work.enumerate(share=share, part=part)
    return len(work.operations), dict(check.counts), check.refused, check.broken


def parts_of(name: str, share: int) -> list[tuple[int, dict[str, int], int, list[str]]]:
    workers = min(4, os.cpu_count() or 1) if share == 1 else 1
    if workers == 1:
        return [part_of(name, share, 0)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(part_of, [name] * workers, [workers] * workers, range(workers)))


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("name", LIVES)
def test_every_image_recovers(name, share):
    parts = parts_of(name, share)
    counts = sum((Counter(counts) for _, counts, _, _ in parts), Counter())
    broken = [sentence for *_, sentences in parts for sentence in sentences]
    refused = sum(refused for _, _, refused, _ in parts)
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
    print(
        f"\n{name}: {parts[0][0]} disk operations, {counts.total()} images recovered ({kinds}), "
        f"{refused} refused for damage below the synced end, {len(broken)} broken"
    )
    assert broken == []
    assert counts.total() >= sum(IMAGES_MIN[name].values()) * 3 // (share * 4)
    for kind, count in IMAGES_MIN[name].items():
        assert counts[kind] >= (count if share == 1 else count // (share * 3)), kind


def test_the_lives_meet_what_they_are_for():
    """The recorded operations include rolls, full disks, deletions, cuts and clean stops."""
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
