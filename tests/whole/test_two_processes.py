"""Two processes on one store folder: the second exits with a one-line error and changes nothing."""

import hashlib
import subprocess
import sys
from pathlib import Path

from rmqkit.shell.disk import OsDisk
from rmqkit.store import ENGINES
from rmqkit.testing.store_world import StoreWorld, put

DEADLINE_S = 60


def fill(store: Path) -> None:
    """Write a killed store: one that a process would recover, and change, if it were alone."""
    world = StoreWorld(ENGINES["mapped"])
    engine = world.start()
    for number in range(40):
        engine.append(put("T", number % 2, b"%03d" % number * 60))
        world.turn(50)
    world.kill()
    for path, file in world.folder.files.items():
        target = store / path.removeprefix("/store/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read(0, file.size))


def state_of(store: Path) -> dict[str, tuple[str, int]]:
    """Return digest and modification time of every file except the lock.

    Closing the lock file would release the lock, which this process holds.
    """
    return {
        str(path.relative_to(store)): (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(store.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def test_the_second_process_on_a_store_is_refused_and_changes_nothing(tmp_path: Path):
    store = tmp_path / "store"
    fill(store)
    first = OsDisk(str(tmp_path / "first"))
    first.lock(str(store / "lock"), b"lock")
    try:
        before = state_of(store)
        settings = {
            "listenPort": 0,
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "storePathRootDir": store,
            "mappedFileSizeCommitLog": 4096,
            "mappedFileSizeConsumeQueue": 200,
        }
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        ended = subprocess.run(
            [sys.executable, "-m", "rmqkit.process", "--kind", "broker", *words],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=DEADLINE_S,
            check=False,
        )
        assert ended.returncode == 1
        errors = [line for line in ended.stderr.splitlines() if line.startswith("error:")]
        assert errors == [f"error: {store} is in use by another process: stop it or choose another folder"]
        assert "Traceback" not in ended.stderr
        assert state_of(store) == before
    finally:
        first.close()
