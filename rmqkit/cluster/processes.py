"""Node processes: starts them, recognizes them later, and signals them.

A process is identified by its pid and start time. A step of the wall clock may shift start times.
So a process with the right pid and another start time still counts if its command line contains the
`node.toml` of this node.

A node is started in a new session: Ctrl-C in the terminal of `cluster up` does not reach it, and it
survives when that terminal closes. Its output goes to the node's `log`.

A *lifeline* is the reading end of a pipe that every node inherits. Nodes end when the other end is
closed. Tests use it (see `LIFELINE_VARIABLE`).
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from rmqkit.cluster.layout import state
from rmqkit.cluster.layout.home import LOG, NODE_FILE, NODES
from rmqkit.cluster.layout.state import ClusterState, ProcessRecord

#: name of the environment variable with the descriptor number of the inherited lifeline
LIFELINE_VARIABLE = "RMQKIT_LIFELINE_FD"
#: psutil computes start times from the boot time, which has a resolution of 1 s
START_TOLERANCE_S = 1.5
POLL_S = 0.01


def lifeline_fd() -> int | None:
    """Return the lifeline that this process inherited, or None if there is none or it is closed."""
    text = os.environ.get(LIFELINE_VARIABLE, "")
    if not text.isdigit():
        return None
    try:
        os.fstat(int(text))
    except OSError:
        return None
    return int(text)


def spawn(folder: Path, kind: str, lifeline: int | None, *, log_format: str = "text") -> ProcessRecord:
    """Start the node in `folder`. Raises OSError."""
    words = ["--kind", kind, "-c", str(folder / NODE_FILE), "--name", folder.name]
    return _spawn(folder, words, lifeline, log_format)


def spawn_container(
    folder: Path, brokers: Sequence[Path], port: int, lifeline: int | None, *, log_format: str = "text"
) -> ProcessRecord:
    """Start a broker container: one process for the brokers in the folders `brokers`.

    `folder` is the folder of the container itself, with its log. Raises OSError.
    """
    words = ["--own-logs", "--container-port", str(port), "--container-folder", str(folder)]
    for broker in brokers:
        words += ["-c", str(broker / NODE_FILE)]
    return _spawn(folder, words, lifeline, log_format)


def _spawn(folder: Path, words: Sequence[str], lifeline: int | None, log_format: str) -> ProcessRecord:
    command = [sys.executable, "-m", "rmqkit.process", *words, "--log-file", str(folder / LOG), "--log-format", log_format]
    if lifeline is not None:
        command += ["--lifeline", str(lifeline)]
    with open(folder / LOG, "ab") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=node_environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=() if lifeline is None else (lifeline,),
            start_new_session=True,
        )
    # The process outlives this Popen object, which would warn about it. `_reap` collects it.
    process.returncode = 0
    return ProcessRecord(process.pid, _start_s(process.pid))


def node_environment() -> dict[str, str]:
    """Return this process's environment, with PYTHONPATH set to import the same rmqkit.

    The index uses numpy, but none of its linear algebra. By default, OpenBLAS would start a thread
    per core for it, and reserve memory for each.
    """
    import rmqkit

    root = str(Path(rmqkit.__file__).parent.parent)
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    pythonpath = os.pathsep.join(dict.fromkeys([root, *paths]))
    return {"OPENBLAS_NUM_THREADS": "1", **os.environ, "PYTHONPATH": pythonpath}


def _start_s(pid: int) -> float:
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return 0.0


def find(started: ProcessRecord, folder: Path) -> psutil.Process | None:
    """Return the running process, or None if it has ended or its pid was reused."""
    _reap(started.pid)
    try:
        process = psutil.Process(started.pid)
        with process.oneshot():
            if _has_ended(process):
                return None
            if abs(process.create_time() - started.start_s) <= START_TOLERANCE_S:
                return process
            return process if str(folder / NODE_FILE) in process.cmdline() else None
    except psutil.Error:
        return None


def is_paused(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def _reap(pid: int) -> None:
    """Collect an ended child process. As a zombie it would look alive."""
    with suppress(OSError):
        os.waitpid(pid, os.WNOHANG)


def strays(home: Path) -> list[tuple[int, Path]]:
    """Find the processes that run a node with its folder under `home`: (pid, node folder)."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except psutil.Error:
            continue
        if "rmqkit.process" in words:
            files = [Path(word) for word in words if word.endswith(NODE_FILE)]
            found += [(process.pid, file.parent) for file in files if file.is_relative_to(home)]
    return found


def known(folder: Path) -> ClusterState:
    """Return the state of the cluster in `folder`.

    If its file is missing or broken, the state is rebuilt from the running processes.
    """
    loaded = state.load(folder)
    if loaded is not None:
        return loaded
    found = strays(folder) if (folder / NODES).is_dir() else []
    return ClusterState({node.name: ProcessRecord(pid, _start_s(pid)) for pid, node in found})


def send_signal(process: psutil.Process, number: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def end(
    running: Sequence[tuple[str, psutil.Process]], grace_s: float, note: Callable[[str], None] = lambda text: None
) -> None:
    """Stop processes with SIGTERM. After the grace period, send SIGKILL to the rest, with a note.

    Return when all have ended.
    """
    for _node, process in running:
        send_signal(process, signal.SIGTERM)
        send_signal(process, signal.SIGCONT)  # a paused process does not handle SIGTERM
    left = wait_gone(running, grace_s)
    for node, process in left:
        note(f"{node} (pid {process.pid}) did not stop within {grace_s:g} s: killed")
    kill(left)


def kill(running: Iterable[tuple[str, psutil.Process]]) -> None:
    """Send SIGKILL. Return when all have ended, or after 30 s."""
    running = list(running)
    for _node, process in running:
        send_signal(process, signal.SIGKILL)
    wait_gone(running, 30.0)


def wait_gone(running: Sequence[tuple[str, psutil.Process]], most_s: float) -> list[tuple[str, psutil.Process]]:
    """Wait up to `most_s` seconds until the processes have ended. Return those that have not."""
    deadline_s = time.monotonic() + most_s
    left = list(running)
    while True:
        left = [(node, process) for node, process in left if _is_there(process)]
        if not left or time.monotonic() > deadline_s:
            return left
        time.sleep(POLL_S)


def wait_paused(running: Iterable[psutil.Process], paused: bool) -> None:
    """Wait up to 5 s until all processes are paused, or run again; signals act asynchronously."""
    deadline_s = time.monotonic() + 5.0
    for process in running:
        while _is_there(process) and is_paused(process) is not paused and time.monotonic() < deadline_s:
            time.sleep(POLL_S)


def _is_there(process: psutil.Process) -> bool:
    _reap(process.pid)
    try:
        return bool(process.is_running() and not _has_ended(process))
    except psutil.Error:
        return False


def _has_ended(process: psutil.Process) -> bool:
    """Whether a process is a zombie without other threads.

    The main thread may end first, but the sockets stay open until the last thread has ended.
    """
    return bool(process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1)


def last_lines(folder: Path, count: int, since_byte: int = 0) -> list[str]:
    """Return the last `count` lines of a node's log.

    Read at most the last 64 KiB, and nothing before `since_byte`.
    """
    try:
        with open(folder / LOG, "rb") as log:
            size = log.seek(0, os.SEEK_END)
            start = max(min(since_byte, size), size - 65_536)
            log.seek(start)
            text = log.read().decode("utf-8", "replace")
    except OSError:
        return []
    return text.splitlines()[-count:]


def log_size(folder: Path) -> int:
    try:
        return (folder / LOG).stat().st_size
    except OSError:
        return 0
