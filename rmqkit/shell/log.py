"""Structured log lines: an event name and fields, as text or JSON, to stderr or to a file that is rotated by size.

    2026-07-18 12:34:56.789 INFO broker-a-0 recovered files=3 took_ms=120

Writing never raises: a line that cannot be written (full disk, closed pipe) is dropped and counted in `dropped`. The last
lines of each node are kept in memory, for the story that is told when a node fails.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Literal

from rmqkit.shell import osfile

LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40}
STORY_LINES = 50
LogFormat = Literal["text", "json"]


class LogSink:
    """Where lines go. `path` None is stderr; a file is rotated to `path.1` … `path.<kept>` at `size_max` bytes."""

    def __init__(
        self,
        path: str | None = None,
        *,
        log_format: LogFormat = "text",
        level: str = "INFO",
        size_max: int = 67_108_864,
        kept: int = 5,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.path = path
        self.dropped = 0
        self.level = LEVELS[level]
        self._json = log_format == "json"
        self._size_max = size_max
        self._kept = kept
        self._wall_ns = wall_ns
        self._fd = -1
        self._size = 0
        self.reopen()

    def reopen(self) -> None:
        """Open the file again, after somebody has moved it away."""
        if self.path is None:
            self._fd = 2
            return
        if self._fd > 2:
            os.close(self._fd)
        self._fd = -1
        try:
            os.makedirs(os.path.dirname(os.path.abspath(self.path)), exist_ok=True)
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | osfile.OPEN_FLAGS, 0o644)
            self._size = os.fstat(self._fd).st_size
        except OSError:
            self.dropped += 1

    def write(self, level: str, node: str, event: str, fields: dict[str, Any]) -> str:
        """Write one line; returns it without its end."""
        wall_ms = self._wall_ns() // 1_000_000
        line = (_json_line if self._json else _text_line)(wall_ms, level, node, event, fields)
        if LEVELS[level] >= self.level:
            data = line.encode("utf-8", "backslashreplace") + b"\n"
            if self.path is not None and self._size + len(data) > self._size_max:
                self._rotate()
            try:
                os.write(self._fd, data)
                self._size += len(data)
            except OSError:
                self.dropped += 1
        return line

    def write_block(self, text: str) -> None:
        """Lines as they are, whatever the format: a traceback."""
        try:
            os.write(self._fd, text.encode("utf-8", "backslashreplace"))
        except OSError:
            self.dropped += 1

    def close(self) -> None:
        if self._fd > 2:
            os.close(self._fd)
        self._fd = -1

    def _rotate(self) -> None:
        assert self.path is not None
        try:
            for number in range(self._kept, 0, -1):
                older = self.path if number == 1 else f"{self.path}.{number - 1}"
                if os.path.exists(older):
                    os.replace(older, f"{self.path}.{number}")
        except OSError:
            self.dropped += 1
        self.reopen()


class NodeLog:
    """The log port of one node."""

    def __init__(self, sink: LogSink, node: str) -> None:
        self.sink = sink
        self.node = node
        self.last: deque[str] = deque(maxlen=STORY_LINES)

    def debug(self, event: str, **fields: Any) -> None:
        self.last.append(self.sink.write("DEBUG", self.node, event, fields))

    def info(self, event: str, **fields: Any) -> None:
        self.last.append(self.sink.write("INFO", self.node, event, fields))

    def warning(self, event: str, **fields: Any) -> None:
        self.last.append(self.sink.write("WARNING", self.node, event, fields))

    def error(self, event: str, **fields: Any) -> None:
        self.last.append(self.sink.write("ERROR", self.node, event, fields))


def stderr_log(node: str) -> NodeLog:
    return NodeLog(LogSink(), node)


def _text_line(wall_ms: int, level: str, node: str, event: str, fields: dict[str, Any]) -> str:
    seconds, millis = divmod(wall_ms, 1000)
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    words = "".join(f" {key}={_quoted(value)}" for key, value in fields.items())
    return f"{stamp}.{millis:03d} {level} {node} {event}{words}".replace("\n", "\\n")


def _quoted(value: Any) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or " " in text or '"' in text or "\n" in text else text


def _json_line(wall_ms: int, level: str, node: str, event: str, fields: dict[str, Any]) -> str:
    record = {"time_ms": wall_ms, "level": level, "node": node, "event": event, **fields}
    return json.dumps(record, ensure_ascii=False, default=str)


def say(line: str) -> None:
    """One line for the person who started the process."""
    try:
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
    except OSError:
        pass
