"""Which broker of a group a range is read from: its master if that answers, else a slave, else whoever comes back.

The members are those of the topic's route, asked of the name servers when a range begins and again for every round. A round
tries each member once, master first; members that did not answer lately come last, so that a broker that is stopped costs
one timeout a worker and not one a range. When a whole round has brought nothing the reader waits, each time longer, up to
`wait_ms` since the last progress, or gives up at once if it is told to fail. It never decides that messages are gone: that
is `reading`'s, by what members answered, and `is_master_now`, as a connection may outlive the rank of who is behind it.

A slave that acts for its master is shown under the master's id 0, in a route without write permission.

Source: `client/.../impl/factory/MQClientInstance.java` (`findBrokerAddressInSubscribe`).
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

from rmqkit.errors import NoRoute, PeerUnreachable, RemoteProtocolError, RmqkitError
from rmqkit.runtime.connection import Address
from rmqkit.spark.link import Link, give, take
from rmqkit.wire.bodies import TopicRoute
from rmqkit.wire.codes import PermName, RequestCode, ResponseCode
from rmqkit.wire.schemas.nameserver import GetRouteInfoRequest

PAUSE_FIRST_MS = 100
PAUSE_MAX_MS = 2000
#: how long a member that did not answer is asked after all others
SILENT_S = 30.0
#: a connection that is not made in this time is not worth waiting for while others are there
CONNECT_TIMEOUT_S = 3.0

#: address -> until when (monotonic) it comes last
_silent_until_s: dict[Address, float] = {}


class ReadReplica(NamedTuple):
    """A broker of a group. `is_acting`: a slave under its master's id."""

    broker_id: int
    address: Address
    is_acting: bool

    @property
    def is_master(self) -> bool:
        return self.broker_id == 0 and not self.is_acting


def members_of(namesrv: Sequence[str], topic: str, broker: str, timeout_s: float) -> list[ReadReplica]:
    """The members of a broker group in the order in which they are to be asked.

    Raises NoRoute when no name server knows the topic, or none of its brokers has that name; PeerUnreachable when no name
    server answers.
    """
    last: RmqkitError = NoRoute("no name server is given: set namesrv")
    for text in namesrv:
        try:
            address = Address.parse(text)
            link = take(address, timeout_s)
        except (ValueError, PeerUnreachable) as error:
            last = PeerUnreachable(f"name server {text}: {error}", kind="connect", address=text)
            continue
        try:
            answer, body = link.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequest(topic=topic))
            give(link)
            if answer.code != 0:
                last = _no_route(topic, text, answer.code, answer.remark)
            elif found := _members(TopicRoute.decode(body), broker):
                return found
            else:
                last = NoRoute(f"the route of {topic} at name server {text} has no broker {broker}")
        except (PeerUnreachable, RemoteProtocolError, ValueError) as error:
            link.close()
            last = PeerUnreachable(f"name server {text}: {error}", kind="lost", address=text)
    raise last


def _no_route(topic: str, namesrv: str, code: int, remark: str) -> NoRoute:
    if code == ResponseCode.TOPIC_NOT_EXIST:
        text = f"name server {namesrv} has no route of topic {topic}: it was deleted, or all its brokers are down"
    else:
        text = f"name server {namesrv} gave no route of topic {topic}: {remark or code}"
    return NoRoute(text, code=code, remark=remark)


def _members(route: TopicRoute, broker: str) -> list[ReadReplica]:
    is_writable = any(each.broker_name == broker and each.perm & PermName.PERM_WRITE for each in route.queue_datas)
    now_s = time.monotonic()
    found = [
        ReadReplica(broker_id, Address.parse(text), data.enable_acting_master and not is_writable and broker_id == 0)
        for data in route.broker_datas
        if data.broker_name == broker
        for broker_id, text in data.broker_addrs.items()
    ]
    # The address of an acting master stands under its own id, too.
    seen = {member.address: member for member in sorted(found, key=lambda member: -member.broker_id)}
    return sorted(seen.values(), key=lambda member: (_silent_until_s.get(member.address, 0) > now_s, member.broker_id))


