"""The route cache: the queues of each topic, and the addresses of their brokers.

The client fetches a route when it first needs it, and then every 30 s while the topic is watched. A
route stays until a newer one replaces it: a name server that is down, or has just started and knows
nothing yet, removes no route. Overlapping fetches of a topic share one call.

While a broker of a watched topic has no master, consumers read from its slaves (`reader`). The
client then fetches the route every 3 s, so that consumers return soon after the master does. It
does the same while a slave is shown in its master's place (`Route.acting`).

A producer publishes to an unknown topic through the route of the default topic (TBW102), whose
brokers create topics at the first send. Such a route is marked `by_default`. Consumers never use
it.

Source: `client/.../impl/factory/MQClientInstance.java` (`updateTopicRouteInfoFromNameServer`,
`topicRouteData2TopicPublishInfo`, `topicRouteData2TopicSubscribeInfo`,
`findBrokerAddressInPublish`, `findBrokerAddressInSubscribe`).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from rmqkit.client.access_denials import denial_of
from rmqkit.client.flow import Deferred, start
from rmqkit.errors import ClientError, NoRoute, PeerUnreachable, RemoteProtocolError
from rmqkit.runtime.calls import Reply
from rmqkit.runtime.connection import Address
from rmqkit.wire.bodies import TopicRoute
from rmqkit.wire.codes import PermName, RequestCode, ResponseCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.schemas.nameserver import GetRouteInfoRequest

if TYPE_CHECKING:
    from rmqkit.client.client import Client

MASTER_ID = 0
DEFAULT_TOPIC = "TBW102"
#: Least interval between two fetches of a route that failed sends cause.
REFRESH_PAUSE_MS = 1000
#: Interval of route fetches while a master is missing.
MASTER_LOOK_MS = 3000


@dataclass(frozen=True, slots=True)
class Route:
    """The part of a topic route that a client needs.

    `publish` omits queues without a master or write permission. Queues are sorted.
    """

    topic: str
    publish: tuple[MessageQueue, ...]
    subscribe: tuple[MessageQueue, ...]
    #: Broker name to broker id to address, of the brokers that have the topic.
    brokers: dict[str, dict[int, Address]]
    by_default: bool = False
    #: The clusters of these brokers, sorted.
    clusters: tuple[str, ...] = ()
    #: Names of read-only brokers that may have an acting master: a slave that is shown as id 0.
    acting: tuple[str, ...] = ()


class BrokerAddress(NamedTuple):
    """Where to read from."""

    address: Address
    is_master: bool


class Routes:
    """The routes of one client."""

    def __init__(self, client: "Client") -> None:
        self.routes: dict[str, Route] = {}
        #: Broker name to broker id to address, of all routes.
        self.brokers: dict[str, dict[int, Address]] = {}
        #: Called with a topic after its route has changed.
        self.on_change: list[Callable[[str], None]] = []
        self._client = client
        self._watched: dict[str, int] = {}
        self._fetching: dict[str, Deferred[Route]] = {}
        self._fetched_ms: dict[str, int] = {}
        #: Topic to the body of the last answer and its route: most answers repeat the one before.
        self._read_last: dict[str, tuple[bytes, Route]] = {}
        #: Topics whose last fetch failed. Logged once each.
        self._stale: dict[str, None] = {}
        client.duties.add("client-routes", self._refresh, None)
        client.duties.add("client-masters", self._refresh_without_master, None)

    def start(self) -> None:
        """Begin to refresh watched routes."""
        self._client.duties.wake("client-routes", self._client.clock.mono_ms + self._client.settings.route_refresh_ms)

    # --- watched topics

    def watch(self, topic: str) -> None:
        """Keep the route of a topic fresh. Counts: each `watch` needs one `unwatch`."""
        self._watched[topic] = self._watched.get(topic, 0) + 1

    def unwatch(self, topic: str) -> None:
        """Undo one `watch`."""
        left = self._watched.get(topic, 0) - 1
        if left > 0:
            self._watched[topic] = left
        else:
            self._watched.pop(topic, None)

    # --- finding

    async def find(self, topic: str) -> Route:
        """Return the cached route, or fetch it. Raises NoRoute, AccessDenied, PeerUnreachable."""
        route = self.routes.get(topic)
        if route is not None and not route.by_default:
            return route
        return await self.fetch(topic)

    async def find_to_publish(self, topic: str, default_topic: str, queue_count: int) -> Route:
        """Fetch a route that has queues to send to. Raises NoRoute, AccessDenied, PeerUnreachable.

        If no name server knows the topic, use up to `queue_count` queues per broker of
        `default_topic`.
        """
        try:
            route = await self.fetch(topic)
        except NoRoute as unknown:
            if unknown.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            return await self._default_route(topic, default_topic, queue_count, unknown)
        if not route.publish:
            raise NoRoute(
                f"topic {topic} has no queue to write to: no master of {', '.join(sorted(route.brokers)) or 'it'} is up, "
                "or writing is not permitted"
            )
        return route

    def fetch(self, topic: str) -> Deferred[Route]:
        """Fetch the route from a name server. If that fails, return the cached route."""
        fetching = self._fetching.get(topic)
        if fetching is None:
            fetching = self._fetching[topic] = start(self._fetch(topic))
            # If it ended at once, its own removal came before this entry.
            if fetching.done:
                self._fetching.pop(topic, None)
        return fetching

    def refresh_soon(self, topic: str) -> None:
        """Fetch the route of a topic whose broker failed, at most once a second."""
        if self._client.clock.mono_ms - self._fetched_ms.get(topic, -REFRESH_PAUSE_MS) >= REFRESH_PAUSE_MS:
            self.fetch(topic)

    def missed(self, address: Address) -> None:
        """Fetch the routes that contain a broker which did not respond."""
        for topic in sorted(self._watched):
            route = self.routes.get(topic)
            if route is not None and any(address in members.values() for members in route.brokers.values()):
                self.refresh_soon(topic)

    # --- addresses

    def master(self, broker_name: str) -> Address | None:
        """Return the address of a master, or None."""
        return self.brokers.get(broker_name, {}).get(MASTER_ID)

    def reader(self, broker_name: str, broker_id: int = MASTER_ID) -> BrokerAddress | None:
        """Return where to read: the broker with this id, or a substitute.

        The substitute for a slave is the next id. Otherwise it is the smallest known id. None if no
        broker of that name is known.
        """
        members = self.brokers.get(broker_name, {})
        for wanted in (broker_id, broker_id + 1 if broker_id != MASTER_ID else MASTER_ID):
            if wanted in members:
                return BrokerAddress(members[wanted], wanted == MASTER_ID)
        if not members:
            return None
        first = min(members)
        return BrokerAddress(members[first], first == MASTER_ID)

    def address_to_read(self, broker_name: str) -> Address:
        """Return the address of the master, or of the smallest known id.

        Raises PeerUnreachable if no broker of that name is known.
        """
        found = self.reader(broker_name)
        if found is None:
            raise PeerUnreachable(f"no broker of {broker_name} is known", kind="connect", address="")
        return found.address

    def addresses(self, *, masters_only: bool) -> list[Address]:
        """Return the addresses of all known brokers, without duplicates, by broker name and id."""
        found: dict[Address, None] = {}
        for name in sorted(self.brokers):
            for broker_id in sorted(self.brokers[name]):
                if broker_id == MASTER_ID or not masters_only:
                    found[self.brokers[name][broker_id]] = None
        return list(found)

    def name_of(self, address: Address) -> str | None:
        """Return the broker name of an address, or None."""
        return next((name for name, members in self.brokers.items() if address in members.values()), None)

    # --- fetching

    async def _fetch(self, topic: str) -> Route:
        self._fetched_ms[topic] = self._client.clock.mono_ms
        known = self.routes.get(topic)
        try:
            reply = await self._client.name_servers.ask(
                RequestCode.GET_ROUTEINFO_BY_TOPIC,
                GetRouteInfoRequest(topic=topic, accept_standard_json_only=True),
                unless=ResponseCode.TOPIC_NOT_EXIST,
            )
            route = self._read(topic, reply)
        except ClientError as error:
            if known is None or known.by_default:
                raise
            if topic not in self._stale:
                self._stale[topic] = None
                self._client.failures.warning("route-kept", error, topic=topic)
            return known
        finally:
            self._fetching.pop(topic, None)
        self._stale.pop(topic, None)
        self._learn(route)
        return route

    async def _default_route(self, topic: str, default_topic: str, queue_count: int, unknown: NoRoute) -> Route:
        try:
            default = await self.fetch(default_topic)
        except NoRoute:
            raise unknown from None
        queues = tuple(
            MessageQueue(topic, queue.broker_name, queue.queue_id)
            for queue in default.publish
            if queue.queue_id < queue_count
        )
        if not queues:
            raise unknown
        route = Route(topic, queues, (), default.brokers, by_default=True, clusters=default.clusters)
        self._learn(route)
        return route

    def _read(self, topic: str, reply: Reply) -> Route:
        if reply.code == ResponseCode.TOPIC_NOT_EXIST:
            raise NoRoute(
                f"topic {topic} does not exist (name server {reply.address}): create it, "
                "or start a broker that has it or creates topics automatically (autoCreateTopicEnable)",
                code=reply.code,
                remark=reply.remark,
            )
        if not reply.is_ok:
            if (denial := denial_of(reply, RequestCode.GET_ROUTEINFO_BY_TOPIC)) is not None:
                raise denial
            raise NoRoute(
                f"name server {reply.address} returned no route for {topic}: {reply.remark or reply.code}",
                code=reply.code,
                remark=reply.remark,
            )
        last = self._read_last.get(topic)
        if last is not None and last[0] == reply.body:
            return last[1]
        try:
            route = read_route(topic, TopicRoute.decode(reply.body))
        except (RemoteProtocolError, ValueError) as error:
            raise NoRoute(f"name server {reply.address} sent a route for {topic} that cannot be decoded: {error}") from None
        self._read_last[topic] = reply.body, route
        return route

    def _learn(self, route: Route) -> None:
        if self.routes.get(route.topic) == route:
            return
        self.routes[route.topic] = route
        # The newest route of a broker is valid for all topics. Forget brokers that are in no route.
        named: dict[str, None] = dict.fromkeys(name for each in self.routes.values() for name in each.brokers)
        before = self._addresses()
        self.brokers = {name: members for name, members in self.brokers.items() if name in named} | route.brokers
        after = self._addresses()
        for address in before:
            if address not in after:
                self._client.doubt(address)
        if _lacks_master(route):
            self._client.duties.wake("client-masters", self._client.clock.mono_ms + MASTER_LOOK_MS)
        for listener in self.on_change:
            listener(route.topic)

    def _addresses(self) -> dict[Address, None]:
        return dict.fromkeys(address for members in self.brokers.values() for address in members.values())

    def _refresh(self, now_ms: int) -> int:
        for topic in sorted(self._watched):
            self.fetch(topic)
        return now_ms + self._client.settings.route_refresh_ms

    def _refresh_without_master(self, now_ms: int) -> int | None:
        lacking = [topic for topic in sorted(self._watched) if topic in self.routes and _lacks_master(self.routes[topic])]
        for topic in lacking:
            self.fetch(topic)
        return now_ms + MASTER_LOOK_MS if lacking else None


def _lacks_master(route: Route) -> bool:
    return bool(route.acting) or any(MASTER_ID not in members for members in route.brokers.values())


def read_route(topic: str, data: TopicRoute) -> Route:
    """Return the route of a decoded response.

    Raises ValueError for an address or order setting that is invalid.
    """
    brokers = {
        each.broker_name: {broker_id: Address.parse(text) for broker_id, text in sorted(each.broker_addrs.items())}
        for each in sorted(data.broker_datas, key=lambda each: each.broker_name)
    }
    queue_datas = sorted(data.queue_datas, key=lambda each: each.broker_name)
    if data.order_topic_conf:
        publish = list(_ordered_queues(topic, data.order_topic_conf))
    else:
        publish = [
            MessageQueue(topic, each.broker_name, queue_id)
            for each in queue_datas
            if each.perm & PermName.PERM_WRITE and MASTER_ID in brokers.get(each.broker_name, {})
            for queue_id in range(each.write_queue_nums)
        ]
    subscribe = [
        MessageQueue(topic, each.broker_name, queue_id)
        for each in queue_datas
        if each.perm & PermName.PERM_READ
        for queue_id in range(each.read_queue_nums)
    ]
    clusters = dict.fromkeys(each.cluster for each in data.broker_datas if each.cluster)
    writable = {each.broker_name for each in queue_datas if each.perm & PermName.PERM_WRITE}
    acting = (each.broker_name for each in data.broker_datas if each.enable_acting_master)
    read_only = tuple(sorted(name for name in acting if name not in writable))
    return Route(topic, tuple(publish), tuple(subscribe), brokers, clusters=tuple(sorted(clusters)), acting=read_only)


def _ordered_queues(topic: str, order_conf: str) -> Iterable[MessageQueue]:
    """Yield the queues of `broker-a:4;broker-b:4`, in that order."""
    for part in filter(None, order_conf.split(";")):
        name, _, queue_count = part.rpartition(":")
        for queue_id in range(int(queue_count)):
            yield MessageQueue(topic, name, queue_id)
