"""The thread of one node's disk. It runs the slow operations: syncs, renames and removals.

Each node of a driver has its own thread, so a disk that hangs delays only its own node.

A `Job` is a function and the completions that wait for it. Jobs run one at a time, in the order
they were queued. A finished job is put on its owner's `completed` queue, and the driver is woken.

Later syncs of a path may join one that has not started yet (`OsDisk.sync`). This is group commit:
all requests made while one sync runs share the next. Joining needs no lock: the driver writes, then
reads `started`. If it reads False, the sync begins later than the write and covers it. The job is
not collected meanwhile, because only the driver collects.

The thread and the driver compete for the interpreter, and every lock costs a switch between them.
So the jobs go through a `SimpleQueue`, and the thread takes a lock only if the driver blocks in
`wait_until`.

The thread starts with the first job. It is a daemon, so a driver that dies does not hang on a slow
disk.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

from rmqkit.runtime.ports import Completion


@dataclass(slots=True, eq=False)
class Job:
    """One disk operation on `path`, and the completions to call when it has ended.

    `error` is the OSError it failed with. Nothing may join a job once it is `started`.
    """

    path: str
    work: Callable[[], None]
    waiters: list[Completion]
    completed: "deque[Job]"
    error: OSError | None = None
    started: bool = False


class DiskThread:
    """Runs the jobs of one disk in order. Calls `wake` from its own thread after each job."""

    def __init__(self, wake: Callable[[], None] = lambda: None) -> None:
        self.wake = wake
        #: queued jobs; None ends the thread
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ended = threading.Condition()
        #: whether the driver blocks in `wait_until`, or is about to
        self._is_awaited = False

    def give(self, job: Job) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="rmqkit-disk", daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def wait_until(self, reached: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Block until `reached()` is true, which is checked after each job.

        Return False on timeout.
        """
        with self._ended:
            # Set it before the first look: a job that ends later sees it.
            self._is_awaited = True
            try:
                return self._ended.wait_for(reached, timeout_s)
            finally:
                self._is_awaited = False

    def close(self) -> None:
        """Run the jobs that are queued, then end the thread."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.started = True
            try:
                job.work()
            except OSError as error:
                job.error = error
            job.completed.append(job)
            if self._is_awaited:
                with self._ended:
                    self._ended.notify_all()
            self.wake()