class Replicas:
    """The members of one broker group for one range. `link` is the connection to `member`."""

    def __init__(
        self,
        namesrv: Sequence[str],
        topic: str,
        broker: str,
        *,
        may_wait: bool,
        wait_ms: int,
        request_timeout_ms: int,
    ) -> None:
        self.link: Link | None = None
        self.member: ReadReplica | None = None
        self.round = 0
        self._namesrv = namesrv
        self._topic = topic
        self._broker = broker
        self._may_wait = may_wait
        self._wait_s = wait_ms / 1000
        self._timeout_s = request_timeout_ms / 1000
        self._left: list[ReadReplica] = []
        #: since when nothing goes on (monotonic)
        self._stuck_since_s: float | None = None
        self._why: RmqkitError | None = None

    @property
    def read_from(self) -> str:
        return "master" if self.member is not None and self.member.is_master else "slave"

    def is_master_now(self, *, or_is_forgotten: bool = False) -> bool:
        """Whether the member is the group's master by what the name servers say at this moment; not if they do not answer.

        If it is not, the others are asked next, as they are now. `or_is_forgotten`: yes too when no name server knows the
        topic any more.
        """
        if self.member is None or not self.member.is_master:
            return False
        try:
            members = members_of(self._namesrv, self._topic, self._broker, self._timeout_s)
        except NoRoute as error:
            return or_is_forgotten and error.code == ResponseCode.TOPIC_NOT_EXIST
        except PeerUnreachable:
            return False
        if any(each.is_master and each.address == self.member.address for each in members):
            return True
        self._left = [each for each in members if each.address != self.member.address]
        return False

    def stuck_s(self) -> float:
        """How long nothing has gone on; the first call after `progressed` starts the count."""
        now_s = time.monotonic()
        if self._stuck_since_s is None:
            self._stuck_since_s = now_s
        return now_s - self._stuck_since_s

    def connected(self) -> Link:
        """The connection, or one to the next member. Raises NoRoute or PeerUnreachable after the last wait."""
        while self.link is None:
            if not self._left:
                self._next_round()
                continue
            member = self._left.pop(0)
            try:
                self.link = take(member.address, min(self._timeout_s, CONNECT_TIMEOUT_S))
                self.link.allow(self._timeout_s)
                self.member = member
            except PeerUnreachable as error:
                self.stuck_s()
                self._why = error
                _silent_until_s[member.address] = time.monotonic() + SILENT_S
        return self.link

    def progressed(self) -> None:
        self.round = 0
        self._left.clear()
        self._stuck_since_s = None

    def failed(self, error: RmqkitError) -> None:
        """The member did not answer, or not in the protocol."""
        self.stuck_s()
        self._why = error
        if self.link is not None:
            _silent_until_s[self.link.address] = time.monotonic() + SILENT_S
            self.link.close()
            self.link = None

    def turn(self, why: RmqkitError) -> None:
        """The member answered that it cannot give what is wanted: on to the next."""
        self.stuck_s()
        self._why = why
        self.release()

    def release(self) -> None:
        if self.link is not None:
            give(self.link)
            self.link = None

    def _next_round(self) -> None:
        """Fill the round; before any but the first, wait."""
        if self.round:
            waited_s = self.stuck_s()
            pause_s = min(PAUSE_FIRST_MS * 2 ** min(self.round - 1, 10), PAUSE_MAX_MS) / 1000
            if not self._may_wait or waited_s + pause_s > self._wait_s:
                raise self._given_up(waited_s)
            time.sleep(pause_s)
        self.round += 1
        try:
            self._left = members_of(self._namesrv, self._topic, self._broker, self._timeout_s)
        except (NoRoute, PeerUnreachable) as error:
            self._why = error

    def _given_up(self, waited_s: float) -> RmqkitError:
        wait = f"after {waited_s:.0f} s" if self._may_wait else "and it is told not to wait"
        text = f"nobody of broker group {self._broker} can be read for topic {self._topic}, {wait}: {self._why}"
        if isinstance(self._why, NoRoute):
            return NoRoute(text, code=self._why.code, remark=self._why.remark)
        return PeerUnreachable(text, kind="timeout", address="")
