"""Decisions: outcomes of halves that producers ended while the master of the group was away.

An acting master appends nothing to its log, so it can write no op. It keeps the outcome here, by
the half's offset in the half queue:

    commit     the message of the half has to be put. An acting master puts it on a master of
               another group, a returning master into its own log
    finished   the half is rolled back, or its message was put

The table is part of the progress of transactions: it is saved to `transactionDecisions.json`,
copied to the other slaves, and copied back by the returning master, which writes the ops. So the
master neither checks such a half nor commits it again. An entry is removed once the progress of
the half queue has passed it, or the log has its op.

Commits are put one at a time, in the order of their decisions. A failed put is retried after 100
ms, 200 ms, … up to the destination's limit. If no broker can have stored the message, the other
commits go first. Otherwise the same message is tried again: trying several could store each of
them twice.

Limit: `DECISIONS_MAX` entries. Beyond it an END_TRANSACTION is answered with SYSTEM_BUSY. The half
stays undecided then, and its producer is asked again.
"""

from collections.abc import Callable
from functools import partial

import msgspec

from rmqkit.broker.special.contract import UNKNOWN, Destination, SpecialParts
from rmqkit.broker.special.transactions.progress import HalfProgress
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.store.contract import Put, PutStatus

DUTY = "transaction-decisions"
DECISIONS_MAX = 10_000
#: answers that stay the same at each attempt, to messages of other programs
_NEVER = (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED)
#: answers of this broker's own store that has the message
_STORED = (PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.FLUSH_SLAVE_TIMEOUT, PutStatus.SLAVE_NOT_AVAILABLE)
#: pause before the first retry of a failed put; each further pause is longer by the same time
RETRY_STEP_MS = 100


class _SavedDecisions(msgspec.Struct):
    """Content of `transactionDecisions.json`: offsets in the half queue."""

    commits: list[int] = []
    finished: list[int] = []


class Decisions:
    """The outcomes that have no op yet, and the commits among them that are being put."""

    def __init__(
        self, parts: SpecialParts, message: Callable[[int], Put | None], ended: Callable[[int, PutStatus], None]
    ) -> None:
        """`message` returns the message of the half at an offset, None if there is none to put.

        `ended` is called when the put of a commit has ended for good: after it, or a refusal that
        would stay the same.
        """
        self._context = parts.context
        self._store = parts.store
        self._message = message
        self._ended = ended
        self._file = AtomicFile(parts.context.disk, f"{parts.folder}/transactionDecisions.json")
        self._is_dirty = False
        self._to: Destination | None = None
        #: halves whose message has to be put, in the order of their decisions
        self.commits: dict[int, None] = {}
        #: halves of which nothing is left to put
        self.finished: set[int] = set()
        #: the commit that is being put; -1: none
        self._flight = -1
        self._failures = 0

    def __contains__(self, offset: int) -> bool:
        return offset in self.commits or offset in self.finished

    def __len__(self) -> int:
        return len(self.commits) + len(self.finished)

    @property
    def is_full(self) -> bool:
        return len(self) >= DECISIONS_MAX

    @property
    def is_moving(self) -> bool:
        return self._flight >= 0

    # --- on and off -------------------------------------------------------------------------------

    def start(self, destination: Destination) -> None:
        """Start to put commits. None is put before `wake`."""
        self._to, self._failures = destination, 0
        self._context.duties.add(DUTY, self._run, None)

    def stop(self) -> None:
        """Start no further put. A put in flight still counts when it ends."""
        self._context.duties.remove(DUTY)

    def wake(self) -> None:
        """Put the next commit, unless one is in flight or a failure has to wait."""
        if self.commits and not self._failures and DUTY in self._context.duties:
            self._context.duties.wake(DUTY, self._context.clock.mono_ms)

    # --- entries ----------------------------------------------------------------------------------

    def commit(self, offset: int) -> None:
        """Decide that the message of this half has to be put."""
        self.commits[offset] = None
        self._is_dirty = True

    def finish(self, offset: int) -> None:
        """Decide that nothing of this half has to be put (any more)."""
        self.commits.pop(offset, None)
        self.finished.add(offset)
        self._is_dirty = True

    def drop(self, offset: int) -> None:
        """Remove an entry: the log, or the progress of the half queue, says the same."""
        if offset in self and offset != self._flight:
            self.commits.pop(offset, None)
            self.finished.discard(offset)
            self._is_dirty = True

    def keep_between(self, first: int, end: int) -> None:
        """Remove entries of halves before `first`, and at or behind `end`."""
        for offset in [each for each in (*self.commits, *self.finished) if not first <= each < end]:
            self.drop(offset)

    def progress(self, progress: HalfProgress) -> HalfProgress:
        """Return this progress with the entries behind it."""
        first = progress.half
        commits = tuple(each for each in self.commits if each >= first)
        return progress._replace(commits=commits, finished=tuple(sorted(each for each in self.finished if each >= first)))

    def merge(self, theirs: HalfProgress) -> None:
        """Add a peer's entries. What is finished at one of both is finished."""
        for offset in theirs.finished:
            if offset not in self.finished and offset != self._flight:
                self.finish(offset)
        for offset in theirs.commits:
            if offset not in self:
                self.commit(offset)

    # --- the file ---------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the file. Raises AtomicFileDamaged."""
        saved = self._file.load(_decode)
        if saved is not None:
            self.commits = dict.fromkeys(saved.commits)
            self.finished = set(saved.finished)

    def save(self, then: Callable[[], None] | None = None) -> None:
        """Save changed entries once the log is durable. Call `then` in any case."""
        if not (self._is_dirty or self._file.busy or self._file.error is not None):
            if then is not None:
                then()
            return
        self._is_dirty = False
        content = msgspec.json.encode(_SavedDecisions(list(self.commits), sorted(self.finished)))

        def synced(durable: bool) -> None:
            if durable:
                self._file.save(lambda: content, then)
                return
            self._is_dirty = True
            if then is not None:
                then()

        self._store.sync(self._store.offset_written, synced)

    # --- puts -------------------------------------------------------------------------------------

    def _run(self, now_ms: int) -> int | None:
        assert self._to is not None, "commits are put between start and stop"
        while self._flight < 0 and self.commits:
            offset = next(iter(self.commits))
            put = self._message(offset)
            if put is None:
                self._end(offset, PutStatus.PUT_OK)
                continue
            self._flight = offset
            self._to.put(put, f"HALF:{offset}", partial(self._answered, offset, self._to))
            if self._failures:
                break
        return None

    def _answered(self, offset: int, to: Destination, status: PutStatus) -> None:
        if self._flight != offset:
            return
        self._flight = -1
        wait_ms = 0
        if status is PutStatus.PUT_OK or status in _NEVER or (to.takes_internal and status in _STORED):
            self._failures = 0
            self._end(offset, status)
        else:
            self._failures += 1
            wait_ms = min(self._failures * RETRY_STEP_MS, to.retry_max_ms)
            if status not in UNKNOWN and offset in self.commits:
                self.commits[offset] = self.commits.pop(offset)
        if DUTY in self._context.duties and self.commits:
            self._context.duties.wake(DUTY, self._context.clock.mono_ms + wait_ms)

    def _end(self, offset: int, status: PutStatus) -> None:
        self.finish(offset)
        self._ended(offset, status)


def _decode(data: bytes) -> _SavedDecisions:
    """Return the content of the file. Raises RemoteProtocolError."""
    try:
        return msgspec.json.decode(data, type=_SavedDecisions)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"transaction decisions: {error}") from None
