"""Spool: the escape strategy.

    put ─► a master takes it (as `auto` finds one) ─────────────────► PUT_OK
        └► no master does, or its topic has messages here ─► disk ──► PUT_OK once it is durable

So a delay level continues while there is no master, and a topic without a master does not hold up
other topics. When a master is available, the spool puts the stored messages there: each topic in
its order, one message at a time, several topics at once. It continues after a kill, and also when
the broker is a plain slave again. The master of its own group is as good as any.

A message is put twice only in two cases: the result of an attempt was unknown, or a kill came
before its DONE record was written. The spool never drops a message that it can read. If it is full,
it refuses the message, and the caller keeps it.

Bodies stay on disk; memory holds only the place of each message. Limits: `sizeMax` bytes of files,
and `messagesMax` messages.
"""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated

import msgspec

from rmqkit.broker.escape import Auto, Escaping, Then
from rmqkit.store.contract import PutStatus
from rmqkit_spool.segments import Segments

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

DUTY = "escape-spool"
#: topics for which one turn starts an attempt
TOPICS_PER_TURN = 32
RETRY_STEP_MS = 500
RETRY_MS_MAX = 5_000


class SpoolSettings(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """The settings `plugin.spool.…` of a broker."""

    #: most bytes of all files
    size_max: Annotated[int, msgspec.Meta(ge=1 << 16, le=1 << 40)] = 1 << 30
    #: most messages; each needs about 300 bytes of memory
    messages_max: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] = 200_000
    #: size in bytes from which a file is followed by a new one
    segment_size: Annotated[int, msgspec.Meta(ge=1 << 12, le=1 << 30)] = 4 << 20


class _Lane:
    """The messages of one topic, in order. `retry_ms` is monotonic time."""

    __slots__ = ("failures", "is_in_flight", "numbers", "retry_ms")

    def __init__(self) -> None:
        self.numbers: deque[int] = deque()
        self.is_in_flight = False
        self.failures = 0
        self.retry_ms = 0


