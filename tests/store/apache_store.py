"""Store folders recorded from Apache's broker 5.5.0 (`tests/store/golden`), on a simulated disk."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from rmqkit.sim.folder import SimFolder
from rmqkit.store import ENGINES
from rmqkit.testing.store_world import StoreWorld, store_config

GOLDEN = Path(__file__).parent / "golden"
SIZES: dict[str, dict[str, Any]] = {
    "commit_log": {"mapped_file_size_commit_log": 4096},
    "consume_queue": {"mapped_file_size_consume_queue": 2000},
    "index": {"max_hash_slot_num": 100, "max_index_num": 400},
}


def files_of(name: str) -> dict[str, bytes]:
    """Return path -> content of the store's files, at full size.

    Files that a store does not read (config, compaction, timer wheel) are left out.
    """
    index = tomllib.loads((GOLDEN / "index.toml").read_text())
    files = {}
    for path, entry in index.items():
        inner = path.removeprefix(f"{name}/")
        if inner != path and not inner.startswith(("config/", "compaction/", "timerwheel")):
            files[inner] = (GOLDEN / path).read_bytes().ljust(entry["size"], b"\0")
    return files


def messages_of(name: str) -> list[dict[str, Any]]:
    """Return every message of the commit log, as printed by Apache's decoder."""
    lines = [json.loads(line) for line in (GOLDEN / f"{name}.messages.jsonl").read_text().splitlines()]
    return [line for line in lines if "topic" in line]


def world_of(name: str, *, without: tuple[str, ...] = ()) -> StoreWorld:
    """Return a world whose engine, not yet started, has that store.

    Leave out files whose path begins with a name in `without`.
    """
    world = StoreWorld(ENGINES["mapped"], store_config(**SIZES))
    lay(world.folder, {path: data for path, data in files_of(name).items() if not path.startswith(without or "\0")})
    return world


def lay(folder: SimFolder, files: dict[str, bytes]) -> None:
    for path, data in files.items():
        file = folder.make_file(f"/store/{path}")
        file.write(0, data)
        file.size = len(data)
        file.begin_sync()
        file.end_sync(len(data))
