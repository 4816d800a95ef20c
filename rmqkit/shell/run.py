"""Runs nodes as a process: combines the loop, disks, logs and signals.

`python -m rmqkit.process` calls `run_nodes`. Its exit codes:

    0    every node has stopped cleanly, after SIGTERM or SIGINT
    1    a node could not start (one line says why), even if it found out later, in its recovery;
         or a node did not stop within the grace period
    70   a node broke an invariant; the log has the details
    128+n  a second signal n ended the process at once

Listening sockets are bound first, so that each node is created with its actual ports. Connections
wait in the backlog until the node has started. SIGHUP reopens the log files.

This is the only place with a broad `except`. An exception from a node is reported with what the
node was doing, its last log lines and the traceback. Then the process ends without touching the
disks again.
"""

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import FrameType

from rmqkit.config import NetworkLimits
from rmqkit.errors import CannotStart, RmqkitError
from rmqkit.shell.log import LogSink, NodeLog, say
from rmqkit.shell.loop import Loop
from rmqkit.shell.node_host import NodeHost, NodeSpec, ReadyNode

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_BROKEN = 70
GRACE_MS = 30_000
DESCRIPTORS_WANTED = 65_536


def run_nodes(
    specs: Sequence[NodeSpec],
    *,
    sink: LogSink,
    limits: NetworkLimits | None = None,
    lifeline_fd: int | None = None,
    grace_ms: int = GRACE_MS,
    ready: Callable[[Sequence[ReadyNode]], None] | None = None,
    hosting: Callable[[NodeHost], None] | None = None,
) -> int:
    """Run nodes in one loop until they have stopped. Return the exit code.

    `ready` is called once all have started. `hosting` is called before the start, with the
    `NodeHost` that can add and remove nodes later. The process ends at once when `lifeline_fd`, the
    reading end of a pipe, reaches its end.
    """
    driver_log = NodeLog(sink, "driver")
    try:
        _check_platform()
        loop = Loop(limits=_fitting(limits or NetworkLimits(), driver_log), log=driver_log)
        hosts = NodeHost(loop, sink, len(specs))
        _on_signals(hosts, sink, driver_log, grace_ms)
        if lifeline_fd is not None:
            loop.watch_lifeline(lifeline_fd)
    except (RmqkitError, OSError) as error:
        return _cannot_start(driver_log, error)
    making = ""
    try:
        for spec in specs:
            making = spec.name
            hosts.make(spec)
        making = ""
        if hosting is not None:
            hosting(hosts)
        loop.start()
        hosts.open_drill_sockets()
    except (RmqkitError, OSError) as error:
        name = making or (loop.failed.name if loop.failed is not None else "")
        code = _cannot_start(driver_log, error, specs, name)
        loop.close()
        return code
    try:
        hosts.freeze()
        if ready is not None:
            ready([resident.started for resident in hosts.residents.values()])
        clean = loop.run()
    except CannotStart as error:
        return _cannot_start(driver_log, error, specs, loop.failed.name if loop.failed is not None else "")
    except Exception:
        _report_failure(hosts, driver_log)
        return EXIT_BROKEN
    if not clean:
        driver_log.error("not stopped in time", grace_ms=grace_ms)
        return EXIT_FAILED
    loop.close()
    hosts.remove_drill_sockets()
    driver_log.info("stopped")
    return EXIT_DONE


def _check_platform() -> None:
    if sys.platform == "win32":
        raise RmqkitError("nodes run on Linux and macOS; on Windows only clients do")
    if not __debug__:
        raise RmqkitError("nodes do not run under python -O: their checks are needed")


def _fitting(limits: NetworkLimits, log: NodeLog) -> NetworkLimits:
    """Raise the descriptor limit of the process. Return the limits that fit it.

    If the limit stays low, connections get at most half of it, so that files can still be opened.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = DESCRIPTORS_WANTED if hard == unlimited else min(DESCRIPTORS_WANTED, hard)
    if soft != unlimited and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (ValueError, OSError):
            pass  # keep the current limit
    if soft == unlimited or limits.connections_max <= soft // 2:
        return limits
    log.warning("few descriptors", descriptors=soft, connections_max=soft // 2)
    return replace(limits, connections_max=soft // 2)


def reason_of(error: RmqkitError | OSError) -> str:
    """Return the reason why a node cannot start, as one line."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _cannot_start(log: NodeLog, error: RmqkitError | OSError, specs: Sequence[NodeSpec] = (), node: str = "") -> int:
    """Report that a node cannot start, to the log and the user. Return the exit code.

    The message names `node` if there are several. A node with its own log gets the reason there,
    too.
    """
    line = f"{node}: {reason_of(error)}" if node and len(specs) > 1 else reason_of(error)
    for spec in specs:
        if spec.name == node and spec.sink is not None:
            NodeLog(spec.sink, node).error("cannot start", reason=reason_of(error))
    if log.sink.path is not None:
        log.error("cannot start", reason=line)
    if not (log.sink.is_json and log.sink.is_stderr and log.sink.path is not None):
        say(f"error: {line}")
    return EXIT_FAILED


def _on_signals(hosts: NodeHost, sink: LogSink, log: NodeLog, grace_ms: int) -> None:
    asked = False
    loop = hosts.loop

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

    def reopen_all() -> None:
        sink.reopen()
        for resident in hosts.residents.values():
            if resident.spec.sink is not None:
                resident.spec.sink.reopen()

    def reopen(_number: int, _frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(reopen_all)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGHUP, reopen)


def _report_failure(hosts: NodeHost, driver_log: NodeLog) -> None:
    node = hosts.loop.failed
    resident = None if node is None else hosts.residents.get(node.name)
    log = driver_log if resident is None else resident.log
    name = "driver" if node is None else node.name
    doing = "" if node is None else node.doing
    last = [] if resident is None else list(log.last)
    sink = log.sink
    NodeLog(sink, name).error("node failed", doing=doing, error=repr(sys.exc_info()[1]))
    story = "".join(f"  before: {line}\n" for line in last) + traceback.format_exc()
    sink.write_story(name, story)
    if sink is not driver_log.sink:
        driver_log.error("node failed", name=name, doing=doing, story=sink.path)
    if sink.path is not None and not (sink.is_json and sink.is_stderr):
        say(f"error: {name} has failed while {doing or 'idle'}; see the traceback in {sink.path}")
