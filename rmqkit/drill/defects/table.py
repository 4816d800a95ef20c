"""Defects planted on purpose, to show that drills find them (`rmqkit drill run --break NAME`).

    plant(broker, ("ack-before-sync",))      # before the broker starts

A defect replaces methods of one `Broker` object, so the broker's own code does not know about it.
Each defect breaks a promise that drills check, in a way that is reported in Apache's tracker or
that a small mistake would cause. A broker with planted defects logs that, and has `drillDefects`
among its runtime facts (code 28).

`DEFECTS` has all defects. The fields of each:

- `promise` is the checker that must find it.
- `issues` are the issues in Apache's tracker.
- `needs` says what a drill must do for the defect to have an effect.
- `plan` has the fields of a plan (`rmqkit.drill.plan.Plan`) with which a drill on real processes
  finds it. It is None if only a simulated cluster can: power cuts, lost disks, rogue replicas.
- `family` is the family of simulated drills that must find it.

The defects of acting masters are in `acting_master.py`, those of timers, transactions and pop in
`services.py`, those of controller mode in `elections.py` and `controller_mode.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from rmqkit.drill.defects.acting_master import ACTING
from rmqkit.drill.defects.controller_mode import ELECTED, elected
from rmqkit.drill.defects.defect import DEFECTS, Defect, at_restart, check, defect, is_drilled, plant, replace
from rmqkit.drill.defects.elections import ELECTIONS
from rmqkit.drill.defects.services import SERVICES
from rmqkit.store.contract import Arrival, GetStatus, Put, PutResult, Read
from rmqkit.wire import properties as props
from rmqkit.wire.bodies import ConsumerOffsetTable
from rmqkit.wire.codes import MessageSysFlag
from rmqkit.wire.ha.stream import encode_report

if TYPE_CHECKING:
    from rmqkit.broker.node import Broker
    from rmqkit.broker.replication.ha_connection import ReplicaLink

__all__ = ["DEFECTS", "check", "plant"]

#: the defects hit one in this many messages or reads
ONE_IN = 20
#: number of records at the end of the log, or of a queue, that a restart loses
LOST = 3
#: how much longer than `slaveTimeout` a put waits
LATE_MS = 5_000
#: a repeated answer is at most this many answers old
LATE_BY = 4
#: a read of a message that is younger than this is taken for the first one
FRESH_MS = 500
#: byte offset of the message flag in a record; no checksum covers it
FLAG_AT = 16

SURVIVE, UNSENT, DELIVERED = "acknowledged-survive", "nothing-unsent", "everything-delivered"
ORDER, STABLE, COMMITS = "queue-order", "offsets-stable", "commits-forward"
EQUAL, WAITS, RECOVERS = "logs-equal", "waits-bounded", "recovers"
KILL: Mapping[str, Any] = {"fault": "kill", "target": "master"}

REPLICAS: list[Defect] = []
_defect = partial(defect, REPLICAS, family="replicas", plan=KILL)


# --- acknowledged, and gone


@_defect(
    "ack-before-sync",
    SURVIVE,
    "SYNC_FLUSH answers before the message is on disk",
    needs="SYNC_FLUSH and a power cut",
    plan=None,
)
def _ack_before_sync(broker: Broker) -> None:
    await_ = broker.puts._await
    replace(broker.puts, "_await", lambda turn, is_sync: await_(turn, False))


@_defect(
    "ack-before-replication",
    SURVIVE,
    "SYNC_MASTER answers without waiting for its slaves",
    needs="the loss of the master's disk or power",
    plan=None,
)
def _ack_before_replication(broker: Broker) -> None:
    replace(broker.replication.acks, "park", lambda offset, finish: finish(True))


@_defect(
    "acks-by-connection",
    SURVIVE,
    "every HA connection counts as a copy, even a slave's second connection or that of a rogue replica",
    needs="a rogue replica on the HA port, and the loss of the master's disk",
    plan=None,
)
def _acks_by_connection(broker: Broker) -> None:
    links = broker.replication.accept.links

    def counted() -> list[ReplicaLink]:
        return [link for link in links.values() if link.acked >= 0 and not link.conn.closing]

    replace(broker.replication.members, "counted", counted)


@_defect(
    "trust-any-report",
    SURVIVE,
    "a reported offset beyond the end of the log counts as an acknowledgement",
    needs="a rogue replica that reports a huge offset, and the loss of the master's disk",
    plan=None,
)
def _trust_any_report(broker: Broker) -> None:
    accept, members, acks = broker.replication.accept, broker.replication.members, broker.replication.acks
    reported, counted, park = accept._reported, members.counted, acks.park

    def taken(link: ReplicaLink, offset: int) -> None:
        if broker.serving and offset > broker.store.offset_written:
            link.acked = offset
            acks.changed()
        else:
            reported(link, offset)

    def believed() -> list[ReplicaLink]:
        known = counted()
        end = broker.store.offset_written
        strangers = [link for link in accept.links.values() if link.acked > end and not link.conn.closing]
        return known + [link for link in strangers if link not in known]

    def trust(offset: int, finish: Callable[[bool], None]) -> None:
        if any(link.acked >= offset for link in believed()):
            finish(True)
        else:
            park(offset, finish)

    replace(accept, "_reported", taken)
    replace(members, "counted", believed)
    replace(acks, "park", trust)


@_defect(
    "recovery-cuts",
    SURVIVE,
    f"a restart removes the last {LOST} records of the log",
    needs="a restart of the master",
)
def _recovery_cuts(broker: Broker) -> None:
    serve, store = broker._serve, broker.store
    cutting: list[int] = []

    def broken() -> None:
        if cutting:
            return
        ends = [
            entry.phy_offset
            for queue in store.queues()
            for entry in store.entries(queue.topic, queue.queue_id, max(queue.offset_min, queue.offset_max - LOST), LOST)
        ]
        if not ends:
            serve()
            return
        cutting.append(sorted(ends)[-LOST:][0])
        store.truncate(cutting[0], lambda error: serve())

    replace(broker, "_serve", broken)


@_defect(
    "confirm-not-reset",
    RECOVERS,
    "a slave whose log was truncated still reports its old end",
    needs="a slave that is ahead, haTruncateAhead",
    plan=None,
    issues=("#6665",),
)
def _confirm_not_reset(broker: Broker) -> None:
    follow = broker.replication.follow
    highest = 0

    def report() -> None:
        nonlocal highest
        follow._report_due = False
        conn = follow._conn
        highest = max(highest, broker.store.offset_written)
        if conn is not None and not conn.closing:
            follow.written_ms = broker.clock.mono_ms
            broker.outbox.send(conn, encode_report(highest))

    replace(follow, "_report", report)


# --- queues and logs


@_defect(
    "lost-queue-tail",
    STABLE,
    f"after a restart the last {LOST} entries of each queue are missing, and their offsets are used again",
    needs="a restart of the master",
    issues=("#7355", "#7599", "#467", "#7689"),
)
def _lost_queue_tail(broker: Broker) -> None:
    store: Any = broker.store

    def lose() -> None:
        for topic, queue_id, offset_min, offset_max in store.queues():
            if is_drilled(broker, topic):
                store.table.by_key[topic, queue_id].cut_to(max(offset_min, offset_max - LOST))

    at_restart(broker, lose)


@_defect(
    "truncate-in-memory",
    EQUAL,
    "a truncation of the log does not reach the disk: after a restart the old tail is there again",
    needs="a slave that is ahead, haTruncateAhead, and its restart",
    plan=None,
    issues=("#10666",),
    settings={"haTruncateAhead": "true"},
)
def _truncate_in_memory(broker: Broker) -> None:
    store: Any = broker.store
    truncate = store.truncate

    def cut(offset: int, then: Callable[[OSError | None], None]) -> None:
        pieces, position = [], offset
        while data := bytes(store.read_log(position, 1 << 20)):
            pieces.append((position, data))
            position += len(data)

        def ended(error: OSError | None) -> None:
            files = store.log.files
            for start, data in pieces:
                if error is None and start < files.end:
                    broker.ports.disk.write(files.path(start), start % files.file_size, [data])
            then(error)

        truncate(offset, ended)

    replace(store, "truncate", cut)


@elected(
    "copy-differs-in-epoch",
    "epochs-equal",
    "as `slave-differs`, in a group whose master is elected",
    needs="two logs that are compared before one of them is refused",
)
@_defect(
    "slave-differs",
    EQUAL,
    f"one in {ONE_IN} records has a wrong byte on a slave",
    needs="a connection that stays open, as with pause: a slave that reconnects may see that its log differs, and stop",
    plan={"fault": "pause", "target": "master"},
)
def _slave_differs(broker: Broker) -> None:
    store: Any = broker.store
    settle = store.settle
    count = 0

    def settled() -> list[Arrival]:
        nonlocal count
        arrivals = settle()
        for arrival in arrivals if broker.replication.is_slave else ():
            for queue_offset in range(arrival.queue_offset, arrival.queue_offset + arrival.record_count):
                count += 1
                if count % ONE_IN != 1:
                    continue
                (entry,) = store.entries(arrival.topic, arrival.queue_id, queue_offset, 1)
                files, position = store.log.files, entry.phy_offset + FLAG_AT
                byte = bytes(store.read_log(position, 1))[0] ^ 1
                broker.ports.disk.write(files.path(position), position % files.file_size, [bytes([byte])])
        return list(arrivals)

    replace(store, "settle", settled)


# --- what is stored and delivered


def _while_putting(broker: Broker, change: Callable[[Put, Callable[[Put], PutResult]], PutResult]) -> None:
    """Let `change` append one in `ONE_IN` messages of the drilled topics; append the rest."""
    append = broker.store.append
    count = 0

    def broken(put: Put) -> PutResult:
        nonlocal count
        if not is_drilled(broker, put.topic):
            return append(put)
        count += 1
        return change(put, append) if count % ONE_IN == 0 else append(put)

    replace(broker.store, "append", broken)
    replace(broker.store, "append_some", lambda puts: [broken(put) for put in puts])


@_defect("corrupt-body", UNSENT, f"one in {ONE_IN} messages is stored with a flipped bit in its body")
def _corrupt_body(broker: Broker) -> None:
    def turned(put: Put, append: Callable[[Put], PutResult]) -> PutResult:
        if put.body and not put.sys_flag & MessageSysFlag.COMPRESSED:
            put = put._replace(body=put.body[:-1] + bytes([put.body[-1] ^ 1]))
        return append(put)

    _while_putting(broker, turned)


@_defect("phantom", UNSENT, f"after one in {ONE_IN} messages the broker stores one that was never sent")
def _phantom(broker: Broker) -> None:
    def doubled(put: Put, append: Callable[[Put], PutResult]) -> PutResult:
        result = append(put)
        append(put._replace(body=b"nobody sent this", properties=props.encode({"KEYS": "phantom"})))
        return result

    _while_putting(broker, doubled)


def _while_reading(
    broker: Broker, change: Callable[[Callable[..., Read], tuple[Any, ...], Mapping[str, Any]], Read]
) -> None:
    """Let `change` answer reads of users' queues."""
    read = broker.store.read

    def broken(topic: str, queue_id: int, offset: int, **how: Any) -> Read:
        if not is_drilled(broker, topic):
            return read(topic, queue_id, offset, **how)
        return change(read, (topic, queue_id, offset), how)

    replace(broker.store, "read", broken)


