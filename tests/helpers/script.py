"""Script: drives one node by hand, event in and outbox out. The test moves the clock.

    script = Script(lambda ports: NameServer("ns", ports, config))
    client = script.connect()
    answer = client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    script.advance(5_000)

Each event is its own turn, in the order that `rmqkit.runtime.node` promises: completions of the
disk, the event, due duties, settle, outbox. What the node sends is decoded frame by frame into
`received` of the connection. Requests are written as Java writes them (`version` and `language` can
be chosen), so no code under test encodes its own input. Connections that the node dials wait in
`script.dialled` for `accept` or `refuse`.
"""

import json
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from rmqkit.runtime.connection import Address, Buffer, Connection
from rmqkit.runtime.node import BaseNode
from rmqkit.runtime.ports import Clock, Completion, DiskUsage, FileInfo, Ports
from rmqkit.wire.remoting.frames import Frame, FrameBuffer

JAVA_5 = 479
_STEPS_MAX = 100_000

N = TypeVar("N", bound=BaseNode)


class Command(NamedTuple):
    """A frame that the node sent: a response (flag bit 0 is set) or a request."""

    code: int
    ext: dict[str, Any]
    remark: str | None
    body: bytes
    opaque: int
    flag: int
    #: a JSON header as written; the fields of a binary one
    header: dict[str, Any]
    codec: int = 0

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def read_command(frame: Frame) -> Command:
    if frame.codec:
        assert frame.codec == 1, f"form {frame.codec} of a header"
        header = read_binary(frame.header)
    else:
        header = json.loads(frame.header)
    ext = header.get("extFields", {})
    assert all(isinstance(value, str) for value in ext.values()), f"extFields of {header} must be strings"
    return Command(
        header["code"], ext, header.get("remark"), frame.body, header["opaque"], header["flag"], header, frame.codec
    )


def read_binary(header: bytes) -> dict[str, Any]:
    """Return a ROCKETMQ header under the names of a JSON header.

    Read it as Java does: every byte belongs to a field, and an empty text is no text
    (`RocketMQSerializable.rocketMQProtocolDecode`).
    """
    code, language, version, opaque, flag, size = struct.unpack_from(">hbhiii", header)
    said = {"code": code, "language": language, "version": version, "opaque": opaque, "flag": flag}
    at = 17 + size
    if size:
        said["remark"] = header[17:at].decode()
    (size,) = struct.unpack_from(">i", header, at)
    rest = header[at + 4 :]
    assert len(rest) == size
    ext = {}
    while rest:
        name, rest = rest[2 : 2 + int.from_bytes(rest[:2], "big")], rest[2 + int.from_bytes(rest[:2], "big") :]
        end = 4 + int.from_bytes(rest[:4], "big")
        assert name
        assert end <= len(rest)
        ext[name.decode()], rest = rest[4:end].decode(), rest[end:]
    if ext:
        said["extFields"] = ext
    return said


def write_command(
    code: int,
    ext: dict[str, Any] | None = None,
    body: bytes = b"",
    *,
    opaque: int = 1,
    flag: int = 0,
    version: int = JAVA_5,
    language: str = "JAVA",
    remark: str | None = None,
    codec: int = 0,
) -> bytes:
    """Return a frame with the JSON header of a Java client, or with `codec` 1 its binary header."""
    if codec:
        head = struct.pack(">hbhii", code, 0, version, opaque, flag)
        pairs = [(name.encode(), str(value).encode()) for name, value in (ext or {}).items()]
        fields = b"".join(
            len(name).to_bytes(2, "big") + name + len(value).to_bytes(4, "big") + value for name, value in pairs
        )
        texts = (remark or "").encode(), fields
        return raw_frame(head + b"".join(len(each).to_bytes(4, "big") + each for each in texts), body, codec)
    header: dict[str, Any] = {"code": code}
    if ext:
        header["extFields"] = ext
    header |= {"flag": flag, "language": language, "opaque": opaque}
    if remark is not None:
        header["remark"] = remark
    header |= {"serializeTypeCurrentRPC": "JSON", "version": version}
    return raw_frame(json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode(), body)


def raw_frame(header: bytes, body: bytes = b"", codec: int = 0) -> bytes:
    size = 4 + len(header) + len(body)
    return size.to_bytes(4, "big") + bytes([codec]) + len(header).to_bytes(3, "big") + header + body


