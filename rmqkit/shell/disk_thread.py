"""The thread of one node's disk. It runs the slow operations: syncs, renames and removals.

Each node of a driver has its own thread, so a disk that hangs delays only its own node.

A `Job` is a function and the completions that wait for it. Jobs run one at a time, in the order
they were queued. A finished job is put on its owner's `completed` queue, and the driver is woken.

Later syncs of a path may join one that has not started yet (`OsDisk.sync`). This is group commit:
all requests made while one sync runs share the next. `lock` guards joining and queueing.

The thread starts with the first job. It is a daemon, so a driver that dies does not hang on a slow
disk.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

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
        self.lock = threading.Lock()
        self._changed = threading.Condition(self.lock)
        self._jobs: deque[Job] = deque()
        self._thread: threading.Thread | None = None
        self._ending = False

    def give(self, job: Job) -> None:
        with self._changed:
            self._jobs.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="rmqkit-disk", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait_until(self, reached: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Block until `reached()` is true, which is checked after each job.

        Return False on timeout.
        """
        with self._changed:
            return self._changed.wait_for(reached, timeout_s)

    def close(self) -> None:
        """Run the jobs that are queued, then end the thread."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._jobs:
                    if self._ending:
                        return
                    self._changed.wait()
                job = self._jobs.popleft()
                job.started = True
            try:
                job.work()
            except OSError as error:
                job.error = error
            with self._changed:
                job.completed.append(job)
                self._changed.notify_all()
            self.wake()