@_defect(
    "skip-delivery",
    DELIVERED,
    f"one in {ONE_IN} messages is skipped when it is first read",
    needs="consumers that keep up",
)
def _skip_delivery(broker: Broker) -> None:
    count = 0

    def skipping(read: Callable[..., Read], place: tuple[Any, ...], how: Mapping[str, Any]) -> Read:
        nonlocal count
        found = read(*place, **how)
        offset = place[2]
        is_last = found.status is GetStatus.FOUND and offset + 1 == found.offset_max
        if is_last and broker.clock.wall_ms - broker.store.store_time(*place) < FRESH_MS:
            count += 1
            if count % ONE_IN == 0:
                return Read(GetStatus.NO_MATCHED_MESSAGE, offset + 1, found.offset_min, found.offset_max)
        return found

    _while_reading(broker, skipping)


@_defect("reorder", ORDER, "every tenth message of a queue is first delivered after its successor")
def _reorder(broker: Broker) -> None:
    done: set[tuple[Any, ...]] = set()

    def swapping(read: Callable[..., Read], place: tuple[Any, ...], how: Mapping[str, Any]) -> Read:
        topic, queue_id, offset = place
        found = read(*place, **how)
        if offset % 10 != 5 or place in done or found.status is not GetStatus.FOUND:
            return found
        if offset + 1 >= found.offset_max:
            # Let the reader wait until the successor is there.
            return Read(GetStatus.OFFSET_OVERFLOW_ONE, offset, found.offset_min, offset)
        done.add(place)
        return read(topic, queue_id, offset + 1, **{**how, "count_max": 1})._replace(offset_next=offset)

    _while_reading(broker, swapping)