class Spool:
    """The escape strategy `spool` of one broker."""

    def __init__(self, broker: "BrokerView", settings: SpoolSettings) -> None:
        self._broker = broker
        self._settings = settings
        self._auto = Auto(broker, own_group=True)
        self._segments = Segments(broker.ports.disk, segment_size=settings.segment_size)
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode: Callable[[bytes], Escaping] = msgspec.msgpack.Decoder(Escaping).decode
        self._lanes: dict[str, _Lane] = {}
        self._loading: Iterator[None] | None = self._segments.load(self._seen)
        #: topic of each message by number, while the files are loaded
        self._topics: dict[int, str] = {}
        #: why the spool permanently refuses messages, "" if it accepts them
        self.failed = ""
        #: why the last attempt failed, "" if it succeeded
        self.why = ""
        #: number of messages stored since the start, and of those that could not be read again
        self.kept_count = 0
        self.damaged = 0
        broker.duties.add(DUTY, self._run, broker.clock.mono_ms)

    # --- the contract -----------------------------------------------------------------------------

    def put(self, message: Escaping, then: Then) -> None:
        if self._loading is not None:
            self.why = "the spool is still being loaded"
            then(PutStatus.SERVICE_NOT_AVAILABLE)
        elif message.put.topic in self._lanes:
            self._keep(message, then)
        else:
            self._auto.put(message, partial(self._tried, message, then))

    def waiting(self) -> int:
        return len(self._segments.places)

    def facts(self) -> dict[str, str]:
        facts = self._auto.facts()
        return {
            **facts,
            "escapeWhy": self.failed or self.why or facts["escapeWhy"],
            "spoolMessages": str(len(self._segments.places)),
            "spoolTopics": str(len(self._lanes)),
            "spoolBytes": str(self._segments.size),
            "spoolKept": str(self.kept_count),
            "spoolDamaged": str(self.damaged + self._segments.damaged),
        }

    def stop(self) -> None:
        self._auto.stop()
        self._broker.duties.remove(DUTY)

    # --- in ---------------------------------------------------------------------------------------

    def _tried(self, message: Escaping, then: Then, status: PutStatus) -> None:
        if status is PutStatus.PUT_OK:
            self.why = ""
            then(status)
        else:
            self._keep(message, then)

    def _keep(self, message: Escaping, then: Then) -> None:
        self.why = self._refusal()
        if self.why:
            then(PutStatus.SERVICE_NOT_AVAILABLE)
            return
        put = message.put._replace(body=bytes(message.put.body))
        try:
            number = self._segments.append(self._encode(message._replace(put=put)))
        except OSError as error:
            self.why = f"the spool cannot be written: {error.strerror or error}"
            then(PutStatus.SERVICE_NOT_AVAILABLE)
            return

        def synced(error: OSError | None) -> None:
            if error is None:
                self.kept_count += 1
                then(PutStatus.PUT_OK)
                return
            if not self.failed:
                self.failed = f"the spool cannot be synced and accepts no more messages: {error.strerror or error}"
                self._broker.log.error("spool-failed", reason=self.failed)
            then(PutStatus.UNKNOWN_ERROR)

        self._lane(put.topic).numbers.append(number)
        self._segments.sync(synced)
        self._broker.duties.wake(DUTY, self._broker.clock.mono_ms + RETRY_STEP_MS)

    def _refusal(self) -> str:
        """Return why the spool cannot store another message, "" if it can."""
        settings = self._settings
        if self.failed:
            return self.failed
        if len(self._segments.places) >= settings.messages_max:
            return f"the spool is full: {settings.messages_max} messages (plugin.spool.messagesMax)"
        if self._segments.size >= settings.size_max:
            self._broker.duties.wake(DUTY, self._broker.clock.mono_ms)
            return f"the spool is full: {settings.size_max} bytes (plugin.spool.sizeMax)"
        return ""

    def _lane(self, topic: str) -> _Lane:
        lane = self._lanes.get(topic)
        if lane is None:
            lane = self._lanes[topic] = _Lane()
        return lane

    # --- out --------------------------------------------------------------------------------------

    def _run(self, now_ms: int) -> int | None:
        if self._loading is not None:
            return self._load(now_ms)
        if self._segments.size * 2 > self._settings.size_max:
            self._segments.compact(self._compacted)
        if not self._broker.serving:
            return now_ms + RETRY_STEP_MS if self._lanes else None
        ready = [(topic, lane) for topic, lane in self._lanes.items() if not lane.is_in_flight and lane.retry_ms <= now_ms]
        for topic, lane in ready[:TOPICS_PER_TURN]:
            # Move the topic to the end, so that the next turn begins with the topics left out now.
            self._lanes[topic] = self._lanes.pop(topic)
            self._bring(topic, lane)
        if len(ready) > TOPICS_PER_TURN:
            return now_ms
        return min((max(now_ms, each.retry_ms) for each in self._lanes.values() if not each.is_in_flight), default=None)

    def _load(self, now_ms: int) -> int:
        assert self._loading is not None
        try:
            next(self._loading)
        except StopIteration:
            self._loading = None
            self.why = ""
            self._loaded()
        except OSError as error:
            # Starting an empty spool could lose stored messages. The broker continues without the
            # spool, and its messages stay due.
            self._loading = None
            self.failed = f"the spool cannot be loaded and accepts no messages: {error.strerror or error}"
            self._broker.log.error("spool-failed", reason=self.failed)
        return now_ms

    def _seen(self, number: int, payload: bytes) -> None:
        try:
            self._topics[number] = self._decode(payload).put.topic
        except msgspec.MsgspecError as error:
            self._broker.log.error("spool-message-unreadable", number=number, reason=str(error))

    def _loaded(self) -> None:
        segments = self._segments
        for number in sorted(segments.places):
            if number in self._topics:
                self._lane(self._topics[number]).numbers.append(number)
        self._topics = {}
        if segments.damaged:
            self._broker.log.warning("spool-damaged", records=segments.damaged)
        if segments.places:
            self._broker.log.info("spool-read", messages=len(segments.places), topics=len(self._lanes))

    def _bring(self, topic: str, lane: _Lane) -> None:
        """Try to put the first message of a topic on a master."""
        number = lane.numbers[0]
        try:
            message = self._decode(self._segments.read(number))
        except OSError as error:
            # The disk may be readable again later, so the message is not lost yet.
            self.why = f"the spool cannot be read: {error.strerror or error}"
            self._later(lane)
            return
        except (ValueError, msgspec.MsgspecError) as error:
            self._drop(number, error)
            self._next(topic, lane)
            return
        lane.is_in_flight = True
        self._auto.put(message, partial(self._brought, topic, lane))

    def _brought(self, topic: str, lane: _Lane, status: PutStatus) -> None:
        lane.is_in_flight = False
        if status is PutStatus.PUT_OK:
            lane.failures, lane.retry_ms = 0, 0
            self._done(lane.numbers[0])
            self._next(topic, lane)
        else:
            self._later(lane)
        self._broker.duties.wake(DUTY, max(self._broker.clock.mono_ms, lane.retry_ms))

    def _later(self, lane: _Lane) -> None:
        lane.failures += 1
        lane.retry_ms = self._broker.clock.mono_ms + min(lane.failures * RETRY_STEP_MS, RETRY_MS_MAX)

    def _next(self, topic: str, lane: _Lane) -> None:
        lane.numbers.popleft()
        if not lane.numbers:
            del self._lanes[topic]

    def _done(self, number: int) -> None:
        try:
            self._segments.done(number)
        except OSError as error:
            # The message will be put again after a restart, which is better than losing it.
            self._broker.log.warning("spool-done-not-written", reason=str(error))

    def _drop(self, number: int, error: Exception) -> None:
        """Remove a message whose bytes are damaged."""
        self.damaged += 1
        self._broker.log.error("spool-message-lost", number=number, reason=str(error))
        self._done(number)

    def _compacted(self, error: OSError | None) -> None:
        if error is not None:
            self._broker.log.warning("spool-not-compacted", reason=str(error))
