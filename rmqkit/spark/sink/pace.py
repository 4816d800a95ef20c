"""Paces the rows that all tasks of a job send together: the tasks ask one clock, on the driver.

    task ── "20 rows of job J at 1,000 a second" ──► PaceServer, in the driver's process
    task ◄── "send them in 0.06 s" ────────────────  (one SendPace for each job)

A task asks for the rows of CHUNK_S at once, sends them after the pause, and asks again. So the rate
is shared out over the tasks that send at that time: a task that has ended, or waits for its input,
asks for nothing, and the others get its share. A task that dies loses at most one chunk.

`serve_pace` starts the server, once per process, and notes its address in the session's setting
PLACE_KEY. Spark hands the settings of a session to each of its tasks as local properties.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from rmqkit.errors import PeerUnreachable
from rmqkit.runtime.connection import Address

if TYPE_CHECKING:
    from io import BufferedRWPair

    from pyspark.sql import SparkSession

PLACE_KEY = "spark.rmqkit.pace"
#: Setting: the server's port. By default the system chooses one.
PORT_KEY = "spark.rmqkit.pace.port"
#: After a pause, at most the rows of this time may be sent at once, in seconds.
CATCH_UP_S = 0.1
#: A task asks for the rows of this time, in seconds, and for at least one.
CHUNK_S = 0.02
#: Limit of a request line in bytes; the connection of a longer one is closed.
REQUEST_BYTES_MAX = 4096
#: Limit of jobs whose pace is kept. The one that asked longest ago is forgotten.
JOBS_MAX = 64
#: Limit of connected tasks, each of which has a thread; the connection of a further one is closed.
TASKS_MAX = 2000
#: How long a task waits for the answer, in seconds.
ASK_TIMEOUT_S = 30.0


class SendPace:
    """Paces rows evenly. After a pause, at most the rows of CATCH_UP_S are sent at once."""

    def __init__(self, per_second: int) -> None:
        #: Number of rows so far.
        self.rows = 0
        self._step_s = 1 / per_second
        self._due_s: float | None = None

    def pause_s(self, now_s: float, rows: int = 1) -> float:
        """Return how long the next rows must wait, in seconds, and count them as sent then."""
        due_s = now_s if self._due_s is None else max(self._due_s, now_s - CATCH_UP_S)
        self._due_s = due_s + rows * self._step_s
        self.rows += rows
        return max(0.0, due_s - now_s)


_Count = Annotated[int, msgspec.Meta(ge=1)]


class _PaceRequest(msgspec.Struct, frozen=True):
    """A request for `rows` of a job that may send `per_second`. The answer: a pause in seconds."""

    secret: str
    job: str
    per_second: _Count
    rows: _Count


class PaceServer:
    """Serves the pace of jobs to their tasks, with a thread for each task that is connected.

    `place` is what tasks need to connect: `HOST:PORT/SECRET`. Raises OSError if the port is taken.
    """

    def __init__(self, host: str, *, bind: str = "", port: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        bind = (bind or host).strip("[]")
        family = socket.AF_INET6 if ":" in bind else socket.AF_INET
        self._listener = socket.create_server((bind, port), family=family)
        self._secret = secrets.token_hex(16)
        self.place = f"{host}:{self._listener.getsockname()[1]}/{self._secret}"
        self._clock = clock
        self._lock = threading.Lock()
        #: Finds or makes the pace of a job at a rate. Under `_lock`.
        self.pace = functools.lru_cache(JOBS_MAX)(lambda _job, per_second: SendPace(per_second))
        self._room = threading.BoundedSemaphore(TASKS_MAX)
        threading.Thread(target=self._accept, name="spark-pace", daemon=True).start()
        atexit.register(self.close)

    def pause_s(self, job: str, per_second: int, rows: int) -> float:
        """Return how long these rows of the job must wait, in seconds, and count them as sent."""
        with self._lock:
            return self.pace(job, per_second).pause_s(self._clock(), rows)

    def close(self) -> None:
        """Take no more tasks. A connected task is served until it or this process ends."""
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _address = self._listener.accept()
            except OSError:
                return  # closed
            if not self._room.acquire(blocking=False):
                connection.close()
                continue
            # Finds the end of a host that vanished, whose thread would otherwise wait for ever.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._serve, args=(connection,), name="spark-pace-task", daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            try:
                while line := lines.readline(REQUEST_BYTES_MAX):
                    request = msgspec.json.decode(line, type=_PaceRequest)
                    if not secrets.compare_digest(request.secret, self._secret):
                        return
                    pause_s = self.pause_s(request.job, request.per_second, request.rows)
                    connection.sendall(msgspec.json.encode(pause_s) + b"\n")
            except (OSError, msgspec.MsgspecError):
                return  # the task has ended, or it is not a task
            finally:
                self._room.release()


class SharedPace:
    """A task's side: asks the server at `place` for the rows of `job`, a chunk at a time."""

    def __init__(self, place: str, job: str, per_second: int) -> None:
        self._address, _slash, secret = place.partition("/")
        self._rows = max(1, round(per_second * CHUNK_S))
        self._request = msgspec.json.encode(_PaceRequest(secret, job, per_second, self._rows)) + b"\n"
        #: Rows that were granted and not sent yet.
        self._left = 0
        self._stream: BufferedRWPair[Any, Any] | None = None

    def pause_s(self, _now_s: float) -> float:
        """Return how long the next row must wait, in seconds, and count it as sent then.

        Raises PeerUnreachable if the driver does not answer.
        """
        if self._left:
            self._left -= 1
            return 0.0
        try:
            if self._stream is None:
                with socket.create_connection(Address.parse(self._address), timeout=ASK_TIMEOUT_S) as connection:
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._stream = connection.makefile("rwb")  # keeps the connection open
            self._stream.write(self._request)
            self._stream.flush()
            pause_s = msgspec.json.decode(self._stream.readline(), type=float)
        except (OSError, msgspec.MsgspecError) as error:
            at = self._address
            why = f"{error}; a worker must reach this address (setting {PORT_KEY} fixes the port)"
            text = f"the driver's pace server at {at} does not answer: {why}"
            raise PeerUnreachable(text, kind="connect", address=at) from None
        self._left = self._rows - 1
        return pause_s

    def close(self) -> None:
        if self._stream is not None:
            with contextlib.suppress(OSError):  # a request that could not be sent
                self._stream.close()


