"""Connected clients: the responses to 203, 204, 328 and 345, and a client's check at start (46)."""

from msgspec import field

from rmqkit.wire.bodies.base import Body
from rmqkit.wire.bodies.subscription import SubscriptionData
from rmqkit.wire.schema import Int32, Int64


class ClientConnection(Body, kw_only=True):
    """One connected client.

    `language` is a name in `codes.Language`, `version` an ordinal in `codes.Version`.
    """

    client_addr: str = ""
    client_id: str = ""
    language: str | int = "JAVA"
    version: Int32 = 0


class ConsumerConnection(Body, kw_only=True):
    connection_set: list[ClientConnection] = field(default_factory=list)
    consume_from_where: str | None = None
    consume_type: str | None = None
    message_model: str | None = None
    subscription_table: dict[str, SubscriptionData] = field(default_factory=dict)


class ProducerConnection(Body, kw_only=True):
    connection_set: list[ClientConnection] = field(default_factory=list)


class SubscriptionOfGroup(Body, kw_only=True):
    """The response to 345 (`QuerySubscriptionResponseBody`): an online group's subscription."""

    group: str | None = None
    subscription_data: SubscriptionData | None = None
    topic: str | None = None


class ProducerInfo(Body, kw_only=True):
    """One producer. `remote_ip` is Java's text of an address, which starts with a slash."""

    client_id: str = ""
    language: str | int = "JAVA"
    last_update_timestamp: Int64 = 0
    remote_ip: str = field(default="", name="remoteIP")
    version: Int32 = 0


class ProducerTable(Body, kw_only=True):
    """The response to 328, by producer group (`ProducerTableInfo`)."""

    data: dict[str, list[ProducerInfo]] = field(default_factory=dict)


class CheckClientBody(Body, kw_only=True):
    """The request of 46 (`CheckClientRequestBody`)."""

    client_id: str = ""
    group: str = ""
    namespace: str | None = None
    subscription_data: SubscriptionData | None = None
