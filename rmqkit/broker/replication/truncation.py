"""Truncation: cuts off what a slave's log has and its master never had (`haTruncateAhead`).

    idle       ->  comparing, fetching
    comparing  ->  idle, fetching
    fetching   ->  idle, cutting
    cutting    ->  idle, failed
    failed     ->  (end)

    comparing  the master is asked whether it has what would stay: a foreign log may be longer, too, and is never cut
    fetching   the master is asked for its progress in special duties
    cutting    the end of the log is copied to `diverged/<offset>` (`-1` behind it, `-2` … for a later one), synced, and
               then cut off on the disk
    failed     until the next start: each try would leave one more copy, on a disk that may be full

Offsets of consumers and progress of special duties that lie in what was cut off go back to the ends of the queues, or they
would leave out the messages that the master puts there. Special duties go back to the master's progress, too: what they
delivered may have stood in the cut part alone. A start after a kill in between does that as well (`resume`).
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
        #: why the log could not be cut, "" before that
        self.failure = ""
        #: false once the broker stops: nothing new is begun
        self.is_allowed = True
        #: called when the log is not cut, with the reason; when it is about to be cut; when that has ended
        self.on_refused: Callable[[str], None] = lambda why: None
        self.on_begun: Callable[[], None] = lambda: None
        self.on_ended: Callable[[OSError | None], None] = lambda error: None

    def validate(self) -> None:
        assert bool(self.failure) == (self.state is FAILED)

    @property
    def is_busy(self) -> bool:
        """Whether the end of the log is about to change: no master is followed meanwhile."""
        return self.state in (COMPARING, FETCHING, CUTTING)

    def begin(self, master: Address, said: ExchangeHAInfoResponse, offset: int) -> None:
        """Cut the log off at `offset`, once it is known that what stays is the master's.

        A question that fails ends it without a word: the next connection to the master begins it again.
        """
        tail = self._divergence.tail(offset)

        def answered(outcome: Outcome) -> None:
            if not self.is_allowed or isinstance(outcome, CallFailed) or not outcome.is_ok:
                self.move(IDLE)
            elif outcome.ext.get("tailMatches") == "true":
                self._fetch(master, offset)
            else:
                self.move(IDLE)
                self.on_refused(f"what is here before {offset} is not what the master has there")

        if said.master_log_end is None:
            self._fetch(master, offset)  # Apache's master: what it has shown has to do
        elif tail.size:
            self.move(COMPARING)
            self._calls.compare(master, tail, answered)
        elif self._divergence.has_followed(said):
            self._fetch(master, offset)
        else:
            self.on_refused("nothing would stay, and this master was never followed")

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
        """Copy what is behind `offset`, then cut it off. An older copy stays as it is."""
        context = self._context
        path = self._free_path(offset)
        steps = Steps("ha-diverged", context.duties, context.clock)

        def ended(error: OSError | None) -> None:
            if error is None:
                self.move(IDLE)
                context.log.warning("log-cut", offset=offset, copy=path)
                self.resume()
            else:
                self.failure = f"cutting has failed, and is tried again after a restart: {error.strerror or error}"
                self.move(FAILED)
            self.on_ended(error)

        def copied(error: OSError | None) -> None:
            if error is not None:
                # Half a copy is of no use, and may be what has filled the disk.
                context.disk.remove(path, lambda _: ended(error))
            else:
                self._divergence.note_cut(texts(progress), lambda: self._store.truncate(offset, ended))

        self.move(CUTTING)
        steps.begin(self._copy(offset, path, steps), copied)

    def resume(self) -> None:
        """Bring offsets back to the ends of their queues, if the log was cut and that has not been done yet."""
        if not self._divergence.is_cut:
            return
        store, offsets, special = self._store, self._offsets, self._special
        offsets.cut(lambda topic, queue_id: store.queue_range(topic, queue_id).offset_max)
        kept = self._divergence.cut_progress
        special.truncate(None if kept is None else special.decode(kept))
        offsets.save(lambda: special.save(self._divergence.note_cut_over))

    def _free_path(self, offset: int) -> str:
        """Two masters after one another may have ended at the same offset: at 0, when both had lost their disks."""
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
