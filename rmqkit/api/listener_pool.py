"""A thread pool for listeners. A slow listener blocks no heartbeat, pull or lock renewal.

The pool starts a thread when a batch waits and no thread is idle, up to `threads_max`. A thread
ends after 60 s without work. Threads are daemons, so a listener that hangs does not keep the
process alive.

An orderly consumer submits one batch of a queue at a time. With one thread per queue, no queue
waits for the listener of another queue.
"""

import threading
from collections import deque
from collections.abc import Callable

from rmqkit.client.consumers.push_queue import ListenerBatch

IDLE_S = 60.0


class ListenerPool:
    """Runs batches in up to `threads_max` threads.

    Invariant: each submitted batch is passed exactly once to either `run` or `discard`.
    """

    def __init__(
        self, name: str, threads_max: int, run: Callable[[ListenerBatch], None], discard: Callable[[ListenerBatch], None]
    ) -> None:
        """`run` processes a batch in a thread of the pool. `discard` gets batches that will not
        run.

        Neither may raise.
        """
        self._name = name
        self._threads_max = threads_max
        self._run = run
        self._discard = discard
        self._waiting: deque[ListenerBatch] = deque()
        self._changed = threading.Condition()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._closed = False
        self._made = 0

    def submit(self, batch: ListenerBatch) -> None:
        """Queue a batch, and start a thread if none is idle. Discard the batch if the pool is
        closed.
        """
        with self._changed:
            if self._closed:
                self._discard(batch)
                return
            self._waiting.append(batch)
            if self._idle >= len(self._waiting):
                self._changed.notify()
            elif len(self._threads) < self._threads_max:
                self._made += 1
                thread = threading.Thread(target=self._work, name=f"{self._name}-{self._made}", daemon=True)
                self._threads.add(thread)
                thread.start()

    def close(self, wait_s: float) -> bool:
        """Discard waiting batches and wait up to `wait_s` seconds for running ones.

        Returns False if a listener did not end in time. The calling thread is not waited for, so a
        listener may close its own consumer.
        """
        current = threading.current_thread()
        with self._changed:
            self._closed = True
            while self._waiting:
                self._discard(self._waiting.popleft())
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not (self._threads - {current}), wait_s)

    def _work(self) -> None:
        try:
            while (batch := self._next()) is not None:
                self._run(batch)
        finally:
            with self._changed:
                self._threads.discard(threading.current_thread())
                self._changed.notify_all()

    def _next(self) -> ListenerBatch | None:
        with self._changed:
            while not self._waiting:
                if self._closed:
                    return None
                self._idle += 1
                notified = self._changed.wait(IDLE_S)
                self._idle -= 1
                if not notified and not self._waiting:
                    return None
            return self._waiting.popleft()
