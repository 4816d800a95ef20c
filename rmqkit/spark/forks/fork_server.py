"""A process that forks the Python processes of Spark, with their imports done.

A query starts up to six of them, one after the other: to look for data sources, to create one, to
plan, and two kinds of workers. By default each imports PySpark (from a zip without compiled files),
numpy, PyArrow and rmqkit: about a second of CPU each. Sessions with a local master start this
server beside the JVM. It imports them once. Spark's Python is then a script that runs
`fork_client`: it asks the server to fork and passes its arguments, environment, folder and
standard streams. The forked process does what `python -m MODULE ARGUMENTS` would do.

- Libraries read some variables of the environment when they are imported (`FIXED`). If a request
  has another value than the server, the server declines, and the client starts a Python.
- The hash seed is that of the server, which is the one that PySpark sets for its workers.
- Only one thread may run when a process forks. numpy starts none with OMP_NUM_THREADS=1, which
  Spark sets for its workers too. PyArrow's thread of jemalloc is switched off.
- The server ends when the pipe at its stdin closes and no forked process is left. It then removes
  its folder, which has its socket and the script.

A worker whose JVM has ended has nobody to answer. PySpark's module would print a traceback then,
for instance after Ctrl-C in a pipeline; here the worker just ends.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import marshal
import os
import runpy
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rmqkit.spark.forks import fork_client

#: What Spark's processes import. Not the module of a stream's planner: it runs as `__main__`.
IMPORTED = (
    "pyspark.daemon",
    "pyspark.worker",
    "pyspark.sql.worker.lookup_data_sources",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "pyspark_rmqkit",
    "rmqkit.spark.source.readers",
    "rmqkit.spark.source.topic_reader",
    "rmqkit.spark.delta.data_files",
)
#: Modules that the server runs; any other needs a Python of its own.
SERVED = "pyspark"
DAEMON = "pyspark.daemon"
#: Beginnings of variables whose values are fixed by the server's imports.
FIXED = ("OMP_", "OPENBLAS_", "MKL_", "NUMEXPR_", "LD_")
#: Clients that wait for the server, which may still import.
BACKLOG = 64
#: How long the server waits for the rest of a request, in seconds.
REQUEST_S = 10.0
#: How a Python runs the server, before the number of the socket's file.
COMMAND = ("-m", __name__)


def start() -> tuple[Path, subprocess.Popen[bytes]] | None:
    """Start a server, which ends with this process; return the stand-in for Python, and the server.

    Returns None where processes cannot fork or have no Unix sockets.
    """
    if not hasattr(os, "fork") or not hasattr(socket, "send_fds"):
        return None
    folder = Path(tempfile.mkdtemp(prefix="rmqkit-fork-"))
    program, path = folder / "python", folder / "socket"
    given = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(str(path))
        except OSError:  # the path is too long, or the file system has no sockets
            shutil.rmtree(folder)
            return None
        listener.listen(BACKLOG)
        client = shlex.join([sys.executable, "-I", "-S", fork_client.__file__, str(path), sys.executable])
        program.write_text(f'#!/bin/sh\nexec {client} "$@"\n')
        program.chmod(0o700)
        number = listener.fileno()
        command = [sys.executable, *COMMAND, str(number)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, env=given | os.environ, pass_fds=[number])
    assert process.stdin is not None
    atexit.register(process.stdin.close)
    # Nobody waits for it: it ends after this process and the JVM, which has processes of it.
    process.returncode = 0
    return program, process


class ForkServer:
    """Serves the clients that connect to `listener` until `stop`, an empty pipe, has ended."""

    def __init__(self, listener: socket.socket, stop: int) -> None:
        self._listener = listener
        self._stop = stop
        #: Client by the process that was forked for it.
        self._clients: dict[int, socket.socket] = {}
        self._woken, self._waking = socket.socketpair()
        self._polled = selectors.DefaultSelector()

    def run(self) -> None:
        """Serve. A forked process does not return from here."""
        self._waking.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._waking.fileno(), warn_on_full_buffer=False)
        for each in (self._listener, self._stop, self._woken):
            self._polled.register(each, selectors.EVENT_READ)
        is_open = True
        while is_open or self._clients:
            for key, _events in self._polled.select():
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._woken:
                    self._woken.recv(4096)
                    self._reap()
                elif key.fileobj == self._stop:
                    is_open = False
                    self._polled.unregister(self._stop)
                elif key.data in self._clients:  # the client was terminated
                    self._polled.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGTERM)

    def _accept(self) -> None:
        client, _address = self._listener.accept()
        client.settimeout(REQUEST_S)
        streams: list[int] = []
        child = None
        try:
            head, streams, _flags, _address = socket.recv_fds(client, 4, 3)
            with client.makefile("rb") as reader:
                words, environment, folder = marshal.loads(reader.read(int.from_bytes(head, "big")))
            fixed = [name for name in environment if name.startswith(FIXED)]
            if words[0].startswith(SERVED) and all(environment[name] == os.environ.get(name) for name in fixed):
                child = os.fork()
        except (OSError, ValueError, EOFError):
            pass  # the client has ended, or no process can be forked
        if child == 0:
            client.close()
            self._become(streams, words, environment, folder)
        for stream in streams:
            os.close(stream)
        if child is None:
            client.close()
            return
        self._clients[child] = client
        self._polled.register(client, selectors.EVENT_READ, data=child)
        with contextlib.suppress(OSError):  # the client has ended: the next poll says so
            client.sendall(fork_client.FORKED)

    def _reap(self) -> None:
        while self._clients:
            child, status = os.waitpid(-1, os.WNOHANG)
            if child == 0:
                return
            with self._clients.pop(child) as client:
                with contextlib.suppress(KeyError):  # it has ended before
                    self._polled.unregister(client)
                code = os.waitstatus_to_exitcode(status)
                with contextlib.suppress(OSError):
                    client.sendall(bytes([code if code >= 0 else 128 - code]))

    def _become(self, streams: Sequence[int], words: Sequence[str], environment: Mapping[str, str], folder: str) -> None:
        """Be `python -m WORDS` in a forked process. Does not return."""
        code: Any = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._polled.close()
            for each in (self._listener, self._woken, self._waking, *self._clients.values()):
                each.close()
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            os.environ.clear()
            os.environ.update(environment)
            os.chdir(folder)
            sys.path[1:1] = missing_paths(environment.get("PYTHONPATH", ""), sys.path)
            sys.argv = list(words)
            if words[0] == DAEMON:
                serve_workers()
            else:
                sys.modules.pop(words[0], None)  # else runpy warns of a second copy
                runpy.run_module(words[0], run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)


def missing_paths(python_path: str, there: Sequence[str]) -> list[str]:
    """Return the entries of PYTHONPATH that `there` lacks, without those of PySpark itself.

    Spark adds PySpark and py4j as zips. They are imported already, from where the driver has them.
    """
    added = [path for path in dict.fromkeys(python_path.split(os.pathsep)) if path and path not in there]
    return [path for path in added if not Path(path).name.startswith(("pyspark.zip", "py4j-", "spark-core_"))]


def serve_workers() -> None:
    """Do what `python -m pyspark.daemon` does, with `serve_task` for a task."""
    from pyspark import daemon

    serve = daemon.worker

    def serve_task(sock: socket.socket, authenticated: bool) -> int:
        try:
            return int(serve(sock, authenticated))
        except (BrokenPipeError, ConnectionResetError):
            return 1  # the JVM has closed the connection

    daemon.worker = serve_task
    daemon.manager()


def main() -> None:
    # As the JVM does: Ctrl-C is for the driver, which then ends its queries.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        folder = Path(listener.getsockname()).parent
        try:
            for name in IMPORTED:
                import_module(name)
        except ImportError:
            # Without a listener, clients start a Python. That reports the error.
            listener.close()
            sys.stdin.read()
        else:
            gc.collect()
            gc.freeze()
            ForkServer(listener, stop=sys.stdin.fileno()).run()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
