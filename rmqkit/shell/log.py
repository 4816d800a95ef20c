"""Structured log lines: an event name and fields, as text or JSON, to stderr or to a rotated file.

The same event as text, and as JSON (one line, wrapped here):

    2026-07-18 12:34:56.789 INFO broker-a-0 serving address=127.0.0.1:10911 log_end=1200
    {"ts":"2026-07-18T10:34:56.789Z","level":"INFO","node":"broker-a-0","event":"serving",
     "fields":{"address":"127.0.0.1:10911","log_end":1200}}

An event is always a single line: control characters, which a peer may put into a name, are escaped.
The events of the audit (`AUDIT_EVENTS`) are JSON in a log of text lines too, for the programs that
collect them.

**Rotation.** Before a line that would exceed `size_max`, the file is renamed to `path.1`, `path.1`
to `path.2`, and so on up to `path.<kept>`. The new file is opened before the old one is closed. If
any step fails, lines continue to go to the current file, and rotation is retried `RETRY_SIZE` bytes
later. If the process's stdout or stderr is the log file (nodes of `cluster up`), it is redirected
to the new file.

**Failure.** Writing never raises. A line that cannot be written (full disk, closed pipe) is dropped
and counted in `dropped`. The next line that can be written is preceded by a line that says how many
were lost. If the disk took part of a line, a newline ends it first, so the next line stays intact.

The last `STORY_LINES` lines of each node are kept in memory for the report of a failed node.
"""

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from rmqkit.shell import osfile

LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40}
#: lines of a node that its failure report ("story") repeats
STORY_LINES = 50
FILE_SIZE_MAX = 67_108_864
FILES_KEPT = 5
#: bytes to write after a failed rotation before it is retried
RETRY_SIZE = 1_048_576
STDERR = 2
LogFormat = Literal["text", "json"]
#: what `rmqkit.access.audit` writes: requests that were refused, changes, guessed signatures
AUDIT_EVENTS = frozenset(("access-refused", "access-changed", "access-guessing"))

