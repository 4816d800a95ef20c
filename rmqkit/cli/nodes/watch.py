"""Output that repeats: the status of a cluster, and the logs of its nodes."""

import os
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import Any

from rmqkit.cli import output
from rmqkit.cluster import Cluster
from rmqkit.cluster.health import elections, roles
from rmqkit.cluster.health.replicas import reasons
from rmqkit.cluster.health.status import document
from rmqkit.cluster.layout.home import LOG
from rmqkit.cluster.layout.names import DEFAULT
from rmqkit.cluster.processes import last_lines

EVERY_S = 1.0
#: with controllers: an election takes a fraction of a second
ELECTIONS_EVERY_S = 0.25
#: changes of elections that stay visible below the table
CHANGES_SHOWN = 8
LOG_POLL_S = 0.2
COLUMNS = ("node", "state", "role", "address", "pid", "end of log", "in sync")


def status_rows(status: dict[str, Any]) -> list[tuple[object, ...]]:
    """Return the cells of the status table, one row per node."""
    brokers = Counter(node.get("broker_name") for node in status["nodes"])
    lacking = reasons(status["nodes"])
    rows = []
    for node in status["nodes"]:
        in_sync = None
        election = node.get("election")
        if node["kind"] == "controller" and node["leads"] is not None:
            role = "leader" if node["leads"] else "follower" if node["leader"] else "no leader"
            term = "" if node["term"] is None else f", term {node['term']}"
            rows.append((node["node"], node["state"], f"{role}{term}", node["address"], node["pid"], "-", "-"))
            continue
        if election is not None and election["state"] != "master":
            in_sync = {True: "yes", False: "no", None: None}[election["in_set"]]
        elif node.get("in_sync") is not None:
            in_sync = f"{node['in_sync']}/{brokers[node['broker_name']]}"
        elif node.get("replication") and not node["acting"]:
            in_sync = "no" if node["node"] in lacking else "yes"
        pid = f"{node['pid']} {node['container']}" if node["pid"] and node.get("container") else node["pid"]
        cells = (node["state"], roles.shown(node), node["address"], pid, node.get("offset_max"), in_sync)
        rows.append((node["node"], *("-" if cell is None else cell for cell in cells)))
    return rows


