"""Spool: the escape strategy.

    put ─► a master takes it (as `auto` finds one) ─────────────────────────► PUT_OK
        └► nobody does, or messages of its topic wait here already ─► disk ─► PUT_OK once it is durable

So the progress of a delay level goes on while there is no master, and one topic that has none anywhere does not hold up the
others. What waits is brought to a master when there is one: each topic in its order, one message at a time, topics side by
side. That goes on when the broker is a plain slave again, and after a kill; the master of its own group is as good as any.

A message that may have been put and one whose DONE record was not written before a kill come again. Nothing else does, and
nothing is given up: a full spool refuses, and who asks keeps the message.

The bodies stay on disk; in memory is a place of each message. Bounds: `sizeMax` bytes of files, `messagesMax`.
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
#: topics that are served in a turn
TOPICS_PER_TURN = 32
RETRY_STEP_MS = 500
RETRY_MS_MAX = 5_000


class SpoolSettings(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """`plugin.spool.…` of a broker's configuration."""

    #: bytes of files at most
    size_max: Annotated[int, msgspec.Meta(ge=1 << 16, le=1 << 40)] = 1 << 30
    #: messages at most; each costs about 300 bytes of memory
    messages_max: Annotated[int, msgspec.Meta(ge=1, le=10_000_000)] = 200_000
    #: bytes of a file before the next is begun
    segment_size: Annotated[int, msgspec.Meta(ge=1 << 12, le=1 << 30)] = 4 << 20


class _Lane:
    """The messages of one topic, in order. Times are monotonic."""

    __slots__ = ("failures", "is_under_way", "numbers", "retry_ms")

    def __init__(self) -> None:
        self.numbers: deque[int] = deque()
        self.is_under_way = False
        self.failures = 0
        self.retry_ms = 0


class Spool:
    def __init__(self, broker: "BrokerView", settings: SpoolSettings) -> None:
        self._broker = broker
        self._settings = settings
        self._way = Auto(broker, own_group=True)
        self._segments = Segments(broker.ports.disk, segment_size=settings.segment_size)
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode: Callable[[bytes], Escaping] = msgspec.msgpack.Decoder(Escaping).decode
        self._lanes: dict[str, _Lane] = {}
        self._loading: Iterator[None] | None = self._segments.load(self._seen)
        #: topics of what was read, until all is
        self._topics: dict[int, str] = {}
        #: why nothing is taken in any more, for good
        self.failed = ""
        self.why = ""
        #: messages taken in since the start, and those that could not be read again
        self.kept_count = 0
        self.damaged = 0
        broker.duties.add(DUTY, self._run, broker.clock.mono_ms)

    # --- the contract ------------------------------------------------------------------------------------------------

    def put(self, message: Escaping, then: Then) -> None:
        if self._loading is not None:
            self.why = "the spool is being read"
            then(PutStatus.SERVICE_NOT_AVAILABLE)
        elif message.put.topic in self._lanes:
            self._keep(message, then)
        else:
            self._way.put(message, partial(self._tried, message, then))

    def waiting(self) -> int:
        return len(self._segments.places)

    def facts(self) -> dict[str, str]:
        facts = self._way.facts()
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
        self._way.stop()
        self._broker.duties.remove(DUTY)

    # --- in ----------------------------------------------------------------------------------------------------------

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
                self.failed = f"the spool cannot be made durable, and takes nothing more: {error.strerror or error}"
                self._broker.log.error("spool-failed", reason=self.failed)
            then(PutStatus.UNKNOWN_ERROR)

        self._lane(put.topic).numbers.append(number)
        self._segments.sync(synced)
        self._broker.duties.wake(DUTY, self._broker.clock.mono_ms + RETRY_STEP_MS)

    def _refusal(self) -> str:
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

    # --- out ---------------------------------------------------------------------------------------------------------

    def _run(self, now_ms: int) -> int | None:
        if self._loading is not None:
            return self._load(now_ms)
        if self._segments.size * 2 > self._settings.size_max:
            self._segments.compact(self._compacted)
        if not self._broker.serving:
            return now_ms + RETRY_STEP_MS if self._lanes else None
        ready = [(topic, lane) for topic, lane in self._lanes.items() if not lane.is_under_way and lane.retry_ms <= now_ms]
        for topic, lane in ready[:TOPICS_PER_TURN]:
            # The next turn begins with those that had none in this one.
            self._lanes[topic] = self._lanes.pop(topic)
            self._bring(topic, lane)
        if len(ready) > TOPICS_PER_TURN:
            return now_ms
        return min((max(now_ms, each.retry_ms) for each in self._lanes.values() if not each.is_under_way), default=None)

    def _load(self, now_ms: int) -> int:
        assert self._loading is not None
        try:
            next(self._loading)
        except StopIteration:
            self._loading = None
            self.why = ""
            self._loaded()
        except OSError as error:
            # What is there may not be lost by beginning anew; the broker goes on, its messages stay due.
            self._loading = None
            self.failed = f"the spool cannot be read, and takes nothing: {error.strerror or error}"
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
        """Try to put the first message of a topic."""
        number = lane.numbers[0]
        try:
            message = self._decode(self._segments.read(number))
        except OSError as error:
            # A disk that does not read now may do so later: nothing is known to be gone.
            self.why = f"the spool cannot be read: {error.strerror or error}"
            self._later(lane)
            return
        except (ValueError, msgspec.MsgspecError) as error:
            self._drop(number, error)
            self._next(topic, lane)
            return
        lane.is_under_way = True
        self._way.put(message, partial(self._brought, topic, lane))

    def _brought(self, topic: str, lane: _Lane, status: PutStatus) -> None:
        lane.is_under_way = False
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
            # It comes again after a restart, which is better than not at all.
            self._broker.log.warning("spool-done-not-written", reason=str(error))

    def _drop(self, number: int, error: Exception) -> None:
        """Its bytes are gone."""
        self.damaged += 1
        self._broker.log.error("spool-message-lost", number=number, reason=str(error))
        self._done(number)

    def _compacted(self, error: OSError | None) -> None:
        if error is not None:
            self._broker.log.warning("spool-not-compacted", reason=str(error))
