"""Rebalance: decides which queues of its topics a consumer works on.

A round runs every 20 s, at once when a broker reports a change of the group (40) or a route
changes, and every second while the last round is incomplete. It sorts the queues of each topic and
the client ids of the members. The allocator picks this member's share, and `apply` makes the
consumer work on exactly these queues. In broadcasting every member has all queues.

A round changes nothing if it does not know the group: no broker returns the members, or this member
is not yet among them.

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
    _running: bool = False
    _run_again: bool = False
    _stopped: bool = False
    _last_error: str = ""

    @property
    def _duty(self) -> str:
        return f"rebalance-{self.settings.group}"

    def start(self) -> None:
        """Run the first round and listen to route changes."""
        self.client.duties.add(self._duty, self._run, self.client.clock.mono_ms)
        self.client.routes.on_change.append(self._route_changed)

    def stop(self) -> None:
        """Run no more rounds. The result of a running one is ignored."""
        if not self._stopped:
            self._stopped = True
            self.client.duties.remove(self._duty)
            if self._route_changed in self.client.routes.on_change:
                self.client.routes.on_change.remove(self._route_changed)

    def soon(self) -> None:
        """Run a round now or, during a round, right after it."""
        self._run_again = self._running
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
                # Brokers create a group's retry topic later. Until then it needs no work.
                done = topic.startswith(RETRY_PREFIX)
                if not done and str(error) != self._last_error:
                    self._last_error = str(error)
                    self.client.log.warning("rebalance-failed", group=self.settings.group, topic=topic, error=str(error))
            if self._stopped:
                return
            balanced = balanced and done
        self._running = False
        pause_ms = 0 if self._run_again else self.settings.rebalance_interval_ms if balanced else UNBALANCED_MS
        self._run_again = False
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
