"""ActingPops: the pops and acks that this broker knows and that are not in the revive topic.

An acting master may not append to its log. So what its clients pop and ack is kept here, in memory
and in `config/popProgress.json`, until the group's master has taken it back:

    checkpoints  of pops that it served
    marks        of messages that it acked or handed out again, whose checkpoints are in the log
    next         how far it has popped each queue

The state travels with the progress of the duty (`PopProgress`). A returning master merges it, and
appends the checkpoints to its revive topic before it serves pops. If it is lost again soon, a
checkpoint may be both in its log and here:

- The record is in this log too. Then reading the record turns the state of the checkpoint into
  marks.
- It is in the master's log alone. So a checkpoint that was sent to a master stays here once it is
  done (`_finished`), and the next return finds the record and marks it.

Marks stay here until all records
before them are finished. Each period of acting has a number, its era. A slave that has stopped to
act forgets its state when the master's progress names the era; without that, `KEEP_MS` later. While
it acts, it ignores the master's progress: it may get an answer that was sent before the takeover.

Losing the state loses no message: the committed offset of a queue stays before the first message
that was popped here and is not acked (`PopOffsets`). It only costs redeliveries.
"""

from collections.abc import Callable, Iterator, Mapping

from msgspec import field

from rmqkit.broker.special.pop.pending import Key, Pending, PopQueue, key_of
from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.runtime.ports import Clock, Disk
from rmqkit.wire.bodies.base import Body
from rmqkit.wire.bodies.pop import PopCheckpoint
from rmqkit.wire.schema import Int32, Int64

#: in place of the queue offset of a checkpoint that is in no record
UNLOGGED = -1
#: limit of the checkpoints of an acting master; the state travels in one answer of some 100 KiB
CHECKPOINTS_MAX = 2_000
#: eras that are remembered
ERAS_MAX = 8
#: how long a slave keeps its state for a master that has not taken it
KEEP_MS = 60_000


class UnloggedCheckpoint(Body, kw_only=True):
    """A checkpoint with its acked messages (`bm`), and the revive queue that its handles name."""

    checkpoint: PopCheckpoint
    revive_queue: Int32


class NextPop(Body, kw_only=True):
    """How far a group has popped a queue."""

    group: str
    offset: Int64
    queue_id: Int32
    topic: str


class PopProgress(Body, kw_only=True):
    """The progress of pop on the wire and in the file.

    `offsets` is the first record of each revive queue that is not finished, without zeros; the
    file has none. `marks` is by revive queue, then by the queue offset of the checkpoint.
    """

    checkpoints: list[UnloggedCheckpoint] = field(default_factory=list)
    eras: list[Int64] = field(default_factory=list)
    marks: dict[Int32, dict[Int64, Int64]] = field(default_factory=dict)
    next: list[NextPop] = field(default_factory=list)
    offsets: dict[Int32, Int64] = field(default_factory=dict)


