"""Truncation: removes the end of a slave's log that its master never had (`haTruncateAhead`).

    idle       ->  comparing, fetching
    comparing  ->  idle, fetching
    fetching   ->  idle, cutting
    cutting    ->  idle, failed
    failed     ->  (end)

    comparing  asks the master whether it has the bytes that would remain: a foreign log may be
               longer, too, and is never truncated
    fetching   asks the master for its progress in special duties
    cutting    copies the end of the log to `diverged/<offset>` (with `-1`, `-2` … appended if that
               file exists), syncs the copy, and then truncates the log on disk
    failed     makes no further attempt until a restart: each attempt would leave another copy, on
               a disk that may be full

Consumer offsets and progress of special duties that lie in the truncated part go back to the ends
of the queues. Otherwise they would skip the messages that the master puts there. Special duties
also go back to the master's progress, because the messages they delivered may have been in the
truncated part alone. If the broker is killed in between, its next start does this (`resume`).
"""

import errno
from collections.abc import Callable
from enum import StrEnum

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.replication.divergence import Divergence
from rmqkit.broker.replication.member_calls import SLAVE_TIMEOUT_MS, MemberCalls
from rmqkit.broker.special.contract import Progress
from rmqkit.broker.special.duties import SpecialDuties, texts
from rmqkit.broker.special.fetch import ask_progress
from rmqkit.broker.tables.offsets import OffsetTable
from rmqkit.runtime.calls import CallFailed, Outcome
from rmqkit.runtime.connection import Address
from rmqkit.runtime.states import Moves, StateMachine
from rmqkit.store.contract import StorageEngine
from rmqkit.store.steps import Steps, Work
from rmqkit.wire.schemas.admin import ExchangeHAInfoResponse

COPY_SIZE = 1_048_576


class TruncationState(StrEnum):
    IDLE = "idle"
    COMPARING = "comparing"
    FETCHING = "fetching"
    CUTTING = "cutting"
    FAILED = "failed"


IDLE, COMPARING, FETCHING, CUTTING, FAILED = TruncationState

MOVES = Moves(
    {
        IDLE: (COMPARING, FETCHING),
        COMPARING: (IDLE, FETCHING),
        FETCHING: (IDLE, CUTTING),
        CUTTING: (IDLE, FAILED),
        FAILED: (),
    }
)


class Truncation(StateMachine[TruncationState]):
    """Truncates this slave's log: one truncation at a time, and none after one has failed."""

    def __init__(
        self,
        context: BrokerContext,
        store: StorageEngine,
        divergence: Divergence,
        calls: MemberCalls,
        offsets: OffsetTable,
        special: SpecialDuties,
    ) -> None:
        super().__init__(MOVES)
        self._context = context
        self._store = store
        self._divergence = divergence
        self._calls = calls
        self._offsets = offsets
        self._special = special
        #: why a truncation has failed; "" while none has
        self.failure = ""
        #: False once the broker stops: no further step is begun
        self.is_allowed = True
        #: called with the reason if the log is not truncated
        self.on_refused: Callable[[str], None] = lambda why: None
        #: called once the check has passed, before the log changes
        self.on_begun: Callable[[], None] = lambda: None
        #: called with the error, or None, once the truncation has ended
        self.on_ended: Callable[[OSError | None], None] = lambda error: None

    def validate(self) -> None:
        assert bool(self.failure) == (self.state is FAILED)

    @property
    def is_busy(self) -> bool:
        """Whether the end of the log may be about to change; the slave then follows no master."""
        return self.state in (COMPARING, FETCHING, CUTTING)

    def begin(self, master: Address, said: ExchangeHAInfoResponse, offset: int, *, is_known: bool = False) -> None:
        """Truncate the log at `offset`, after checking that the master has the bytes before it.

        `is_known`: the logs are known to belong to one group, also if no bytes would remain.
        If the master does not answer, this ends silently: the next connection to it starts again.
        """
        tail = self._divergence.tail(offset)

        def answered(outcome: Outcome) -> None:
            if not self.is_allowed or isinstance(outcome, CallFailed) or not outcome.is_ok:
                self.move(IDLE)
            elif outcome.ext.get("tailMatches") == "true":
                self._fetch(master, offset)
            else:
                self.move(IDLE)
                self.on_refused(f"before offset {offset} the master has other bytes than this log")

        if said.master_log_end is None:
            self._fetch(master, offset)  # an Apache master compares no bytes: `tail_probe` was the check
        elif tail.size:
            self.move(COMPARING)
            self._calls.compare(master, tail, answered)
        elif is_known or self._divergence.has_followed(said):
            self._fetch(master, offset)
        else:
            self.on_refused("no bytes would remain, and this slave has never followed this master")

    def _fetch(self, master: Address, offset: int) -> None:
        def answered(progress: Progress | None) -> None:
            if progress is None or not self.is_allowed:
                self.move(IDLE)
            else:
                self._cut(offset, progress)

        self.move(FETCHING)
        self.on_begun()
        ask_progress(self._context, master, self._special.rows, SLAVE_TIMEOUT_MS, answered)

    def _cut(self, offset: int, progress: Progress) -> None:
        """Copy the log from `offset` on to a new file, then truncate it. Older copies are kept."""
        context = self._context
        path = self._free_path(offset)
        steps = Steps("ha-diverged", context.duties, context.clock)

        def ended(error: OSError | None) -> None:
            if error is None:
                self.move(IDLE)
                context.log.warning("log-cut", offset=offset, copy=path)
                self.resume()
            else:
                self.failure = f"the truncation has failed, and is tried again after a restart: {error.strerror or error}"
                self.move(FAILED)
            self.on_ended(error)

        def copied(error: OSError | None) -> None:
            if error is not None:
                # An incomplete copy is useless, and may be what has filled the disk.
                context.disk.remove(path, lambda _: ended(error))
            else:
                self._divergence.note_cut(texts(progress), lambda: self._store.truncate(offset, ended))

        self.move(CUTTING)
        steps.begin(self._copy(offset, path, steps), copied)

    def resume(self) -> None:
        """Move offsets back to the ends of their queues if a truncation has not done so yet."""
        if not self._divergence.is_cut:
            return
        store, offsets, special = self._store, self._offsets, self._special
        offsets.cut(lambda topic, queue_id: store.queue_range(topic, queue_id).offset_max)
        kept = self._divergence.cut_progress
        special.truncate(None if kept is None else special.decode(kept))
        offsets.save(lambda: special.save(self._divergence.note_cut_over))

    def _free_path(self, offset: int) -> str:
        """Return a file name that is free.

        The log may be truncated at the same offset twice: at 0, for example, if two successive
        masters have lost their disks.
        """
        first = path = f"diverged/{offset:020d}"
        count = 0
        while self._context.disk.size(path) is not None:
            count += 1
            path = f"{first}-{count}"
        return path

    def _copy(self, offset: int, path: str, steps: Steps) -> Work:
        disk, store = self._context.disk, self._store
        position = offset
        while position < store.offset_written:
            data = store.read_log(position, COPY_SIZE)
            if not data:
                raise OSError(errno.EIO, f"the log cannot be read at {position}")
            disk.write(path, position - offset, [data])
            position += len(data)
            yield False
        disk.sync(path, steps.awaiting())
        yield from steps.wait()
