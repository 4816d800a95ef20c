"""Messages as users see them: `Message` to send, `MessageExt` as received, `SendResult` of a send.

A `MessageExt` keeps the record it came in and decodes properties and body when they are first read: a consumer that only
counts pays for neither, and a compressed body is inflated in the listener's thread, not in the one that serves all
connections.
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
#: what a reply takes over from its request
_OF_REQUEST = (props.PROPERTY_CORRELATION_ID, props.PROPERTY_MESSAGE_REPLY_TO_CLIENT, props.PROPERTY_MESSAGE_TTL)


def reply_topic(cluster: str) -> str:
    return f"{cluster}_REPLY_TOPIC"


class Message:
    """A message to be sent.

    `keys` are for finding it again (several: an iterable, none with a space inside), `tags` is the one tag that
    subscriptions filter by, `properties` are the user's own. A `str` body is sent as UTF-8.

    A message may be held back in one of three ways: until `deliver_at` (a datetime, or Unix time in ms), for `delay_ms`,
    or for the time of a `delay_level` (1 to 18 with the brokers' default `messageDelayLevel`). Without them it is
    delivered at once. A datetime without a time zone is local time.
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
        #: Unix time in ms, None for no time
        self.deliver_at_ms: int | None = deliver_at
        #: what only this package sets: of a reply, whom it is for
        self.own_properties: Mapping[str, str] | None = None
        #: user properties, and KEYS and TAGS under their wire names
        self.properties: dict[str, str] = dict(properties) if properties else {}
        if keys:
            self.properties[props.PROPERTY_KEYS] = keys if isinstance(keys, str) else props.KEY_SEPARATOR.join(keys)
        if tags:
            self.properties[props.PROPERTY_TAGS] = tags

    @property
    def keys(self) -> str | None:
        """The keys, separated by spaces."""
        return self.properties.get(props.PROPERTY_KEYS)

    @property
    def tags(self) -> str | None:
        return self.properties.get(props.PROPERTY_TAGS)

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, {len(self.body)} bytes, {self.properties})"


class MessageExt:
    """A received message."""

    __slots__ = ("_body", "_properties", "queue", "reconsume_times", "record", "topic")

    def __init__(self, record: Record, broker_name: str) -> None:
        self.record = record
        #: as the sender named it; a redelivered message is shown under its first topic
        self.topic = record.topic
        #: the queue it was read from, of the retry topic for a redelivered message
        self.queue = MessageQueue(record.topic, broker_name, record.queue_id)
        #: deliveries before this one that failed
        self.reconsume_times = record.reconsume_times
        self._body: bytes | None = None
        self._properties: dict[str, str] | None = None

    @property
    def body(self) -> bytes:
        """The body as it was sent. Raises RemoteProtocolError or CompressionMissing when it cannot be inflated."""
        if self._body is None:
            record = self.record
            compressed = record.sys_flag & MessageSysFlag.COMPRESSED
            self._body = inflate_body(record.body, record.sys_flag) if compressed else record.body
        return self._body

    @property
    def properties(self) -> dict[str, str]:
        if self._properties is None:
            self._properties = props.decode(self.record.properties)
        return self._properties

    @property
    def keys(self) -> str | None:
        return self.properties.get(props.PROPERTY_KEYS)

    @property
    def tags(self) -> str | None:
        return self.properties.get(props.PROPERTY_TAGS)

    @property
    def msg_id(self) -> str:
        """The id that `SendResult.msg_id` had; the offset id for messages of clients that give none."""
        return self.properties.get(props.PROPERTY_UNIQ_KEY) or self.offset_msg_id

    @property
    def origin_msg_id(self) -> str | None:
        """Of a message that comes again: the id of the first copy, as its broker or consumer knew it."""
        return self.properties.get(props.PROPERTY_ORIGIN_MESSAGE_ID)

    @property
    def offset_msg_id(self) -> str:
        return offset_id(self.record.store_host, self.record.phy_offset)

    @property
    def queue_id(self) -> int:
        return self.record.queue_id

    @property
    def broker_name(self) -> str:
        return self.queue.broker_name

    @property
    def queue_offset(self) -> int:
        return self.record.queue_offset

    @property
    def commit_log_offset(self) -> int:
        return self.record.phy_offset

    @property
    def flag(self) -> int:
        return self.record.flag

    @property
    def born_timestamp_ms(self) -> int:
        return self.record.born_ms

    @property
    def store_timestamp_ms(self) -> int:
        return self.record.store_ms

    @property
    def born_host(self) -> str:
        return host_text(self.record.born_host)

    @property
    def store_host(self) -> str:
        return host_text(self.record.store_host)

    @property
    def wants_reply(self) -> bool:
        """Whether somebody waits for a reply to it (`Producer.request`)."""
        return props.PROPERTY_MESSAGE_REPLY_TO_CLIENT in self.properties

    def reply(
        self,
        body: bytes | str,
        *,
        keys: str | Iterable[str] | None = None,
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Message:
        """The reply to this request, to be sent by any producer. Raises InvalidMessage when it is no request.

        Source: `client/.../utils/MessageUtil.java` (`createReplyMessage`).
        """
        own = {props.PROPERTY_MESSAGE_TYPE: REPLY_TYPE}
        for name in _OF_REQUEST:
            if name in self.properties:
                own[name] = self.properties[name]
        cluster = self.properties.get(props.PROPERTY_CLUSTER)
        if not self.wants_reply or not cluster or props.PROPERTY_CORRELATION_ID not in own:
            raise InvalidMessage(f"message {self.msg_id} is no request: nobody waits for a reply to it")
        message = Message(reply_topic(cluster), body, keys=keys, tags=tags, properties=properties)
        message.own_properties = own
        return message

    def __repr__(self) -> str:
        return f"MessageExt({self.queue} offset {self.queue_offset}, id {self.msg_id}, {len(self.record.body)} bytes)"


class SendStatus(StrEnum):
    """What the broker says of a stored message. All but SEND_OK: stored at the master, but not yet as safe as asked."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


@dataclass(frozen=True, slots=True)
class SendResult:
    """An acknowledged send. For a batch the ids are joined by commas and `queue_offset` is the first message's."""

    status: SendStatus
    #: the client's id of the message (UNIQ_KEY)
    msg_id: str
    #: the broker's id: its address and the place in its log
    offset_msg_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str | None = None
    region_id: str | None = None
    #: of a message with `deliver_at` or `delay_ms`: what `Producer.recall` takes it back with
    recall_handle: str | None = None

    @property
    def is_ok(self) -> bool:
        return self.status is SendStatus.SEND_OK