#: escapes of characters that would end a line or control a terminal
_CONTROLS = {code: f"\\u{code:04x}" for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}
_CONTROLS |= {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"}


class LogSink:
    """A destination of log lines: stderr if `path` is None, else a file.

    The file is rotated to `path.1` … `path.<kept>` at `size_max` bytes. Lines below `level` are not
    written.
    """

    def __init__(
        self,
        path: str | None = None,
        *,
        log_format: LogFormat = "text",
        level: str = "INFO",
        size_max: int = FILE_SIZE_MAX,
        kept: int = FILES_KEPT,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.path = path
        self.dropped = 0
        self.level = LEVELS[level]
        self.is_json = log_format == "json"
        self._kept = kept
        self._wall_ns = wall_ns
        self._fd = STDERR if path is None else -1
        self._size = 0
        self._size_max = size_max
        #: file size in bytes at which the next rotation is due
        self._rotate_at = size_max
        #: lines lost since the last one that was written
        self._lost = 0
        #: whether the last line was written in part only
        self._torn = False
        self.reopen()

    @property
    def is_stderr(self) -> bool:
        """Whether the process's stderr and this sink are the same file."""
        return self._fd == STDERR or (self._fd >= 0 and _is_same(self._fd, STDERR))

    def reopen(self) -> None:
        """Reopen the file by name, after it was renamed. Keep the old one in use if that fails."""
        if self.path is None:
            return
        try:
            os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
            fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | osfile.OPEN_FLAGS, 0o644)
            size = os.fstat(fd).st_size
        except OSError:
            self._rotate_at = self._size + RETRY_SIZE
            return
        if self._fd >= 0:
            for own in (1, STDERR):
                if _is_same(own, self._fd):
                    os.dup2(fd, own)
            os.close(self._fd)
        self._fd = fd
        self._size = size
        # Still too large: the rotation has failed to rename it.
        self._rotate_at = self._size_max if size <= self._size_max else size + RETRY_SIZE

    def write(self, level: str, node: str, event: str, fields: dict[str, Any]) -> str:
        """Write one line if its level suffices. Return it either way, without the newline."""
        line = self._line(level, node, event, fields)
        if LEVELS[level] >= self.level:
            if self._lost:
                self._report_lost(node)
            self._put(line)
        return line

    def write_story(self, node: str, text: str) -> None:
        """Write a failure report of many lines: unchanged as text, or as one JSON line."""
        if self.is_json:
            self._put(self._line("ERROR", node, "story", {"text": text}))
        else:
            self._write(text.encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        if self._fd > STDERR:
            os.close(self._fd)
        self._fd = -1

    # --- inside

    def _line(self, level: str, node: str, event: str, fields: dict[str, Any]) -> str:
        wall_ms = self._wall_ns() // 1_000_000
        is_json = self.is_json or event in AUDIT_EVENTS
        return (_json_line if is_json else _text_line)(wall_ms, level, node, event, fields)

    def _put(self, line: str) -> None:
        self._write(line.encode("utf-8", "backslashreplace") + b"\n")

    def _report_lost(self, node: str) -> None:
        lost = self._lost
        self._put(self._line("WARNING", node, "log lines lost", {"count": lost}))
        if self._lost == lost:
            self._lost = 0
        else:  # the notice could not be written either; do not count it as a lost line
            self._lost = lost
            self.dropped -= 1

    def _write(self, data: bytes) -> None:
        if self.path is not None:
            if self._fd < 0:
                self.reopen()
            elif self._size and self._size + len(data) > self._rotate_at:
                self._rotate()
        if self._torn:
            data = b"\n" + data
        try:
            written = os.write(self._fd, data)
        except OSError:
            written = 0
        self._size += written
        if written == len(data):
            self._torn = False
            return
        self._torn = self._torn or written > 0
        self._lost += 1
        self.dropped += 1

    def _rotate(self) -> None:
        assert self.path is not None
        try:
            for number in range(self._kept, 0, -1):
                older = self.path if number == 1 else f"{self.path}.{number - 1}"
                if os.path.exists(older):
                    os.replace(older, f"{self.path}.{number}")
            if self._kept == 0:
                os.unlink(self.path)
        except OSError:
            self._rotate_at = self._size + RETRY_SIZE
            return
        self.reopen()


class NodeLog:
    """The log port of one node. Keeps its last `STORY_LINES` lines in `last`."""

    def __init__(self, sink: LogSink, node: str) -> None:
        self.sink = sink
        self.node = node
        self.last: deque[str] = deque(maxlen=STORY_LINES)

    def info(self, event: str, **fields: Any) -> None:
        self.last.append(self.sink.write("INFO", self.node, event, fields))

    def warning(self, event: str, **fields: Any) -> None:
        self.last.append(self.sink.write("WARNING", self.node, event, fields))

    def error(self, event: str, **fields: Any) -> None:
        self.last.append(self.sink.write("ERROR", self.node, event, fields))


def stderr_log(node: str) -> NodeLog:
    return NodeLog(LogSink(), node)


def _is_same(one: int, other: int) -> bool:
    """Whether two descriptors are the same file, terminal or pipe. False if one is closed."""
    try:
        return os.path.sameopenfile(one, other)
    except OSError:
        return False


def _text_line(wall_ms: int, level: str, node: str, event: str, fields: dict[str, Any]) -> str:
    seconds, millis = divmod(wall_ms, 1000)
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    words = "".join(f" {key}={_quoted(value)}" for key, value in fields.items())
    return f"{stamp}.{millis:03d} {level} {node} {event}{words}".translate(_CONTROLS)


def _quoted(value: Any) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or " " in text or '"' in text or "\n" in text else text


def _json_line(wall_ms: int, level: str, node: str, event: str, fields: dict[str, Any]) -> str:
    seconds, millis = divmod(wall_ms, 1000)
    stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    record = {"ts": f"{stamp}.{millis:03d}Z", "level": level, "node": node, "event": event, "fields": fields}
    return json.dumps(record, ensure_ascii=False, default=str, separators=(",", ":")).translate(_CONTROLS)


def say(line: str) -> None:
    """Print one line to stderr, for the user who started the process. Ignore a closed stderr."""
    try:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    except OSError:
        pass
