"""Masters: finds masters of other groups that may take a message of a topic.

Routes. `Masters` asks a name server for the topic's route (105), with one request in flight per
topic, and caches the answer for `ROUTE_MS`. So a broker that the name servers have dropped is not
tried. A master is an entry with id 0 whose topic has a writable queue. An acting master is shown
as id 0 too, but its queues are read-only. Name servers may disagree, or be unreachable: they are
asked one after the other until one names a master.

Back-off. A master that fails is not tried for `BACK_OFF_MS`. The pause doubles with each failure,
up to `BACK_OFF_MS_MAX`. It applies to all topics if the master does not answer or does not serve,
and to one topic if the master rejects only that one. A success ends it.

Source: `broker/.../topic/TopicRouteInfoManager.java` (`tryToFindTopicPublishInfo`),
`TopicPublishInfo.java`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rmqkit.broker.escape.host import EscapeHost
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import CallFailed, Outcome
from rmqkit.runtime.connection import Address
from rmqkit.wire.bodies import TopicRoute
from rmqkit.wire.codes import PermName, RequestCode, ResponseCode
from rmqkit.wire.schemas.nameserver import GetRouteInfoRequest

#: how long a route is cached
ROUTE_MS = 2_000
ROUTE_TIMEOUT_MS = 1_000
BACK_OFF_MS = 500
BACK_OFF_MS_MAX = 10_000
#: topics whose routes are cached; beyond it the oldest is dropped
TOPICS_MAX = 1_000
#: entries of brokers, and of topics of brokers, that failed; beyond it the oldest is dropped, and
#: so may be tried again
LEFT_ALONE_MAX = 10_000


class Master(NamedTuple):
    """A master that has a writable queue of the topic."""

    broker_name: str
    address: Address
    #: number of writable queues of the topic
    queues: int


#: callback: the masters that may be tried, and the reason if there is none
Found = Callable[[Sequence[Master], str], None]


class EscapeRoute(NamedTuple):
    """The cached masters of a topic, valid until `until_ms`; `why` says why there is none."""

    until_ms: int
    masters: Sequence[Master]
    why: str


class _BackOff:
    __slots__ = ("failures", "until_ms", "why")

    def __init__(self) -> None:
        self.failures = 0
        self.until_ms = 0
        self.why = ""


class Masters:
    """Finds masters for a topic, and remembers routes and failures."""

    def __init__(self, broker: EscapeHost, *, own_group: bool) -> None:
        """With `own_group` the master of this broker's own group counts too, once it is back."""
        self._broker = broker
        self._own_group = own_group
        self._routes: dict[str, EscapeRoute] = {}
        self._asking: dict[str, list[Found]] = {}
        #: by address and topic; topic "" applies to all topics of the broker
        self._left_alone: dict[tuple[Address, str], _BackOff] = {}
        #: index of the name server that named a master last; it is asked first
        self._first = 0

    def find(self, topic: str, then: Found) -> None:
        """Find masters for a topic. Calls `then` once, possibly before this returns."""
        route = self._routes.get(topic)
        if route is not None and self._broker.clock.mono_ms < route.until_ms:
            self._choose(topic, route, then)
            return
        waiting = self._asking.get(topic)
        if waiting is not None:
            waiting.append(then)
            return
        self._asking[topic] = [then]
        self._ask(topic, 0, "no name server is configured (namesrvAddr)")

    # --- back-off ---------------------------------------------------------------------------------

    def failed(self, master: Master, why: str, *, topic: str = "") -> None:
        """Start or extend the back-off of a master, for one topic or for all (`topic` "")."""
        now_ms = self._broker.clock.mono_ms
        if len(self._left_alone) >= LEFT_ALONE_MAX:
            del self._left_alone[next(iter(self._left_alone))]
        back_off = self._left_alone.setdefault((master.address, topic), _BackOff())
        if back_off.until_ms > now_ms:
            # A message that was already in flight when the back-off began: no further failure.
            return
        wait_ms = min(BACK_OFF_MS << min(back_off.failures, 10), BACK_OFF_MS_MAX)
        back_off.failures += 1
        back_off.until_ms = now_ms + wait_ms
        back_off.why = why
        if back_off.failures == 1:
            self._broker.log.warning("escape-refused", broker=master.broker_name, topic=topic or "*", reason=why)
        if not topic:
            # Another broker may be the master now: read the routes again before the next attempt.
            self._routes.clear()

    def succeeded(self, master: Master, topic: str) -> None:
        """End the back-off of a master after a success."""
        if self._left_alone:
            self._left_alone.pop((master.address, ""), None)
            self._left_alone.pop((master.address, topic), None)

    def _choose(self, topic: str, route: EscapeRoute, then: Found) -> None:
        now_ms = self._broker.clock.mono_ms
        masters, why = [], route.why
        for master in route.masters:
            held = [self._left_alone.get((master.address, each)) for each in ("", topic)]
            back_off = next((each for each in held if each is not None and each.until_ms > now_ms), None)
            if back_off is None:
                masters.append(master)
            else:
                why = f"{master.broker_name} ({master.address}): {back_off.why}"
        then(masters, "" if masters else why)

    # --- routes ----------------------------------------------------------------------------------

    def _ask(self, topic: str, number: int, why: str) -> None:
        """Ask the name servers in turn, from the `number`th on.

        `why` says why the previous one named no master.
        """
        broker = self._broker
        nameservers = broker.registration.nameservers
        if number == len(nameservers):
            self._answered(topic, (), why)
            return
        at = (self._first + number) % len(nameservers)
        address = nameservers[at]

        def answered(outcome: Outcome) -> None:
            masters, fault = self._read(topic, address, outcome)
            if masters:
                self._first = at
                self._answered(topic, masters, "")
            else:
                self._ask(topic, number + 1, fault)

        request = GetRouteInfoRequest(topic=topic, accept_standard_json_only=True)
        broker.remoting.call(
            address, RequestCode.GET_ROUTEINFO_BY_TOPIC, request, timeout_ms=ROUTE_TIMEOUT_MS, then=answered
        )

    def _read(self, topic: str, address: Address, outcome: Outcome) -> tuple[Sequence[Master], str]:
        if isinstance(outcome, CallFailed):
            return (), f"name server {address}: {outcome.text}"
        if outcome.code == ResponseCode.TOPIC_NOT_EXIST:
            return (), f"no broker of name server {address} has topic {topic}"
        if not outcome.is_ok:
            return (), f"name server {address}: code {outcome.code}: {outcome.remark}"
        try:
            masters = self._masters(TopicRoute.decode(outcome.body))
        except (RemoteProtocolError, ValueError) as error:
            return (), f"name server {address}: {error}"
        return masters, f"no {'' if self._own_group else 'other '}group with topic {topic} has a live master"

    def _masters(self, route: TopicRoute) -> Sequence[Master]:
        """Return the usable masters of a route. Raises ValueError for an invalid address."""
        broker = self._broker
        queues = {
            each.broker_name: each.write_queue_nums
            for each in route.queue_datas
            if each.perm & PermName.PERM_WRITE and each.write_queue_nums > 0
        }
        masters = []
        for data in sorted(route.broker_datas, key=lambda each: each.broker_name):
            text = data.broker_addrs.get(0)
            is_own = data.broker_name == broker.config.identity.broker_name and not self._own_group
            if text and not is_own and text != broker.address_text and data.broker_name in queues:
                masters.append(Master(data.broker_name, Address.parse(text), queues[data.broker_name]))
        return masters

    def _answered(self, topic: str, masters: Sequence[Master], why: str) -> None:
        until_ms = self._broker.clock.mono_ms + ROUTE_MS
        while len(self._routes) >= TOPICS_MAX:
            del self._routes[next(iter(self._routes))]
        route = self._routes[topic] = EscapeRoute(until_ms, masters, why)
        for then in self._asking.pop(topic, ()):
            self._choose(topic, route, then)
