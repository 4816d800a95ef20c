"""Things that are shown again and again: a cluster's status, nodes' logs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rmqkit.cli import output
from rmqkit.cluster import Cluster
from rmqkit.cluster.home import LOG
from rmqkit.cluster.processes import last_lines
from rmqkit.cluster.status import document

EVERY_S = 1.0
LOG_POLL_S = 0.2
COLUMNS = ("node", "state", "role", "address", "pid", "end of log", "in sync")


def status_rows(status: dict[str, Any]) -> list[tuple[object, ...]]:
    rows = []
    for node in status["nodes"]:
        cells = (node["state"], node.get("role"), node["address"], node["pid"], node.get("offset_max"), node.get("in_sync"))
        rows.append((node["node"], *("-" if cell is None else cell for cell in cells)))
    return rows


def print_status(status: dict[str, Any]) -> None:
    output.table(COLUMNS, status_rows(status))
    print(f"name servers  {status['namesrv']}\ndata          {status['home']}")


def watch_status(cluster: Cluster, json: bool) -> None:
    """Until Ctrl-C, which is how it ends well."""
    status = document(cluster)
    try:
        if json or not output.on_terminal():
            while True:
                if json:
                    output.line(status)
                else:
                    print_status(status)
                    sys.stdout.flush()
                time.sleep(EVERY_S)
                status = document(cluster)
        _watch_on_terminal(cluster, status)
    except KeyboardInterrupt:
        return


def _watch_on_terminal(cluster: Cluster, status: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.live import Live

    def drawn() -> Any:
        return output.rich_table(COLUMNS, status_rows(status), title=f"cluster {cluster.name}  {time.strftime('%H:%M:%S')}")

    with Live(drawn(), console=Console(highlight=False), auto_refresh=False) as live:
        while True:
            time.sleep(EVERY_S)
            status = document(cluster)
            live.update(drawn(), refresh=True)


def print_logs(nodes: Sequence[tuple[str, Path]], count: int, *, follow: bool, json: bool) -> None:
    """The last lines of each node, then with `follow` new ones as they come, until Ctrl-C."""
    several = len(nodes) > 1

    def show(node: str, line: str) -> None:
        if json:
            output.line({"node": node, "line": line})
        else:
            print(f"{node}: {line}" if several else line)

    for node, folder in nodes:
        for line in last_lines(folder, count) if count else ():
            show(node, line)
    sys.stdout.flush()
    if not follow:
        return
    tails = [(node, Tail(folder / LOG)) for node, folder in nodes]
    try:
        while True:
            for node, tail in tails:
                for line in tail.new_lines():
                    show(node, line)
            sys.stdout.flush()
            time.sleep(LOG_POLL_S)
    except KeyboardInterrupt:
        return


class Tail:
    """New whole lines of a log file, also after it was rotated (a shorter file begins anew)."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = self._size()
        self._rest = b""

    def _size(self) -> int:
        try:
            return os.stat(self._path).st_size
        except OSError:
            return 0

    def new_lines(self) -> list[str]:
        size = self._size()
        if size < self._position:
            self._position, self._rest = 0, b""
        if size == self._position:
            return []
        with open(self._path, "rb") as log:
            log.seek(self._position)
            data = log.read()
        self._position += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [line.decode("utf-8", "replace") for line in lines]
