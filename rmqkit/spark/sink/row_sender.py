"""Sends the rows of one task of the sink: lanes with one request in flight each, bounded in total.

    put(row) ──► lane of its queue ──► waiting ──► request ──► response ──► next request:
                 (or one of LANES)                  ▲ │                     all that is waiting
                                                    └─┘
        no response, busy, or a status that is not SEND_OK: the same rows again

**Lanes.** Rows for a queue or with an ordering key use the lane of that queue. A lane sends nothing
more until its request is answered, so the order holds even if a request is repeated. Other rows are
dealt out to LANES lanes per topic, whose requests go to any queue of any broker.

**Batches.** The rows that wait in a lane are sent as one batch, which a broker stores as a whole or
not at all. Rows that cannot be in a batch (with a delay, or with a body large enough to compress)
are sent one by one.

**Repeats.** A request without a response is repeated for up to `maxWaitForBroker`. It may be stored
twice; each message carries a key that shows this. What waiting cannot fix (a bad message, an
unknown topic) fails at once. The error names the row.
"""

from __future__ import annotations

import os
import queue as queues
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from rmqkit.client.message import Message, SendResult, SendStatus
from rmqkit.client.producers.outgoing_message import COMPRESS_OVER
from rmqkit.errors import ClientError, InvalidMessage, NoRoute, PeerUnreachable, RmqkitError, SendFailed
from rmqkit.wire.codes import ResponseCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.javahash import java_hash

if TYPE_CHECKING:
    from rmqkit.api import Producer
    from rmqkit.spark.options import SourceOptions
    from rmqkit.spark.sink.pace import SharedPace

#: Lanes per topic for rows without a queue, and thus their requests in flight.
LANES = 4
#: Limits of a batch, in messages and in bytes (bodies and properties). Brokers accept 4 MiB.
BATCH_MESSAGES = 512
BATCH_BYTES = 512 * 1024
#: Limits of a task's rows and bytes that are not acknowledged yet. At a limit the task stops
#: reading.
WINDOW_ROWS = 8192
WINDOW_BYTES = 16 * 1024 * 1024
#: Pause before the first repeat of a request, in seconds; it doubles up to REST_MAX_S.
REST_S = 0.2
REST_MAX_S = 2.0
#: Limit of sends that end with a status other than SEND_OK. Each of them stores another copy.
NOT_OK_TRIES_MAX = 3
#: After these codes the broker may accept the message later.
PASSING_CODES = frozenset(
    {ResponseCode.SYSTEM_ERROR, ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.GO_AWAY}
)


class WriteFailed(RmqkitError):
    """A row could not be sent. The text names the row, the reason, and what was sent before."""


class _Row(NamedTuple):
    number: int
    message: Message
    size: int
    #: It cannot be in a batch.
    is_single: bool


class WorkerState(NamedTuple):
    """State that a worker process keeps between tasks.

    `known` has the topics of which a broker has already accepted a message.
    """

    producer: Producer
    known: set[str]


#: One state per process, cluster and group. The key has the process id, because a forked process
#: inherits this dict, but not the producer's threads.
_KEPT: dict[tuple[int, tuple[str, ...], str], WorkerState] = {}


def kept(options: SourceOptions) -> WorkerState:
    """Return this process's state for the cluster and group; create it on first use."""
    key = (os.getpid(), options.namesrv, options.producer_group)
    if key not in _KEPT:
        from rmqkit.api import Producer

        _KEPT[key] = WorkerState(Producer(group=options.producer_group, namesrv=list(options.namesrv)), set())
    return _KEPT[key]


