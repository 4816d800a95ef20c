"""Told: what a broker tells its slaves of the tables that are not in the log.

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
(`OffsetTable.merge`); entries of topics this broker does not have, or beyond the end of a queue, are left out.
"""

from typing import TYPE_CHECKING

from rmqkit.runtime.calls import LATER, Call, Response
from rmqkit.wire.bodies import ConsumerOffsetTable
from rmqkit.wire.schemas.offsets import GetAllConsumerOffsetRequest, GetAllConsumerOffsetResponse

if TYPE_CHECKING:
    from rmqkit.broker.node import Broker

#: how long the question of a slave that is up to date waits
HOLD_MS = 500
#: entries of queues in an answer; a pair counts as one at least
ENTRIES_MAX = 20_000
#: questions that wait at a time; one more is answered at once
WAITING_MAX = 16
DUTY = "metadata-told"

Question = Call[GetAllConsumerOffsetRequest]


class Told:
    def __init__(self, broker: "Broker") -> None:
        self._broker = broker
        #: with their deadlines, which grow
        self._waiting: list[tuple[int, Question]] = []
        self._stopped = False
        broker.duties.add(DUTY, self._run, None)

    def ask(self, call: Question) -> Response:
        broker = self._broker
        if call.body:
            told = ConsumerOffsetTable.decode(call.body)
            call.changing()
            broker.offsets.merge(told, self._may_take)
        broker.offsets.changes.follow(broker.offsets.table)
        if not call.args.wait or self._stopped or len(self._waiting) >= WAITING_MAX:
            return self._answer(call)
        due_ms = broker.clock.mono_ms + HOLD_MS
        self._waiting.append((due_ms, call))
        broker.duties.wake(DUTY, due_ms)
        return LATER

    def hand_over(self) -> None:
        """The broker stops: whoever waits gets the last state."""
        self._stopped = True
        self._end(len(self._waiting))

    def _run(self, now_ms: int) -> int | None:
        self._end(sum(due_ms <= now_ms for due_ms, _ in self._waiting))
        return self._waiting[0][0] if self._waiting else None

    def _end(self, count: int) -> None:
        ended, self._waiting = self._waiting[:count], self._waiting[count:]
        for _, call in ended:
            if call.is_alive:
                call.finish(self._answer(call))

    def _answer(self, call: Question) -> Response:
        broker = self._broker
        life = broker.replication.start_id
        known_life, _, number = (call.args.known_changes or "").rpartition(".")
        since = int(number) if known_life == life and number.isdecimal() else 0
        keys, reached, more = self._changed_since(since)
        ext = GetAllConsumerOffsetResponse(
            changes=f"{life}.{reached}",
            more=more,
            topics_version=broker.topics.version.encode().decode(),
            groups_version=broker.groups.version.encode().decode(),
            delay_offsets=broker.schedule.offsets.snapshot().encode().decode(),
            log_end=broker.store.offset_written,
        )
        return call.ok(ext, broker.offsets.part(keys).encode())

    def _changed_since(self, number: int) -> tuple[list[str], int, bool]:
        """Pairs for one answer, the number up to which they reach, and whether there are more."""
        offsets = self._broker.offsets
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
        if topic not in self._broker.topics.by_name or queue_id < 0:
            return False
        return 0 <= offset <= self._broker.store.queue_range(topic, queue_id).offset_max
