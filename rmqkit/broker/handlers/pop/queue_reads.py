"""Reads the queues of one pop, and encodes what it found.

A pop reads one queue, or all queues of its topic from a random one on, and the retry topic of its
group: first with the probability `popFromRetryProbability`, else last. It stops reading when it has
enough messages, and only counts what the other queues hold (`restNum`).

An ordered pop reads no retry topic. It skips queues that are blocked, without counting them:
otherwise their messages would wake waiting pops that get nothing.

Redelivered messages are encoded again: under their own topic, with the receipt handle as property
POP_CK. Clients derive the handles of all others from the texts in the answer.

Source: `broker/.../processor/PopMessageProcessor.java` (`popMsgFromTopic`, `popMsgFromQueue`).
"""

from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

from rmqkit.broker.filters.pull_filter import PullFilter
from rmqkit.broker.handlers.pop.offsets import NextOffset
from rmqkit.broker.special.pop.pending import PopQueue
from rmqkit.runtime.connection import Buffer
from rmqkit.store.contract import GetStatus, Read
from rmqkit.wire import properties as props
from rmqkit.wire.bodies.pop import ReceiptHandle, flag_of, retry_topic
from rmqkit.wire.record import POSITION_QUEUE_OFFSET, encode_copy, iter_records
from rmqkit.wire.schemas.pop import PopMessageRequest

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

#: limit of the messages that one pop takes from one queue, in bytes
SIZE_MAX = 64 * 1024 * 1024
#: after these a queue is read once more, from the corrected offset
_WRONG = (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_FOUND_NULL)
#: after these the offset moves on without a message
_SKIPPED = (
    GetStatus.NO_MATCHED_MESSAGE,
    GetStatus.OFFSET_FOUND_NULL,
    GetStatus.MESSAGE_WAS_REMOVING,
    GetStatus.NO_MATCHED_LOGIC_QUEUE,
)
_size = Struct(">i").unpack_from
_offset = Struct(">q").unpack_from
_POP_CK = props.PROPERTY_POP_CK.encode()


class TakenMessages(NamedTuple):
    """The messages that a pop took from one queue."""

    topic: str
    queue_id: int
    start: int
    offsets: Sequence[int]
    read: Read
    #: for `PopOffsets.stored` and `failed`; None if the pop is ordered
    taken: tuple[NextOffset, int] | None
    #: of an ordered pop: how often messages were handed out before
    counts: Mapping[int, int]


