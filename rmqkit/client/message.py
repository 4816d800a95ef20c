"""Messages as programs see them: `Message` to send, `MessageExt` as received, `SendResult`.

A `MessageExt` decodes properties and body when they are first read. A consumer that only counts
messages pays for neither. A compressed body is decompressed in the listener's thread, not in the
I/O thread that serves all connections.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from rmqkit.errors import InvalidMessage
from rmqkit.wire import properties as props
from rmqkit.wire.codes import MessageSysFlag
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.hosts import host_text
from rmqkit.wire.inflate import inflate_body
from rmqkit.wire.msgid import offset_id
from rmqkit.wire.record import Record

REPLY_TYPE = "reply"
#: Properties that a reply copies from its request.
_OF_REQUEST = (props.PROPERTY_CORRELATION_ID, props.PROPERTY_MESSAGE_REPLY_TO_CLIENT, props.PROPERTY_MESSAGE_TTL)


def reply_topic(cluster: str) -> str:
    """Return the topic that replies go to in a cluster."""
    return f"{cluster}_REPLY_TOPIC"


class Message:
    """A message to send.

    At most one of `delay_level`, `deliver_at` and `delay_ms` may be given; without them the message
    is delivered at once.

    Args:
        topic: The topic, at most 127 characters.
        body: The payload, at least one byte. A `str` is sent as UTF-8.
        keys: A key, or an iterable of keys without spaces, by which tools find the message.
        tags: The one tag that consumers can filter by.
        properties: Properties of the program. RocketMQ's own names are refused when the message is
            sent.
        flag: An integer of the program, from 0 to 2147483647. RocketMQ does not interpret it.
        delay_level: Deliver the message after the time of this level. Brokers have the levels 1 to
            18 by default (`messageDelayLevel`); level 3 is 10 s. 0: at once.
        deliver_at: Deliver the message at this time: a datetime (local time if it has no time
            zone), or Unix time in ms. Brokers accept three days by default (`timerMaxDelaySec`).
        delay_ms: Deliver the message after this time. The broker rounds up to its precision, 1 s by
            default.

    Attributes:
        topic: The topic.
        body: The payload as bytes.
        flag: The integer of the program.
        delay_level: The delay level, or 0.
        deliver_at_ms: The delivery time as Unix time in ms, or None.
        delay_ms: The delay in ms, or 0.
        properties: The properties, KEYS and TAGS included.

    Raises:
        InvalidMessage: If `tags` is no text.

    Example:
        A message with a key, a tag and a property to filter by:

            message = Message("orders", b"a fresh order", keys="order-7", tags="created")
            message.properties["price"] = "12"
    """

    __slots__ = (
        "body", "delay_level", "delay_ms", "deliver_at_ms", "flag", "own_properties", "properties", "topic",
    )  # fmt: skip

    def __init__(
        self,
        topic: str,
        body: bytes | str,
        *,
        keys: str | Iterable[str] | None = None,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        delay_level: int = 0,
        deliver_at: datetime | int | None = None,
        delay_ms: int = 0,
    ) -> None:
        self.topic = topic
        self.body = body.encode() if isinstance(body, str) else bytes(body)
        self.flag = flag
        self.delay_level = delay_level
        self.delay_ms = delay_ms
        if isinstance(deliver_at, datetime):
            deliver_at = round(deliver_at.timestamp() * 1000)
        self.deliver_at_ms: int | None = deliver_at
        #: Properties that only this package sets: of a reply, its addressee.
        self.own_properties: Mapping[str, str] | None = None
        #: User properties, plus KEYS and TAGS under their wire names.
        self.properties: dict[str, str] = dict(properties) if properties else {}
        if keys:
            self.properties[props.PROPERTY_KEYS] = keys if isinstance(keys, str) else props.KEY_SEPARATOR.join(keys)
        if tags:
            if not isinstance(tags, str):
                raise InvalidMessage(f"tags {tags!r} of a message to {topic} are no text: a message has one tag")
            self.properties[props.PROPERTY_TAGS] = tags

    @property
    def keys(self) -> str | None:
        """The keys, separated by spaces, or None."""
        return self.properties.get(props.PROPERTY_KEYS)

    @property
    def tags(self) -> str | None:
        """The tag, or None."""
        return self.properties.get(props.PROPERTY_TAGS)

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, {len(self.body)} bytes, {self.properties})"


class MessageExt:
    """A received message. Consumers and `Admin` create it.

    Args:
        record: The decoded record.
        broker_name: The broker group that it was read from.

    Attributes:
        topic: The topic that the message was sent to, also for a redelivered message.
        queue: The queue that the message was read from. A redelivered message comes from a queue of
            the group's retry topic.
        reconsume_times: How many deliveries of the message failed before this one.
        record: The decoded record, as the broker stored it.

    Example:
        A listener that skips messages that failed three times:

            def handle(message):
                if message.reconsume_times < 3:
                    process(message.topic, message.keys, message.body)
    """

    __slots__ = ("_body", "_properties", "queue", "reconsume_times", "record", "topic")

    def __init__(self, record: Record, broker_name: str) -> None:
        self.record = record
        #: The topic that the sender named, also for a redelivered message.
        self.topic = record.topic
        #: The queue that it was read from. Of a redelivered message: a queue of the retry topic.
        self.queue = MessageQueue(record.topic, broker_name, record.queue_id)
        #: Number of deliveries before this one that failed.
        self.reconsume_times = record.reconsume_times
        self._body: bytes | None = None
        self._properties: dict[str, str] | None = None

    @property
    def body(self) -> bytes:
        """The body as it was sent.

        Raises RemoteProtocolError if it cannot be decompressed, CompressionMissing if a package for
        that is missing.
        """
        if self._body is None:
            record = self.record
            compressed = record.sys_flag & MessageSysFlag.COMPRESSED
            self._body = inflate_body(record.body, record.sys_flag) if compressed else record.body
        return self._body

    @property
    def properties(self) -> dict[str, str]:
        """All properties, the sender's and RocketMQ's own."""
        if self._properties is None:
            self._properties = props.decode(self.record.properties)
        return self._properties

    @property
    def keys(self) -> str | None:
        """The keys, separated by spaces, or None."""
        return self.properties.get(props.PROPERTY_KEYS)

    @property
    def tags(self) -> str | None:
        """The tag, or None."""
        return self.properties.get(props.PROPERTY_TAGS)

    @property
    def msg_id(self) -> str:
        """The sender's id, equal to `SendResult.msg_id`. The offset id if the sender gave none."""
        return self.properties.get(props.PROPERTY_UNIQ_KEY) or self.offset_msg_id

    @property
    def origin_msg_id(self) -> str | None:
        """Of a redelivered message: the id of its first copy. None otherwise."""
        return self.properties.get(props.PROPERTY_ORIGIN_MESSAGE_ID)

    @property
    def offset_msg_id(self) -> str:
        """The broker's id, which contains its address and the commit log offset."""
        return offset_id(self.record.store_host, self.record.phy_offset)

    @property
    def queue_id(self) -> int:
        """The id of the queue that the message was read from."""
        return self.record.queue_id

    @property
    def broker_name(self) -> str:
        """The name of the broker group that the message was read from."""
        return self.queue.broker_name

    @property
    def queue_offset(self) -> int:
        """The offset of the message in its queue."""
        return self.record.queue_offset

    @property
    def commit_log_offset(self) -> int:
        """The byte offset of the message in the broker's commit log."""
        return self.record.phy_offset

    @property
    def flag(self) -> int:
        """The integer that the sender set."""
        return self.record.flag

    @property
    def born_timestamp_ms(self) -> int:
        """When the message was sent, by the sender's clock, as Unix ms."""
        return self.record.born_ms

    @property
    def store_timestamp_ms(self) -> int:
        """When the message was stored, by the broker's clock, as Unix ms."""
        return self.record.store_ms

    @property
    def born_host(self) -> str:
        """The sender's address, as `host:port`."""
        return host_text(self.record.born_host)

    @property
    def store_host(self) -> str:
        """The address of the broker that stored the message, as `host:port`."""
        return host_text(self.record.store_host)

    @property
    def wants_reply(self) -> bool:
        """Whether the sender waits for a reply (`Producer.request`)."""
        return props.PROPERTY_MESSAGE_REPLY_TO_CLIENT in self.properties

    def reply(
        self,
        body: bytes | str,
        *,
        keys: str | Iterable[str] | None = None,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Message:
        """Return the reply to this request. Any producer may send it.

        Source: `client/.../utils/MessageUtil.java` (`createReplyMessage`).

        Args:
            body: As in `Message`.
            keys: As in `Message`.
            tags: As in `Message`.
            properties: As in `Message`.

        Raises:
            InvalidMessage: If the message is not a request.

        Example:
            Answer requests in a listener:

                consumer.start(lambda message: replier.send(message.reply(b"so!")))
        """
        own = {props.PROPERTY_MESSAGE_TYPE: REPLY_TYPE}
        for name in _OF_REQUEST:
            if name in self.properties:
                own[name] = self.properties[name]
        cluster = self.properties.get(props.PROPERTY_CLUSTER)
        if not self.wants_reply or not cluster or props.PROPERTY_CORRELATION_ID not in own:
            raise InvalidMessage(f"message {self.msg_id} is not a request: no client waits for a reply")
        message = Message(reply_topic(cluster), body, keys=keys, tags=tags, properties=properties)
        message.own_properties = own
        return message

    def __repr__(self) -> str:
        return f"MessageExt({self.queue} offset {self.queue_offset}, id {self.msg_id}, {len(self.record.body)} bytes)"


class SendStatus(StrEnum):
    """How safely the broker stored a message. With every status, the master has stored it.

    Attributes:
        SEND_OK: Stored as safely as the broker is configured to.
        FLUSH_DISK_TIMEOUT: Not flushed to disk in time. Only with synchronous flush.
        FLUSH_SLAVE_TIMEOUT: Not replicated in time. Only with synchronous replication.
        SLAVE_NOT_AVAILABLE: Not replicated, because no slave is in sync. Only with synchronous
            replication.
    """

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


@dataclass(frozen=True, slots=True)
class SendResult:
    """The result of an acknowledged send.

    For a batch the ids are joined by commas, and the offset is that of the first message. A batch
    to a topic with `queue.type=BatchCQ` is stored as one record and has one id.

    Attributes:
        status: How safely the message is stored.
        msg_id: The client's unique id of the message.
        offset_msg_id: The broker's id, which contains its address and the commit log offset.
        queue: The queue that the message was stored in.
        queue_offset: The offset of the message in that queue.
        transaction_id: The transaction id, if the broker returned one.
        region_id: The broker's region, if it returned one.
        recall_handle: What `Producer.recall` needs, if the message has `deliver_at` or `delay_ms`.

    Example:
        Check that the message is as safe as the broker is configured to make it:

            result = producer.send(Message("orders", b"a fresh order"))
            if not result.is_ok:
                print("stored, but", result.status)
    """

    status: SendStatus
    #: The client's id of the message (property UNIQ_KEY).
    msg_id: str
    #: The broker's id: its address and the commit log offset.
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    region_id: str | None = None
    recall_handle: str | None = None

    @property
    def is_ok(self) -> bool:
        """Whether the status is SEND_OK."""
        return self.status is SendStatus.SEND_OK
