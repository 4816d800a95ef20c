"""`state.json`: which processes were started for a cluster, and what was asked of them last.

A pid alone says nothing after a reboot or after the number was used again, so the start time of the process stands
beside it (`processes.find` compares both). A node without a record was never started.

`asked` is "up" while the node should run, "stopped" or "killed" after a command ended it; a node that should be up and
has no process has died by itself.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rmqkit.cluster.layout.home import STATE, write_whole

VERSION = 1


@dataclass(frozen=True, slots=True)
class Started:
    """A process that was started. `start_s` is its start time as psutil gives it: seconds since the epoch."""

    pid: int
    start_s: float
    asked: str = "up"


@dataclass(slots=True)
class State:
    nodes: dict[str, Started] = field(default_factory=dict)


def load(folder: Path) -> State | None:
    """What the file says; None when it is absent or unreadable."""
    try:
        content = json.loads((folder / STATE).read_text(encoding="utf-8"))
        nodes = content["nodes"]
        return State({node: _started(record) for node, record in nodes.items()})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def save(folder: Path, state: State) -> None:
    nodes = {node: asdict(started) for node, started in state.nodes.items()}
    write_whole(folder / STATE, json.dumps({"version": VERSION, "nodes": nodes}, indent=1) + "\n")


def _started(record: Mapping[str, object]) -> Started:
    pid, start_s, asked = record["pid"], record["start_s"], record["asked"]
    if not isinstance(pid, int) or isinstance(pid, bool) or not isinstance(start_s, (int, float)) or pid < 1:
        raise ValueError("state.json")
    return Started(pid, float(start_s), str(asked))
