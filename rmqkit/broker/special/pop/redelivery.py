"""RetryPuts: puts messages whose invisible time has ended into their retry topics.

A message goes to queue 0 of the retry topic of its topic and group; one that came from a retry
topic goes back there. It keeps its properties, and its reconsume count rises by one unless the
client suspended it. It goes straight into the log, past the checks of a send. So a message that
once had a delay level is not delayed by it again, as it is upstream.

`ready` has the messages to put, in the order of their due times. Limits: messages and bytes per
turn, puts in flight. A failed put is retried after 100 ms, 200 ms, … up to the destination's
limit; the others wait for it.

A message of another broker's log is fetched first (`foreign`); the others do not wait for it.

A message is skipped, which finishes it, if it is no longer in the log, or if its topic or group was
deleted. The broker moves no message to the dead-letter topic: pop consumers do that.

Source: `broker/.../processor/PopReviveService.java` (`reviveRetry`, `addRetryTopicIfNotExist`).
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from rmqkit.broker.hosts import Hosts
from rmqkit.broker.special.contract import Destination, SpecialParts
from rmqkit.broker.special.delivery_dedup import DeliveryDedup
from rmqkit.broker.special.pop.counts import PopCounts
from rmqkit.broker.special.pop.foreign import ForeignMessages, Item
from rmqkit.broker.special.pop.pending import Pending
from rmqkit.broker.special.pop.records import hosts_flag
from rmqkit.errors import CorruptRecord
from rmqkit.store.contract import Put, PutStatus
from rmqkit.wire import properties as props
from rmqkit.wire.bodies.pop import retry_topic
from rmqkit.wire.codes import MessageSysFlag
from rmqkit.wire.javahash import tags_code_of
from rmqkit.wire.record import REDELIVERIES_MAX, Record, decode_record
from rmqkit.wire.topic_names import RETRY_PREFIX

#: limits of one turn
MESSAGES_PER_TURN = 256
BYTES_PER_TURN = 4_194_304
#: puts in flight, if the destination has no limit
IN_FLIGHT_MAX = 1_000
#: pause before the first retry of a failed put; each further pause is longer by the same time
RETRY_STEP_MS = 100

_TAGS = props.PROPERTY_TAGS.encode()
_CRC = props.PROPERTY_CRC32.encode()
_FIRST_POP = props.PROPERTY_FIRST_POP_TIME.encode()
_POP_CK = props.PROPERTY_POP_CK.encode()
_ORIGIN_GROUP = b"ORIGIN_GROUP"
_INNER = props.PROPERTY_INNER_NUM.encode(), props.PROPERTY_INNER_BASE.encode()
_INNER_BITS = MessageSysFlag.INNER_BATCH | MessageSysFlag.NEED_UNWRAP
_V6 = MessageSysFlag.BORN_HOST_V6 | MessageSysFlag.STORE_HOST_V6


class RetryPuts:
    """The messages of due checkpoints, on their way into retry topics."""

    def __init__(
        self,
        parts: SpecialParts,
        done: Callable[[Pending, int], None],
        wake: Callable[[int], None],
        counts: PopCounts,
    ) -> None:
        """`done(pending, index)` is called for each message that is finished.

        `wake(due_ms)` makes the duty call `run`.
        """
        self._context = parts.context
        self._store = parts.store
        self._topics, self._groups, self._offsets = parts.topics, parts.groups, parts.offsets
        self._done, self._wake = done, wake
        self._counts = counts
        self._broker_name = parts.context.config.identity.broker_name
        self._foreign = ForeignMessages(parts.context, wake)
        self._host = Hosts(parts.context.address).store_host
        self._to: Destination | None = None
        self.dedup = DeliveryDedup(parts.context.clock, parts.store)
        self.ready: deque[Item] = deque()
        #: topics of the puts in flight, by item
        self._in_flight: dict[Item, str] = {}
        self._failures = 0
        self._retry_ms = 0
        #: total of messages that were put into retry topics
        self.count = 0

    def start(self, destination: Destination) -> None:
        self._to = destination
        self.ready.clear()
        self._in_flight = {}
        self._foreign.clear()
        self._failures = self._retry_ms = 0
        # Also a master that starts again may have put messages that its saved progress lacks.
        self.dedup.begin(True)

    def stop(self) -> None:
        """Put nothing more; what is in flight still ends."""
        self.ready.clear()
        self.dedup.end()

    @property
    def is_moving(self) -> bool:
        return bool(self._in_flight)

    def add(self, pending: Pending) -> None:
        self.ready.extend((pending, index) for index in range(len(pending.offsets)))

    def run(self, now_ms: int) -> int | None:
        """Put what is ready, within the limits. Return when to run again; None: `wake` tells."""
        to = self._to
        assert to is not None, "the duty is on"
        left, size = MESSAGES_PER_TURN, 0
        held: deque[Item] = deque()
        again_ms: int | None = None
        has_moved = False
        while self.ready:
            if self._retry_ms > now_ms:
                again_ms = self._retry_ms
                break
            if left <= 0 or size >= BYTES_PER_TURN:
                # If everything waits for a put in flight or for a save, their end wakes the duty.
                again_ms = now_ms if has_moved else None
                break
            if len(self._in_flight) >= self._in_flight_max(to):
                break
            left -= 1
            item = self.ready.popleft()
            if self._is_foreign(item) and not self._foreign.is_here(item):
                held.append(item)
                continue
            put = self._put_of(item)
            if put is None:
                self._finish(item)
                has_moved = True
            elif not self._may_put(to, put.topic):
                held.append(item)
            else:
                has_moved = True
                size += len(put.body) + len(put.properties)
                self._start(to, item, put)
        self.ready.extendleft(reversed(held))
        return again_ms

    def _is_foreign(self, item: Item) -> bool:
        """Return whether a message is in the log of another broker."""
        return item[0].key[5] != self._broker_name

    def _finish(self, item: Item) -> None:
        self._foreign.forget(item)
        self._done(*item)

    def _in_flight_max(self, to: Destination) -> int:
        if self._failures and to.is_serial:
            return 1
        return IN_FLIGHT_MAX if to.in_flight_max is None else to.in_flight_max

    def _may_put(self, to: Destination, topic: str) -> bool:
        """Return whether a put to this retry topic may start now."""
        if to.is_serial and topic in self._in_flight.values():
            return False
        if topic in self._topics.unsaved:
            # A kill would leave a message that nobody can read.
            self._topics.when_saved(self._topic_saved)
            return False
        return True

    def _topic_saved(self) -> None:
        error = self._topics.save_error
        self._wake(self._context.clock.mono_ms + (0 if error is None else RETRY_STEP_MS))

    def _start(self, to: Destination, item: Item, put: Put) -> None:
        pending, index = item
        self._in_flight[item] = put.topic
        origin = f"POP:{pending.revive_queue}:{pending.place}:{pending.offsets[index]}"
        to.put(put, origin, partial(self._ended, item))

    def _ended(self, item: Item, status: PutStatus) -> None:
        if self._in_flight.pop(item, None) is None:
            return  # of a former start
        now_ms, to = self._context.clock.mono_ms, self._to
        self._counts.note_retried(item[0].key[1], item[0].key[0], status)
        if status is PutStatus.PUT_OK:
            self._failures = 0
            self.count += 1
            self._finish(item)
            if self.ready:
                self._wake(now_ms)
            return
        assert to is not None
        if self._retry_ms <= now_ms:
            self._failures += 1
            self._retry_ms = now_ms + min(self._failures * RETRY_STEP_MS, to.retry_max_ms)
            if self._failures == 1:
                self._context.log.warning("popped-message-not-stored", status=status.name, why=to.why)
        self.ready.appendleft(item)
        self._wake(self._retry_ms)

    # --- the message ------------------------------------------------------------------------------

    def _put_of(self, item: Item) -> Put | None:
        """Return the retry message, or None if the message is finished without one."""
        pending, index = item
        if pending.bits >> index & 1:
            return None  # acked meanwhile
        topic, group, queue_id = pending.queue
        if self._is_gone(topic, group):
            return None
        if self._is_foreign(item):
            record = self._foreign.record(item)
        else:
            record = self._record(topic, queue_id, pending.offsets[index])
        if record is None:
            return None
        put = self._copy(record, pending)
        if self.dedup.has(put, pending.due_ms):
            return None
        self._create(put.topic, group)
        return put

    def _is_gone(self, topic: str, group: str) -> bool:
        """Return whether the topic or the group of a message was deleted.

        A slave that acts cannot tell: its tables are older than its log, so they lack what its
        master created last.
        """
        if self._topics.is_copy:
            return False
        skips = self._context.config.pop.revive_skip_if_group_absent
        return topic not in self._topics.by_name or (skips and not self._groups.knows(group))

    def _record(self, topic: str, queue_id: int, offset: int) -> Record | None:
        entries = self._store.entries(topic, queue_id, offset, 1)
        if not entries or not entries[0].size or entries[0].queue_offset != offset:
            return None
        try:
            record = decode_record(self._store.read_log(entries[0].phy_offset, entries[0].size), check_crc=True)
        except CorruptRecord as error:
            self._context.log.error("popped-message-unreadable", topic=topic, queue=queue_id, offset=offset, why=str(error))
            return None
        return record if isinstance(record, Record) and record.topic == topic else None

    def _copy(self, record: Record, pending: Pending) -> Put:
        topic, group, _ = pending.queue
        if not topic.startswith(RETRY_PREFIX):
            topic = retry_topic(topic, group, is_v2=self._context.config.pop.enable_retry_topic_v2)
        properties = record.properties
        for name in (_CRC, _POP_CK, *(_INNER if record.sys_flag & _INNER_BITS else ())):
            if name in properties:
                properties = props.remove(properties, name)
        if not record.reconsume_times or props.find(properties, _FIRST_POP) is None:
            properties = props.put(properties, _FIRST_POP, b"%d" % pending.checkpoint.pop_ms)
        properties = props.put(properties, _ORIGIN_GROUP, group.encode())
        more = 0 if pending.checkpoint.is_suspended else 1
        return Put(
            topic=topic,
            queue_id=0,
            flag=record.flag,
            # The copy of an inner batch is one message: it has one queue offset of a plain queue.
            sys_flag=record.sys_flag & ~(_V6 | _INNER_BITS) | hosts_flag(record.store_host, self._host),
            born_ms=record.born_ms,
            # Not this broker's own address: a member that takes over builds the same message.
            born_host=record.store_host,
            store_host=self._host,
            reconsume_times=min(record.reconsume_times + more, REDELIVERIES_MAX),
            prepared_offset=0,
            body=record.body,
            properties=properties,
            tags_code=tags_code_of(props.find(properties, _TAGS)),
        )

    def _create(self, topic: str, group: str) -> None:
        """Create a missing retry topic; its group starts at offset 0."""
        if topic in self._topics.by_name or self._topics.is_copy:
            return
        self._topics.create_system(topic, 1)
        if self._offsets.query(group, topic, 0) < 0:
            self._offsets.commit(group, topic, 0, 0)


def items_of(pendings: Iterable[Pending]) -> int:
    """Return the number of messages that are not done."""
    return sum(pending.left for pending in pendings)
