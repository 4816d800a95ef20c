"""`state.json`: which processes were started for a cluster, and what was asked of them last.

A pid alone says nothing after a reboot or after the number was used again, so the start time of the process stands
beside it (`processes.find` compares both). A node without a record was never started.

`asked` is "up" while the node should run, "stopped" or "killed" after a command ended it; a node that should be up and
has no process has died by itself.
"""

from pathlib import Path
from typing import Annotated

import msgspec

from rmqkit.cluster.layout.home import STATE, write_whole

VERSION = 1


class ProcessRecord(msgspec.Struct, frozen=True):
    """A process that was started. `start_s` is its start time as psutil gives it: seconds since the epoch."""

    pid: Annotated[int, msgspec.Meta(ge=1)]
    start_s: float
    asked: str = "up"


class ClusterState(msgspec.Struct):
    nodes: dict[str, ProcessRecord] = {}


def load(folder: Path) -> ClusterState | None:
    """What the file says; None when it is absent or unreadable."""
    try:
        return msgspec.json.decode((folder / STATE).read_bytes(), type=ClusterState)
    except (OSError, ValueError, msgspec.MsgspecError):
        return None


def save(folder: Path, state: ClusterState) -> None:
    content = msgspec.json.encode({"version": VERSION, "nodes": state.nodes})
    write_whole(folder / STATE, msgspec.json.format(content, indent=1).decode() + "\n")
