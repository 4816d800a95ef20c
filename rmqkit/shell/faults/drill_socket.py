"""The drill socket: lets a drill on this machine control a node's process (`drillFaultsEnable`).

It is a UNIX socket `drill.sock` in the node's folder that only the node's user can open (mode
0600). A request is one line of JSON, and so is its answer. Answers come in the order of the
requests. An invalid request gets an error and changes nothing.

Requests:

    {"do": "isolate", "id": "cut", "rules": [{"peer": "127.0.0.1:10911", "tag": "ha",
        "port": 10912, "direction": "both", "spare": [{"tag": "vip"}]}]}
    {"do": "heal", "id": "cut"}
    {"do": "status"}

Each field of a rule is optional; `peer` is "host", "host:port" or ":port". If `isolate` has no id,
the node chooses one. A `heal` without an id ends all isolations of the node.

Answers:

    {"ok": true, "isolations": [
        {"id": "cut", "began_ms": …, "rules": […], "counts": {"connections": 2, …}}]}
    {"ok": false, "error": "…"}

The answer to `isolate` and `status` lists the active isolations. The answer to `heal` lists those
that it ended, with their final counts (`rmqkit.shell.faults.isolation.Counts`).

The path may be too long for a UNIX socket (about 100 bytes). The socket is then in a new folder
(mode 0700) under the system's temporary folder, and a file `drill.sock.path` in the node's folder
contains its path.
"""

import os
import socket
import stat
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import msgspec

from rmqkit.errors import RmqkitError
from rmqkit.runtime.connection import Address
from rmqkit.shell.faults.isolation import DIRECTIONS, Isolation, IsolationError, IsolationRule, Match

if TYPE_CHECKING:
    from rmqkit.runtime.node import Node
    from rmqkit.shell.loop import Loop

NAME = "drill.sock"
PATH_FILE = "drill.sock.path"
FOLDER_PREFIX = "rmqkit-drill-"
#: bytes of `sun_path` on every system, including the final NUL (macOS; Linux has 108)
PATH_SIZE_MAX = 104
LINE_SIZE_MAX = 16_384
#: bytes; holds a status answer with `ISOLATIONS_MAX` isolations
SEND_BUFFER = 262_144
#: most open connections of one drill socket; further ones are closed at once
CONNECTIONS_MAX = 8
RULES_MAX = 64
ID_SIZE_MAX = 64


