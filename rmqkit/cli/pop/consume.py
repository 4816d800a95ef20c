"""`rmqkit consume --pop`: pops the messages of a topic, prints them, and acks them.

It shares every queue with the other members of the group. A message is acked after it was printed
and flushed. It pops no more once it holds as many as it may print. What was popped all the same,
from another broker or with the last request, is visible to others 1 s after the end.

Messages come to `PrintQueue` in the I/O thread, and are printed in the main thread. So a closed
pipe and Ctrl-C end the command like any other.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Protocol

from rmqkit.cli.admin_session import admin_of, known_topic, readable
from rmqkit.cli.errors import UsageError
from rmqkit.cli.times import parse_span
from rmqkit.errors import ClientError

if TYPE_CHECKING:
    from rmqkit import MessageExt, PushConsumer
    from rmqkit.client.consumers.listener import ListenerCall

#: Without --follow, the command ends after this time without a message.
QUIET_S = 3.0
POLL_S = 0.1
#: The default of --invisible.
INVISIBLE = "60s"
#: Messages that are popped and not yet printed, at most.
HELD_MAX = 32


class PrintSink(Protocol):
    """Prints messages: `rmqkit.cli.data.consume.Sink`."""

    #: The number of messages to print in all; None: no limit.
    most: int | None

    @property
    def room(self) -> int:
        """The number of messages to pop next; 0 at the end."""

    def take(self, messages: Iterable[MessageExt]) -> None:
        """Print messages, and flush."""


class PrintQueue:
    """The runner of a consumer: keeps calls until the main thread asks for them."""

    def __init__(self, consumer: PushConsumer, most: int | None) -> None:
        self._consumer = consumer
        self._most = most
        self._waiting: SimpleQueue[ListenerCall] = SimpleQueue()
        #: Counts of messages. The I/O thread writes the first one, the main thread the second one.
        self._kept_count = self._discarded_count = 0

    @property
    def _is_full(self) -> bool:
        return self._most is not None and self._kept_count - self._discarded_count >= self._most

    def submit(self, batch: ListenerCall) -> None:
        """Keep a call. The I/O thread calls this."""
        self._waiting.put(batch)
        self._kept_count += len(batch.messages)
        if self._is_full:
            self._consumer.suspend()

    def print_next(self, sink: PrintSink) -> bool:
        """Print and ack the next message. Return whether one came within 100 ms."""
        try:
            batch = self._waiting.get(timeout=POLL_S)
        except Empty:
            return False
        if not batch.may_begin(time.monotonic_ns() // 1_000_000):
            self._consumer.discard(batch)
            self._discarded_count += len(batch.messages)
            if not self._is_full:
                self._consumer.resume()
            return True
        self._consumer.began(batch)
        sink.take(batch.messages)
        self._consumer.finished(batch, True, "")
        return True

    def close(self, wait_s: float) -> bool:
        """Give back what was not printed."""
        while not self._waiting.empty():
            self._consumer.discard(self._waiting.get())
        return True


def invisible_ms(text: str) -> int:
    """Return the invisible time of `--invisible`. Raises UsageError."""
    span = parse_span(text)
    if span is None:
        raise UsageError(f"--invisible {text}: must be a time such as 60s or 2m")
    return round(span)


def pop_messages(
    addresses: str, topic: str, group: str, begin: str, expression: str, *, invisible: str, follow: bool, sink: PrintSink
) -> None:
    """Pop, print and ack until the sink is full or, without `follow`, until no message comes.

    `begin` is where a new group begins, `first` or `last`. Raises UsageError for an invisible time
    that no consumer can have.
    """
    from rmqkit import PushConsumer

    with admin_of(addresses) as admin, known_topic(admin, topic):
        for queue in {queue.broker_name: queue for queue in readable(topic, admin.queues(topic))}.values():
            admin.offset_max(queue)  # raises if the broker does not answer: the pops would only wait
    try:
        consumer = PushConsumer(
            group,
            namesrv=addresses,
            mode="pop",
            consume_from=begin,
            pop_invisible_time_ms=invisible_ms(invisible),
            pop_batch_nums=sink.room,
            pop_threshold_for_queue=HELD_MAX,
        )
    except ClientError as error:
        raise UsageError(f"--invisible {invisible}: {error}") from None
    with consumer:
        consumer.subscribe(topic, expression)
        waiting = PrintQueue(consumer, sink.most)
        consumer.start_with(waiting)
        last_s = time.monotonic()
        while sink.room and (follow or time.monotonic() - last_s < QUIET_S):
            if waiting.print_next(sink):
                last_s = time.monotonic()
