"""MetadataServer: sends slaves the changes in the tables outside the log.

Request. A slave asks with code 43 plus fields of ours. (Apache's brokers ignore these fields and
return the whole table of offsets.) The slave says up to which change of the consumer offsets it is
current. The answer contains:

- the pairs (topic and group) whose offsets changed after that;
- the versions of the topic table and the group table, and with access control that of users and
  rules;
- the progress of the special duties;
- the end of the log at that moment;
- the leases of lock mode `loose`, if they have changed, and are at most `LEASES_MAX`. A slave that
  takes over then knows who holds a queue.

Long poll. A slave that is current asks again at once. The master holds this request for `HOLD_MS`,
and then answers with the changes of that time. So a slave lags by at most `HOLD_MS`, and an idle
group costs two small frames per second. At a clean stop the master answers all held requests,
which hands over its last state.

Position. A slave's position is `<start id>.<number>`. The numbers start from 1 in each run of a
broker. So a slave with a position of another run receives everything, in parts of `ENTRIES_MAX`
entries.

Offsets from the slave. The body of the request contains offsets that this broker may lack:
consumers committed them at the slave while the master was away, or the master was killed before it
saved them. They are merged as on the slave (`OffsetTable.merge`). Entries of unknown topics, or
beyond the end of a queue, are skipped. While the master is away, the acting master serves the
remaining slaves in the same way.

Start of a master. A returning master may be behind its slaves until they have sent their offsets.
So a master that should have slaves delays queries for a group's offset (14), for at most
`START_HOLD_MS`, until every slave has nothing more to send. Otherwise a consumer could start from
an offset that is about to be corrected.
"""

from collections.abc import Callable

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.metadata.copied_tables import CopiedTables
from rmqkit.broker.replication.log_tail import LogStart
from rmqkit.runtime.calls import LATER, Call, Response
from rmqkit.store.contract import StorageEngine
from rmqkit.wire.bodies import ConsumerOffsetTable
from rmqkit.wire.schemas.offsets import GetAllConsumerOffsetRequest, GetAllConsumerOffsetResponse

#: how long the request of a current slave is held
HOLD_MS = 500
#: how long a started master waits for its slaves' offsets; clients wait 3 s for an answer
START_HOLD_MS = 2000
#: offset queries delayed during that time; further ones are answered at once
ASKING_MAX = 10_000
#: queue entries per answer; a pair counts as at least one
ENTRIES_MAX = 20_000
#: leases per answer; if there are more, none is sent
LEASES_MAX = 2_000
#: requests held at the same time; further ones are answered at once
WAITING_MAX = 16
DUTY = "metadata-told"
START_DUTY = "metadata-start"

Question = Call[GetAllConsumerOffsetRequest]


