"""A producer under load that remembers each acknowledgement, and checks that each message is there.

A message's body holds its number and a digest of its padding, so a mixed-up or truncated body is
detected. An acknowledgement is a place (queue id, queue offset) and the body that was sent. A send
that failed or timed out is *unknown*: it may be stored or not, once or several times.
"""

import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import Future

from rmqkit import Message, Producer, PullConsumer
from rmqkit.errors import RmqkitError

QUEUES = 4


def body_of(number: int, size: int) -> bytes:
    pad = hashlib.blake2b(str(number).encode(), digest_size=32).hexdigest().encode()
    head = b"%012d:" % number
    return (head + pad * (size // len(pad) + 1))[:size]


class Workload:
    """Sends from its own thread until `stop`, with at most `in_flight` sends in flight."""

    def __init__(self, namesrv: str, topic: str, *, in_flight: int = 100) -> None:
        self.topic = topic
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self.doubled: list[tuple[int, int]] = []
        self.sent = 0
        self.unknown = 0
        self._producer = Producer(
            group="workload",
            namesrv=namesrv,
            send_msg_timeout_ms=3000,
            retry_times_when_send_async_failed=0,
            default_topic_queue_nums=QUEUES,
        )
        self._in_flight = threading.Semaphore(in_flight)
        self._stopping = threading.Event()
        self._grew = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "Workload":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        if not self._stopping.is_set():
            self._stopping.set()
            self._thread.join(30)
            self._producer.close()

    def wait_for(self, more: int, timeout_s: float = 60) -> None:
        """Wait until `more` further sends are acknowledged."""
        with self._grew:
            wanted = len(self.acknowledged) + more
            assert self._grew.wait_for(lambda: len(self.acknowledged) >= wanted, timeout_s), (
                f"{len(self.acknowledged)} of {wanted} sends acknowledged in {timeout_s} s"
            )

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._in_flight.acquire()
            body = body_of(self.sent, 100 + self.sent * 37 % 1900)
            self.sent += 1
            try:
                future = self._producer.send_async(Message(self.topic, body))
            except RmqkitError:
                self.unknown += 1
                self._in_flight.release()
                self._stopping.wait(0.01)
                continue
            future.add_done_callback(self._ended(body))

    def _ended(self, body: bytes) -> Callable[[Future], None]:
        def ended(future: Future) -> None:
            self._in_flight.release()
            error = future.exception()
            with self._grew:
                if error is not None:
                    self.unknown += 1
                    # A broker that is down fails sends at once: do not spin.
                    self._stopping.wait(0.001)
                    return
                result = future.result()
                place = (result.queue.queue_id, result.queue_offset)
                if self.acknowledged.setdefault(place, body) != body:
                    self.doubled.append(place)
                self._grew.notify_all()

        return ended


def read_all(namesrv: str, topic: str) -> dict[tuple[int, int], bytes]:
    """Return each message of a topic by its place; assert dense offsets from a queue's minimum."""
    found: dict[tuple[int, int], bytes] = {}
    with PullConsumer("auditor", namesrv=namesrv) as consumer:
        for queue in consumer.queues(topic):
            offset, end = consumer.offset_min(queue), consumer.offset_max(queue)
            consumer.assign([queue])
            consumer.seek(queue, offset)
            while offset < end:
                messages = consumer.poll(timeout_ms=10_000)
                assert messages, f"{queue} ends at {offset}, the broker says {end}"
                for message in messages:
                    assert message.queue_offset == offset, f"{queue}: {message.queue_offset} follows {offset - 1}"
                    found[queue.queue_id, offset] = message.body
                    offset += 1
    return found


def assert_kept(work: Workload, found: dict[tuple[int, int], bytes]) -> None:
    """Check each acknowledged message at its place; check that no unsent message was delivered."""
    assert not work.doubled, f"two messages were acknowledged at {work.doubled[:5]}"
    missing = [place for place in work.acknowledged if place not in found]
    assert not missing, f"{len(missing)} of {len(work.acknowledged)} acknowledged messages are missing: {missing[:5]}"
    wrong = [place for place, body in work.acknowledged.items() if found[place] != body]
    assert not wrong, f"{len(wrong)} acknowledged messages have another content: {wrong[:5]}"
    assert_sent(work, found)


def assert_sent(work: Workload, found: dict[tuple[int, int], bytes]) -> None:
    """Check that every delivered message was sent, and is complete."""
    for place, body in found.items():
        number = int(body[:12])
        assert body == body_of(number, len(body)), f"{place} holds a body nobody sent"
        assert number < work.sent
