"""Checks messages and prepares them for send requests: unique id, compression, properties, batches.

`Prepare` is pure except for its id counter, and any thread may call it. So the sending thread pays
for compressing its message, not the I/O thread that serves all connections.

Source: `client/.../Validators.java`, `impl/producer/DefaultMQProducerImpl.java` (`sendKernelImpl`,
`tryToCompressMessage`), `common/.../message/MessageBatch.java`,
`common/.../topic/TopicValidator.java`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rmqkit.client.message import REPLY_TYPE, Message
from rmqkit.client.producers.compression import COMPRESSIONS, Compression
from rmqkit.errors import InvalidMessage
from rmqkit.wire import properties as props
from rmqkit.wire.batch import BatchMessage, encode_batch
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.topic_names import RETRY_PREFIX, SEND_FORBIDDEN
from rmqkit.wire.uniqueids import UniqueIds

TOPIC_SIZE_MAX = 127
GROUP_SIZE_MAX = 120
MESSAGE_SIZE_MAX = 4 * 1024 * 1024
COMPRESS_OVER = 4096
COMPRESS_LEVEL = 5
#: More levels than any broker has; `messageDelayLevel` has 18 by default.
DELAY_LEVEL_MAX = 1000
#: the year 2286; what is later was meant in another unit
TIME_MAX_MS = 10_000_000_000_000
_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")


class OutgoingMessage(NamedTuple):
    """A message or batch, ready for a send request with this `code`.

    `msg_id` is the unique id; of a batch, all ids joined by commas.
    """

    topic: str
    body: bytes
    flag: int
    sys_flag: int
    properties: str
    msg_id: str
    is_batch: bool
    code: RequestCode
    #: Only set in copies for a retry topic.
    reconsume_times: int = 0
    max_reconsume_times: int | None = None


@dataclass(slots=True)
class Prepare:
    """Checks messages and makes each an `OutgoingMessage`. All methods raise InvalidMessage."""

    ids: UniqueIds
    message_size_max: int = MESSAGE_SIZE_MAX
    compress_over: int = COMPRESS_OVER
    compression: Compression = COMPRESSIONS["zlib"]
    compress_level: int = COMPRESS_LEVEL

    def message(self, message: Message, wall_ms: int) -> OutgoingMessage:
        """Prepare one message. `wall_ms` is the current Unix time in ms."""
        _check_type(message)
        body = self._checked_body(message)
        own = message.own_properties
        code = RequestCode.SEND_MESSAGE_V2
        if own is not None and own.get(props.PROPERTY_MESSAGE_TYPE) == REPLY_TYPE:
            code = RequestCode.SEND_REPLY_MESSAGE_V2
        msg_id, properties = self._properties(message, wall_ms)
        sys_flag = 0
        if len(body) >= self.compress_over:
            body = self.compression.compress(body, self.compress_level)
            sys_flag = self.compression.sys_flag
        if message.flag < 0 or message.flag > 0x7FFFFFFF:
            raise InvalidMessage(f"flag {message.flag} of a message is not within 0 and 2147483647")
        return OutgoingMessage(message.topic, body, message.flag, sys_flag, properties.decode(), msg_id, False, code)

    def batch(self, messages: Sequence[Message], wall_ms: int) -> OutgoingMessage:
        """Prepare messages of one topic as a batch.

        Nothing is compressed. `message_size_max` applies to each body and to the encoded batch. The
        batch has a unique id of its own: it tells the broker of a topic with `queue.type=BatchCQ`
        that this client can read batches that are stored as one record.
        """
        if not messages:
            raise InvalidMessage("a batch needs at least one message")
        for message in messages:
            _check_type(message)
        topic = messages[0].topic
        if topic.startswith(RETRY_PREFIX):
            raise InvalidMessage("messages to a retry topic cannot be sent as a batch; send them one by one")
        parts, ids = [], []
        for message in messages:
            if message.own_properties is not None:
                raise InvalidMessage("replies cannot be sent as a batch; send them one by one")
            if message.delay_level:
                raise InvalidMessage("messages with a delay level cannot be sent as a batch; send them one by one")
            if message.delay_ms or message.deliver_at_ms is not None:
                raise InvalidMessage("messages with a due time cannot be sent as a batch; send them one by one")
            if message.topic != topic:
                raise InvalidMessage(f"a batch has one topic, this one has {topic} and {message.topic}; split it by topic")
            body = self._checked_body(message)
            msg_id, properties = self._properties(message, wall_ms)
            parts.append(BatchMessage(message.flag, body, properties))
            ids.append(msg_id)
        encoded = encode_batch(parts)
        if len(encoded) > self.message_size_max:
            raise InvalidMessage(
                f"batch of {len(encoded)} bytes, more than the limit of {self.message_size_max}; send fewer at a time"
            )
        of_batch = props.encode({props.PROPERTY_UNIQ_KEY: self.ids.next(wall_ms)}).decode()
        return OutgoingMessage(topic, encoded, 0, 0, of_batch, ",".join(ids), True, RequestCode.SEND_BATCH_MESSAGE)

    def request(self, message: Message, wall_ms: int, client_id: str, timeout_ms: int) -> OutgoingMessage:
        """Prepare a message whose consumer should reply to this client within `timeout_ms`."""
        if message.own_properties is not None:
            raise InvalidMessage("a reply is not a request; send a new message as the request")
        plain = self.message(message, wall_ms)
        added = {
            props.PROPERTY_CORRELATION_ID: plain.msg_id,
            props.PROPERTY_MESSAGE_REPLY_TO_CLIENT: client_id,
            props.PROPERTY_MESSAGE_TTL: str(timeout_ms),
        }
        properties = plain.properties + props.encode(added).decode()
        check_size(len(properties.encode()))
        return plain._replace(properties=properties)

    def _checked_body(self, message: Message) -> bytes:
        check_topic(message.topic)
        body = message.body
        if not body:
            raise InvalidMessage(f"message to {message.topic} has an empty body, which no broker accepts")
        if len(body) > self.message_size_max:
            raise InvalidMessage(
                f"body of {len(body)} bytes, more than the limit of {self.message_size_max} (max_message_size)"
            )
        return body

    def _properties(self, message: Message, wall_ms: int) -> tuple[str, bytes]:
        """Return the unique id and the encoded properties."""
        user = message.properties
        for name in user:
            if name in props.RESERVED_NAMES and name not in (props.PROPERTY_KEYS, props.PROPERTY_TAGS):
                raise InvalidMessage(f"property name {name} is RocketMQ's own; choose another")
        if message.own_properties is not None:
            user = {**user, **message.own_properties}
        if message.delay_level:
            user = {**user, props.PROPERTY_DELAY_TIME_LEVEL: _level(message.delay_level)}
        if message.delay_ms or message.deliver_at_ms is not None:
            user = {**user, **_due(message)}
        msg_id = self.ids.next(wall_ms)
        try:
            encoded = props.encode({**user, props.PROPERTY_UNIQ_KEY: msg_id})
        except (ValueError, UnicodeEncodeError) as error:
            raise InvalidMessage(f"properties of a message to {message.topic}: {error}") from None
        check_size(len(encoded))
        return msg_id, encoded


def _check_type(message: object) -> None:
    if not isinstance(message, Message):
        raise InvalidMessage(f"a producer sends a Message, not {type(message).__name__}: use Message(topic, body)")


def check_size(size: int) -> None:
    if size > props.PROPERTIES_SIZE_MAX:
        raise InvalidMessage(f"properties of {size} bytes, more than the limit of {props.PROPERTIES_SIZE_MAX}")


def _level(level: int) -> str:
    """Return the level as text.

    Brokers take a level above their last one for the last, and deliver one below zero at once.
    """
    if not 0 < level <= DELAY_LEVEL_MAX:
        raise InvalidMessage(f"delay_level {level} of a message is not within 1 and {DELAY_LEVEL_MAX}")
    return str(level)


def _due(message: Message) -> dict[str, str]:
    """The property of a due time: the broker knows whether it is too far away."""
    delay_ms, deliver_at_ms = message.delay_ms, message.deliver_at_ms
    if message.delay_level or (delay_ms and deliver_at_ms is not None):
        raise InvalidMessage("a message has one of delay_level, delay_ms and deliver_at, not two of them")
    if deliver_at_ms is not None:
        if not isinstance(deliver_at_ms, int) or not 0 < deliver_at_ms <= TIME_MAX_MS:
            raise InvalidMessage(f"deliver_at {deliver_at_ms} of a message is neither a datetime nor Unix time in ms")
        return {props.PROPERTY_TIMER_DELIVER_MS: str(deliver_at_ms)}
    if not isinstance(delay_ms, int) or not 0 < delay_ms <= TIME_MAX_MS:
        raise InvalidMessage(f"delay_ms {delay_ms} of a message is no number of ms above 0")
    return {props.PROPERTY_TIMER_DELAY_MS: str(delay_ms)}


def check_topic(topic: str, *, to_send: bool = True) -> None:
    """Raise InvalidMessage if the topic's name is invalid, or with `to_send` if it is a system
    topic.
    """
    if not _NAME.fullmatch(topic):
        raise InvalidMessage(f"topic {topic[:140]!r} is not a name: use letters, digits, _ - % and |")
    if len(topic) > TOPIC_SIZE_MAX:
        raise InvalidMessage(f"topic of {len(topic)} characters, more than {TOPIC_SIZE_MAX}")
    if to_send and topic in SEND_FORBIDDEN:
        raise InvalidMessage(f"topic {topic} is a system topic and accepts no sends")


def check_group(group: str) -> None:
    """Raise InvalidMessage if the group's name is invalid."""
    if not _NAME.fullmatch(group):
        raise InvalidMessage(f"group {group[:140]!r} is not a name: use letters, digits, _ - % and |")
    if len(group) > GROUP_SIZE_MAX:
        raise InvalidMessage(f"group of {len(group)} characters, more than {GROUP_SIZE_MAX}")
