"""The drill socket: how a drill on this machine talks to a node's process (`drillFaultsEnable`).

A UNIX socket `drill.sock` in the node's folder that its own user alone can open (mode 0600). One request is one line of
JSON, and so is its answer, in the order asked; what is wrong is answered with an error and changes nothing.

    {"do": "isolate", "id": "cut", "rules": [{"peer": "127.0.0.1:10911", "tag": "ha", "port": 10912, "direction": "both",
                                              "spare": [{"tag": "vip"}]}]}
                             every field of a rule may be left out; `peer` is "host", "host:port" or ":port"; without an
                             id the node gives one
    {"do": "heal", "id": "cut"}    without an id: all
    {"do": "status"}

    {"ok": true, "isolations": [{"id": "cut", "began_ms": …, "rules": […], "counts": {"connections": 2, …}}]}
    {"ok": false, "error": "…"}

The answer to `isolate` and `status` has those that hold now, that to `heal` those that have ended with their last counts
(`rmqkit.shell.faults.isolation.Counts`). A path may be too long for a UNIX socket (about 100 bytes): then the socket stands
in a folder of its own (0700) under the system's temporary one, and a file `drill.sock.path` beside it says where.
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
#: what `sun_path` takes everywhere, its end included (macOS; Linux has 108)
PATH_SIZE_MAX = 104
LINE_SIZE_MAX = 16_384
#: room for the answer that shows `ISOLATIONS_MAX` isolations
SEND_BUFFER = 262_144
#: connections at a time; more are closed at once
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
    """The listening side, an item of the loop."""

    def __init__(self, loop: "Loop", node: "Node", folder: str) -> None:
        """Raises RmqkitError: another process has it; OSError."""
        self.loop = loop
        self.node = node
        self.folder = folder
        _remove_old(folder)
        self.path = _place(folder)
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
        """Nothing: it is never idle."""

    def remove(self) -> None:
        """At a clean end: the socket's name goes."""
        self.sock.close()
        _remove(self.folder, self.path)

    # --- requests

    def answer(self, line: bytes) -> bytes:
        try:
            told = self._answer(line)
        except (IsolationError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            told = {"ok": False, "error": str(error)}
        return msgspec.json.encode(told) + b"\n"

    def _answer(self, line: bytes) -> dict[str, Any]:
        request = msgspec.json.decode(line, type=_Request)
        if request.do != "isolate" and request.rules is not None:
            raise IsolationError(f"`rules` belong to `isolate`, not to {request.do!r}")
        if request.do == "isolate":
            self._isolate(request.id, request.rules or [])
            return self._told(self._ids())
        if request.do == "heal":
            return self._heal(request.id)
        if request.do == "status":
            return self._told(self._ids())
        raise IsolationError(f"{request.do!r} is none of isolate, heal, status")

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
        told = self._told(ended)
        for each in ended:
            assert isolation is not None
            isolation.heal(each)
            self.loop.log.info("healed by a drill", node=self.node.name, id=each)
        return told

    def _ids(self) -> list[str]:
        isolation = self._isolation()
        return isolation.ids(self.node) if isolation is not None else []

    def _isolation(self) -> Isolation | None:
        """What the loop has only the narrow view of; nothing else than this module sets it."""
        return cast("Isolation | None", self.loop.isolation)

    def _told(self, ids: list[str]) -> dict[str, Any]:
        isolation = self._isolation()
        told = []
        for id in ids:
            assert isolation is not None
            began_ms, rules = isolation.rules(id)
            told.append(
                {
                    "id": id,
                    "began_ms": began_ms,
                    "rules": [_shown(rule) for rule in rules],
                    "counts": isolation.counts(id)._asdict(),
                }
            )
        return {"ok": True, "isolations": told}


class _DrillConnection:
    """One connection of a drill. It asks a line, reads the answer, asks the next."""

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
            # An answer fits into the socket's buffer; who asks on without reading is not waited for.
            sent = self.sock.send(b"".join(answers)) if answers else 0
        except OSError:
            sent = -1
        if too_long or sent != sum(map(len, answers)):
            self._end()

    def scan(self, now_ms: int) -> None:
        """Nothing: a drill may be silent for long."""

    def _end(self) -> None:
        self.drill.connections -= 1
        self.drill.loop.drop_fixed(self.fd, self.sock)


def find(folder: str) -> str:
    """The path of the drill socket of the node in `folder`, whether anybody listens or not."""
    try:
        with open(os.path.join(folder, PATH_FILE), encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return os.path.join(folder, NAME)


def _place(folder: str) -> str:
    path = os.path.join(os.path.abspath(folder), NAME)
    if len(os.fsencode(path)) < PATH_SIZE_MAX:
        return path
    path = os.path.join(tempfile.mkdtemp(prefix=FOLDER_PREFIX), NAME)
    with open(os.path.join(folder, PATH_FILE), "w", encoding="utf-8") as file:
        file.write(path)
    return path


def _remove_old(folder: str) -> None:
    """Take away what a killed process has left. Raises RmqkitError when a living one listens there."""
    path = find(folder)
    if not os.path.lexists(path):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        try:
            asking.connect(path)
        except OSError:
            _remove(folder, path)
        else:
            raise RmqkitError(f"{path} belongs to another process: nodes with drillFaultsEnable need a folder each")


def _remove(folder: str, path: str) -> None:
    """The socket, the file that names it and the folder made for it; nothing else, whatever the file says."""
    with suppress(OSError):
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            os.unlink(path)
            if os.path.basename(os.path.dirname(path)).startswith(FOLDER_PREFIX):
                os.rmdir(os.path.dirname(path))
    with suppress(OSError):
        os.unlink(os.path.join(folder, PATH_FILE))


def _match(asked: _Match | _Rule) -> Match:
    if not 0 <= asked.port <= 65535:
        raise IsolationError(f"{asked.port} is no port")
    host, port = asked.peer, 0
    if asked.peer.startswith(":") and asked.peer[1:].isdecimal():
        host, port = "", int(asked.peer[1:])
    elif asked.peer.rpartition(":")[2].isdecimal() and (asked.peer.count(":") == 1 or asked.peer.startswith("[")):
        try:
            host, port = Address.parse(asked.peer)
        except ValueError as error:
            raise IsolationError(str(error)) from None
    if port > 65535:
        raise IsolationError(f"{port} is no port")
    return Match(host, port, asked.tag, asked.port)


def _rule(asked: _Rule) -> IsolationRule:
    if asked.direction not in DIRECTIONS:
        raise IsolationError(f"{asked.direction!r} is no direction: in, out or both")
    return IsolationRule(_match(asked), asked.direction, tuple(_match(each) for each in asked.spare))


def _shown(rule: IsolationRule) -> _Rule:
    match = _shown_match(rule.match)
    spare = [_shown_match(each) for each in rule.spared]
    return _Rule(match.peer, match.tag, match.port, rule.direction, spare)


def _shown_match(match: Match) -> _Match:
    if not match.peer_port:
        return _Match(match.host, match.tag, match.port)
    peer = str(Address(match.host, match.peer_port)) if match.host else f":{match.peer_port}"
    return _Match(peer, match.tag, match.port)
