"""Running nodes as a process: loop, disks, logs and signals put together.

`run_nodes` is what `python -m rmqkit.node` calls. Its exit codes:

    0    every node has stopped cleanly (SIGTERM or SIGINT asked for it)
    1    a node could not start (one line says why), even when it found out later, in its recovery, or had not stopped
         within the grace
    70   a node broke an invariant: the story is in the log
    128+n  a second signal n: ended at once

Listening sockets are bound first, so that a node is made with the ports it really has; connections wait in the backlog
until it has started. SIGHUP opens the log file again. This is the only place with a broad `except`: an exception out of a
node is told with what the node was doing, its last log lines and the traceback, and the process ends; disks are left as
they are.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

from rmqkit.config import NetworkLimits
from rmqkit.errors import CannotStart, RmqkitError
from rmqkit.runtime.node import Node
from rmqkit.runtime.ports import Ports
from rmqkit.shell.log import LogSink, NodeLog, say
from rmqkit.shell.loop import Loop

if TYPE_CHECKING:
    from rmqkit.shell.drill_socket import DrillSocket

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_BROKEN = 70
GRACE_MS = 30_000
DESCRIPTORS_WANTED = 65_536


class Listen(NamedTuple):
    """A listener a node wants. `port` 0 lets the system choose."""

    tag: str
    host: str
    port: int


class NodeSpec(NamedTuple):
    """A node to run. `make` gets its ports and, by tag, the port numbers of its listeners; its files are under `folder`."""

    name: str
    folder: str
    make: Callable[[Ports, Mapping[str, int]], Node]
    listens: Sequence[Listen] = ()
    #: where the drill socket stands; None: drills cannot cut this node off
    drill_folder: str | None = None


class Started(NamedTuple):
    """What `ready` is told of each node."""

    name: str
    ports: Mapping[str, int]


def run_nodes(
    specs: Sequence[NodeSpec],
    *,
    sink: LogSink,
    limits: NetworkLimits | None = None,
    lifeline_fd: int | None = None,
    grace_ms: int = GRACE_MS,
    ready: Callable[[Sequence[Started]], None] | None = None,
) -> int:
    """Run nodes in one loop until they have stopped; the exit code. `ready` is called once all have started."""
    driver_log = NodeLog(sink, "driver")
    logs = {spec.name: NodeLog(sink, spec.name) for spec in specs}
    try:
        _check_platform()
        loop = Loop(limits=_fitting(limits or NetworkLimits(), driver_log), log=driver_log)
        _on_signals(loop, sink, driver_log, grace_ms)
        if lifeline_fd is not None:
            loop.watch_lifeline(lifeline_fd)
        made = [_make(loop, spec, logs[spec.name]) for spec in specs]
        started = [each for each, _ in made]
    except (RmqkitError, OSError) as error:
        return _cannot_start(driver_log, error)
    try:
        try:
            loop.start()
            # After the start: whoever holds the node's store is named before whoever holds its drill socket.
            drills = [_drills(loop, node, spec.drill_folder) for (_, node), spec in zip(made, specs, strict=True)]
        except (RmqkitError, OSError) as error:
            loop.close()
            return _cannot_start(driver_log, error)
        # What is alive now stays: later collections need not look at it again.
        gc.collect()
        gc.freeze()
        if ready is not None:
            ready(started)
        clean = loop.run()
    except CannotStart as error:
        return _cannot_start(driver_log, error)
    except Exception:
        _tell_story(loop, sink, logs)
        return EXIT_BROKEN
    if not clean:
        driver_log.error("not stopped in time", grace_ms=grace_ms)
        return EXIT_FAILED
    loop.close()
    for drill in drills:
        if drill is not None:
            drill.remove()
    driver_log.info("stopped")
    return EXIT_DONE


def _make(loop: Loop, spec: NodeSpec, log: NodeLog) -> tuple[Started, Node]:
    sockets = [(listen.tag, loop.bind(listen.host, listen.port)) for listen in spec.listens]
    numbers = {tag: int(sock.getsockname()[1]) for tag, sock in sockets}
    ports = loop.ports(spec.folder, log)
    node = spec.make(ports, numbers)
    loop.add(node, ports.disk)
    for tag, sock in sockets:
        loop.accept(node, tag, sock)
    return Started(spec.name, numbers), node


def _drills(loop: Loop, node: Node, folder: str | None) -> DrillSocket | None:
    if folder is None:
        return None
    from rmqkit.shell.drill_socket import DrillSocket

    return DrillSocket(loop, node, folder)


def _check_platform() -> None:
    if sys.platform == "win32":
        raise RmqkitError("nodes run on Linux and macOS; on Windows only clients do")
    if not __debug__:
        raise RmqkitError("nodes do not run under python -O: their checks are needed")


def _fitting(limits: NetworkLimits, log: NodeLog) -> NetworkLimits:
    """Raise the process's limit of descriptors; when it stays low, fewer connections, so that files can still be opened."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = DESCRIPTORS_WANTED if hard == unlimited else min(DESCRIPTORS_WANTED, hard)
    if soft != unlimited and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (ValueError, OSError):
            pass  # what we have must do
    if soft == unlimited or limits.connections_max <= soft // 2:
        return limits
    log.warning("few descriptors", descriptors=soft, connections_max=soft // 2)
    return replace(limits, connections_max=soft // 2)


def _cannot_start(log: NodeLog, error: RmqkitError | OSError) -> int:
    line = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        line = f"{error.filename}: {error.strerror}"
    if log.sink.path is not None:
        log.error("cannot start", reason=line)
    if not (log.sink.is_json and log.sink.is_stderr and log.sink.path is not None):
        say(f"error: {line}")
    return EXIT_FAILED


def _on_signals(loop: Loop, sink: LogSink, log: NodeLog, grace_ms: int) -> None:
    asked = False

    def stop(number: int, _frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            log.warning("stopped at once", signal=signal.Signals(number).name)
            os._exit(128 + number)
        asked = True

        def begin() -> None:
            log.info("stopping", signal=signal.Signals(number).name)
            loop.stop(grace_ms)

        loop.call_soon_threadsafe(begin)

    def reopen(_number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(sink.reopen)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGHUP, reopen)


def _tell_story(loop: Loop, sink: LogSink, logs: Mapping[str, NodeLog]) -> None:
    node = loop.failed
    name = "driver" if node is None else node.name
    doing = "" if node is None else node.doing
    last = list(logs[name].last) if name in logs else []
    NodeLog(sink, name).error("node failed", doing=doing, error=repr(sys.exc_info()[1]))
    story = "".join(f"  before: {line}\n" for line in last) + traceback.format_exc()
    sink.write_story(name, story)
    if sink.path is not None and not (sink.is_json and sink.is_stderr):
        say(f"error: {name} has failed while {doing or 'idle'}; the story is in {sink.path}")
