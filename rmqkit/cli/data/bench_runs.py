"""What `rmqkit bench` runs: sends, reads and both at once against a real cluster, timed message by message.

A latency is nanoseconds of one clock of this process: of a send from the call to its answer, of a message end to end from
the moment it was due to the listener (its body begins with that moment). At a fixed rate it counts from when the message
should have been sent, so that a stall is seen by every message that it held up. The first second of a timed run is not
counted: connections and routes come about in it.
"""

from __future__ import annotations

import struct
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from rmqkit.errors import ClientError

if TYPE_CHECKING:
    from rmqkit import Message, MessageExt, Producer, PullConsumer

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99_9": 0.999}
WARM_UP_S = 1.0
STAMP = struct.Struct(">8sqq")
#: how long messages that are still under way at the end are waited for
DRAIN_S = 10.0
POLL_MS = 200
#: nothing came for so long: a reader has read everything
IDLE_S = 1.0
FILLING = bytes(range(97, 123)) * 40_330


@dataclass
class Load:
    """What to do: until `count` messages or `duration_s` are over, whichever is given."""

    topic: str
    size: int
    count: int | None
    duration_s: float | None
    rate: float | None = None
    in_flight: int = 64
    threads: int = 0
    batch: int = 1
    run_id: bytes = b""

    @property
    def warm_up_s(self) -> float:
        return WARM_UP_S if self.duration_s is not None else 0.0


@dataclass
class BenchResult:
    """Latencies in nanoseconds, and what was counted outside the warm-up between `began` and `ended` (monotonic ns)."""

    latencies: array[int] = field(default_factory=lambda: array("q"))
    messages: int = 0
    bytes: int = 0
    failed: int = 0
    error: str = ""
    began_ns: int = 0
    ended_ns: int = 0

    def add(self, latency_ns: int, messages: int, size: int, now_ns: int) -> None:
        self.latencies.append(latency_ns)
        self.messages += messages
        self.bytes += size
        self.ended_ns = max(self.ended_ns, now_ns)

    def fields(self) -> dict[str, Any]:
        took_s = max((self.ended_ns - self.began_ns) / 1e9, 1e-9) if self.messages else 0.0
        return {
            "messages": self.messages,
            "failed": self.failed,
            "seconds": round(took_s, 3),
            "per_second": round(self.messages / took_s, 1) if took_s else 0.0,
            "mib_per_second": round(self.bytes / took_s / 1048576, 2) if took_s else 0.0,
            "latency_ms": percentiles(self.latencies),
        }


def percentiles(latencies: array[int]) -> dict[str, float | None]:
    """In milliseconds; None of nothing."""
    ordered = sorted(latencies)
    if not ordered:
        return dict.fromkeys((*PERCENTILES, "max"))
    found = {name: ordered[min(len(ordered) - 1, int(part * len(ordered)))] for name, part in PERCENTILES.items()}
    return {name: round(each / 1e6, 3) for name, each in {**found, "max": ordered[-1]}.items()}


class BenchPace:
    """When each message is due: at once, or `1/rate` after the one before. Ends the run by count or by time."""

    def __init__(self, load: Load) -> None:
        self.began_ns = time.monotonic_ns()
        self.counted_from_ns = self.began_ns + round(load.warm_up_s * 1e9)
        self._until_ns = None
        if load.duration_s is not None:
            self._until_ns = self.counted_from_ns + round(load.duration_s * 1e9)
        self._left = None if load.count is None else load.count
        self._gap_ns = None if load.rate is None else 1e9 * load.batch / load.rate
        self._batch = load.batch
        self._number = 0
        self._guard = threading.Lock()

    def __iter__(self) -> Iterator[int]:
        """The moment each request is due, in monotonic ns; safe for several threads."""
        while (due_ns := self._take()) is not None:
            wait_ns = due_ns - time.monotonic_ns()
            if wait_ns > 0:
                time.sleep(wait_ns / 1e9)
            yield due_ns

    def _take(self) -> int | None:
        with self._guard:
            now_ns = time.monotonic_ns()
            if self._left is not None:
                if self._left <= 0:
                    return None
                self._left -= self._batch
            due_ns = now_ns if self._gap_ns is None else self.began_ns + round(self._number * self._gap_ns)
            if self._until_ns is not None and max(due_ns, now_ns) >= self._until_ns:
                return None
            self._number += 1
            return due_ns


