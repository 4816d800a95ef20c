"""HeartbeatData (34): the groups that a client produces and consumes for.

Java, Go and Node send enums by name. The C++ client sends them as numbers and the subscription's
version as text, computes the hash codes of tags wrongly, and leaves out empty fields.
`decode_heartbeat` converts all of them to the Java form and computes the hash codes itself.

Source: `remoting/.../protocol/heartbeat/*.java`, `common/.../consumer/ConsumeFromWhere.java`.
"""

from msgspec import field

from rmqkit.wire.bodies.base import Body
from rmqkit.wire.bodies.subscription import EXPRESSION_TAG, SUB_ALL, SubscriptionData, tags_of
from rmqkit.wire.javahash import tags_code
from rmqkit.wire.schema import Int32

CONSUME_TYPES = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
MESSAGE_MODELS = ("BROADCASTING", "CLUSTERING")
CONSUME_FROM_WHERE = (
    "CONSUME_FROM_LAST_OFFSET",
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
    "CONSUME_FROM_FIRST_OFFSET",
    "CONSUME_FROM_TIMESTAMP",
)


class ProducerData(Body, kw_only=True):
    group_name: str


class ConsumerData(Body, kw_only=True):
    """One consumer group of a client.

    `decode_heartbeat` converts the three enums to names, those of the tuples above if the number is
    known.
    """

    consume_from_where: str | int = CONSUME_FROM_WHERE[0]
    consume_type: str | int = CONSUME_TYPES[1]
    group_name: str
    message_model: str | int = MESSAGE_MODELS[1]
    subscription_data_set: list[SubscriptionData] = field(default_factory=list)
    unit_mode: bool = False


class HeartbeatData(Body, kw_only=True):
    client_id: str = field(name="clientID")
    consumer_data_set: list[ConsumerData] = field(default_factory=list)
    heartbeat_fingerprint: Int32 = 0
    producer_data_set: list[ProducerData] = field(default_factory=list)
    without_sub: bool = False


def decode_heartbeat(data: bytes) -> HeartbeatData:
    """Decode the heartbeat of any client into Java's form. Raises RemoteProtocolError."""
    heartbeat = HeartbeatData.decode(data)
    for consumer in heartbeat.consumer_data_set:
        consumer.consume_from_where = enum_name(consumer.consume_from_where, CONSUME_FROM_WHERE)
        consumer.consume_type = enum_name(consumer.consume_type, CONSUME_TYPES)
        consumer.message_model = enum_name(consumer.message_model, MESSAGE_MODELS)
        for subscription in consumer.subscription_data_set:
            _compute_codes(subscription)
    return heartbeat


def enum_name(value: str | int, names: tuple[str, ...]) -> str:
    """Return the name of an enum that is given by name or by number (perhaps as text).

    An unknown number is returned as text.
    """
    if isinstance(value, str) and not value.isdecimal():
        return value
    number = int(value)
    return names[number] if 0 <= number < len(names) else str(value)


def _compute_codes(subscription: SubscriptionData) -> None:
    if not subscription.is_tag_type:
        return
    subscription.expression_type = EXPRESSION_TAG
    if not subscription.sub_string:
        subscription.sub_string = " || ".join(subscription.tags_set) or SUB_ALL
    subscription.tags_set = tags_of(subscription.sub_string)
    subscription.code_set = [tags_code(tag) for tag in subscription.tags_set]
