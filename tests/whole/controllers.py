"""Three controllers as processes of their own, and requests to them on raw sockets."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rmqkit.wire.remoting.frames import FrameBuffer
from tests.helpers.ports import free_base
from tests.helpers.script import Command, read_command, write_command
from tests.helpers.signing import signed

HOST = "127.0.0.1"
DEADLINE_S = 90.0
NAME, CLUSTER = "broker-a", "DefaultCluster"
Keys = tuple[str, str]


def until(reached: Callable[[], Any], what: str) -> Any:
    """Wait until `reached` returns a true value; fail after a deadline."""
    end_s = time.monotonic() + DEADLINE_S
    while not (found := reached()):
        assert time.monotonic() < end_s, f"not within {DEADLINE_S} s: {what}"
        time.sleep(0.05)
    return found


class Process:
    """A node of one kind. It ends with the test, because its lifeline then closes."""

    def __init__(
        self, kind: str, folder: Path, settings: Mapping[str, Any], *, limit: Callable[[], None] | None = None
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / "log"
        read_end, self._lifeline = os.pipe()
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        command = [
            sys.executable,
            "-m",
            "rmqkit.process",
            "--kind",
            kind,
            "--lifeline",
            str(read_end),
            "--log-format",
            "json",
        ]
        with open(self.log, "ab") as out:
            self.popen = subprocess.Popen(
                [*command, *words], stdout=out, stderr=out, pass_fds=[read_end], cwd=folder, preexec_fn=limit
            )
        os.close(read_end)

    def lines(self) -> list[dict[str, Any]]:
        text = self.log.read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]

    def events(self) -> list[str]:
        return [line["event"] for line in self.lines()]

    def pause(self) -> None:
        self.popen.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.popen.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1


def ask(
    port: int,
    code: int,
    fields: Mapping[str, Any] | None = None,
    body: bytes = b"",
    *,
    user: Keys | None = None,
    trust: ssl.SSLContext | None = None,
    timeout_s: float = 10.0,
) -> Command:
    """Send one request on a connection of its own. Raises OSError."""
    whole = dict(fields or {}) if user is None else signed(user, fields, body)
    with socket.create_connection((HOST, port), timeout_s) as plain:
        sock = plain if trust is None else trust.wrap_socket(plain, server_hostname="localhost")
        sock.settimeout(timeout_s)
        sock.sendall(write_command(code, whole, body))
        frames = FrameBuffer(64 << 20)
        while True:
            data = sock.recv(65_536)
            if not data:
                raise ConnectionError(f"{port} closed the connection at {code}")
            for frame in frames.feed(data):
                sock.close()
                return read_command(frame)


class Controllers:
    """A group of three with the log `raft`."""

    def __init__(self, folder: Path, settings: Mapping[str, Any] | None = None, **how: Any) -> None:
        """`how` is what `ask` needs to be admitted."""
        base = free_base((0, 1, 2))
        self.ports = [base, base + 1, base + 2]
        self.addresses = [f"{HOST}:{port}" for port in self.ports]
        self._folder = folder
        self._settings = {
            "bindAddress": HOST,
            "controllerDLegerGroup": "controllers",
            "controllerDLegerPeers": ";".join(f"n{at}-{each}" for at, each in enumerate(self.addresses)),
            "controllerElectionTimeoutMillis": 2000,
            "controllerSnapshotEntries": 50,
            **(settings or {}),
        }
        self._how = how
        self.processes: dict[int, Process] = {}
        for at in range(3):
            self.start(at)

    def start(self, at: int, **more: Any) -> None:
        folder = self._folder / f"c{at}"
        own = {
            "controllerDLegerSelfId": f"n{at}",
            "controllerStorePath": folder / "store",
            "configStorePath": folder / "controller.properties",
        }
        self.processes[at] = Process("controller", folder, {**self._settings, **own}, **more)

    def kill(self, at: int) -> None:
        self.processes.pop(at).kill()

    def close(self) -> None:
        for at in list(self.processes):
            self.kill(at)

    def ask(self, at: int, code: int, fields: Mapping[str, Any] | None = None, body: bytes = b"") -> Command:
        return ask(self.ports[at], code, fields, body, **self._how)

    def metadata(self, at: int) -> Mapping[str, str]:
        """Return the answer to 1005, {} if the controller does not answer."""
        try:
            return ask(self.ports[at], 1005, **{"timeout_s": 2.0, **self._how}).ext
        except (OSError, ConnectionError):
            return {}

    def leader(self) -> int:
        """Return the number of the one that leads, -1 without one."""
        return next((at for at in range(3) if self.metadata(at).get("isLeader") == "true"), -1)

    def lead(self) -> int:
        until(lambda: self.leader() >= 0, "a controller leads")
        return self.leader()

    def state(self, at: int) -> Any:
        """Return what a controller says of the set (1006), None if it does not lead or know it."""
        try:
            answer = self.ask(at, 1006, None, json.dumps([NAME]).encode())
        except OSError:
            return None
        return answer.json["replicasInfoTable"].get(NAME) if answer.code == 0 else None

    def known(self) -> Any:
        """Return what the leader says of the set, once it says it."""
        return until(lambda: self.state(self.leader()), "the leader knows the set")
