"""How a task of the sink sends: lanes, each with one request on its way, in a bounded window.

    put(row) ──► lane of its queue ──► waiting ──► one request ──► answered ──► next request: all that has gathered
                 (or one of LANES)                     ▲ │
                                                       └─┘ no answer, busy, not as safe as asked: the same rows again

Rows for a queue or with an ordering key go through the lane of that queue, and a lane sends nothing before what it sent is
answered: their order holds also where something is sent again. Other rows are dealt out to LANES lanes a topic, whose
requests find a queue and a broker by themselves. What gathers in a lane meanwhile is sent as one batch, which a broker
stores whole or not at all; rows that a batch cannot take (a delay, a body worth compressing) go one by one.

A request without an answer is sent again until `wait_ms` are over: it may be stored twice, so each message carries a key by
which that shows. What no waiting helps (a bad message, an unknown topic) fails at once. A failure names the row.
"""

import os
import queue as queues
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple

from rmqkit.client.message import Message, SendResult, SendStatus
from rmqkit.client.producers.outgoing_message import COMPRESS_OVER
from rmqkit.errors import ClientError, InvalidMessage, NoRoute, PeerUnreachable, RmqkitError, SendFailed
from rmqkit.wire.codes import ResponseCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.javahash import java_hash

if TYPE_CHECKING:
    from rmqkit.api import Producer

#: how many requests without a queue of their own are on their way, a topic
LANES = 4
#: a batch: at most so many messages and bytes (bodies and properties); brokers take 4 MiB
BATCH_MESSAGES = 512
BATCH_BYTES = 512 * 1024
#: rows and bytes that wait for answers before the task reads on
WINDOW_ROWS = 8192
WINDOW_BYTES = 16 * 1024 * 1024
#: of a pace
CATCH_UP_S = 0.1
REST_S = 0.2
REST_MAX_S = 2.0
#: a status that is not as safe as asked is stored all the same: sending it again makes another copy
NOT_OK_TRIES_MAX = 3
#: a broker that answers so may take the message later
PASSING_CODES = frozenset(
    {
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.GO_AWAY,
    }
)


class SendSettings(NamedTuple):
    """What a task has to know. `is_ok_required`: a status other than SEND_OK is a failure. Times in ms. `per_second`: rows
    at most, 0 for no limit."""

    namesrv: tuple[str, ...]
    group: str
    is_ok_required: bool
    wait_ms: int
    timeout_ms: int
    per_second: int = 0


class WriteFailed(RmqkitError):
    """A row that could not be sent; the text names it, the reason, and what had been sent before."""


class _Row(NamedTuple):
    number: int
    message: Message
    size: int


class WorkerState(NamedTuple):
    """What a worker process keeps from task to task: its producer, and the topics that took messages before."""

    producer: "Producer"
    known: set[str]


#: one a process and cluster; the key has the process id, as a fork takes this dict along but no threads
_KEPT: dict[tuple[int, tuple[str, ...], str], WorkerState] = {}


def kept(settings: SendSettings) -> WorkerState:
    """This process' producer for the cluster, made when it is first asked for."""
    key = (os.getpid(), settings.namesrv, settings.group)
    if key not in _KEPT:
        from rmqkit.api import Producer

        _KEPT[key] = WorkerState(Producer(group=settings.group, namesrv=list(settings.namesrv)), set())
    return _KEPT[key]


def close_kept() -> None:
    """Leave all clusters: for a process that goes on without Spark (tests)."""
    for key in [key for key in _KEPT if key[0] == os.getpid()]:
        _KEPT.pop(key).producer.close()


class Lane:
    """Rows that go one request after the other. `queue` None: wherever the producer finds room."""

    __slots__ = ("due_s", "failing_since_s", "is_alone", "not_ok", "queue", "rest_s", "sent", "topic", "waiting")

    def __init__(self, topic: str, queue: MessageQueue | None) -> None:
        self.topic = topic
        self.queue = queue
        self.waiting: deque[_Row] = deque()
        #: on their way, or resting until `due_s` before they are sent again
        self.sent: list[_Row] = []
        self.due_s: float | None = None
        self.rest_s = REST_S
        self.failing_since_s: float | None = None
        #: answers in a row that were not as safe as asked
        self.not_ok = 0
        #: no batches: one of them was not taken, and if it was for a row, the row is to be named
        self.is_alone = False

    def take(self) -> list[_Row]:
        """The next request's rows: one, or several that a batch can take."""
        first = self.waiting.popleft()
        rows, size = [first], first.size
        if self.is_alone or not _joins(first):
            return rows
        while self.waiting and len(rows) < BATCH_MESSAGES:
            following = self.waiting[0]
            size += following.size
            if size > BATCH_BYTES or not _joins(following):
                break
            rows.append(self.waiting.popleft())
        return rows


