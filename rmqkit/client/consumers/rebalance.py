"""Rebalance: decides which queues of its topics a consumer works on.

A round (`topic_rounds.py`) runs every 20 s, and at once when a broker reports a change of the group
(40). It sorts the queues of each topic and the client ids of the members. The allocator picks this
member's share, and `apply` makes the consumer work on exactly these queues. In broadcasting every
member has all queues.

A round changes nothing if it does not know the group: no broker returns the members, or this member
is not yet among them.

Source: `client/.../impl/consumer/RebalanceImpl.java` (`rebalanceByTopic`),
`impl/factory/MQClientInstance.java` (`findConsumerIdList`).
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from rmqkit.client.allocators import sorted_ids
from rmqkit.client.client import Client, decoded
from rmqkit.client.consumers.subscriptions import ConsumerSettings
from rmqkit.client.consumers.topic_rounds import TopicRounds
from rmqkit.client.routes import Route
from rmqkit.errors import ClientError, PeerUnreachable
from rmqkit.wire.bodies import ConsumerListByGroup
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.schemas.groups import GetConsumerListByGroupRequest

#: Takes the topic, this member's queues, and whether it is the only member. Returns whether the
#: consumer now works on all of these queues.
Apply = Callable[[str, Sequence[MessageQueue], bool], bool]


@dataclass(slots=True, eq=False)
class Rebalance:
    """The rebalance of one consumer. Each round covers all `topics`."""

    client: Client
    settings: ConsumerSettings
    topics: Collection[str]
    apply: Apply
    rounds: TopicRounds = field(init=False)

    def __post_init__(self) -> None:
        group, interval_ms = self.settings.group, self.settings.rebalance_interval_ms
        self.rounds = TopicRounds(self.client, group, interval_ms, self.topics, self._topic)

    async def _topic(self, topic: str) -> bool:
        route = await self.client.routes.find(topic)
        queues = sorted(route.subscribe)
        if self.settings.broadcasting:
            return self.apply(topic, queues, True)
        ids = sorted_ids(await self._members(route))
        client_id = self.client.settings.client_id
        if client_id not in ids or self.rounds.is_stopped:
            return False
        allocator = self.settings.allocator
        try:
            share = allocator.allocate(self.settings.group, client_id, queues, ids)
        except Exception as error:
            # The allocator may be a plug-in's. If it fails, keep the current queues, as in Apache.
            raise ClientError(f"allocator {allocator.name}: {type(error).__name__}: {error}") from None
        return self.apply(topic, share, len(ids) == 1)

    async def _members(self, route: Route) -> list[str]:
        """Return the client ids of the group from one of the topic's brokers.

        Raises the error of the last broker if none responds.
        """
        names = sorted(route.brokers)
        first = self.client.ports.entropy.randrange(len(names)) if names else 0
        last: ClientError | None = None
        for name in names[first:] + names[:first]:
            reader = self.client.routes.reader(name)
            if reader is None:
                continue
            request = GetConsumerListByGroupRequest(consumer_group=self.settings.group)
            try:
                reply = await self.client.ask(reader.address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, request)
                return decoded(reply, ConsumerListByGroup.decode).consumer_id_list
            except ClientError as error:
                if isinstance(error, PeerUnreachable):
                    # Its slaves may be up: a member that starts right after the master's death has
                    # an old route.
                    self.client.routes.refresh_soon(route.topic)
                last = error
        raise last or ClientError(f"topic {route.topic} has no broker that could tell who consumes it")
