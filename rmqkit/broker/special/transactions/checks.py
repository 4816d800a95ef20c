"""TransactionChecks: finishes half messages in the order of their queue.

A round begins every `transactionCheckInterval`; on an acting master every `poll_ms` of the
destination. It goes through the half queue from the first unfinished half:

    decided (an op names it)               finished
    committed, or put again (`search`)     finished; only a kill or a takeover leaves such a half
    undecided and too young                the round ends here
    undecided within its own immunity      put again, without a check
    too many checks, or too old            put into TRANS_CHECK_MAX_TIME_TOPIC, then finished
    otherwise                              put again, then its producer is asked

The queue is judged only after all ops were read. One put is in flight at a time, and the half is
finished when it is stored. So one offset is the whole progress. A failed put is retried after
100 ms, 200 ms, … up to the destination's limit.

The destination decides what "put again" means. A master puts the copy at the end of its own half
queue, and asks one producer of the group about that copy. An acting master's destination is the
escape: the copy becomes a half of another group, which asks. It takes no message for an internal
topic, so no half is given up there. A producer may also end a half there, until the half has begun
to leave: then the other group asks.

Progress becomes a consumer offset only when a power loss cannot undo what it counts: at once if
the message is stored elsewhere, else after a sync of this log.

Limits: `HALVES_PER_TURN`, one half in flight, one commit of an acting master in flight, one
question per copy.

Source: `broker/.../transaction/queue/TransactionalMessageServiceImpl.java` (`check`),
`broker/.../transaction/AbstractTransactionalMessageCheckListener.java`. Unlike Apache's, a half
that is put again within its immunity does not count as checked.
"""

from collections.abc import Callable
from functools import partial

from rmqkit.broker.special.contract import UNKNOWN, Destination, SpecialParts
from rmqkit.broker.special.transactions import rewrite
from rmqkit.broker.special.transactions.counts import TransactionCounts
from rmqkit.broker.special.transactions.decisions import Decisions
from rmqkit.broker.special.transactions.halves import Halves
from rmqkit.broker.special.transactions.ops import OpBatch
from rmqkit.broker.special.transactions.outcomes import Outcomes
from rmqkit.broker.special.transactions.progress import HalfProgress, ProgressMark
from rmqkit.broker.special.transactions.questions import Questions
from rmqkit.broker.special.transactions.recent_halves import RecentHalves
from rmqkit.broker.special.transactions.rewrite import checks_of, immunity_of
from rmqkit.broker.special.transactions.search import HalfSearch
from rmqkit.store.contract import Entry, Put, PutResult, PutStatus
from rmqkit.wire import properties as props
from rmqkit.wire.codes import PermName
from rmqkit.wire.hosts import pack_host
from rmqkit.wire.record import Record
from rmqkit.wire.topic_names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC

CHECK, SAVE = "transaction-check", "transaction-save"
#: halves that are finished in one turn
HALVES_PER_TURN = 256
#: pause before the first retry of a failed put; each further pause is longer by the same time
RETRY_STEP_MS = 100
#: pause before a queue is read again that could not be read
UNREADABLE_MS = 10_000
#: answers that stay the same at each attempt, to halves of other programs
_NEVER = (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED)


class HalfPut:
    """A half that is being put. `place` is where, if it is in this broker's own log."""

    __slots__ = ("is_question", "place", "record")

    def __init__(self, record: Record, *, is_question: bool) -> None:
        self.record = record
        self.is_question = is_question
        self.place: PutResult | None = None


