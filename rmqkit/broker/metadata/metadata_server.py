"""MetadataServer: sends slaves what changed in the tables that are not in the log.

One question does it, code 43 with fields of ours (Apache's brokers ignore them and give the whole table of offsets): the
slave names how far it knows the changes of consumer offsets, and the answer has the pairs that changed after that, the
versions of topics and groups, how far the delay levels are delivered, and where the log ended at that moment. A slave that
is up to date asks again at once; its question waits here for `HOLD_MS` and takes along what changed meanwhile. So a slave
is behind by that time at most, a quiet group costs two small frames a second, and since a question is nearly always
waiting, a clean stop hands the last state over by answering it.

How far a slave knows is `<start id>.<number>`: numbers count from 1 in each life of a broker, so a slave that knew another
life is told everything, in parts of `ENTRIES_MAX` entries.

The question's body has what the slave has and this broker may lack: offsets that were committed at the slave while nobody
else was there, or that this broker forgot because it died before it saved them. They are merged as on the other side
(`OffsetTable.merge`); entries of topics this broker does not have, or beyond the end of a queue, are left out. While the
master is away the acting master answers the other slaves in the same way.

A master that comes back may be behind its slaves until they have told it. So one that should have slaves lets those wait
who ask where a group is (14), until every slave has said that it has nothing to tell, `START_HOLD_MS` at most: a consumer
that begins a queue in that moment would else begin it at an offset that is about to be corrected.
"""

from collections.abc import Callable

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.metadata.copied_tables import CopiedTables
from rmqkit.broker.replication.log_tail import LogStart
from rmqkit.runtime.calls import LATER, Call, Response
from rmqkit.store.contract import StorageEngine
from rmqkit.wire.bodies import ConsumerOffsetTable
from rmqkit.wire.schemas.offsets import GetAllConsumerOffsetRequest, GetAllConsumerOffsetResponse

#: how long the question of a slave that is up to date waits
HOLD_MS = 500
#: how long a master that has started waits for its slaves' offsets; clients wait 3 s for an answer
START_HOLD_MS = 2000
#: who asks where a group is in that time; one more is answered at once
ASKING_MAX = 10_000
#: entries of queues in an answer; a pair counts as one at least
ENTRIES_MAX = 20_000
#: questions that wait at a time; one more is answered at once
WAITING_MAX = 16
DUTY = "metadata-told"
START_DUTY = "metadata-start"

Question = Call[GetAllConsumerOffsetRequest]