def _joins(row: _Row) -> bool:
    return not row.message.delay_level and len(row.message.body) < COMPRESS_OVER


class SendPace:
    """When the next row may go: a steady pace, and after a stop no more than CATCH_UP_S of it at once."""

    def __init__(self, per_second: int) -> None:
        self._step_s = 1 / per_second
        self._due_s: float | None = None

    def pause_s(self, now_s: float) -> float:
        """How long a row that comes now has to wait; it goes then."""
        due_s = now_s if self._due_s is None else max(self._due_s, now_s - CATCH_UP_S)
        self._due_s = due_s + self._step_s
        return max(0.0, due_s - now_s)


class RowSender:
    """The sends of one task. `place` names it in errors: `partition 3`."""

    def __init__(self, work: WorkerState, settings: SendSettings, place: str) -> None:
        self._producer = work.producer
        self._known = work.known
        self._settings = settings
        self._place = place
        self._lanes: dict[tuple[str, MessageQueue | int], Lane] = {}
        self._resting: list[Lane] = []
        self._queues: dict[str, list[MessageQueue]] = {}
        self._pace = SendPace(settings.per_second) if settings.per_second else None
        self._ended: queues.SimpleQueue[tuple[Lane, Future[SendResult]]] = queues.SimpleQueue()
        self._held = 0
        self._held_bytes = 0
        #: acknowledged rows by status, and rows that were sent more than once
        self.statuses: Counter[str] = Counter()
        self.repeated = 0

    @property
    def acknowledged(self) -> int:
        return sum(self.statuses.values())

    # --- the task's side

    def put(
        self,
        number: int,
        message: Message,
        *,
        queue: int | None = None,
        broker: str | None = None,
        ordering_key: str | None = None,
    ) -> None:
        """Send a row, soon. Waits while the window is full, or for its turn. Raises WriteFailed, for this row or an earlier
        one."""
        if self._pace is not None and (pause_s := self._pace.pause_s(time.monotonic())) > 0:
            self._idle(pause_s)
        try:
            target = self._target(message.topic, queue, broker, ordering_key)
        except ClientError as error:
            raise self._failed(number, message.topic, str(error)) from None
        lane = self._lane(message.topic, target, number)
        size = len(message.body) + sum(len(name) + len(value) + 2 for name, value in message.properties.items())
        lane.waiting.append(_Row(number, message, size))
        self._held += 1
        self._held_bytes += size
        if not lane.sent:
            self._send_next(lane)
        while self._held >= WINDOW_ROWS or self._held_bytes >= WINDOW_BYTES:
            self._settle()
        while not self._ended.empty():
            self._settle()

    def _idle(self, pause_s: float) -> None:
        """Let time go by, and work on what is answered meanwhile."""
        until_s = time.monotonic() + pause_s
        while self._held and (left_s := until_s - time.monotonic()) > 0:
            self._settle(left_s)
        time.sleep(max(0.0, until_s - time.monotonic()))

    def finish(self) -> None:
        """Wait for all answers. Raises WriteFailed."""
        while self._held:
            self._settle()

    # --- where to

    def _target(self, topic: str, queue: int | None, broker: str | None, key: str | None) -> MessageQueue | None:
        if queue is None and key is None:
            return None
        if queue is not None and broker is not None:
            return MessageQueue(topic, broker, queue)
        known = self._queues.get(topic)
        if known is None:
            # For the whole task, so that a key stays with its queue while a broker is away.
            known = self._queues[topic] = self._producer.queues(topic)
        if queue is None:
            return known[abs(java_hash(str(key))) % len(known)]
        if not 0 <= queue < len(known):
            raise InvalidMessage(f"queue {queue} of a topic that has {len(known)}, counted from 0")
        return known[queue]

    def _lane(self, topic: str, queue: MessageQueue | None, number: int) -> Lane:
        key = (topic, number % LANES if queue is None else queue)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = Lane(topic, queue)
        return lane

    # --- requests

    def _send_next(self, lane: Lane) -> None:
        if lane.waiting:
            lane.sent = lane.take()
            self._send(lane)

    def _send(self, lane: Lane) -> None:
        rows = lane.sent
        timeout_ms = self._settings.timeout_ms
        try:
            if len(rows) == 1:
                future = self._producer.send_async(rows[0].message, lane.queue, timeout_ms=timeout_ms)
            else:
                messages: Sequence[Message] = [row.message for row in rows]
                future = self._producer.send_batch_async(messages, lane.queue, timeout_ms=timeout_ms)
        except InvalidMessage as error:
            if len(rows) == 1:
                raise self._failed(rows[0].number, lane.topic, str(error)) from None
            self._send_alone(lane)
            return
        except ClientError as error:
            raise self._failed(rows[0].number, lane.topic, str(error)) from None
        future.add_done_callback(lambda done: self._ended.put((lane, done)))

    def _send_alone(self, lane: Lane) -> None:
        """What was in a batch that nobody takes."""
        lane.is_alone = True
        lane.waiting.extendleft(reversed(lane.sent))
        self._send_next(lane)

    def _settle(self, limit_s: float | None = None) -> None:
        """Work on one answer, or on lanes that have rested; waits for the first of them, no longer than the limit."""
        now_s = time.monotonic()
        waits_s = [max(0.0, lane.due_s - now_s) for lane in self._resting if lane.due_s is not None]
        if limit_s is not None:
            waits_s.append(limit_s)
        try:
            lane, future = self._ended.get(timeout=min(waits_s, default=None))
        except queues.Empty:
            self._go_on()
            return
        error = future.exception()
        if error is None:
            self._answered(lane, future.result())
        elif isinstance(error, ClientError):
            self._unanswered(lane, error)
        else:
            raise error

    def _go_on(self) -> None:
        now_s = time.monotonic()
        rested = [lane for lane in self._resting if lane.due_s is not None and lane.due_s <= now_s]
        self._resting = [lane for lane in self._resting if lane not in rested]
        for lane in rested:
            lane.due_s = None
            self.repeated += len(lane.sent)
            self._send(lane)

    def _answered(self, lane: Lane, result: SendResult) -> None:
        if result.status is not SendStatus.SEND_OK and self._settings.is_ok_required:
            lane.not_ok += 1
            why = f"stored {lane.not_ok} times, but {result.queue.broker_name} answers {result.status}"
            if lane.not_ok >= NOT_OK_TRIES_MAX:
                raise self._failed(lane.sent[0].number, lane.topic, f"{why}; requiredStatus=any would take that")
            self._rest(lane, why)
            return
        self._known.add(lane.topic)
        self.statuses[str(result.status)] += len(lane.sent)
        self._held -= len(lane.sent)
        self._held_bytes -= sum(row.size for row in lane.sent)
        lane.sent, lane.failing_since_s, lane.not_ok, lane.rest_s = [], None, 0, REST_S
        self._send_next(lane)

    def _unanswered(self, lane: Lane, error: ClientError) -> None:
        if len(lane.sent) > 1 and error.code == ResponseCode.MESSAGE_ILLEGAL:
            # As a whole it may be too large for this broker (`maxMessageSize`).
            self._send_alone(lane)
            return
        if not self._may_pass(lane.topic, error):
            raise self._failed(lane.sent[0].number, lane.topic, str(error))
        self._rest(lane, str(error))

    def _may_pass(self, topic: str, error: ClientError) -> bool:
        if isinstance(error, SendFailed):
            return error.code is None or error.code in PASSING_CODES
        # A cluster that never took a message of this topic is more likely named wrongly than away.
        return isinstance(error, NoRoute | PeerUnreachable) and topic in self._known

    def _rest(self, lane: Lane, why: str) -> None:
        now_s = time.monotonic()
        if lane.failing_since_s is None:
            lane.failing_since_s = now_s
        if (now_s - lane.failing_since_s) * 1000 >= self._settings.wait_ms:
            waited_s = now_s - lane.failing_since_s
            raise self._failed(lane.sent[0].number, lane.topic, f"tried for {waited_s:.0f} s (maxWaitForBroker): {why}")
        lane.due_s = now_s + lane.rest_s
        lane.rest_s = min(2 * lane.rest_s, REST_MAX_S)
        self._resting.append(lane)

    def _failed(self, number: int, topic: str, why: str) -> WriteFailed:
        others = sum(len(lane.sent) for lane in self._lanes.values())
        return WriteFailed(
            f"{self._place}, row {number} to {topic or 'no topic'}: {why}; rows of this task acknowledged before: "
            f"{self.acknowledged}, on their way: {others}"
        )

    def counts(self) -> Mapping[str, int]:
        return dict(sorted(self.statuses.items()))