class Client:
    """The far end of one connection."""

    def __init__(self, script: "Script[Any]", conn: Connection) -> None:
        self.script = script
        self.conn = conn
        self.received: list[Command] = []
        #: why the node closed the connection; "" while it is open
        self.closed = ""
        self._frames = FrameBuffer()
        self._opaque = 0

    def ask(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"", **head: Any) -> Command:
        """Send a request and return its response, which must come within the turns this takes."""
        opaque = self.tell(code, ext, body, **head)
        answer = self.answer_to(opaque)
        assert answer is not None, f"no answer to {code} {ext}"
        return answer

    def tell(self, code: int, ext: dict[str, Any] | None = None, body: bytes = b"", **head: Any) -> int:
        """Send a request and return its opaque, with which `answer_to` finds the response."""
        self._opaque += 1
        opaque: int = head.pop("opaque", self._opaque)
        self.send(write_command(code, ext, body, opaque=opaque, **head))
        return opaque

    def answer_to(self, opaque: int) -> Command | None:
        """Remove the response from `received` and return it; None if there is none yet."""
        found = [each for each in self.received if each.flag & 1 and each.opaque == opaque]
        assert len(found) <= 1, f"request {opaque} was answered {len(found)} times"
        for each in found:
            self.received.remove(each)
        return found[0] if found else None

    def take(self) -> list[Command]:
        """Return all commands received and not yet taken."""
        taken, self.received = self.received, []
        return taken

    def send(self, data: bytes) -> None:
        """Send raw bytes in one turn, then run turns until the disk has nothing to complete."""
        assert not self.closed, f"the node closed the connection: {self.closed}"
        self.script.turn(lambda: self.script.node.received(self.conn, data))
        self.script.finish_disk()

    def close(self, reason: str = "closed by the peer") -> None:
        self.script.close(self, reason)

    def take_sent(self) -> None:
        out, self.conn.out = self.conn.out, []
        self.conn.out_size = 0
        for each in self._frames.feed(b"".join(bytes(buffer) for buffer in out)):
            self.received.append(read_command(each))
        assert self._frames.error is None, self._frames.error


class Script(Generic[N]):
    def __init__(self, make: Callable[[Ports], N], *, disk: "ScriptDisk | None" = None, start: bool = True) -> None:
        self.clock = Clock(1_000_000, 1_760_000_000_000)
        self.disk = disk or ScriptDisk()
        self.log = ScriptLog()
        self.node = make(Ports(self.clock, self.disk, random.Random(1), self.log))
        self.clients: list[Client] = []
        #: connections that the node has dialled; they wait for `accept` or `refuse`
        self.dialled: list[Client] = []
        self._closing: list[Client] = []
        self._next_id = 1
        if start:
            self.turn(self.node.start)
            self.finish_disk()

    def connect(self, tag: str = "remoting", peer: str = "") -> Client:
        conn = Connection(self._next_id, tag, Address.parse(peer or f"10.0.0.{self._next_id % 250}:40000"))
        self._next_id += 1
        client = Client(self, conn)
        self.clients.append(client)
        self.turn(lambda: self.node.opened(conn))
        return client

    def accept(self, client: Client) -> None:
        """Let the far end accept a dialled connection."""
        self.dialled.remove(client)
        client.conn.is_open = True
        if client.conn.out:
            self.node.outbox.dirty.append(client.conn)
        self.turn(lambda: self.node.opened(client.conn))

    def refuse(self, client: Client, reason: str = "connection refused") -> None:
        self.dialled.remove(client)
        self.close(client, reason)

    def close(self, client: Client, reason: str) -> None:
        client.closed = client.conn.closing = client.conn.closing or reason
        self.clients.remove(client)
        self.turn(lambda: self.node.closed(client.conn, reason))

    def turn(self, event: Callable[[], None] | None = None) -> None:
        """Run one turn of the node, and one more for each connection that it closed."""
        node = self.node
        for completion, error in self.disk.take_completions():
            node.done(completion, error)
        if event is not None:
            event()
        node.run_due()
        node.settle()
        self._flush()
        while self._closing:
            client = self._closing.pop(0)
            self.clients.remove(client)
            self.turn(lambda gone=client: node.closed(gone.conn, gone.closed))  # type: ignore[misc]

    def finish_disk(self) -> None:
        """Run turns until the disk has completed all requests, unless the test holds them."""
        while self.disk.completions and not self.disk.held:
            self.turn()

    def advance(self, ms: int) -> None:
        """Let time pass: run a turn at each due time in between, and one at the end."""
        end_ms = self.clock.mono_ms + ms
        for _ in range(_STEPS_MAX):
            due_ms = self.node.due_ms()
            if due_ms is None or due_ms > end_ms:
                break
            self._move(max(due_ms, self.clock.mono_ms))
            self.turn()
            self.finish_disk()
        else:
            raise AssertionError(f"more than {_STEPS_MAX} turns within {ms} ms: a duty asks to run without end")
        self._move(end_ms)
        self.turn()
        self.finish_disk()

    def _move(self, mono_ms: int) -> None:
        self.clock.wall_ms += mono_ms - self.clock.mono_ms
        self.clock.mono_ms = mono_ms

    def _flush(self) -> None:
        outbox = self.node.outbox
        for conn in outbox.dials:
            client = Client(self, conn)
            self.clients.append(client)
            self.dialled.append(client)
        by_conn: dict[int, Client] = {id(client.conn): client for client in self.clients}
        for conn in outbox.dirty:
            by_conn[id(conn)].take_sent()
        for conn, _ in outbox.closes:
            closing = by_conn.get(id(conn))
            if closing is not None and not closing.closed:
                closing.closed = conn.closing
                self._closing.append(closing)
        for effects in (outbox.dials, outbox.dirty, outbox.closes, outbox.reads_changed):
            effects.clear()