class MetadataServer:
    def __init__(
        self, context: BrokerContext, store: StorageEngine, tables: CopiedTables, start: LogStart, log_of: Callable[[], str]
    ) -> None:
        self._context = context
        self._store = store
        self._tables = tables
        self._start = start
        #: the start of the master whose log this is, "" while that is not known
        self._log_of = log_of
        #: with their deadlines, which grow
        self._waiting: list[tuple[int, Question]] = []
        self._stopped = False
        #: slaves whose word is waited for, those that have given it, and who waits for them
        self._missing = 0
        self._in_step: set[tuple[str, int]] = set()
        self._asking: list[Callable[[], None]] = []
        #: ids of slaves that a master on its way to being online waits for
        self._waited_for: set[int] = set()
        context.duties.add(DUTY, self._run, None)
        context.duties.add(START_DUTY, self._start_over, None)

    # --- a master that has started ------------------------------------------------------------------------------------

    def start(self) -> None:
        """A master serves."""
        settings = self._context.config.replication
        self._missing = max(settings.total_replicas, settings.in_sync_replicas) - 1
        if self._missing:
            self._context.duties.wake(START_DUTY, self._context.clock.mono_ms + START_HOLD_MS)

    def has_to_wait(self, then: Callable[[], None]) -> bool:
        """Whether offsets may still be corrected; then `then` is called once they are, or in a while."""
        if not self._missing or len(self._asking) >= ASKING_MAX:
            return False
        self._asking.append(then)
        return True

    def _start_over(self, now_ms: int) -> None:
        self._missing = 0
        asking, self._asking = self._asking, []
        for then in asking:
            then()

    def _note_in_step(self, call: Question) -> None:
        """A slave that knows all of this life of the broker, and waits, has told all it had."""
        knows_us = (call.args.known_changes or "").rpartition(".")[0] == self._start.id
        if call.args.wait and knows_us and (self._missing or self._waited_for):
            broker_id = call.args.broker_id
            self._in_step.add(("connection", call.conn.id) if broker_id is None else ("slave", broker_id))
            if broker_id is not None:
                self._waited_for.discard(broker_id)
            if self._missing and len(self._in_step) >= self._missing:
                self._start_over(self._context.clock.mono_ms)

    # --- a master that is about to be online --------------------------------------------------------------------------

    def wait_for(self, broker_id: int) -> None:
        """This slave was told that its master comes back: it is in `waited_for` until it has told what it knows better."""
        self._waited_for.add(broker_id)

    @property
    def waited_for(self) -> frozenset[int]:
        return frozenset(self._waited_for)

    def wait_no_more(self, is_complete: bool) -> None:
        """The master goes online; if every slave has told, nobody has to wait for offsets."""
        self._waited_for.clear()
        if is_complete:
            self._start_over(self._context.clock.mono_ms)

    # --- questions ----------------------------------------------------------------------------------------------------

    def ask(self, call: Question) -> Response:
        offsets = self._tables.offsets
        if call.body:
            told = ConsumerOffsetTable.decode(call.body)
            call.changing()
            ahead = offsets.merge(told, self._may_take)
            for key in ahead:
                # What a slave was told by somebody who lags behind would be what consumers begin with when it acts.
                offsets.changes.note(key)
        offsets.changes.follow(offsets.table)
        self._note_in_step(call)
        if not call.args.wait or self._stopped or len(self._waiting) >= WAITING_MAX:
            return self._answer(call)
        due_ms = self._context.clock.mono_ms + HOLD_MS
        self._waiting.append((due_ms, call))
        self._context.duties.wake(DUTY, due_ms)
        return LATER

    def hand_over(self) -> None:
        """The broker stops: whoever waits gets the last state."""
        self._stopped = True
        self._end(len(self._waiting))
        self._start_over(self._context.clock.mono_ms)

    def _run(self, now_ms: int) -> int | None:
        self._end(sum(due_ms <= now_ms for due_ms, _ in self._waiting))
        return self._waiting[0][0] if self._waiting else None

    def _end(self, count: int) -> None:
        ended, self._waiting = self._waiting[:count], self._waiting[count:]
        for _, call in ended:
            if call.is_alive:
                call.finish(self._answer(call))

    def _answer(self, call: Question) -> Response:
        tables, life = self._tables, self._start.id
        known_life, _, number = (call.args.known_changes or "").rpartition(".")
        since = int(number) if known_life == life and number.isdecimal() else 0
        keys, reached, more = self._changed_since(since)
        ext = GetAllConsumerOffsetResponse(
            changes=f"{life}.{reached}",
            more=more,
            topics_version=tables.topics.version.encode().decode(),
            groups_version=tables.groups.version.encode().decode(),
            log_end=self._store.offset_written,
            log_of=self._log_of(),
        )
        tables.special.fill(ext)
        return call.ok(ext, tables.offsets.part(keys).encode())

    def _changed_since(self, number: int) -> tuple[list[str], int, bool]:
        """Pairs for one answer, the number up to which they reach, and whether there are more."""
        offsets = self._tables.offsets
        keys: list[str] = []
        reached, entries = number, 0
        for key, changed in offsets.changes.since(number):
            entries += max(1, len(offsets.table.get(key, ())))
            if keys and entries > ENTRIES_MAX:
                return keys, reached, True
            keys.append(key)
            reached = changed
        return keys, offsets.changes.last, False

    def _may_take(self, topic: str, queue_id: int, offset: int) -> bool:
        """Whether a slave's entry can be of this broker's log."""
        if topic not in self._tables.topics.by_name or queue_id < 0:
            return False
        return 0 <= offset <= self._store.queue_range(topic, queue_id).offset_max