class TransactionChecks:
    """The special duty of transactions (`SpecialDuty`)."""

    def __init__(self, parts: SpecialParts) -> None:
        self._context, self._store = parts.context, parts.store
        self._topics, self._offsets = parts.topics, parts.offsets
        self._halves = Halves(parts.context, parts.store)
        self.recent = RecentHalves()
        self._outcomes = Outcomes(parts.context, parts.store)
        self._progress = ProgressMark(parts.offsets, parts.store)
        self._search = HalfSearch(parts.context.clock, parts.store)
        self._host = pack_host(parts.context.address.host, parts.context.address.port)
        self._ops = OpBatch(parts.context, self._host)
        self._questions = Questions(
            parts.context.log, parts.client_calls, self._host, parts.context.config.identity.broker_name
        )
        self._decisions = Decisions(parts, self._message, self._committed)
        #: whether the entries of `decisions` were compared with the ops in the log
        self._is_adopted = False
        self._to: Destination | None = None
        #: the first half that is not finished
        self._head = 0
        #: end of the log at the start: halves before it may be committed without an op in the log
        self._began_at = 0
        #: whether the progress does not know of the head yet
        self._is_behind = False
        self._flight: HalfPut | None = None
        #: a half that may have left although its put has failed; -1: none
        self._perhaps_left = -1
        #: halves whose commit is being stored
        self._ending: dict[int, None] = {}
        #: end of the half queue when the round began; -1 between two rounds
        self._round_end = -1
        self._failures = 0
        self.counts = TransactionCounts(parts.context, parts.store, self._halves)

    # --- on and off -------------------------------------------------------------------------------

    def load(self, *, is_copy: bool) -> None:
        """Read the decisions; the offsets are loaded with the consumer offsets."""
        self._decisions.load()

    def start(self, destination: Destination) -> None:
        """Start to work, from the committed offsets."""
        context, progress = self._context, self.snapshot()
        self._to, self._head = destination, progress.half
        self._outcomes.begin(progress.op, {offset for offset in self._ops.waiting if offset >= progress.half})
        self._round_end, self._failures, self._perhaps_left = -1, 0, -1
        self._began_at = self._store.offset_written
        self._is_adopted = not self._decisions
        now_ms = context.clock.mono_ms
        context.duties.add(CHECK, self._run, now_ms + (self._interval_ms if self._is_adopted else 0))
        self._ops.start(destination)
        self._decisions.start(destination)
        context.duties.add(SAVE, self._commit_each, now_ms + self.save_interval_ms)

    def stop(self) -> None:
        """Start no further put, but write the ops that wait. A put in flight still counts."""
        self._ops.stop()
        self._decisions.stop()
        self.recent.clear()
        for name in (CHECK, SAVE):
            self._context.duties.remove(name)
        self._catch_up()
        self._progress.commit()

    @property
    def is_on(self) -> bool:
        return CHECK in self._context.duties

    @property
    def is_moving(self) -> bool:
        return self._flight is not None or self._decisions.is_moving

    @property
    def _destination(self) -> Destination:
        assert self._to is not None, "a half is put only after the start"
        return self._to

    @property
    def _interval_ms(self) -> int:
        poll_ms = self._destination.poll_ms
        return self._context.config.transactions.check_interval_ms if poll_ms is None else poll_ms

    # --- progress ---------------------------------------------------------------------------------

    @property
    def save_interval_ms(self) -> int:
        return self._context.config.offsets.flush_consumer_offset_interval_ms

    def _catch_up(self) -> None:
        """Note the progress that `decide` has made."""
        if self._is_behind:
            self._advanced()

    def snapshot(self) -> HalfProgress:
        self._catch_up()
        return self._decisions.progress(self._progress.newest())

    def merge(self, snapshot: HalfProgress) -> None:
        self._progress.merge(snapshot)
        self._decisions.merge(snapshot)
        self._is_adopted = False

    def truncate(self, limit: HalfProgress | None) -> None:
        """Move back to `limit`. If it is unknown, all halves in the log are judged again.

        An op behind the cut may have named any of them.
        """
        self._ops.forget()
        self.recent.clear()
        self._is_behind = False
        self._progress.move_back(HalfProgress() if limit is None else limit)
        self._decisions.keep_between(0, self._store.queue_range(HALF_TOPIC, 0).offset_max)

    def save(self, then: Callable[[], None] | None = None) -> None:
        self._catch_up()
        self._progress.commit(partial(self._save, then))

    def _save(self, then: Callable[[], None] | None) -> None:
        """Save the offsets, then the decisions that they do not cover."""
        first = self._progress.committed.half

        def saved() -> None:
            self._decisions.keep_between(first, self._store.queue_range(HALF_TOPIC, 0).offset_max)
            self._decisions.save(then)

        self._offsets.save(saved)

    def _moved(self, safe_at: int = 0) -> None:
        """The first half is finished: go on to the next one. `safe_at`: as in `ProgressMark`."""
        self._outcomes.finished.discard(self._head)
        self._head += 1
        self._advanced(safe_at)

    def _advanced(self, safe_at: int = 0) -> None:
        if self._is_behind:
            self._is_behind = False
            safe_at = max(safe_at, self._store.offset_max)
        self._progress.reached(HalfProgress(self._head, self._outcomes.op_offset(self._head)), safe_at)

    def _commit_each(self, now_ms: int) -> int:
        self._catch_up()
        self._progress.commit()
        if self._decisions:
            self.save()
        limit_ms = self._destination.save_max_ms
        return now_ms + (self.save_interval_ms if limit_ms is None else min(limit_ms, self.save_interval_ms))

    # --- halves and decisions ---------------------------------------------------------------------

    def append(self, put: Put) -> PutResult:
        """Store the half of a message that was sent. Its properties need room for later marks."""
        half = rewrite.half(put)
        if len(half.properties) > props.PROPERTIES_SIZE_MAX - rewrite.MARKS_SIZE_MAX:
            return PutResult(PutStatus.PROPERTIES_SIZE_EXCEEDED)
        result = self._store.append(half)
        if result.status is PutStatus.PUT_OK:
            self.recent.add(half, result, self._context.clock.wall_ms)
        return result

    def undecided(self, record: Record) -> Record | None:
        """Return the half that a decision about `record` is for: itself, or its newest copy.

        None if it is decided already, given up, or has moved to another group, perhaps only now.
        """
        newest = self._newest(record)
        if newest is None or newest.queue_offset in self._ending or newest.queue_offset in self._decisions:
            return None
        flight = self._flight
        is_leaving = flight is not None and flight.record.queue_offset == newest.queue_offset
        if not self._destination.takes_internal and (is_leaving or newest.queue_offset == self._perhaps_left):
            return None
        if newest.phy_offset < self._began_at and self._search.is_committed(newest):
            return None  # an earlier master has committed it, and has not written its op
        return newest

    def _newest(self, record: Record) -> Record | None:
        """Return the newest copy of a half; None if the log says that it is finished."""
        newest = record if record.queue_offset >= self._head else self._search.newer(record)
        is_open = newest is not None and newest.queue_offset >= self._head
        return newest if newest is not None and is_open and newest.queue_offset not in self._outcomes.finished else None

    def begin_commit(self, offset: int) -> None:
        """The message of this half is being stored. `decide` or `failed_commit` follows."""
        self._ending[offset] = None

    def failed_commit(self, offset: int) -> None:
        self._ending.pop(offset, None)

    def decide(self, half: Record, *, is_commit: bool) -> None:
        """Record that this half is committed, or rolled back."""
        self.counts.decided(half, is_commit=is_commit)
        self._ending.pop(half.queue_offset, None)
        self._decided(half.queue_offset)
        finished = self._outcomes.finished
        while self._flight is None and self._head in finished:
            finished.discard(self._head)
            self._head += 1
            self._is_behind = True

    def _decided(self, offset: int) -> None:
        if offset >= self._head:
            self._outcomes.finished.add(offset)
        if self._destination.takes_internal:
            self._ops.add(offset)
        else:
            self._decisions.finish(offset)

    # --- while the master is away, and after its return -------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether an acting master can keep no more decisions."""
        return self._decisions.is_full

    def keep_decision(self, half: Record, *, is_commit: bool, then: Callable[[], None]) -> None:
        """Decide a half on an acting master. Call `then` once the decision is on disk."""
        if is_commit:
            self._decisions.commit(half.queue_offset)
            self._decisions.wake()
        else:
            self.decide(half, is_commit=False)
        self._decisions.save(then)

    def _adopt(self) -> None:
        """Compare the decisions with the log: all ops were read. Then put the commits."""
        self._is_adopted = True
        decisions = self._decisions
        for offset in (*decisions.commits, *decisions.finished):
            is_commit = offset in decisions.commits
            record = self._halves.at(offset)
            newest = None if record is None else self._newest(record)
            if newest is None or newest.queue_offset != offset:
                decisions.drop(offset)
            if newest is None:
                continue
            if is_commit and not self._search.is_committed(newest):
                decisions.commit(newest.queue_offset)
            else:
                decisions.finish(newest.queue_offset)
                self._decided(newest.queue_offset)
        decisions.wake()

    def _message(self, offset: int) -> Put | None:
        """Return the message of a half that an acting master has committed."""
        record = self._halves.at(offset)
        return None if record is None else rewrite.committed(record, self._host)

    def _committed(self, offset: int, status: PutStatus) -> None:
        """The put of such a message has ended."""
        if status in _NEVER:
            self._context.log.error("half-message-dropped", offset=offset, why=status.name)
        half = self._halves.at(offset)
        if half is not None:
            self.decide(half, is_commit=True)
        else:
            self._decided(offset)
        self._context.duties.wake(CHECK, self._context.clock.mono_ms)

    # --- a round ----------------------------------------------------------------------------------

    def _run(self, now_ms: int) -> int | None:
        if self._flight is not None:
            return None
        if not self._outcomes.read(self._head):
            return now_ms
        if not self._is_adopted:
            self._adopt()
        self._advanced()  # ops may be used up
        left = HALVES_PER_TURN
        known = self._store.queue_range(HALF_TOPIC, 0)
        if self._round_end < 0:
            self._round_end = known.offset_max
        if not known.offset_min <= self._head <= known.offset_max:
            self._context.log.warning("half-offset-corrected", offset=self._head, first=known.offset_min)
            self._head = min(max(self._head, known.offset_min), known.offset_max)
        end = min(self._round_end, known.offset_max)
        while self._head < end and left > 0:
            entries = self._store.entries(HALF_TOPIC, 0, self._head, min(left, end - self._head))
            if not entries:
                self._context.log.warning("half-queue-unreadable", offset=self._head)
                return now_ms + UNREADABLE_MS
            for entry in entries:
                left -= 1
                if not self._judge(entry):
                    return self._pause(now_ms)
        return now_ms if self._head < end else self._pause(now_ms)

    def _pause(self, now_ms: int) -> int | None:
        """Return when to go on: None while a put is in flight, else with the next round."""
        if self._flight is not None:
            return None
        if self._failures:
            return now_ms + min(self._failures * RETRY_STEP_MS, self._destination.retry_max_ms)
        self._round_end = -1
        return now_ms + self._interval_ms

    def _judge(self, entry: Entry) -> bool:
        """Finish the first half, or begin to put it. Return whether the next one may follow."""
        if entry.queue_offset in self._outcomes.finished:
            self._moved(self._store.offset_written)
            return True
        record = self._halves.of(entry)
        if record is None:
            self._moved()
            return True
        if entry.queue_offset in self._ending or entry.queue_offset in self._decisions.commits:
            return False
        wall_ms, config = self._context.clock.wall_ms, self._context.config
        age_ms = wall_ms - record.born_ms
        immunity_ms = immunity_of(record.properties, config.transactions.timeout_ms)
        if immunity_ms is None and 0 <= age_ms <= config.transactions.timeout_ms:
            return False
        if self._search.is_committed(record) or self._search.newer(record) is not None:
            self._decided(entry.queue_offset)
            self._moved(self._store.offset_written)
            return True
        checks = checks_of(record.properties)
        kept_ms = config.retention.file_reserved_time_hours * 3_600_000
        if self._destination.takes_internal and (checks >= config.transactions.check_max or age_ms > kept_ms):
            self._give_up(record)
        elif immunity_ms is not None and age_ms < immunity_ms:
            self._put(HalfPut(record, is_question=False), rewrite.again(record, self._host, checks=checks, is_immune=True))
        else:
            self._put(HalfPut(record, is_question=True), rewrite.again(record, self._host, checks=checks + 1))
        return False

    def _give_up(self, record: Record) -> None:
        self._topics.create_system(CHECK_MAX_TIME_TOPIC, 1, PermName.PERM_READ | PermName.PERM_WRITE)
        self._context.log.warning("transaction-given-up", offset=record.queue_offset, checks=checks_of(record.properties))
        self.counts.given_up += 1
        self._put(HalfPut(record, is_question=False), rewrite.given_up(record, self._host))

    def _put(self, flight: HalfPut, put: Put) -> None:
        self._flight = flight
        place = self._destination.put(put, f"HALF:{flight.record.queue_offset}", partial(self._ended, flight))
        flight.place = place

    def _ended(self, flight: HalfPut, status: PutStatus) -> None:
        if self._flight is not flight:
            return
        self._flight = None
        duties, now_ms = self._context.duties, self._context.clock.mono_ms
        if status in _NEVER:
            self._context.log.error("half-message-dropped", offset=flight.record.queue_offset, why=status.name)
        elif status is not PutStatus.PUT_OK:
            self._failures += 1
            if status in UNKNOWN:
                self._perhaps_left = flight.record.queue_offset
            duties.wake(CHECK, now_ms + min(self._failures * RETRY_STEP_MS, self._destination.retry_max_ms))
            return
        self._failures = 0
        is_own = self._destination.takes_internal
        place = flight.place
        if place is None and is_own:
            place = self._place(flight.record)
        if place is not None and place.queue_offset >= 0 and flight.is_question:
            self._copied(flight.record, place)
        self._moved(self._store.offset_written if is_own else 0)
        duties.wake(CHECK, now_ms)

    def _place(self, record: Record) -> PutResult | None:
        """Return where the copy of a half is that waited for contact before it was put."""
        newest = self._search.newer(record)
        return None if newest is None else PutResult(PutStatus.PUT_OK, newest.phy_offset, newest.queue_offset)

    def _copied(self, record: Record, place: PutResult) -> None:
        """The copy of a half is in this log: ask its producer, unless it has decided meanwhile."""
        if record.queue_offset in self._outcomes.finished:
            self._decided(place.queue_offset)
            return
        is_sent = self._questions.ask(record, place)
        if is_sent:
            self.counts.asked += 1
        else:
            self.counts.no_producer += 1

    # --- what it shows ----------------------------------------------------------------------------

    def due_count(self) -> int:
        if not self.is_on:
            return 0
        until_ms = self._context.clock.wall_ms - self._context.config.transactions.timeout_ms
        end = self._store.offset_by_time(HALF_TOPIC, 0, until_ms)
        known = self._store.queue_range(HALF_TOPIC, 0)
        end = known.offset_max if end >= known.offset_max - 1 else end
        return max(0, end - self._head - len(self._outcomes.finished))

    def facts(self) -> dict[str, str]:
        known = self._store.queue_range(HALF_TOPIC, 0)
        head = self.snapshot().half
        prepared = max(0, known.offset_max - max(head, known.offset_min) - len(self._outcomes.finished))
        shown = str(prepared if self.is_on else 0)
        return {"transactionsPrepared": shown, "transactionHalfOffset": str(head), **self.counts.facts()}

    def waiting(self) -> dict[str, int]:
        """Return the number of halves without an outcome, by topic; none while the duty is off."""
        return self.counts.waiting(self._head, self._outcomes.finished) if self.is_on else {}
