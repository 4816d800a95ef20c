"""Defects of timers, transactions and pop; see `table.py`.

`_while_escaping` changes what an acting master does with the due messages of one service.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rmqkit.broker.roles.role import Role
from rmqkit.broker.special.transactions import rewrite
from rmqkit.drill.defects.defect import Defect, Plant, at_restart, defect, replace
from rmqkit.drill.plan import POP, TIMERS, TRANSACTIONS
from rmqkit.store.contract import Put, PutResult, PutStatus
from rmqkit.wire import properties as props
from rmqkit.wire.bodies.pop import TAG_ACK, TAG_BATCH_ACK, TAG_CHECKPOINT, PopCheckpoint, decode_ack
from rmqkit.wire.codes import MessageSysFlag
from rmqkit.wire.topic_names import HALF_TOPIC, TIMER_TOPIC

if TYPE_CHECKING:
    from rmqkit.broker.node import Broker
    from rmqkit.broker.special.contract import Then
    from rmqkit.broker.special.timer.late import LateTimer
    from rmqkit.wire.record import Record

PROMISE_OF = {TIMERS: "timer-kept", TRANSACTIONS: "transaction-atomic", POP: "pop-kept"}
#: one in this many commits, acks, or checkpoints is harmed
ONE_IN = 4
EARLY_MS = 1_500
#: a broker name that no broker has: readers of the revive topic skip its records
NOBODY = "nobody"
#: invisible time in checkpoints that ignore the one that was asked for
SHORT_MS = 100

SERVICES: list[Defect] = []


def _service(name: str, family: str, text: str, **more: Any) -> Callable[[Plant], Plant]:
    return defect(SERVICES, name, PROMISE_OF[family], text, family=family, **more)


def _while_escaping(broker: Broker, kind: str, change: Callable[..., None]) -> None:
    """Replace the put of due messages of one kind by `change(escape, put, origin, then)`.

    The kind is the first word of their origin.
    """
    destination = broker.roles.destinations[Role.ACTING]
    escape = destination.put

    def put_once(put: Put, origin: str, then: Then) -> PutResult | None:
        if not origin.startswith(kind):
            return escape(put, origin, then)
        change(escape, put, origin, then)
        return None

    replace(destination, "put", put_once)


def _too_early(escape: Callable[..., Any], put: Put, origin: str, then: Then) -> None:
    """Count a message as escaped before its attempt, whatever becomes of that."""
    then(PutStatus.PUT_OK)
    escape(put, origin, lambda status: None)


# --- timers


@_service("timer-early", TIMERS, f"a timer waits in a slot that is {EARLY_MS} ms too early", needs="any timer")
def _timer_early(broker: Broker) -> None:
    append = broker.view.timers.append
    replace(broker.view.timers, "append", lambda put, out_ms: append(put, out_ms - EARLY_MS))


@_service(
    "timer-recall-ignored",
    TIMERS,
    "the markers of recalled timers are not read when their slot is due",
    needs="a recall",
)
def _timer_recall_ignored(broker: Broker) -> None:
    replace(broker.view.timers.delivery, "_deleted_key", lambda phy_offset, size: None)


@_service(
    "timer-lost-at-roll",
    TIMERS,
    "a timer that is stored again on its way gets lost",
    needs="a timer beyond timerRollWindowSlot",
    settings={"timerRollWindowSlot": "5", "timerPrecisionMs": "100"},
)
def _timer_lost_at_roll(broker: Broker) -> None:
    delivery = broker.view.timers.delivery
    message = delivery._message

    def lost(timer: LateTimer, record: Record, deleted: set[bytes], rolled: set[bytes] | None) -> Put | str:
        return "" if timer.is_roll else message(timer, record, deleted, rolled)

    replace(delivery, "_message", lost)


@_service(
    "timer-lost-at-restart",
    TIMERS,
    "a restarted broker takes all timers that wait for delivered ones",
    needs="a restart with pending timers",
)
def _timer_lost_at_restart(broker: Broker) -> None:
    timers = broker.view.timers

    def lose() -> None:
        end = broker.store.queue_range(TIMER_TOPIC, 0).offset_max
        timers.progress = timers.progress._replace(read_ms=broker.clock.wall_ms, offset=end, slot_offset=end, late=())

    at_restart(broker, lose)


@_service(
    "timer-progress-before-escape",
    TIMERS,
    "an acting master counts a timer as delivered before its escape has succeeded",
    needs="a takeover, and no live master for a while",
    issues=("#7927",),
)
def _timer_progress_before_escape(broker: Broker) -> None:
    _while_escaping(broker, "TIMER:", _too_early)


# --- transactions


def _one_commit_in(broker: Broker, harm: Callable[[Callable[[Put], PutResult], Put], PutResult]) -> None:
    """Let `harm(append, put)` append the message of one commit in `ONE_IN`."""
    begin, append = broker.view.transactions.begin_commit, broker.store.append
    commits = 0
    is_next = False

    def began(offset: int) -> None:
        nonlocal commits, is_next
        commits += 1
        is_next = commits % ONE_IN == 0
        begin(offset)

    def appended(put: Put) -> PutResult:
        nonlocal is_next
        if not is_next:
            return append(put)
        is_next = False
        return harm(append, put)

    replace(broker.view.transactions, "begin_commit", began)
    replace(broker.store, "append", appended)


@_service(
    "op-never-written",
    TRANSACTIONS,
    "outcomes are kept in memory only, and the log is not searched for committed messages",
    needs="a restart or a takeover with decided halves",
)
def _op_never_written(broker: Broker) -> None:
    checks = broker.view.transactions
    replace(checks._ops, "add", lambda offset: None)
    replace(checks._search, "is_committed", lambda record: False)


@_service(
    "op-without-commit",
    TRANSACTIONS,
    f"one in {ONE_IN} commits is recorded, although its message was not stored",
    needs="any commit",
)
def _op_without_commit(broker: Broker) -> None:
    checks = broker.view.transactions
    failed = checks.failed_commit

    def recorded(offset: int) -> None:
        failed(offset)
        checks._decided(offset)

    replace(checks, "failed_commit", recorded)
    _one_commit_in(broker, lambda append, put: PutResult(PutStatus.SERVICE_NOT_AVAILABLE))


@_service("commit-twice", TRANSACTIONS, f"one in {ONE_IN} commits stores its message twice", needs="any commit")
def _commit_twice(broker: Broker) -> None:
    def twice(append: Callable[[Put], PutResult], put: Put) -> PutResult:
        append(put)
        return append(put)

    _one_commit_in(broker, twice)


@_service(
    "dead-producer-rolls-back",
    TRANSACTIONS,
    "a question to a producer that has ended counts as the answer to roll back",
    needs="a producer that dies between its half and the outcome",
)
def _dead_producer_rolls_back(broker: Broker) -> None:
    checks = broker.view.transactions
    ask = checks._questions.ask
    most = 0

    def asked(record: Record, place: PutResult) -> bool:
        nonlocal most
        group = (props.find(record.properties, props.PROPERTY_PRODUCER_GROUP.encode()) or b"").decode()
        online = len(broker.clients.producers.get(group, {}))
        most = max(most, online)
        if online == most:
            return ask(record, place)
        checks._decided(place.queue_offset)
        return True

    replace(checks._questions, "ask", asked)


@_service(
    "half-escapes-as-message",
    TRANSACTIONS,
    "an undecided half leaves an acting master as a message that consumers see",
    needs="a takeover with a half that is rolled back later",
)
def _half_escapes_as_message(broker: Broker) -> None:
    def committed(escape: Callable[..., Any], put: Put, origin: str, then: Then) -> None:
        where = rewrite.target(put.properties)
        if put.topic == HALF_TOPIC and where is not None:
            sys_flag = put.sys_flag & ~MessageSysFlag.TRANSACTION_MASK
            properties = props.remove(put.properties, props.PROPERTY_TRANSACTION_PREPARED.encode())
            put = put._replace(topic=where[0], queue_id=where[1], sys_flag=sys_flag, properties=properties)
        escape(put, origin, then)

    _while_escaping(broker, "HALF:", committed)


@_service(
    "half-dropped-at-takeover",
    TRANSACTIONS,
    "an acting master finishes undecided halves without asking about them",
    needs="a takeover with undecided halves",
)
def _half_dropped_at_takeover(broker: Broker) -> None:
    _while_escaping(broker, "HALF:", lambda escape, put, origin, then: then(PutStatus.PUT_OK))


# --- pop


def _one_record_in(broker: Broker, wanted: tuple[bytes, ...], harm: Callable[[bytes], bytes]) -> None:
    """Let `harm` change the body of one record in `ONE_IN` with these tags in the revive topic."""
    append, topic = broker.store.append, broker.view.revive.topic
    tags = props.PROPERTY_TAGS.encode()
    count = 0

    def appended(put: Put) -> PutResult:
        nonlocal count
        if put.topic == topic and props.find(put.properties, tags) in wanted:
            count += 1
            if count % ONE_IN == 0:
                put = put._replace(body=harm(put.body))
        return append(put)

    replace(broker.store, "append", appended)


@_service(
    "ack-lost-at-takeover",
    POP,
    "an acting master reads checkpoints, but not their acks",
    needs="a takeover with acked messages whose invisible time has not ended",
)
def _ack_lost_at_takeover(broker: Broker) -> None:
    reader = broker.view.revive.reader
    apply = reader._apply_ack
    replace(reader, "_apply_ack", lambda queue, record: None if broker.replication.is_slave else apply(queue, record))


@_service("ack-not-stored", POP, f"one in {ONE_IN} acks is answered, but not stored", needs="any ack")
def _ack_not_stored(broker: Broker) -> None:
    def lost(body: bytes) -> bytes:
        ack = decode_ack(body)
        ack.broker_name = NOBODY
        return ack.encode()

    _one_record_in(broker, (TAG_ACK, TAG_BATCH_ACK), lost)
    revive = broker.view.revive
    # The broker knows its own acks without their records: let it read them.
    replace(revive, "acked", lambda pending, offset, messages: revive.appended(pending.revive_queue, offset))


@_service(
    "checkpoint-not-stored",
    POP,
    f"one in {ONE_IN} pops is answered without a stored checkpoint",
    needs="a member that dies before it acks",
)
def _checkpoint_not_stored(broker: Broker) -> None:
    def lost(body: bytes) -> bytes:
        checkpoint = PopCheckpoint.decode(body)
        checkpoint.broker_name = NOBODY
        return checkpoint.encode()

    _one_record_in(broker, (TAG_CHECKPOINT,), lost)


@_service(
    "invisible-time-ignored",
    POP,
    f"one in {ONE_IN} pops hides its messages for {SHORT_MS} ms only",
    needs="a member that works longer than that",
)
def _invisible_time_ignored(broker: Broker) -> None:
    def short(body: bytes) -> bytes:
        checkpoint = PopCheckpoint.decode(body)
        checkpoint.invisible_ms = SHORT_MS
        return checkpoint.encode()

    _one_record_in(broker, (TAG_CHECKPOINT,), short)


@_service(
    "revived-before-escape",
    POP,
    "an acting master counts a popped message as handed out again before its escape has succeeded",
    needs="a takeover, a message that nobody acks, and no live master for a while",
)
def _revived_before_escape(broker: Broker) -> None:
    _while_escaping(broker, "POP:", _too_early)