class QueueReads:
    """The reads of one pop: what it took, and how many messages are left in the queues."""

    def __init__(
        self, broker: "BrokerView", args: PopMessageRequest, wanted: PullFilter, pop_ms: int, client_id: str
    ) -> None:
        self._broker = broker
        self._args = args
        self._wanted = wanted
        self._pop_ms = pop_ms
        self._client_id = client_id
        self.found: list[TakenMessages] = []
        self.count = 0
        self.rest = 0

    def read_all(self) -> None:
        """Read queues until the pop has enough."""
        broker, args = self._broker, self._args
        chance = broker.entropy.randrange(100)
        retries = self._retry_topic(chance)
        is_retry_first = chance < broker.config.pop.from_retry_probability
        if is_retry_first and not args.order:
            self._read_topic(retries, chance)
        if args.queue_id < 0:
            self._read_topic(args.topic, chance)
        else:
            self._read_queue(args.topic, args.queue_id)
        if not is_retry_first and not args.order and self.count < args.max_msg_nums:
            self._read_topic(retries, chance)

    def _retry_topic(self, chance: int) -> str:
        """Return the retry topic to read: one form of name per pop, since both have one flag."""
        settings = self._broker.config.pop
        is_v2 = settings.enable_retry_topic_v2
        if is_v2 and settings.retrieve_from_retry_topic_v1 and chance % 2 == 0:
            is_v2 = False
        return retry_topic(self._args.topic, self._args.consumer_group, is_v2=is_v2)

    def _read_topic(self, topic: str, first: int) -> None:
        config = self._broker.topics.get(topic)
        count = config.read_queue_nums if config is not None else 0
        step = -1 if self._broker.config.pop.priority_order_asc else 1
        for number in range(count):
            self._read_queue(topic, (first + step * number) % count)

    def _read_queue(self, topic: str, queue_id: int) -> None:
        broker, args = self._broker, self._args
        queue = topic, args.consumer_group, queue_id
        start = broker.pop_offsets.start(queue, args.init_mode)
        if args.order and broker.pop_orders.is_blocked(queue, args.attempt_id, args.invisible_time):
            return
        limit = args.max_msg_nums - self.count
        if limit <= 0 or self._is_full(queue):
            self.rest += max(0, broker.store.queue_range(topic, queue_id).offset_max - start)
            return
        read = self._read(topic, queue_id, start, limit)
        if read.status in _WRONG and read.offset_next >= 0:
            start = read.offset_next
            broker.pop_offsets.correct(queue, start)
            read = self._read(topic, queue_id, start, limit)
        offsets = list(queue_offsets(read.buffers))
        if offsets:
            # A group's offset may lie inside an inner batch, which is read from its first message.
            self._take(queue, min(start, offsets[0]), offsets, read)
        elif read.status in _SKIPPED and read.offset_next > start:
            if args.order:
                broker.offsets.commit(args.consumer_group, topic, queue_id, read.offset_next)
            else:
                broker.pop_offsets.skip(queue, read.offset_next)
        self.rest += max(0, read.offset_max - read.offset_next)

    def _take(self, queue: PopQueue, start: int, offsets: Sequence[int], read: Read) -> None:
        """Take messages from a queue; in order, the queue is blocked from now on."""
        broker, args = self._broker, self._args
        topic, group, queue_id = queue
        taken, counts = None, dict[int, int]()
        if args.order:
            info = broker.pop_orders.hand_out(
                queue, offsets, self._pop_ms, args.invisible_time, args.attempt_id, self._client_id
            )
            counts = info.counts or {}
            broker.offsets.commit(group, topic, queue_id, start)
        else:
            taken = broker.pop_offsets.take(queue, start, read.offset_next)
        self.found.append(TakenMessages(topic, queue_id, start, offsets, read, taken, counts))
        self.count += len(offsets)

    def _is_full(self, queue: tuple[str, str, int]) -> bool:
        """Return whether too many messages of the queue, or of all queues, wait for an ack."""
        broker, settings = self._broker, self._broker.config.pop
        if self._args.order:
            return False  # its block is the limit
        if not broker.revive.has_room:
            return True
        if not settings.enable_message_threshold:
            return False
        return broker.revive.pending.in_flight.get(queue, 0) > settings.inflight_message_threshold

    def _read(self, topic: str, queue_id: int, offset: int, limit: int) -> Read:
        wanted = self._wanted
        return self._broker.store.read(
            topic,
            queue_id,
            offset,
            count_max=limit,
            size_max=SIZE_MAX,
            tag_match=wanted.tags,
            record_match=wanted.record,
        )


def queue_offsets(buffers: Sequence[Buffer]) -> Iterator[int]:
    """Yield the queue offset of each record."""
    for data in buffers:
        position = 0
        while position < len(data):
            yield _offset(data, position + POSITION_QUEUE_OFFSET)[0]
            position += _size(data, position)[0]


def redelivered(taken: TakenMessages, topic: str, handle: ReceiptHandle) -> Iterator[bytes]:
    """Yield redelivered messages under their own topic, with their receipt handles.

    `handle` is the handle of the pop; queue and offsets are added.
    """
    for data in taken.read.buffers:
        for record in iter_records(data):
            properties = record.properties
            if props.find(properties, _POP_CK) is None:
                each = handle._replace(
                    start_offset=taken.start,
                    flag=flag_of(taken.topic),
                    queue_id=taken.queue_id,
                    offset=record.queue_offset,
                )
                properties = props.put(properties, _POP_CK, each.encode().encode())
            yield encode_copy(record, topic=topic, properties=properties)