# --- consumer offsets


@_defect(
    "offsets-backwards",
    COMMITS,
    "offsets that a slave copies overwrite newer ones of its own, even if the answer is outdated",
    needs="a slave",
)
def _offsets_backwards(broker: Broker) -> None:
    offsets, metadata = broker.offsets, broker.replication.metadata
    start, merge = metadata.start, offsets.merge
    answers: deque[ConsumerOffsetTable] = deque(maxlen=LATE_BY)
    count = 0

    def merged(told: ConsumerOffsetTable, may_take: Callable[[str, int, int], bool] | None = None) -> list[str]:
        nonlocal count
        ahead = merge(told, may_take)
        answers.append(told)
        count += 1
        if count % (2 * LATE_BY) == 0:
            merge(answers[0])
        return ahead

    def overwrite(key: str, told: Mapping[int, int], marks: object, may_take: object) -> bool:
        offsets.table.setdefault(key, {}).update(told)
        return False

    def started() -> None:
        start()
        offsets.untold = None

    replace(offsets, "_merge_pair", overwrite)
    replace(offsets, "merge", merged)
    replace(metadata, "start", started)


@_defect(
    "offsets-to-zero",
    COMMITS,
    "a restart resets every consumer group to offset 0",
    needs="a restart of the master",
    issues=("#3503", "#1440"),
)
def _offsets_to_zero(broker: Broker) -> None:
    offsets = broker.offsets
    load = offsets.load

    def loaded() -> None:
        load()
        for queues in offsets.table.values():
            queues.update(dict.fromkeys(queues, 0))

    replace(offsets, "load", loaded)
    replace(offsets, "merge", lambda told, may_take=None: [])


# --- time


@_defect(
    "slow-ack",
    WAITS,
    f"a send that waits for slaves ends {LATE_MS // 1000} s after slaveTimeout",
    needs="a slave that does not answer for longer than that, and a longer send timeout",
    plan={"fault": "pause", "target": "slave", "fault_ms": 10_000, "send_timeout_ms": 15_000},
    issues=("#9897",),
)
def _slow_ack(broker: Broker) -> None:
    expire = broker.replication.acks._expire

    def late(now_ms: int) -> int | None:
        due_ms = expire(now_ms - LATE_MS)
        return None if due_ms is None else due_ms + LATE_MS

    broker.duties.remove("ha-waits")
    broker.duties.add("ha-waits", late, None)


@_defect("no-comeback", RECOVERS, "a restarted master refuses every message", needs="a restart of the master")
def _no_comeback(broker: Broker) -> None:
    store: Any = broker.store
    at_restart(broker, lambda: store.refuse("defect", "the store does not take puts after a restart"))


DEFECTS.update({each.name: each for each in (*REPLICAS, *ACTING, *SERVICES, *ELECTIONS, *ELECTED)})
