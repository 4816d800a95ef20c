"""Toy processes: they end with their test, and by their lifeline even if pytest is killed."""

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rmqkit.config import NetworkLimits
from rmqkit.shell.loop import Loop
from rmqkit.tls.node_tls import NodeTls

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 20.0


def poll(reached: Callable[[], Any], what: str) -> Any:
    """Wait until `reached()` is true and return its value; fail after `DEADLINE_S`."""
    until_s = time.monotonic() + DEADLINE_S
    while not (found := reached()):
        assert time.monotonic() < until_s, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.005)
    return found


class Child:
    def __init__(self, folder: Path, kind: str, *options: str) -> None:
        self.folder = folder
        read_end, self.lifeline = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.shell.toy_process", kind, str(folder), "--lifeline", str(read_end), *options],
            cwd=ROOT,
            pass_fds=[read_end],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        os.close(read_end)

    def port(self) -> int:
        """Wait until the process is ready; return its port."""
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], DEADLINE_S)
        assert readable, "the child does not become ready"
        line = self.process.stdout.readline().split()
        assert line[:1] == [b"ready"], f"{line} {self.process.communicate()}"
        return int(line[1])

    def connect(self, port: int) -> socket.socket:
        return socket.create_connection(("127.0.0.1", port), DEADLINE_S)

    def log(self) -> str:
        path = self.folder / "log"
        return path.read_text() if path.exists() else ""

    def wait_for_log(self, text: str) -> str:
        poll(lambda: text in self.log(), f"{text!r} in the log: {self.log()}")
        return next(line for line in self.log().splitlines() if text in line)

    def wait(self) -> int:
        return self.process.wait(DEADLINE_S)

    def errors(self) -> str:
        """Wait for the end of the process; return what it wrote to stderr."""
        return self.process.communicate(timeout=DEADLINE_S)[1].decode()

    def close(self) -> None:
        if self.lifeline >= 0:
            os.close(self.lifeline)
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Child]]:
    """`start(kind, *options)` starts a toy process in its own folder."""
    children: list[Child] = []

    def start(kind: str, *options: str, folder: str = "child") -> Child:
        children.append(Child(tmp_path / folder, kind, *options))
        return children[-1]

    yield start
    for child in children:
        child.close()


class Lines:
    """A log port that keeps every line."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append(("INFO", event, fields))

    def warning(self, event: str, **fields: Any) -> None:
        self.lines.append(("WARNING", event, fields))

    def error(self, event: str, **fields: Any) -> None:
        self.lines.append(("ERROR", event, fields))

    def of(self, event: str) -> list[dict[str, Any]]:
        return [fields for _, found, fields in self.lines if found == event]


class LoopLab:
    """A loop in the test's own thread."""

    def __init__(self, folder: Path, limits: NetworkLimits) -> None:
        self.log = Lines()
        self.loop = Loop(limits=limits, log=self.log)
        self.folder = folder

    def host(self, make: Callable[..., Any], name: str = "toy", tls: NodeTls | None = None) -> Any:
        node = make(name, self.loop.ports(str(self.folder / name)))
        self.loop.add(node, tls=tls)
        return node

    def run_until(self, reached: Callable[[], Any]) -> None:
        until_s = time.monotonic() + DEADLINE_S
        while not reached():
            assert time.monotonic() < until_s, "not within the deadline"
            self.loop.turn(20)


@pytest.fixture
def make_lab(tmp_path: Path) -> Iterator[Callable[..., LoopLab]]:
    labs: list[LoopLab] = []

    def make(**limits: int) -> LoopLab:
        labs.append(LoopLab(tmp_path, NetworkLimits(**limits)))
        return labs[-1]

    yield make
    for lab in labs:
        lab.loop.close()


@pytest.fixture
def lab(make_lab: Callable[..., LoopLab]) -> LoopLab:
    return make_lab()
