"""Puts: appended records that are not answered yet, and how each is answered.

A put is parked when its record is appended, and answered when the record is as durable as its mode
demands:

- ASYNC_FLUSH, or the message says WAIT=false: at the end of the turn, if its write succeeded.
- SYNC_FLUSH: when a sync has covered the record. At the deadline (`syncFlushTimeout`) the answer is
  FLUSH_DISK_TIMEOUT, which means stored but not known to be durable. One sync serves all puts that
  wait for one (group commit).
- SYNC_MASTER: when there are as many copies as `replication.acks` requires. At its deadline the
  answer is FLUSH_SLAVE_TIMEOUT. If no slave is available, the put does not wait for copies and is
  answered with SLAVE_NOT_AVAILABLE. A put waits for disk and copies in parallel; if both fail, the
  status of the copies wins.

The broker's own messages (`put`) wait for the disk in the same way, but without a deadline. They
end when the record is as durable as its mode demands, or never will be. They wait for copies only
if a client waits for the message.

Puts wait by log offset, so one slow put delays no other.

`put_answers.py` encodes the answers.

Source: `store/.../CommitLog.handleDiskFlushAndHA`,
`broker/.../SendMessageProcessor.handlePutMessageResult`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.hosts import Hosts
from rmqkit.broker.put_answers import STORED, PutAnswers
from rmqkit.broker.put_runs import PutRun
from rmqkit.broker.replication.acks import OWN, Acks
from rmqkit.broker.statistics import Statistics
from rmqkit.config import FlushDiskType
from rmqkit.runtime.calls import Call, Response
from rmqkit.runtime.waiters import OffsetWaiters
from rmqkit.store.contract import Put, PutResult, PutStatus, StorageEngine, StoreWriteError
from rmqkit.wire.codes import ResponseCode
from rmqkit.wire.msgid import offset_id
from rmqkit.wire.remoting.frames import CODEC_ROCKETMQ
from rmqkit.wire.schemas.send import SendMessageResponse

#: upstream's answers to statuses other than PUT_OK: (code, remark)
_ANSWERS = {
    PutStatus.FLUSH_DISK_TIMEOUT: (ResponseCode.FLUSH_DISK_TIMEOUT, None),
    PutStatus.FLUSH_SLAVE_TIMEOUT: (ResponseCode.FLUSH_SLAVE_TIMEOUT, None),
    PutStatus.SLAVE_NOT_AVAILABLE: (ResponseCode.SLAVE_NOT_AVAILABLE, None),
    PutStatus.CREATE_MAPPED_FILE_FAILED: (
        ResponseCode.SYSTEM_ERROR,
        "create mapped file failed, server is busy or broken.",
    ),
    PutStatus.MESSAGE_ILLEGAL: (ResponseCode.MESSAGE_ILLEGAL, "the message is illegal: topic, body or record too long"),
    PutStatus.PROPERTIES_SIZE_EXCEEDED: (ResponseCode.MESSAGE_ILLEGAL, "the properties are longer than 32767 bytes"),
    PutStatus.OS_PAGE_CACHE_BUSY: (
        ResponseCode.SYSTEM_BUSY,
        "[PC_SYNCHRONIZED]broker busy, start flow control for a while",
    ),
    PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: (ResponseCode.SYSTEM_ERROR, "in-sync replicas not enough"),
    PutStatus.UNKNOWN_ERROR: (ResponseCode.SYSTEM_ERROR, "UNKNOWN_ERROR"),
}

_PUT_OK = PutStatus.PUT_OK
Then = Callable[[PutStatus], None]
#: call, queue id, unique key, result, whether it waits for disk and copies, recall handle
Parked = tuple[Call[Any], int, bytes, PutResult, bool, bytes]
#: topic, result, callback, whether it waits for copies
Own = tuple[str, PutResult, Then, bool]


class _Wait:
    """Joins the results of disk and copies for the puts of one turn, or for one own message.

    `left` is the number of results still missing. At 0, `then` is called with the status.
    """

    __slots__ = ("left", "status", "then")

    def __init__(self, then: Then, left: int, status: PutStatus) -> None:
        self.then = then
        self.left = left
        self.status = status

    def disk(self, durable: bool) -> None:
        if not durable and self.status is PutStatus.PUT_OK:
            self.status = PutStatus.FLUSH_DISK_TIMEOUT
        self._end()

    def copies(self, are_there: bool) -> None:
        if not are_there:
            self.status = PutStatus.FLUSH_SLAVE_TIMEOUT
        self._end()

    def _end(self) -> None:
        self.left -= 1
        if not self.left:
            self.then(self.status)


class Puts:
    """The parked puts of clients, and the pending messages of the broker itself."""

    def __init__(
        self, context: BrokerContext, store: StorageEngine, hosts: Hosts, statistics: Statistics, acks: Acks
    ) -> None:
        self._context = context
        self._outbox = context.outbox
        self._store = store
        self._hosts = hosts
        self._statistics = statistics
        self._acks = acks
        self._turn: list[Parked | PutRun] = []
        self._own: list[Own] = []
        #: pending messages of the broker itself
        self.own_count = 0
        self._syncing = OffsetWaiters()
        #: puts of clients that wait for the disk or for copies
        self._waiting_count = 0
        self.failed_count = 0
        #: puts refused since writes began to fail; 0 while writes succeed. Limits the log to two
        #: lines per outage
        self.failing = 0
        self.configure()
        context.duties.add("put-deadlines", self._expire, None)

    def __len__(self) -> int:
        return _count(self._turn) + self._waiting_count

    def configure(self) -> None:
        """Rebuild the parts that all answers share, from the current settings."""
        identity = self._context.config.identity
        self._answers = PutAnswers(self._hosts.store_host, identity.region_id, identity.trace_on)

    def park(
        self, call: Call[Any], queue_id: int, unique: bytes, result: PutResult, wait: bool, handle: bytes = b""
    ) -> None:
        """Park a client's put. `wait` is False if it needs only the write (WAIT=false).

        `handle` is the recall handle of a timer message.
        """
        self._turn.append((call, queue_id, unique, result, wait, handle))

    def park_run(self, run: PutRun) -> None:
        """Park sends that were appended together. All of them wait for the disk."""
        if run.is_measured:
            self._turn.extend(run.calls())
        else:
            self._turn.append(run)

    def put(self, put: Put, then: Then) -> PutResult:
        """Store a message of the broker itself, which is not the send of a client.

        Returns where it was appended.

        `then` is called once, perhaps before this returns:

        - PUT_OK: the message is stored and, with SYNC_FLUSH, durable.
        - FLUSH_DISK_TIMEOUT: it is stored, but its sync failed.
        - Any other status: it is not stored.
        """
        result = self._store.append(put)
        self.await_own(put.topic, result, then)
        return result

    def put_some(self, puts: Sequence[Put], then: Then) -> int:
        """Like `put` for messages that end together, in order, until one is not appended.

        Returns how many were appended. If there are any, `then` is called once for all of them, and
        not before this returns. The caller tries the next one with `put`, for its status.
        """
        append, own = self._store.append, self._own
        count = 0
        for put in puts:
            result = append(put)
            if result.status is not _PUT_OK:
                break
            count += 1
            own.append((put.topic, result, _ignore, False))
        if count:
            self.own_count += count
            topic, result, _, copies = own[-1]
            own[-1] = topic, result, then, copies
        return count

    def await_own(self, topic: str, result: PutResult, then: Then, *, copies: bool = False) -> None:
        """Like `put`, for a message that was appended already.

        With `copies` it also waits for copies, as a send does.
        """
        if result.status is not PutStatus.PUT_OK:
            self.failed_count += 1
            then(result.status)
        else:
            self.own_count += 1
            self._own.append((topic, result, then, copies))

    @property
    def is_full(self) -> bool:
        """Whether too many puts wait for the disk or for copies.

        Then sends get SYSTEM_BUSY, as from upstream's flow control.
        """
        return self._waiting_count >= self._context.config.limits.waiters_max

    def refusal(self, status: PutStatus) -> Response:
        """Return the answer to a put that was not stored, and count it as failed."""
        self.failed_count += 1
        if status is PutStatus.SERVICE_NOT_AVAILABLE:
            why = self._store.failed or "the broker is not writeable"
            return Response(ResponseCode.SERVICE_NOT_AVAILABLE, remark=f"service not available now: {why}")
        code, remark = _ANSWERS[status]
        return Response(code, remark=remark)

    def settle(self) -> None:
        """Answer the puts that need only the turn's write; the rest wait for sync and copies.

        Called after the write.
        """
        if self._own:
            self._settle_own()
        turn = self._turn
        if not turn:
            return
        self._turn = []
        if self.failing:
            self._context.log.info("write-works-again", refused_puts=self.failing)
            self.failing = 0
        is_sync = self._context.config.flush.flush_disk_type is FlushDiskType.SYNC_FLUSH
        if is_sync or self._acks.needed != OWN:
            self._await(turn, is_sync)
            return
        self._answer(turn, _PUT_OK)

    def write_failed(self, error: StoreWriteError) -> None:
        """Refuse all puts of this turn: none of them is stored."""
        turn, self._turn = self._turn, []
        count = _count(turn)
        self.failed_count += count
        self.failing += count
        response = Response(ResponseCode.SERVICE_NOT_AVAILABLE, remark=f"service not available now: {error}")
        for parked in turn:
            for call, *_ in parked.calls() if isinstance(parked, PutRun) else (parked,):
                call.finish(response)
        own, self._own = self._own, []
        self._end_own(own, PutStatus.SERVICE_NOT_AVAILABLE)

    def fail_all(self) -> None:
        """Answer puts that wait for a sync as upstream does at a timeout, since the node stops."""
        self._syncing.fail_all()

    def _settle_own(self) -> None:
        own, self._own = self._own, []
        last, last_size, count = "", 0, 0
        for topic, (_, phy_offset, _, phy_offset_next, _, _), _, _ in own:
            # Most messages are like the one before: due timers, and commits.
            size = phy_offset_next - phy_offset
            if size != last_size or topic != last:
                if count:
                    self._statistics.put(last, count, count * last_size)
                last, last_size, count = topic, size, 0
            count += 1
        self._statistics.put(last, count, count * last_size)
        acks = self._acks
        if acks.needed != OWN and any(copies for *_, copies in own):
            own = [self._with_copies(each) if each[3] else each for each in own]
        if self._context.config.flush.flush_disk_type is not FlushDiskType.SYNC_FLUSH:
            self._end_own(own, PutStatus.PUT_OK)
            return

        def synced(durable: bool) -> None:
            self._end_own(own, PutStatus.PUT_OK if durable else PutStatus.FLUSH_DISK_TIMEOUT)

        self._store.sync(own[-1][1].phy_offset_next, synced)

    def _with_copies(self, own: Own) -> Own:
        """Return `own` with a callback that ends it only when the wait for copies has ended too."""
        topic, result, then, _ = own
        acks = self._acks
        if acks.no_slave:
            return topic, result, _worse(then, PutStatus.SLAVE_NOT_AVAILABLE), False
        wait = _Wait(then, 2, PutStatus.PUT_OK)
        acks.park(result.phy_offset_next, wait.copies)

        def stored(status: PutStatus) -> None:
            if status is not PutStatus.PUT_OK and wait.status is PutStatus.PUT_OK:
                wait.status = status
            wait.disk(True)

        return topic, result, stored, False

    def _end_own(self, own: list[Own], status: PutStatus) -> None:
        self.own_count -= len(own)
        for _, _, then, _ in own:
            then(status)

    def _await(self, turn: Sequence[Parked | PutRun], is_sync: bool) -> None:
        """Let the puts of a turn wait for the disk (`is_sync`) and for copies.

        They share one wait, as they were written together.
        """
        context, acks = self._context, self._acks
        wants_copies = acks.needed != OWN and not acks.no_slave
        status = PutStatus.SLAVE_NOT_AVAILABLE if acks.no_slave else PutStatus.PUT_OK
        waiting = [parked for parked in turn if isinstance(parked, PutRun) or parked[4]]
        if len(waiting) < len(turn):
            self._answer([parked for parked in turn if not isinstance(parked, PutRun) and not parked[4]], _PUT_OK)
        if not waiting:
            return
        self._waiting_count += _count(waiting)
        wait = _Wait(partial(self._answer_all, waiting), is_sync + wants_copies, status)
        if not wait.left:
            wait.then(status)
            return
        last = waiting[-1]
        offset_next = (last.results[-1] if isinstance(last, PutRun) else last[3]).phy_offset_next
        if wants_copies:
            acks.park(offset_next, wait.copies)
        if is_sync:
            deadline_ms = context.clock.mono_ms + context.config.flush.sync_flush_timeout_ms
            self._syncing.park(offset_next, deadline_ms, wait.disk)
            self._store.sync(offset_next, self._synced)
            context.duties.wake("put-deadlines", deadline_ms)

    def _answer_all(self, waiting: Sequence[Parked | PutRun], status: PutStatus) -> None:
        self._waiting_count -= _count(waiting)
        self._answer(waiting, status)

    def _synced(self, durable: bool) -> None:
        if durable:
            self._syncing.reached(self._store.offset_synced)
        else:
            self._syncing.fail_all()

    def _expire(self, now_ms: int) -> int | None:
        return self._syncing.expire(now_ms)

    def _answer(self, parked: Sequence[Parked | PutRun], status: PutStatus) -> None:
        """Answer puts in their order."""
        calls: list[Parked] = []
        for each in parked:
            if not isinstance(each, PutRun):
                calls.append(each)
                continue
            if calls:
                self._answer_calls(calls, status)
                calls = []
            self._answer_run(each, status)
        if calls:
            self._answer_calls(calls, status)

    def _answer_run(self, run: PutRun, status: PutStatus) -> None:
        """Answer sends that were appended together. One count for those of one topic and size."""
        count_puts = self._statistics.put
        topic, size, count = "", 0, 0
        for (form, _, _), result in zip(run.sends, run.results, strict=True):
            its_size, its_topic = result[3] - result[1], form[1]
            if its_size != size or its_topic != topic:
                if count:
                    count_puts(topic, count, count * size, count)
                topic, size, count = its_topic, its_size, 0
            count += 1
        count_puts(topic, count, count * size, count)
        if frames := self._answers.run(status, run):
            self._outbox.send(run.conn, frames)

    def _answer_calls(self, parked: Sequence[Parked], status: PutStatus) -> None:
        """Answer puts that have calls, in their order.

        Puts that follow each other are alike, as a rule: those of one topic and record size are
        counted together, and the answers to one connection are sent together.
        """
        code = 0 if status is _PUT_OK else STORED[status]
        binary, json, count_puts = self._answers.binary, self._answers.json, self._statistics.put
        conn = parked[0][0].conn
        frames: list[bytes] = []
        topic, size, count = "", 0, 0
        for call, queue_id, unique, result, _, handle in parked:
            _, phy_offset, _, phy_offset_next, phy_offsets, inner_count = result
            its_size, its_topic = phy_offset_next - phy_offset, call.args.topic
            if phy_offsets or inner_count:
                count_puts(its_topic, len(phy_offsets) or inner_count, its_size)
            else:
                if its_size != size or its_topic != topic:
                    if count:
                        count_puts(topic, count, count * size, count)
                    topic, size, count = its_topic, its_size, 0
                count += 1
            if frames and (inner_count or call.conn is not conn):
                self._outbox.send(conn, *frames)
                frames = []
            conn = call.conn
            if inner_count:
                call.finish(self._inner_batch_answer(queue_id, unique, result, status))
            elif call.finish_framed(code):
                build = binary if call.codec == CODEC_ROCKETMQ else json
                frames.append(build(status, call.opaque, queue_id, unique, result, handle))
        if frames:
            self._outbox.send(conn, *frames)
        if count:
            count_puts(topic, count, count * size, count)

    def _inner_batch_answer(self, queue_id: int, unique: bytes, result: PutResult, status: PutStatus) -> Response:
        """Return the answer to an inner batch: the client learns that the batch has one id."""
        identity, unique_id = self._context.config.identity, unique.decode("utf-8", "replace")
        ext = SendMessageResponse(
            msg_id=offset_id(self._hosts.store_host, result.phy_offset),
            queue_id=queue_id,
            queue_offset=result.queue_offset,
            transaction_id=unique_id,
            batch_uniq_id=unique_id,
            msg_region=identity.region_id,
            trace_on=identity.trace_on,
        )
        return Response(ResponseCode.SUCCESS if status is _PUT_OK else STORED[status], ext)


def _count(parked: Sequence[Parked | PutRun]) -> int:
    """Return the number of parked requests."""
    return sum([len(each.sends) if isinstance(each, PutRun) else 1 for each in parked])


def _ignore(status: PutStatus) -> None:
    """Ignore the end of a put: the last one of its group reports it."""


def _worse(then: Then, status: PutStatus) -> Then:
    """Return a callback that passes `status` to `then` in place of PUT_OK."""
    return lambda ended: then(status if ended is PutStatus.PUT_OK else ended)