class _Match(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    peer: str = ""
    tag: str = ""
    port: int = 0


class _Rule(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    peer: str = ""
    tag: str = ""
    port: int = 0
    direction: str = "both"
    spare: list[_Match] = []


class _Request(msgspec.Struct, forbid_unknown_fields=True):
    do: str
    id: str = ""
    rules: list[_Rule] | None = None


class DrillSocket:
    """The listening socket of one node's drill commands. An item of the loop."""

    def __init__(self, loop: "Loop", node: "Node", folder: str) -> None:
        """Listen in `folder`. Raises RmqkitError if another process listens there, OSError."""
        self.loop = loop
        self.node = node
        self.folder = folder
        _remove_old(folder)
        self.path = _socket_path(folder)
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.bind(self.path)
            # Nobody can connect before `listen`.
            os.chmod(self.path, 0o600)
            self.sock.listen(CONNECTIONS_MAX)
        except OSError:
            self.sock.close()
            raise
        self.sock.setblocking(False)
        self.connections = 0
        self._last_id = 0
        loop.watch_fixed(self.sock.fileno(), self)

    def ready(self, mask: int) -> None:
        try:
            sock, _ = self.sock.accept()
        except OSError:
            return
        if self.connections >= CONNECTIONS_MAX:
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self.connections += 1
        _DrillConnection(self, sock)

    def scan(self, now_ms: int) -> None:
        """Do nothing: the socket has no idle limit."""

    def remove(self) -> None:
        """Close the socket and delete its file."""
        self.sock.close()
        _remove(self.folder, self.path)

    # --- requests

    def answer(self, line: bytes) -> bytes:
        """Run the request in `line`. Return the answer as one line."""
        try:
            answer = self._answer(line)
        except (IsolationError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            answer = {"ok": False, "error": str(error)}
        return msgspec.json.encode(answer) + b"\n"

    def _answer(self, line: bytes) -> dict[str, Any]:
        request = msgspec.json.decode(line, type=_Request)
        if request.do != "isolate" and request.rules is not None:
            raise IsolationError(f"`rules` are allowed in `isolate` only, not in {request.do!r}")
        if request.do == "isolate":
            self._isolate(request.id, request.rules or [])
            return self._listing(self._ids())
        if request.do == "heal":
            return self._heal(request.id)
        if request.do == "status":
            return self._listing(self._ids())
        raise IsolationError(f"unknown request {request.do!r}: must be isolate, heal or status")

    def _isolate(self, id: str, asked: list[_Rule]) -> None:
        if not 0 < len(asked) <= RULES_MAX:
            raise IsolationError(f"an isolation has 1 to {RULES_MAX} rules, not {len(asked)}")
        if len(id) > ID_SIZE_MAX:
            raise IsolationError(f"an id has at most {ID_SIZE_MAX} characters")
        rules = tuple(_rule(each) for each in asked)
        if not id:
            self._last_id += 1
            id = f"{self.node.name}:{self._last_id}"
        isolation = self._isolation() or Isolation(self.loop)
        isolation.begin(id, self.node, rules)
        self.loop.log.warning("isolated by a drill", node=self.node.name, id=id, rules=len(rules))

    def _heal(self, id: str) -> dict[str, Any]:
        ids = self._ids()
        if id and id not in ids:
            raise IsolationError(f"there is no isolation {id!r}")
        ended, isolation = [id] if id else ids, self._isolation()
        # Before healing, which discards the counts.
        answer = self._listing(ended)
        for each in ended:
            assert isolation is not None
            isolation.heal(each)
            self.loop.log.info("healed by a drill", node=self.node.name, id=each)
        return answer

    def _ids(self) -> list[str]:
        isolation = self._isolation()
        return isolation.ids(self.node) if isolation is not None else []

    def _isolation(self) -> Isolation | None:
        """Return the loop's isolations, or None. The loop declares a narrower type.

        Only this module creates an `Isolation`, so the cast is safe.
        """
        return cast("Isolation | None", self.loop.isolation)

    def _listing(self, ids: list[str]) -> dict[str, Any]:
        """Return the answer that lists these isolations."""
        isolation = self._isolation()
        listed = []
        for id in ids:
            assert isolation is not None
            began_ms, rules = isolation.rules(id)
            listed.append(
                {
                    "id": id,
                    "began_ms": began_ms,
                    "rules": [_encode_rule(rule) for rule in rules],
                    "counts": isolation.counts(id)._asdict(),
                }
            )
        return {"ok": True, "isolations": listed}


class _DrillConnection:
    """One connection of a drill, which must read each answer before it sends the next request."""

    __slots__ = ("_line", "drill", "fd", "sock")

    def __init__(self, drill: DrillSocket, sock: socket.socket) -> None:
        self.drill = drill
        self.sock = sock
        self.fd = sock.fileno()
        self._line = bytearray()
        drill.loop.watch_fixed(self.fd, self)

    def ready(self, mask: int) -> None:
        try:
            data = self.sock.recv(LINE_SIZE_MAX)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._end()
            return
        *lines, rest = (bytes(self._line) + data).split(b"\n")
        self._line[:] = rest
        too_long = len(rest) > LINE_SIZE_MAX or any(len(line) > LINE_SIZE_MAX for line in lines)
        answers = [self.drill.answer(line) for line in lines if len(line) <= LINE_SIZE_MAX]
        if too_long:
            answers.append(b'{"ok":false,"error":"a request has at most %d bytes"}\n' % LINE_SIZE_MAX)
        try:
            # One answer fits into the socket's buffer. A drill that sends more requests without
            # reading the answers is disconnected.
            sent = self.sock.send(b"".join(answers)) if answers else 0
        except OSError:
            sent = -1
        if too_long or sent != sum(map(len, answers)):
            self._end()

    def scan(self, now_ms: int) -> None:
        """Do nothing: a drill may be idle for long."""

    def _end(self) -> None:
        self.drill.connections -= 1
        self.drill.loop.drop_fixed(self.fd, self.sock)


def find(folder: str) -> str:
    """Return the path of the drill socket of the node in `folder`, even if it does not exist."""
    try:
        with open(os.path.join(folder, PATH_FILE), encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return os.path.join(folder, NAME)


def _socket_path(folder: str) -> str:
    path = os.path.join(os.path.abspath(folder), NAME)
    if len(os.fsencode(path)) < PATH_SIZE_MAX:
        return path
    path = os.path.join(tempfile.mkdtemp(prefix=FOLDER_PREFIX), NAME)
    with open(os.path.join(folder, PATH_FILE), "w", encoding="utf-8") as file:
        file.write(path)
    return path


def _remove_old(folder: str) -> None:
    """Remove the drill socket that a killed process has left behind.

    Raises RmqkitError if a live process listens there.
    """
    path = find(folder)
    if not os.path.lexists(path):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        try:
            asking.connect(path)
        except OSError:
            _remove(folder, path)
        else:
            raise RmqkitError(f"{path} belongs to another process: each node with drillFaultsEnable needs its own folder")


def _remove(folder: str, path: str) -> None:
    """Remove the socket, the file with its path, and the temporary folder made for it.

    Remove nothing else, even if the file contains another path.
    """
    with suppress(OSError):
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)
            if os.path.basename(os.path.dirname(path)).startswith(FOLDER_PREFIX):
                os.rmdir(os.path.dirname(path))
    with suppress(OSError):
        os.unlink(os.path.join(folder, PATH_FILE))


def _match(asked: _Match | _Rule) -> Match:
    if not 0 <= asked.port <= 65535:
        raise IsolationError(f"port {asked.port} must be from 0 to 65535")
    host, port = asked.peer, 0
    if asked.peer.startswith(":") and asked.peer[1:].isdecimal():
        host, port = "", int(asked.peer[1:])
    elif asked.peer.rpartition(":")[2].isdecimal() and (asked.peer.count(":") == 1 or asked.peer.startswith("[")):
        try:
            host, port = Address.parse(asked.peer)
        except ValueError as error:
            raise IsolationError(str(error)) from None
    if port > 65535:
        raise IsolationError(f"port {port} must be from 0 to 65535")
    return Match(host, port, asked.tag, asked.port)


def _rule(asked: _Rule) -> IsolationRule:
    if asked.direction not in DIRECTIONS:
        raise IsolationError(f"unknown direction {asked.direction!r}: must be in, out or both")
    return IsolationRule(_match(asked), asked.direction, tuple(_match(each) for each in asked.spare))


def _encode_rule(rule: IsolationRule) -> _Rule:
    match = _encode_match(rule.match)
    spare = [_encode_match(each) for each in rule.spared]
    return _Rule(match.peer, match.tag, match.port, rule.direction, spare)


def _encode_match(match: Match) -> _Match:
    if not match.peer_port:
        return _Match(match.host, match.tag, match.port)
    peer = str(Address(match.host, match.peer_port)) if match.host else f":{match.peer_port}"
    return _Match(peer, match.tag, match.port)
