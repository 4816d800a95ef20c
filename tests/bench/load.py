"""The load of a benchmark: one JVM with Apache's Java client that runs one load after another.

    with Load() as load, load.session("127.0.0.1:9876"):
        figure = load.ask("sync", topic="T", threads=8, size=1024, leadMs=1000, runMs=5000)

The Java class `rmqkit.bench.Load` (beside the interop driver) connects to this process and answers
each command line with lines of JSON. `begin` and `end` mark the measured window. `at_window` is
called at both, so that processes can be sampled at the same moments.
"""

import json
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import psutil

from tests.bench.page_cache import PageCache
from tests.interop import apache

MAIN = "rmqkit.bench.Load"
HEAP_MB = 1024
ANSWER_TIMEOUT_S = 180.0


class LoadError(RuntimeError):
    """Raised when a load fails; the text is the client's error."""


class Load:
    """The JVM. `headers` is "ROCKETMQ" (binary, as Apache's benchmark) or "JSON" (Java's default).

    Binary headers have 16 bits for the request code, so they cannot carry those of pop.
    """

    def __init__(self, headers: str = "ROCKETMQ") -> None:
        self._home = tempfile.TemporaryDirectory(prefix="load-")
        self.page_cache = PageCache(Path(self._home.name) / "page-cache")
        with socket.create_server((apache.HOST, 0)) as server:
            server.settimeout(apache.READY_TIMEOUT_S)
            port = server.getsockname()[1]
            out = Path(self._home.name) / "out"
            with open(out, "wb") as output:
                home = Path(self._home.name)
                self._process = apache.start_java(
                    MAIN, [str(port), headers], home=home, heap_mb=HEAP_MB, small=False, stdout=output
                )
            try:
                self._socket, _ = server.accept()
            except TimeoutError:
                apache.end(self._process, clean=False)
                raise LoadError(f"the load's JVM does not dial: {out.read_text(errors='replace')[-2000:]}") from None
        self._socket.settimeout(ANSWER_TIMEOUT_S)
        self._lines = self._socket.makefile("r", encoding="utf-8")

    def __enter__(self) -> "Load":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._socket.close()
        apache.end(self._process, clean=False)
        self._home.cleanup()

    @contextmanager
    def session(self, namesrv: str) -> Iterator[None]:
        """Fill the page cache, and connect the client to a cluster."""
        self.page_cache.fill()
        self.ask("open", namesrv=namesrv)
        try:
            yield
        finally:
            self.ask("close")

    def cpu_s(self) -> float:
        """Return the CPU time of the client so far, in seconds."""
        times = psutil.Process(self._process.pid).cpu_times()
        return times.user + times.system

    def ask(self, command: str, at_window: Callable[[], None] | None = None, **fields: str | int) -> dict[str, Any]:
        """Run one load and return its figures. Raises LoadError."""
        line = " ".join([command, *(f"{key}={value}" for key, value in fields.items())])
        self._socket.sendall(line.encode() + b"\n")
        for answer in self._lines:
            told: dict[str, Any] = json.loads(answer)
            if "done" in told:
                done: dict[str, Any] = told["done"]
                return done
            if "error" in told:
                raise LoadError(f"{line}: {told['error']['text']}")
            if at_window is not None:
                at_window()
        raise LoadError(f"{line}: the load's JVM has ended")