@dataclass(slots=True, eq=False)
class Lane:
    """A sequence of rows that are sent one request after the other.

    If `queue` is None, the producer chooses the queue of each request.
    """

    topic: str
    queue: MessageQueue | None
    waiting: deque[_Row] = field(default_factory=deque)
    #: The rows of the request in flight, or of the one that is repeated at `due_s`.
    sent: list[_Row] = field(default_factory=list)
    due_s: float = 0.0
    rest_s: float = field(default_factory=lambda: REST_S)
    failing_since_s: float | None = None
    #: Consecutive responses with a status other than SEND_OK.
    not_ok: int = 0
    #: Send rows one by one: a batch was refused. If one row is the reason, the error can name it.
    is_alone: bool = False

    def take(self) -> list[_Row]:
        """Remove and return the rows of the next request: one row, or the rows of a batch.

        The row numbers of a batch have one number of digits, so that the messages' keys have one
        size: brokers store messages that look alike with less CPU time.
        """
        first = self.waiting.popleft()
        rows, size = [first], first.size
        is_single = self.is_alone or first.is_single
        number_end = 10 ** len(str(first.number))
        while self.waiting and not is_single and len(rows) < BATCH_MESSAGES:
            following = self.waiting[0]
            size += following.size
            if size > BATCH_BYTES or following.is_single or following.number >= number_end:
                break
            rows.append(self.waiting.popleft())
        return rows


