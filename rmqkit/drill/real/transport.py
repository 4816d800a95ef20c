"""Isolates nodes: the drill's side of the drill socket (`rmqkit.shell.faults.drill_socket`).

    counts = isolate(folder, [{"tag": "ha"}])      # the node's folder, with its node.toml
    counts = heal(folder)                          # the total of what was held back

The counts of several isolations of one node are added.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rmqkit.cluster.health.isolated_nodes import ask
from rmqkit.drill.contract import DrillError
from rmqkit.shell.faults.drill_socket import find


def isolate(folder: Path, rules: Sequence[Mapping[str, Any]]) -> Mapping[str, int]:
    """Begin one more isolation; return the counts. Raises DrillError."""
    return _counts(_ask(folder, {"do": "isolate", "rules": list(rules)}))


def heal(folder: Path) -> Mapping[str, int]:
    """End all isolations; return their counts. Harmless without any. Raises DrillError."""
    return _counts(_ask(folder, {"do": "heal"}))


def counted(folder: Path) -> Mapping[str, int]:
    """Return what the isolations have held back so far; {} without any. Raises DrillError."""
    return _counts(_ask(folder, {"do": "status"}))


def _ask(folder: Path, request: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        told = ask(folder, request)
    except FileNotFoundError:
        raise DrillError(f"{folder.name} cannot be isolated: it was started without drillFaultsEnable=true") from None
    except OSError as error:
        raise DrillError(f"{folder.name} cannot be isolated: {find(str(folder))}: {error.strerror or error}") from None
    except ValueError:
        raise DrillError(f"{folder.name} gave no answer on {find(str(folder))}") from None
    if not told.get("ok"):
        raise DrillError(f"{folder.name} was not isolated: {told.get('error', 'no reason given')}")
    return told


def _counts(told: Mapping[str, Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for isolation in told["isolations"]:
        for key, count in isolation["counts"].items():
            found[key] = found.get(key, 0) + count
    return found
