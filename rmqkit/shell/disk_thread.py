"""The helper thread of one node's disk: everything about it that may take long (syncs, renames, removals) runs here.

Nodes of one driver have a thread each, so that a disk that hangs holds up its own node only.

A `Job` is a function and the completions that wait for it. Jobs run one at a time in the order they were given; when one
has ended it is put on its owner's `completed` queue and the driver is woken. A sync that has not begun yet may be joined by
later syncs of the same path (`OsDisk.sync`), which is what group commit is: whoever asks while one sync runs shares the
next. `lock` guards that hand-over, nothing else is shared.

The thread starts with the first job and is a daemon: a driver that dies does not hang on a slow disk.
"""

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from rmqkit.runtime.ports import Completion


@dataclass(slots=True, eq=False)
class Job:
    """One piece of work."""

    path: str
    work: Callable[[], None]
    waiters: list[Completion]
    completed: "deque[Job]"
    error: OSError | None = None
    started: bool = False


class DiskThread:
    """`wake` is called from the thread after each job."""

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
        """Block until `reached()`, which is looked at after each job. False when the time is over."""
        with self._changed:
            return self._changed.wait_for(reached, timeout_s)

    def close(self) -> None:
        """End the thread after the jobs that were given."""
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
