"""Rebalance: which queues of its topics a consumer works on.

Every 20 s, at once when a broker says that the group has changed (40) or a route has, and every second as long as the last
round left something undone: the queues of each topic and the ids of the members are sorted, the allocator picks this
member's share, and the consumer is told to work on exactly that (`apply`). In broadcasting everybody has all queues.

A round that cannot see the group (no broker tells who is in it, or this member is not in it yet) changes nothing.

Source: `client/.../impl/consumer/RebalanceImpl.java` (`rebalanceByTopic`), `RebalanceService.java`,
`impl/factory/MQClientInstance.java` (`findConsumerIdList`).
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from rmqkit.client.allocators import sorted_ids
from rmqkit.client.client import Client, decoded
from rmqkit.client.consumers.subscriptions import ConsumerSettings
from rmqkit.client.flow import start
from rmqkit.client.routes import Route
from rmqkit.errors import ClientError, PeerUnreachable, RmqkitError
from rmqkit.wire.bodies import ConsumerListByGroup
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.schemas.groups import GetConsumerListByGroupRequest
from rmqkit.wire.topic_names import RETRY_PREFIX

UNBALANCED_MS = 1000

#: topic, this member's queues, whether it is the only member -> whether all of them are being worked on
Apply = Callable[[str, Sequence[MessageQueue], bool], bool]


@dataclass(slots=True, eq=False)
class Rebalance:
    """`topics` are looked at in each round."""

    client: Client
    settings: ConsumerSettings
    topics: Collection[str]
    apply: Apply
    _running: bool = False
    _again: bool = False
    _stopped: bool = False
    _last_error: str = ""

    @property
    def _duty(self) -> str:
        return f"rebalance-{self.settings.group}"

    def start(self) -> None:
        self.client.duties.add(self._duty, self._run, self.client.clock.mono_ms)
        self.client.routes.on_change.append(self._route_changed)

    def stop(self) -> None:
        if not self._stopped:
            self._stopped = True
            self.client.duties.remove(self._duty)
            if self._route_changed in self.client.routes.on_change:
                self.client.routes.on_change.remove(self._route_changed)

    def soon(self) -> None:
        """Something has changed; during a round: another one after it."""
        self._again = self._running
        self.client.duties.wake(self._duty, self.client.clock.mono_ms)

    def _route_changed(self, topic: str) -> None:
        if topic in self.topics:
            self.soon()

    def _run(self, now_ms: int) -> int | None:
        if not self._running:
            self._running = True
            start(self._round())
        return None

    async def _round(self) -> None:
        balanced = True
        for topic in list(self.topics):
            try:
                done = await self._topic(topic)
                self._last_error = ""
            except RmqkitError as error:
                # A group's retry topic is made by its brokers; until then there is nothing to do there.
                done = topic.startswith(RETRY_PREFIX)
                if not done and str(error) != self._last_error:
                    self._last_error = str(error)
                    self.client.log.warning("rebalance-failed", group=self.settings.group, topic=topic, error=str(error))
            if self._stopped:
                return
            balanced = balanced and done
        self._running = False
        pause_ms = 0 if self._again else self.settings.rebalance_interval_ms if balanced else UNBALANCED_MS
        self._again = False
        self.client.duties.wake(self._duty, self.client.clock.mono_ms + pause_ms)

    async def _topic(self, topic: str) -> bool:
        route = await self.client.routes.find(topic)
        queues = sorted(route.subscribe)
        if self.settings.broadcasting:
            return self.apply(topic, queues, True)
        ids = sorted_ids(await self._members(route))
        client_id = self.client.settings.client_id
        if client_id not in ids or self._stopped:
            return False
        allocator = self.settings.allocator
        try:
            share = allocator.allocate(self.settings.group, client_id, queues, ids)
        except Exception as error:
            # An allocator may be a plug-in's; upstream too leaves everything as it is when one fails.
            raise ClientError(f"allocator {allocator.name}: {type(error).__name__}: {error}") from None
        return self.apply(topic, share, len(ids) == 1)

    async def _members(self, route: Route) -> list[str]:
        """Client ids of the group as one of the topic's brokers has them. Raises the last broker's error."""
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
                    # Its slaves may be there: a member that comes right after a master's death learned an old route.
                    self.client.routes.refresh_soon(route.topic)
                last = error
        raise last or ClientError(f"topic {route.topic} has no broker that could tell who consumes it")
