"""The threads that run listeners, so that a slow one never stops heartbeats, pulls or lock renewal.

Threads are made when work waits and nobody is idle, up to a limit, and end after a while without work. They are daemons: a
listener that hangs does not hang the end of the process. Orderly consumers hand over one batch of a queue at a time, so
with a thread for each queue no queue waits for another's listener.
"""

import threading
from collections import deque
from collections.abc import Callable

from rmqkit.client.consumers.push_queue import ListenerBatch

IDLE_S = 60.0


class ListenerPool:
    def __init__(
        self, name: str, threads_max: int, run: Callable[[ListenerBatch], None], discard: Callable[[ListenerBatch], None]
    ) -> None:
        """`run` is called in a thread of the pool, `discard` for what nobody ran; neither may raise."""
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
        """Start nothing more and wait for what runs; False when some listener did not end in time."""
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
                told = self._changed.wait(IDLE_S)
                self._idle -= 1
                if not told and not self._waiting:
                    return None
            return self._waiting.popleft()
