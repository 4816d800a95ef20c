"""Bodies that consist of one table or list: KV, topics, groups, consumer ids, pull or pop modes."""

from msgspec import field

from rmqkit.wire.bodies.base import Body


class KVTable(Body, kw_only=True):
    """The response to 28, 219 and a registration."""

    table: dict[str, str] = field(default_factory=dict)


class TopicList(Body, kw_only=True):
    broker_addr: str | None = None
    topic_list: list[str] = field(default_factory=list)


class GroupList(Body, kw_only=True):
    group_list: list[str] = field(default_factory=list)


class ConsumerListByGroup(Body, kw_only=True):
    """The response to 38."""

    consumer_id_list: list[str] = field(default_factory=list)