class BenchSender:
    """Sends by `BenchPace`, from `threads` threads that wait for each answer, or from one with up
    to `in_flight` on the way.
    """

    def __init__(self, producer: Producer, load: Load, tell: Callable[[int], None]) -> None:
        from rmqkit import Message

        self._message: type[Message] = Message
        self.producer = producer
        self.load = load
        self.measured = BenchResult()
        #: all that were acknowledged, those of the warm-up too
        self.sent = 0
        self._tell = tell
        self._room = threading.Semaphore(load.in_flight)
        self._guard = threading.Lock()
        self._pace = BenchPace(load)
        self.measured.began_ns = self._pace.counted_from_ns

    def run(self) -> None:
        if self.load.threads:
            workers = [threading.Thread(target=self._sync, name=f"bench-{number}") for number in range(self.load.threads)]
            for worker in workers:
                worker.start()
            for worker in workers:
                while worker.is_alive():  # in steps, so that Ctrl-C is heard
                    worker.join(0.2)
                    self._tell(self.measured.messages)
            return
        for due_ns in self._pace:
            self._room.acquire()
            if self.load.rate is None:
                due_ns = time.monotonic_ns()
            self._start(due_ns).add_done_callback(partial(self._done, due_ns=due_ns))
            self._tell(self.measured.messages)
        for _ in range(self.load.in_flight):
            self._room.acquire()

    def _sync(self) -> None:
        for due_ns in self._pace:
            future = self._start(due_ns)
            try:
                future.result()
            except ClientError:
                pass
            self._note(future, due_ns)

    def _start(self, due_ns: int) -> Future[Any]:
        load = self.load
        messages = [self._message(load.topic, self._body(due_ns)) for _ in range(load.batch)]
        try:
            return self.producer.send_async(messages[0]) if load.batch == 1 else self.producer.send_batch_async(messages)
        except ClientError as error:
            refused: Future[Any] = Future()
            refused.set_exception(error)
            return refused

    def _body(self, due_ns: int) -> bytes:
        stamp = STAMP.pack(self.load.run_id, due_ns, 0)
        return (stamp + FILLING)[: self.load.size] if self.load.size >= STAMP.size else FILLING[: self.load.size]

    def _done(self, future: Future[Any], due_ns: int) -> None:
        self._note(future, due_ns)
        self._room.release()

    def _note(self, future: Future[Any], due_ns: int) -> None:
        now_ns = time.monotonic_ns()
        with self._guard:
            if error := future.exception():
                self.measured.failed += 1
                self.measured.error = str(error)
                return
            self.sent += self.load.batch
            if due_ns >= self._pace.counted_from_ns:
                self.measured.add(now_ns - due_ns, self.load.batch, self.load.size * self.load.batch, now_ns)


def read(consumer: PullConsumer, load: Load, tell: Callable[[int], None]) -> BenchResult:
    """Read a topic from its first message on until all of it, `count` or the time is over; a latency is that of a poll."""
    measured = BenchResult()
    queues = consumer.queues(load.topic)
    ends = {queue: consumer.offset_max(queue) for queue in queues}
    begins = {queue: max(0, consumer.offset_min(queue)) for queue in queues}
    left = sum(ends[queue] - begins[queue] for queue in queues)
    if load.count is not None:
        left = min(left, load.count)
    consumer.assign(queues)
    for queue, offset in begins.items():
        consumer.seek(queue, offset)
    measured.began_ns = measured.ended_ns = time.monotonic_ns()
    until_ns = None if load.duration_s is None else measured.began_ns + round(load.duration_s * 1e9)
    heard_ns = measured.began_ns
    while measured.messages < left and (until_ns is None or heard_ns < until_ns):
        asked_ns = time.monotonic_ns()
        messages = consumer.poll(POLL_MS, 1024)
        now_ns = time.monotonic_ns()
        if messages:
            heard_ns = now_ns
            measured.add(now_ns - asked_ns, len(messages), sum(len(each.body) for each in messages), now_ns)
            tell(measured.messages)
        elif now_ns - heard_ns > IDLE_S * 1e9:
            break
    return measured


class BenchListener:
    """The listener's side of an end-to-end run: each message once, from when it was due to when it is here."""

    def __init__(self, load: Load) -> None:
        self.measured = BenchResult()
        self.seen = 0
        self.duplicates = 0
        self._load = load
        self._places: set[tuple[str, int, int]] = set()
        self._guard = threading.Lock()

    def __call__(self, message: MessageExt) -> bool:
        now_ns = time.monotonic_ns()
        body = message.body
        if len(body) < STAMP.size or body[:8] != self._load.run_id:
            return True  # of an earlier run
        _run, due_ns, _zero = STAMP.unpack_from(body)
        place = (message.broker_name, message.queue_id, message.queue_offset)
        with self._guard:
            if place in self._places:
                self.duplicates += 1
                return True
            self._places.add(place)
            self.seen += 1
            if due_ns >= self.measured.began_ns:
                self.measured.add(now_ns - due_ns, 1, len(body), now_ns)
        return True

    def wait(self, count: int) -> None:
        """Until so many are here, or nothing more comes for a while."""
        until_s = time.monotonic() + DRAIN_S
        while self.seen < count and time.monotonic() < until_s:
            time.sleep(0.01)