#: Returns the server of this process for a host and port. A process has one session at a time.
_server = functools.cache(PaceServer)
#: `cache` may make two at once.
_lock = threading.Lock()


def serve_pace(spark: SparkSession) -> PaceServer:
    """Let the tasks of this session share the rate of `messagesPerSecond`.

    `rmqkit.spark.session` and the pipelines call this. Call it for a session that another program
    created, before it writes with `messagesPerSecond`. A second call changes nothing.

    Args:
        spark: The session. Its setting `spark.rmqkit.pace.port` fixes the port that the driver
            listens on; by default the system chooses one.

    Returns:
        The server in this process, which ends with the process.

    Raises:
        OSError: The driver's address cannot be listened on, or the port is taken.

    Example:
        Send at most 500 rows per second from a session that a notebook server created:

            from rmqkit.spark import serve_pace

            serve_pace(spark)
            paced = rows.write.format("rocketmq").option("messagesPerSecond", 500)
            paced.option("topic", "orders").mode("append").save()
    """
    settings = spark.sparkContext.getConf()
    host = settings.get("spark.driver.host", None) or "127.0.0.1"
    bind = settings.get("spark.driver.bindAddress", None) or host
    port = int(settings.get(PORT_KEY, None) or 0)
    with _lock:
        server = _server(host, bind=bind, port=port)
    spark.conf.set(PLACE_KEY, server.place)
    return server