class ActingPops:
    """The state of one broker, and its file."""

    def __init__(self, clock: Clock, disk: Disk, folder: str, broker_name: str) -> None:
        self._clock = clock
        self._file = AtomicFile(disk, f"{folder}/popProgress.json")
        self._broker_name = broker_name
        self._checkpoints: dict[Key, Pending] = {}
        self._marks: dict[int, dict[int, int]] = {}
        self._next: dict[PopQueue, int] = {}
        #: keys of the checkpoints that a returning master has been told of
        self._told: set[Key] = set()
        #: those of them that are done since
        self._finished: dict[Key, Pending] = {}
        #: eras whose state is part of this one, oldest first
        self._eras: list[int] = []
        #: called once a checkpoint has no open message, by key
        self._ends: dict[Key, Callable[[], None]] = {}
        #: when this broker acted last, or loaded its state (monotonic ms); -1: never in this life
        self._acted_ms = -1
        self._is_dirty = False

    def __len__(self) -> int:
        return len(self._checkpoints)

    def __iter__(self) -> Iterator[Pending]:
        return iter(list(self._checkpoints.values()))

    @property
    def next(self) -> Mapping[PopQueue, int]:
        """One past the last message that was popped, by queue."""
        return self._next

    # --- the file ---------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the file. Raises AtomicFileDamaged if it cannot be read."""
        loaded = self._file.load(PopProgress.decode)
        if loaded is not None:
            self._take(loaded)
            self._acted_ms = self._clock.mono_ms

    def save(self, then: Callable[[], None] | None = None) -> None:
        """Write the file if something changed, then call `then`, even after a failure."""
        is_changed, self._is_dirty = self._is_dirty, False
        self._file.save_if(is_changed, lambda: self.fill(PopProgress()).encode(), then)

    def fill(self, progress: PopProgress) -> PopProgress:
        """Put the state into a progress; return it."""
        checkpoints = (*self, *self._finished.values())
        progress.checkpoints = [
            UnloggedCheckpoint(checkpoint=each.marked, revive_queue=each.revive_queue) for each in checkpoints
        ]
        progress.eras = list(self._eras)
        progress.marks = {queue_id: dict(marks) for queue_id, marks in self._marks.items() if marks}
        progress.next = [
            NextPop(group=group, offset=offset, queue_id=queue_id, topic=topic)
            for (topic, group, queue_id), offset in self._next.items()
        ]
        return progress

    # --- while this broker acts -------------------------------------------------------------------

    def begin(self, wall_ms: int) -> None:
        """Begin an era."""
        self._eras = [*self._eras[1 - ERAS_MAX :], wall_ms]
        self._is_dirty = True

    def end(self) -> None:
        """End the era that `begin` has begun."""
        self._acted_ms = self._clock.mono_ms

    def add(self, pending: Pending, ended: Callable[[], None]) -> None:
        """Add a checkpoint. `ended` is called once all its messages are done."""
        self._checkpoints[pending.key] = pending
        self._ends[pending.key] = ended
        if pending.offsets:
            self._next[pending.queue] = max(self._next.get(pending.queue, 0), pending.offsets[-1] + 1)
        self._is_dirty = True

    def note(self, pending: Pending) -> None:
        """Note changed marks of a checkpoint, here or in the log."""
        self._is_dirty = True
        if pending.record >= 0:
            self._marks.setdefault(pending.revive_queue, {})[pending.record] = pending.bits
        elif pending.is_done:
            if pending.key in self._told:
                self._finished[pending.key] = pending
            self.drop(pending.key)

    def note_sent(self) -> None:
        """Note that a returning master gets the state now."""
        self._told.update(self._checkpoints)

    def logged(self, pending: Pending) -> None:
        """Mark a checkpoint that was read from the log. It is not kept as one without a record."""
        bits = self.bits(pending.revive_queue, pending.record)
        known = self._checkpoints.get(pending.key) or self._finished.pop(pending.key, None)
        if known is not None:
            bits |= known.bits
            if bits:
                self._marks.setdefault(pending.revive_queue, {})[pending.record] = bits & pending.full
            self._is_dirty = True
            self.drop(pending.key)
        pending.bits |= bits & pending.full

    # --- while this broker has a log of its own ---------------------------------------------------

    def drop(self, key: Key) -> None:
        """Forget a checkpoint that is done, or in the log now."""
        if self._checkpoints.pop(key, None) is not None:
            self._is_dirty = True
        ended = self._ends.pop(key, None)
        if ended is not None:
            ended()

    def bits(self, queue_id: int, record: int) -> int:
        """Return the marks of a checkpoint in the log."""
        marks = self._marks.get(queue_id)
        return marks.get(record, 0) if marks else 0

    def prune(self, finished: Mapping[int, int], committed: Callable[[PopQueue], int]) -> None:
        """Forget marks of finished records, and queues whose offset is committed."""
        for queue_id, marks in self._marks.items():
            for record in [each for each in marks if each < finished.get(queue_id, 0)]:
                del marks[record]
                self._is_dirty = True
        for queue in [each for each, offset in self._next.items() if committed(each) >= offset]:
            del self._next[queue]
            self._is_dirty = True

    def truncate(self, ends: Mapping[int, int]) -> None:
        """Forget marks of records that the log has lost."""
        for queue_id, marks in self._marks.items():
            for record in [each for each in marks if each >= ends.get(queue_id, 0)]:
                del marks[record]
                self._is_dirty = True

    # --- copies -----------------------------------------------------------------------------------

    def merge(self, told: PopProgress) -> None:
        """Take over the state of a member, at a master that returns.

        Of two states, the one that knows all eras of the other replaces it. The older one may have
        checkpoints that were logged and finished since: it is from the file of a master that was
        killed, or from a slave that has just copied that. States that both know an era of their own
        are united.
        """
        mine, theirs = set(self._eras), set(told.eras)
        if theirs < mine:
            return
        if mine <= theirs:
            self._clear()
        self._take(told)
        self._is_dirty = True

    def follow(self, told: PopProgress) -> bool:
        """Replace the state by the master's. Return whether it has changed.

        Only for a slave that does not act. The state is kept while the master has not taken it and
        still may.
        """
        is_taken = not self._eras or self._eras[-1] in told.eras
        is_old = self._acted_ms < 0 or self._clock.mono_ms - self._acted_ms > KEEP_MS
        if not is_taken and not is_old:
            return False
        before = self.fill(PopProgress())
        self._clear()
        self._take(told)
        is_changed = self.fill(PopProgress()) != before
        self._is_dirty = self._is_dirty or is_changed
        return is_changed

    def _clear(self) -> None:
        for state in (self._checkpoints, self._marks, self._next, self._ends, self._told, self._finished, self._eras):
            state.clear()

    def _take(self, told: PopProgress) -> None:
        for each in told.checkpoints:
            pending = _pending_of(each, self._broker_name)
            known = self._checkpoints.setdefault(pending.key, pending)
            known.bits |= pending.bits
        for queue_id, marks in told.marks.items():
            mine = self._marks.setdefault(queue_id, {})
            for record, bits in marks.items():
                mine[record] = mine.get(record, 0) | bits
        for row in told.next:
            queue = row.topic, row.group, row.queue_id
            self._next[queue] = max(self._next.get(queue, 0), row.offset)
        self._eras = sorted({*self._eras, *told.eras})[-ERAS_MAX:]


def _pending_of(each: UnloggedCheckpoint, broker_name: str) -> Pending:
    checkpoint = each.checkpoint
    due_ms = checkpoint.pop_ms + checkpoint.invisible_ms
    return Pending(checkpoint, key_of(checkpoint, broker_name), each.revive_queue, UNLOGGED, due_ms)