class ScriptLog:
    """Keeps log lines as (level, event, fields)."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append(("info", event, fields))

    def warning(self, event: str, **fields: Any) -> None:
        self.lines.append(("warning", event, fields))

    def error(self, event: str, **fields: Any) -> None:
        self.lines.append(("error", event, fields))

    def events(self, level: str | None = None) -> list[str]:
        return [event for each, event, _ in self.lines if level in (None, each)]


class ScriptDisk:
    """A disk in memory.

    `error` makes requests with a completion fail, `write_error` makes writes fail. While `held` is
    set, completions wait.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}
        self.locks: set[str] = set()
        self.error: OSError | None = None
        self.write_error: OSError | None = None
        self.held = False
        self.completions: list[tuple[Completion, OSError | None]] = []

    def take_completions(self) -> list[tuple[Completion, OSError | None]]:
        if self.held:
            return []
        taken, self.completions = self.completions, []
        return taken

    def create(self, path: str, size: int) -> None:
        file = self.files.setdefault(path, bytearray())
        file.extend(bytes(max(0, size - len(file))))

    def write(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        if self.write_error is not None:
            raise self.write_error
        data = b"".join(bytes(buffer) for buffer in buffers)
        self.create(path, position + len(data))
        self.files[path][position : position + len(data)] = data

    def read(self, path: str, position: int, size: int) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(path)
        return bytes(self.files[path][position : position + size])

    def view(self, path: str, position: int, size: int) -> Buffer:
        return self.read(path, position, size)

    def size(self, path: str) -> int | None:
        return len(self.files[path]) if path in self.files else None

    def data_end(self, path: str) -> int:
        return len(self.files[path])

    def list(self, folder: str) -> list[FileInfo]:
        inside = [path for path in sorted(self.files) if path.rpartition("/")[0] == folder]
        return [FileInfo(path.rpartition("/")[2], len(self.files[path]), 0) for path in inside]

    def folders(self, folder: str) -> Sequence[str]:
        inside = [path.removeprefix(f"{folder}/") for path in sorted(self.files) if path.startswith(f"{folder}/")]
        return sorted({path.partition("/")[0] for path in inside if "/" in path})

    def usage(self, path: str) -> DiskUsage:
        return DiskUsage(2**40, 2**30, 2**40 - 2**30)

    def lock(self, path: str, content: bytes) -> None:
        if path in self.locks:
            raise BlockingIOError(path)
        self.locks.add(path)

    def sync(self, path: str, then: Completion) -> None:
        self._later(then)

    def replace(self, path: str, content: bytes, then: Completion) -> None:
        if self.error is None:
            if path in self.files:
                self.files[f"{path}.bak"] = self.files[path]
            self.files[path] = bytearray(content)
        self._later(then)

    def remove(self, path: str, then: Completion) -> None:
        if self.error is None:
            for each in [each for each in self.files if each == path or each.startswith(f"{path}/")]:
                del self.files[each]
        self._later(then)

    def truncate(self, path: str, size: int, then: Completion) -> None:
        if self.error is None:
            del self.files[path][size:]
        self._later(then)

    def close(self) -> None:
        self.locks.clear()

    def _later(self, then: Completion) -> None:
        self.completions.append((then, self.error))