class RowSender:
    """Sends the rows of one task. `place` names the task in errors, as in `partition 3`.

    `pace` says when the next row may be sent; None means no limit.
    """

    def __init__(self, work: WorkerState, options: SourceOptions, place: str, pace: SharedPace | None = None) -> None:
        self._producer, self._known = work
        self._options = options
        self.place = place
        self._lanes: dict[tuple[str, MessageQueue | int], Lane] = {}
        self._resting: list[Lane] = []
        self._queues: dict[str, list[MessageQueue]] = {}
        self._pace = pace
        self._ended: queues.SimpleQueue[tuple[Lane, Future[SendResult]]] = queues.SimpleQueue()
        self._held = 0
        self._held_bytes = 0
        #: Number of acknowledged rows.
        self.acknowledged = 0

    # --- the task's side

    def put(
        self,
        number: int,
        message: Message,
        queue: int | None = None,
        broker: str | None = None,
        ordering_key: str | None = None,
    ) -> None:
        """Queue a row for sending. Block while the window is full or the pace requires it.

        Raises WriteFailed, for this row or for an earlier one.
        """
        size = len(message.body) + sum(len(name) + len(value) + 2 for name, value in message.properties.items())
        is_delayed = message.delay_level or message.delay_ms or message.deliver_at_ms is not None
        row = _Row(number, message, size, bool(is_delayed) or len(message.body) >= COMPRESS_OVER)
        try:
            if self._pace is not None and (pause_s := self._pace.pause_s(time.monotonic())) > 0:
                self._idle(pause_s)
            target = self._target(message.topic, queue, broker, ordering_key)
        except ClientError as error:
            raise self._failed(row, str(error)) from None
        place = (message.topic, number % LANES if target is None else target)
        lane = self._lanes.get(place)
        if lane is None:
            lane = self._lanes[place] = Lane(message.topic, target)
        lane.waiting.append(row)
        self._held += 1
        self._held_bytes += size
        if not lane.sent:
            self._send_next(lane)
        while self._held >= WINDOW_ROWS or self._held_bytes >= WINDOW_BYTES:
            self._settle()
        while not self._ended.empty():
            self._settle()

    def _idle(self, pause_s: float) -> None:
        """Wait for `pause_s` seconds, and handle the responses that arrive meanwhile."""
        until_s = time.monotonic() + pause_s
        while self._held and (left_s := until_s - time.monotonic()) > 0:
            self._settle(left_s)
        time.sleep(max(0.0, until_s - time.monotonic()))

    def finish(self) -> None:
        """Wait until all rows are acknowledged. Raises WriteFailed."""
        while self._held:
            self._settle()

    # --- where to

    def _target(self, topic: str, queue: int | None, broker: str | None, key: str | None) -> MessageQueue | None:
        if queue is None and key is None:
            return None
        if queue is not None and broker is not None:
            return MessageQueue(topic, broker, queue)
        if topic not in self._queues:
            # Kept for the whole task, so that a key keeps its queue while a broker is unavailable.
            self._queues[topic] = self._producer.queues(topic)
        known = self._queues[topic]
        if queue is None:
            return known[abs(java_hash(str(key))) % len(known)]
        if not 0 <= queue < len(known):
            raise InvalidMessage(f"queue {queue} does not exist: the topic has {len(known)} queues, counted from 0")
        return known[queue]

    # --- requests

    def _send_next(self, lane: Lane) -> None:
        if lane.waiting:
            lane.sent = lane.take()
            self._send(lane)

    def _send(self, lane: Lane) -> None:
        messages = [row.message for row in lane.sent]
        timeout_ms = self._options.request_timeout
        try:
            if len(messages) == 1:
                future = self._producer.send_async(messages[0], lane.queue, timeout_ms=timeout_ms)
            else:
                future = self._producer.send_batch_async(messages, lane.queue, timeout_ms=timeout_ms)
        except ClientError as error:
            self._unanswered(lane, error)
            return
        future.add_done_callback(lambda done: self._ended.put((lane, done)))

    def _settle(self, limit_s: float | None = None) -> None:
        """Wait for the next response or due repeat, at most `limit_s` seconds, and handle it."""
        now_s = time.monotonic()
        waits_s = [max(0.0, lane.due_s - now_s) for lane in self._resting]
        if limit_s is not None:
            waits_s.append(limit_s)
        try:
            lane, future = self._ended.get(timeout=min(waits_s, default=None))
        except queues.Empty:
            now_s = time.monotonic()
            rested = [lane for lane in self._resting if lane.due_s <= now_s]
            self._resting = [lane for lane in self._resting if lane.due_s > now_s]
            for lane in rested:
                self._send(lane)
            return
        error = future.exception()
        if error is None:
            self._answered(lane, future.result())
        elif isinstance(error, ClientError):
            self._unanswered(lane, error)
        else:
            raise error

    def _answered(self, lane: Lane, result: SendResult) -> None:
        if result.status is not SendStatus.SEND_OK and self._options.required_status == "send_ok":
            lane.not_ok += 1
            why = f"stored {lane.not_ok} times, but {result.queue.broker_name} answers {result.status}"
            if lane.not_ok >= NOT_OK_TRIES_MAX:
                raise self._failed(lane.sent[0], f"{why}; requiredStatus=any would accept that")
            self._rest(lane, why)
            return
        self._known.add(lane.topic)
        self.acknowledged += len(lane.sent)
        self._held -= len(lane.sent)
        self._held_bytes -= sum(row.size for row in lane.sent)
        lane.sent, lane.failing_since_s, lane.not_ok, lane.rest_s = [], None, 0, REST_S
        self._send_next(lane)

    def _unanswered(self, lane: Lane, error: ClientError) -> None:
        is_refused = isinstance(error, InvalidMessage) or error.code == ResponseCode.MESSAGE_ILLEGAL
        if isinstance(error, SendFailed):
            may_pass = error.code is None or error.code in PASSING_CODES
        else:
            # If the cluster never accepted a message of this topic, the name is probably wrong. If
            # it did, the cluster is probably only unavailable.
            may_pass = isinstance(error, NoRoute | PeerUnreachable) and lane.topic in self._known
        if is_refused and len(lane.sent) > 1:
            # The batch as a whole may exceed this broker's `maxMessageSize`: send its rows alone.
            lane.is_alone = True
            lane.waiting.extendleft(reversed(lane.sent))
            self._send_next(lane)
        elif may_pass:
            self._rest(lane, str(error))
        else:
            raise self._failed(lane.sent[0], str(error)) from None

    def _rest(self, lane: Lane, why: str) -> None:
        now_s = time.monotonic()
        if lane.failing_since_s is None:
            lane.failing_since_s = now_s
        waited_s = now_s - lane.failing_since_s
        if waited_s * 1000 >= self._options.max_wait_for_broker:
            raise self._failed(lane.sent[0], f"tried for {waited_s:.0f} s (maxWaitForBroker): {why}")
        lane.due_s = now_s + lane.rest_s
        lane.rest_s = min(2 * lane.rest_s, REST_MAX_S)
        self._resting.append(lane)

    def _failed(self, row: _Row, why: str) -> WriteFailed:
        in_flight = sum(len(lane.sent) for lane in self._lanes.values())
        return WriteFailed(
            f"{self.place}, row {row.number} to {row.message.topic or 'no topic'}: {why}; rows of this task acknowledged "
            f"before: {self.acknowledged}, in flight: {in_flight}"
        )