class MetadataServer:
    """Answers the requests of slaves (43), and delays offset queries (14) after a start."""

    def __init__(
        self, context: BrokerContext, store: StorageEngine, tables: CopiedTables, start: LogStart, log_of: Callable[[], str]
    ) -> None:
        self._context = context
        self._store = store
        self._tables = tables
        self._start = start
        #: returns the start id of the master that wrote this log, "" while unknown
        self._log_of = log_of
        #: held requests with their deadlines, in ascending order
        self._waiting: list[tuple[int, Question]] = []
        self._stopped = False
        #: after a start: the number of slaves that must report, 0 once that is over
        self._missing = 0
        #: slaves that have nothing more to send, by broker id, or by connection if that is unknown
        self._in_step: set[tuple[str, int]] = set()
        #: delayed offset queries
        self._asking: list[Callable[[], None]] = []
        #: broker ids of slaves for which a pre-online master waits
        self._waited_for: set[int] = set()
        context.duties.add(DUTY, self._run, None)
        context.duties.add(START_DUTY, self._start_over, None)

    # --- the start of a master --------------------------------------------------------------------

    def start(self) -> None:
        """Start to serve as a master."""
        self._stopped = False
        settings = self._context.config.replication
        self._missing = max(settings.total_replicas, settings.in_sync_replicas) - 1
        if self._missing:
            self._context.duties.wake(START_DUTY, self._context.clock.mono_ms + START_HOLD_MS)

    def has_to_wait(self, then: Callable[[], None]) -> bool:
        """Whether an offset query must wait, because slaves may still correct the offsets.

        If so, `then` is called once they have, after `START_HOLD_MS` at the latest.
        """
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
        """Record that a slave has sent all its offsets: it is current, and asks to be held."""
        knows_us = (call.args.known_changes or "").rpartition(".")[0] == self._start.id
        if call.args.wait and knows_us and (self._missing or self._waited_for):
            broker_id = call.args.broker_id
            self._in_step.add(("connection", call.conn.id) if broker_id is None else ("slave", broker_id))
            if broker_id is not None:
                self._waited_for.discard(broker_id)
            if self._missing and len(self._in_step) >= self._missing:
                self._start_over(self._context.clock.mono_ms)

    # --- pre-online -------------------------------------------------------------------------------

    def wait_for(self, broker_id: int) -> None:
        """Keep this slave in `waited_for` until it has sent its newer offsets.

        The slave has been informed that its master returns.
        """
        self._waited_for.add(broker_id)

    @property
    def waited_for(self) -> frozenset[int]:
        return frozenset(self._waited_for)

    def stop_waiting(self, is_complete: bool) -> None:
        """Stop waiting, because the master goes online.

        `is_complete`: every slave has sent its offsets, so offset queries need not wait any longer.
        """
        self._waited_for.clear()
        if is_complete:
            self._start_over(self._context.clock.mono_ms)

    # --- requests ---------------------------------------------------------------------------------

    def ask(self, call: Question) -> Response:
        """Handle a slave's request 43: merge its offsets, then answer or hold it."""
        offsets = self._tables.offsets
        if call.body:
            told = ConsumerOffsetTable.decode(call.body)
            call.changing()
            ahead = offsets.merge(told, self._may_take)
            for key in ahead:
                # Ours is newer: send it, or consumers would continue from the older one when that
                # slave acts.
                offsets.changes.note(key)
        offsets.changes.follow(offsets.table)
        self._note_in_step(call)
        self._replace(call)
        if not call.args.wait or self._stopped or len(self._waiting) >= WAITING_MAX:
            return self._answer(call)
        due_ms = self._context.clock.mono_ms + HOLD_MS
        self._waiting.append((due_ms, call))
        self._context.duties.wake(DUTY, due_ms)
        return LATER

    def _replace(self, call: Question) -> None:
        """Answer the held request of the same connection: the slave has abandoned it."""
        for number, (_, held) in enumerate(self._waiting):
            if held.conn is call.conn:
                del self._waiting[number]
                if held.is_alive:
                    held.finish(self._answer(held))
                return

    def hand_over(self) -> None:
        """Stop: answer every held request with the last state."""
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
        part = tables.offsets.part(keys)
        if tables.access is not None:
            ext.access_version = tables.access.version.encode().decode()
        leases, known_leases = tables.leases, call.args.known_leases
        is_new = leases is not None and (known_life != life or known_leases != leases.version)
        if leases is not None and is_new and known_leases is not None and leases.count <= LEASES_MAX:
            part.leases, ext.leases_version = leases.copy(self._context.clock.mono_ms), leases.version
        return call.ok(ext, part.encode())

    def _changed_since(self, number: int) -> tuple[list[str], int, bool]:
        """Return the pairs changed after `number` for one answer.

        Also returns the number of its last change, and whether more changes follow.
        """
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
        """Whether a slave's offset fits this broker's log: a known topic, and within the queue."""
        if topic not in self._tables.topics.by_name or queue_id < 0:
            return False
        return 0 <= offset <= self._store.queue_range(topic, queue_id).offset_max
