"""Who is connected: answers to 203 and 204, and the check that a client asks for at its start (46)."""

from msgspec import field

from rmqkit.wire.bodies.base import Body
from rmqkit.wire.bodies.subscription import SubscriptionData
from rmqkit.wire.schema import Int32


class Connection(Body, kw_only=True):
    """`language` is a name of `codes.Language`, `version` an ordinal of `codes.Version`."""

    client_addr: str = ""
    client_id: str = ""
    language: str | int = "JAVA"
    version: Int32 = 0


class ConsumerConnection(Body, kw_only=True):
    connection_set: list[Connection] = field(default_factory=list)
    consume_from_where: str | None = None
    consume_type: str | None = None
    message_model: str | None = None
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)


class ProducerConnection(Body, kw_only=True):
    connection_set: list[Connection] = field(default_factory=list)


class CheckClientBody(Body, kw_only=True):
    """46: `CheckClientRequestBody`."""

    client_id: str = ""
    group: str = ""
    namespace: str | None = None
    subscription_data: SubscriptionData | None = None