def notes(status: dict[str, Any]) -> list[str]:
    """Return the lines below the status table.

    They name nodes that are isolated, act for a master, are not online, are not in sync (with the
    reason), or are behind their master. With controllers they say what keeps a group from a master.
    """

    lacking = reasons(status["nodes"])
    name = "" if status["name"] == DEFAULT else f" {status['name']}"
    lines = [
        f"{node['node']}  isolated by a drill: `rmqkit cluster resume{name}` if that drill no longer runs"
        for node in status["nodes"]
        if node["cut_off"]
    ]
    lines += [f"{node}  {text}" for node, text in roles.remarks(status["nodes"], time.time_ns() // 1_000_000)]
    lines += [f"{name}  {text}" for name, text in elections.remarks(status)]
    lines += [f"{node}  {why}" for node, why in lacking.items()]
    for node in status["nodes"]:
        said = node.get("replication")
        if said and node["broker_id"] and (said["gap"] or 0) > 0 and node["node"] not in lacking:
            lines.append(f"{node['node']}  {output.size_text(said['gap'])} behind")
    return lines


def print_status(status: dict[str, Any]) -> None:
    output.table(COLUMNS, status_rows(status))
    for line in notes(status):
        print(line)
    print(f"name servers  {status['namesrv']}\ndata          {status['home']}")


def watch_status(cluster: Cluster, json: bool) -> None:
    """Print the status until Ctrl-C, which ends the command with exit code 0.

    It is polled every second; with controllers four times a second, and each change of a master, of
    a set of in-sync replicas or of the leading controller is printed with its time. Without a
    terminal the table is then printed only before a change and after it.
    """
    status = document(cluster)
    every_s = ELECTIONS_EVERY_S if "groups" in status else EVERY_S
    try:
        if not json and output.on_terminal():
            _watch_on_terminal(cluster, status, every_s)
        news: list[str] = []
        is_first = True
        while True:
            if json:
                output.line(status)
            elif is_first or news or "groups" not in status:
                print("".join(f"{line}\n" for line in news), end="")
                print_status(status)
                sys.stdout.flush()
            is_first = False
            time.sleep(every_s)
            before, status = status, document(cluster)
            news = _timed(elections.changes(before, status))
    except KeyboardInterrupt:
        return


def _timed(lines: list[str]) -> list[str]:
    return [f"{time.strftime('%H:%M:%S')}  {line}" for line in lines]


def _watch_on_terminal(cluster: Cluster, status: dict[str, Any], every_s: float) -> None:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    console = Console(highlight=False)
    news: deque[str] = deque(maxlen=CHANGES_SHOWN)

    def drawn() -> Any:
        title = f"cluster {cluster.name}  {time.strftime('%H:%M:%S')}"
        table = output.rich_table(COLUMNS, status_rows(status), console.width, title=title)
        return Group(table, *(Text(line, style="yellow") for line in notes(status)), *map(Text, news))

    with Live(drawn(), console=console, auto_refresh=False) as live:
        while True:
            time.sleep(every_s)
            before, status = status, document(cluster)
            news.extend(_timed(elections.changes(before, status)))
            live.update(drawn(), refresh=True)


def print_logs(nodes: Sequence[tuple[str, Path]], count: int, *, follow: bool, json: bool) -> None:
    """Print the last `count` lines of each node; with `follow` also new lines, until Ctrl-C."""
    several = len(nodes) > 1

    def show(node: str, line: str) -> None:
        if json:
            output.line({"node": node, "line": line})
        else:
            print(f"{node}: {line}" if several else line)

    tails = [(node, Tail(folder / LOG)) for node, folder in nodes] if follow else []
    try:
        for node, folder in nodes:
            for line in last_lines(folder, count) if count else ():
                show(node, line)
        sys.stdout.flush()
        while follow:
            for node, tail in tails:
                for line in tail.new_lines():
                    show(node, line)
            sys.stdout.flush()
            time.sleep(LOG_POLL_S)
    except KeyboardInterrupt:
        if not follow:
            raise
    finally:
        for _node, tail in tails:
            tail.close()


class Tail:
    """Reads new whole lines of a log file, also across rotations.

    A rotation renames LOG to LOG.1, and LOG.1 to LOG.2. The file stays open, so lines written
    before its rotation are still read. Then come the files rotated since, oldest first, and at last
    the current LOG.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: FileIO | None = None
        self._rest = b""
        try:
            self._file = FileIO(path)
        except OSError:
            return
        self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def new_lines(self) -> list[str]:
        data = self._rest + self._read()
        while (newer := self._newer()) is not None:
            # Lines written between the last read and the rotation.
            data += self._read()
            self.close()
            self._file = newer
            data += self._read()
        *lines, self._rest = data.split(b"\n")
        return [line.decode("utf-8", "replace") for line in lines]

    def _read(self) -> bytes:
        """Return the bytes that were added since the last call.

        A truncated file is read from its start.
        """
        file = self._file
        if file is None:
            return b""
        if os.fstat(file.fileno()).st_size < file.tell():
            file.seek(0)
        return file.read()

    def _newer(self) -> FileIO | None:
        """Return the file that follows the open one.

        Return None if the open file is the current LOG, or if there is no LOG.
        """
        here = None if self._file is None else _identity(os.fstat(self._file.fileno()))
        found: FileIO | None = None
        try:
            number = 0
            while True:
                path = Path(f"{self._path}.{number}") if number else self._path
                file = FileIO(path)
                if _identity(os.fstat(file.fileno())) == here:
                    file.close()
                    return found
                if found is not None:
                    found.close()
                found = file
                if here is None:
                    return found
                number += 1
        except OSError:
            # The open file was removed, so all others are newer. The oldest comes first.
            return found


def _identity(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_dev, stat.st_ino
