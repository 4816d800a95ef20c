"""Records what a store did to its disk, and what it had promised after each operation.

`RecordingDisk` wraps an engine's disk and records every change in the order of the calls. A change
that completes later (`sync`, `replace`, `remove`, `truncate`) is recorded twice: when the engine
requests it, and when the engine learns that it is done. In between, any part of it may have
happened.

`Ledger` holds the messages given to the engine, in the order of the log, and after each step a
`Promise`: up to where the engine reported the log as durable, to where it is being cut, which
topics were deleted. A promise names the operation it begins with, so each prefix of the operations
has its promise. What is durable is noted before each operation: the operation may write down that
it is.
"""

from bisect import bisect
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from rmqkit.runtime.connection import Buffer
from rmqkit.runtime.ports import Completion
from rmqkit.sim.disk import SimDisk


class Operation(NamedTuple):
    """One change of the disk.

    `kind`: create, write; sync, replace, remove, truncate (requested); synced, replaced, removed,
    truncated (done). `number` of a done operation is the operation that requested it. `position` is
    a size for create and truncate.
    """

    kind: str
    path: str
    position: int = 0
    data: bytes = b""
    number: int = -1


ENDED = {"sync": "synced", "replace": "replaced", "remove": "removed", "truncate": "truncated"}


class RecordingDisk:
    """A disk port that records what goes to `disk`.

    Of a failed write it records what the disk then holds. Other failed changes are never recorded
    as done. `before` is called before each operation.
    """

    def __init__(self, disk: SimDisk, operations: list[Operation], before: Callable[[], None]) -> None:
        self.operations = operations
        self._disk = disk
        self._before = before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def _record(self, operation: Operation) -> None:
        self._before()
        self.operations.append(operation)

    def create(self, path: str, size: int) -> None:
        self._disk.create(path, size)
        self._record(Operation("create", path, size))

    def write(self, path: str, position: int, buffers: Sequence[Buffer]) -> None:
        data = b"".join(buffers)
        try:
            self._disk.write(path, position, [data])
        except OSError:
            # A part of the data may have been written.
            if self._disk.size(path) is not None:
                data = self._disk.read(path, position, len(data))
                self._record(Operation("write", path, position, data))
            raise
        self._record(Operation("write", path, position, data))

    def lock(self, path: str, content: bytes) -> None:
        self._disk.lock(path, content)
        self._record(Operation("write", path, 0, content))

    def sync(self, path: str, then: Completion) -> None:
        self._disk.sync(path, self._noting(Operation("sync", path), then))

    def replace(self, path: str, content: bytes, then: Completion) -> None:
        self._disk.replace(path, content, self._noting(Operation("replace", path, 0, content), then))

    def remove(self, path: str, then: Completion) -> None:
        self._disk.remove(path, self._noting(Operation("remove", path), then))

    def truncate(self, path: str, size: int, then: Completion) -> None:
        self._disk.truncate(path, size, self._noting(Operation("truncate", path, size), then))

    def _noting(self, asked: Operation, then: Completion) -> Completion:
        number = len(self.operations)
        self._record(asked)

        def ended(error: OSError | None) -> None:
            if error is None:
                self._record(asked._replace(kind=ENDED[asked.kind], number=number))
            then(error)

        return ended


class Known(NamedTuple):
    """A message with the numbers that the engine gave it."""

    phy_offset: int
    phy_offset_next: int
    topic: str
    queue_id: int
    queue_offset: int
    body: bytes
    key: str
    #: queue offsets that it takes: the messages of an inner batch
    count: int = 1


class Promise(NamedTuple):
    """What holds from operation `since` on, until the next promise."""

    since: int
    #: all messages of this log; the first `message_count` of them were settled
    log: Sequence[Known]
    message_count: int
    #: the log is durable up to this offset, as reported by the engine
    durable: int
    #: the offset to which the log is being cut; -1 if it is not
    cut: int
    #: topic -> end of the log when its deletion was requested; `gone`: once it was complete
    deleted: dict[str, int]
    gone: dict[str, int]


class Ledger:
    """The promises of a life. Update `log`, `durable`, `cut`, `deleted`, `gone`; then `note`."""

    def __init__(self, operations: list[Operation], durable: int = 0) -> None:
        self.log: list[Known] = []
        self.durable = durable
        self.cut = -1
        self.deleted: dict[str, int] = {}
        self.gone: dict[str, int] = {}
        self.promises: list[Promise] = []
        #: number of operations when a put was answered with an error, and that message
        self.refused: list[tuple[int, Known]] = []
        self._operations = operations
        #: (number of operations, durable from then on), in order
        self._durables: list[tuple[int, int]] = []
        self.note()

    def note(self) -> None:
        now = len(self._operations)
        self._durables.append((now, self.durable))
        promise = Promise(now, self.log, len(self.log), self.durable, self.cut, dict(self.deleted), dict(self.gone))
        if self.promises and self.promises[-1].since == now:
            self.promises.pop()
        self.promises.append(promise)

    def note_durable(self, end: int) -> None:
        """Note, within a step too, that the log is durable up to `end`."""
        if end > self.durable:
            self.durable = end
            self._durables.append((len(self._operations), end))

    def begin_cut(self, end: int) -> None:
        self.cut = end
        self.note()

    def end_cut(self) -> None:
        """Note that the cut is durable: from here on there is another log."""
        self.log = [known for known in self.log if known.phy_offset_next <= self.cut]
        self.durable = min(self.durable, self.cut)
        self.deleted = {topic: min(end, self.cut) for topic, end in self.deleted.items()}
        self.gone = {topic: min(end, self.cut) for topic, end in self.gone.items()}
        self.cut = -1
        self.note()

    def at(self, count: int) -> tuple[Promise, int]:
        """Return the promise after the first `count` operations, and how many messages the log may
        have then."""
        number = max(0, len(self.promises) - 1)
        while number and self.promises[number].since > count:
            number -= 1
        durable = self._durables[bisect(self._durables, count, key=itemgetter(0)) - 1][1]
        promise = self.promises[number]._replace(durable=durable)
        following = self.promises[min(number + 1, len(self.promises) - 1)]
        return promise, max(promise.message_count, following.message_count if following.log is promise.log else 0)
