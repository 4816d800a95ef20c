"""SendQueue: the sends of a producer, from the calling threads to the I/O thread and back.

A calling thread appends its send to a deque. The I/O thread starts it and resolves its future.
At most `pending_max` messages of `pending_bytes_max` bytes wait for a response. Above either limit,
a sending thread blocks until there is room.
"""

import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from rmqkit.api.io_thread import IoThread
from rmqkit.client.message import SendResult
from rmqkit.client.producers.outgoing_message import OutgoingMessage
from rmqkit.client.producers.producer import ProducerCore, SendOutcome
from rmqkit.errors import ClientClosed, ClientError, RmqkitError

#: Sends that the I/O thread starts per turn. A thread that sends faster than the I/O thread works
#: must not keep it from reading responses.
JOBS_A_TURN = 500


class _Job(NamedTuple):
    """One send that waits for the I/O thread."""

    outgoing: OutgoingMessage
    future: "Future[SendResult | None]"
    options: Mapping[str, Any]


class SendQueue:
    """The pending sends of one producer. `core` sends them; only the I/O thread uses it."""

    def __init__(self, io: IoThread, group: str, pending_max: int, pending_bytes_max: int) -> None:
        self._io = io
        self._group = group
        self._pending_max = pending_max
        self._pending_bytes_max = pending_bytes_max
        self.core: ProducerCore | None = None
        self._jobs: deque[_Job] = deque()
        self._take_posted = False
        #: what the I/O thread has started and not ended
        self._unfinished: dict[Future[SendResult | None], None] = {}
        self._room = threading.Condition()
        #: threads that wait for room or for the end of all sends
        self._waiting_threads = 0
        #: protects the counts of sends that have not ended
        self._guard = threading.Lock()
        self._pending = 0
        self._pending_bytes = 0

    # --- in the calling threads

    def put(self, outgoing: OutgoingMessage, options: Mapping[str, Any]) -> "Future[Any]":
        """Queue a send. The future's result is a SendResult, or None for a one-way send."""
        if not self.has_room:
            self.wait_for_room()
        future: Future[SendResult | None] = Future()
        with self._guard:
            self._pending += 1
            self._pending_bytes += len(outgoing.body)
        self._jobs.append(_Job(outgoing, future, options))
        if not self._take_posted:
            self._take_posted = True
            self._io.post(self._take)
        return future

    @property
    def has_room(self) -> bool:
        """Whether `put` would return without blocking."""
        return self._pending < self._pending_max and self._pending_bytes < self._pending_bytes_max

    def wait_for_room(self) -> None:
        """Block until there is room for another send. Returns at once in the I/O thread."""
        if self._io.is_current:
            return
        with self._room:
            self._waiting_threads += 1
            try:
                while not self.has_room and self._io.ended is None:
                    self._room.wait(0.1)
            finally:
                self._waiting_threads -= 1

    def wait_until_empty(self, timeout_s: float | None) -> bool:
        """Block until no send is pending. Return False if the time was over before."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        with self._room:
            self._waiting_threads += 1
            try:
                while self._pending:
                    left = None if until is None else until - time.monotonic()
                    if left is not None and left <= 0:
                        return False
                    self._room.wait(0.1 if left is None else min(left, 0.1))
            finally:
                self._waiting_threads -= 1
        return True

    # --- in the I/O thread

    def _take(self) -> None:
        # Clear the flag first: a job that is queued from now on requests another turn.
        self._take_posted = False
        jobs, producer = self._jobs, self.core
        for _ in range(JOBS_A_TURN):
            try:
                outgoing, future, options = jobs.popleft()
            except IndexError:
                return
            if not future.set_running_or_notify_cancel():
                self._count_down(len(outgoing.body))
            elif producer is None or self._io.ended is not None:
                self._count_down(len(outgoing.body))
                future.set_exception(self._io.ended or ClientClosed(f"producer {self._group} is closed"))
            else:
                self._unfinished[future] = None
                producer.send(outgoing, partial(self._send_ended, future, len(outgoing.body)), **options)
        if not self._take_posted:
            self._take_posted = True
            self._io.post(self._take)

    def _send_ended(self, future: "Future[SendResult | None]", size: int, outcome: SendOutcome | None) -> None:
        self._unfinished.pop(future, None)
        self._count_down(size)
        if isinstance(outcome, ClientError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def _count_down(self, size: int) -> None:
        with self._guard:
            self._pending -= 1
            self._pending_bytes -= size
        # Wake blocked threads when a quarter is free, not for each message.
        if self._waiting_threads and self._pending <= self._pending_max * 3 // 4:
            with self._room:
                self._room.notify_all()

    def lost(self, error: RmqkitError) -> None:
        """Fail all pending sends: the I/O thread ends unexpectedly."""
        for future in list(self._unfinished):
            del self._unfinished[future]
            future.set_exception(error)
        with self._guard:
            self._pending, self._pending_bytes = len(self._jobs), 0
        while self._jobs:
            self._take()
