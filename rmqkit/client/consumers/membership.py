"""GroupMembership: what a consumer with a listener subscribes to, and how it joins its group.

    join     the group is added to the client → routes are fetched → brokers check the filters →
             heartbeats announce the member to every broker
    leave    routes are no longer watched → UNREGISTER_CLIENT

The heartbeats come last, and `join` waits for them: what follows (a rebalance, a pop) must find
this client in the group.

Source: `client/.../impl/consumer/DefaultMQPushConsumerImpl.java` (`start`, `subscribe`).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from rmqkit.client.consumers.subscriptions import check_filter, subscription
from rmqkit.errors import ClientError
from rmqkit.wire.bodies import SubscriptionData

if TYPE_CHECKING:
    from rmqkit.client.client import Client, ConsumerPart


class GroupMembership:
    """The subscriptions of one consumer. `changed` is called when they change after `join`."""

    def __init__(self, client: "Client", consumer: "ConsumerPart", changed: Callable[[], None]) -> None:
        self._client = client
        self._consumer = consumer
        self._changed = changed
        self._joined = False
        #: By topic.
        self.subscriptions: dict[str, SubscriptionData] = {}

    def subscribe(self, topic: str, expression: str, expression_type: str) -> None:
        """Subscribe to a topic, before or after `join`. Raises ClientError for an invalid
        expression.
        """
        data = subscription(topic, expression, expression_type, self._client.clock.wall_ms)
        if topic not in self.subscriptions:
            self._client.routes.watch(topic)
        self.subscriptions[topic] = data
        self._announce()

    async def check(self, topic: str, expression: str, expression_type: str) -> None:
        """If joined: ask brokers to check a subscription. Raises ClientError if it is invalid."""
        if self._joined:
            data = subscription(topic, expression, expression_type, self._client.clock.wall_ms)
            await check_filter(self._client, self._consumer.group, data)

    def unsubscribe(self, topic: str) -> bool:
        """Unsubscribe from a topic. Returns False if it was not subscribed."""
        if self.subscriptions.pop(topic, None) is None:
            return False
        self._client.routes.unwatch(topic)
        self._announce()
        return True

    def _announce(self) -> None:
        if self._joined:
            self._client.heartbeats.soon()
            self._changed()

    async def join(self, retry_topic: str | None = None) -> None:
        """Join the group, and subscribe to its retry topic if one is given.

        An unknown topic or an unreachable broker is no error: a later round finds it. Raises
        ClientError without a subscription, or if this client already consumes for the group, and
        BrokerError if a broker refuses a filter.
        """
        client, group = self._client, self._consumer.group
        if not self.subscriptions:
            raise ClientError(f"group {group} subscribes to nothing; call subscribe() before start()")
        if retry_topic is not None and retry_topic not in self.subscriptions:
            self.subscribe(retry_topic, "*", "TAG")
        client.add_consumer(self._consumer)
        for topic in list(self.subscriptions):
            try:
                await client.routes.find(topic)
            except ClientError as error:
                if topic != retry_topic:
                    client.failures.warning("no-route-yet", error, group=group, topic=topic)
        try:
            for data in list(self.subscriptions.values()):
                await check_filter(client, group, data)
        except ClientError:
            await client.remove_consumer(self._consumer)
            raise
        await client.heartbeats.beat_all()
        self._joined = True

    async def leave(self) -> None:
        """Leave the group, if it was joined, and stop watching routes."""
        self._joined = False
        for topic in self.subscriptions:
            self._client.routes.unwatch(topic)
        await self._client.remove_consumer(self._consumer)
