"""The runs of `rmqkit bench`: sends, reads and both at once, with the latency of each message.

Latencies are nanoseconds of this process's monotonic clock. For a send they count from the call to
its answer. End to end they count from the moment the message was due (its body begins with that
moment) to the listener. At a fixed rate a send also counts from its due time, so that a stall shows
in every message that it delayed. The first second of a timed run is not counted: it sets up
connections and routes.
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
#: seconds to wait at the end for messages that are still in flight
DRAIN_S = 10.0
POLL_MS = 200
#: seconds without a message after which a reader has read everything
IDLE_S = 1.0
FILLING = bytes(range(97, 123)) * 40_330


@dataclass
class Load:
    """What to run. It ends after `count` messages or `duration_s` seconds, whichever is given."""

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
    """Latencies in nanoseconds, and counts, both without the warm-up.

    `began_ns` and `ended_ns` are monotonic.
    """

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
    """Return percentiles in milliseconds, None for each if there are no latencies."""
    ordered = sorted(latencies)
    if not ordered:
        return dict.fromkeys((*PERCENTILES, "max"))
    found = {name: ordered[min(len(ordered) - 1, int(part * len(ordered)))] for name, part in PERCENTILES.items()}
    return {name: round(each / 1e6, 3) for name, each in {**found, "max": ordered[-1]}.items()}


class BenchPace:
    """Yields the due time of each request: at once, or `1/rate` seconds after the one before.

    It ends the run by count or by time.
    """

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
        """Yield the due time of each request in monotonic ns. Safe for several threads."""
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
    """Sends at the times of `BenchPace`.

    It uses `threads` threads that each wait for their answer, or one thread with up to `in_flight`
    messages in flight.
    """

    def __init__(self, producer: Producer, load: Load, tell: Callable[[int], None]) -> None:
        from rmqkit import Message

        self._message: type[Message] = Message
        self.producer = producer
        self.load = load
        self.measured = BenchResult()
        #: messages that were acknowledged, warm-up included
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
                while worker.is_alive():  # in steps, so that Ctrl-C works
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
    """Read a topic from its first message until its end, `count` or the time limit.

    Latencies are of polls.
    """
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
        messages = messages[: left - measured.messages]
        if messages:
            heard_ns = now_ns
            measured.add(now_ns - asked_ns, len(messages), sum(len(each.body) for each in messages), now_ns)
            tell(measured.messages)
        elif now_ns - heard_ns > IDLE_S * 1e9:
            break
    return measured


class BenchListener:
    """The listener of an end-to-end run.

    Counts each message once, with the latency from its due time.
    """

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
        """Wait until `count` messages have arrived, for at most `DRAIN_S` seconds."""
        until_s = time.monotonic() + DRAIN_S
        while self.seen < count and time.monotonic() < until_s:
            time.sleep(0.01)
