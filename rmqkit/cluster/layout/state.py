"""`state.json`: the processes that were started for a cluster, and what commands last did to them.

A pid alone is ambiguous after a reboot, or once it is reused. So the start time of the process is
stored with it (`processes.find` compares both). A node without a record was never started.

`asked` is "up" while the node should run, and "stopped" or "killed" after a command ended it. A
node that should be up but has no process has died.
"""

from pathlib import Path
from typing import Annotated

import msgspec

from rmqkit.cluster.layout.home import STATE, write_whole

VERSION = 1


class ProcessRecord(msgspec.Struct, frozen=True):
    """A process that was started. `start_s` is its start time in s since the epoch, from psutil."""

    pid: Annotated[int, msgspec.Meta(ge=1)]
    start_s: float
    asked: str = "up"


class ClusterState(msgspec.Struct):
    """The content of `state.json`: the last process of each node that was ever started, by node."""

    nodes: dict[str, ProcessRecord] = {}


def load(folder: Path) -> ClusterState | None:
    """Read `state.json`. Return None if it is missing or invalid."""
    try:
        return msgspec.json.decode((folder / STATE).read_bytes(), type=ClusterState)
    except (OSError, ValueError, msgspec.MsgspecError):
        return None


def save(folder: Path, state: ClusterState) -> None:
    """Replace `state.json`. Raises ClusterError."""
    content = msgspec.json.encode({"version": VERSION, "nodes": state.nodes})
    write_whole(folder / STATE, msgspec.json.format(content, indent=1).decode() + "\n")
