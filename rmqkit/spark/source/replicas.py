"""Chooses the broker of a group that a range is read from: the master, or else a slave.

**Members.** The members of the group come from the topic's route. The name servers are asked for it
when a range begins, and again for every round.

**Rounds.** A round tries each member once, the master first. Members that failed to respond in
the last SILENT_S seconds come last, so that a stopped broker costs a worker one timeout, not one
per range. If a round yields nothing, the reader waits, each time longer, until maxWaitForBroker
has passed since the last progress. With whenDown=fail it gives up at once.

**Loss.** This module never decides that messages are gone. `topic_reader` does, from the responses
of the members and from `is_master_now`, because a connection may outlive the role of its broker.

A slave that acts for its master is in the route under the master's id 0, without write permission.

Source: `client/.../impl/factory/MQClientInstance.java` (`findBrokerAddressInSubscribe`).
"""

import time
from typing import NamedTuple

from rmqkit.client.routes import MASTER_ID, Route, read_route
from rmqkit.errors import NoRoute, PeerUnreachable, RemoteProtocolError, RmqkitError
from rmqkit.runtime.connection import Address
from rmqkit.spark.link import Link, give, take
from rmqkit.spark.options import SourceOptions
from rmqkit.wire.bodies import TopicRoute
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schemas.nameserver import GetRouteInfoRequest

PAUSE_FIRST_MS = 100
PAUSE_MAX_MS = 2000
#: How long a member that did not respond comes last, in seconds.
SILENT_S = 30.0
#: Limit of the time to connect to a member, in seconds, before the next member is tried.
CONNECT_TIMEOUT_S = 3.0

#: Address -> until when it comes last (monotonic seconds).
_silent_until_s: dict[Address, float] = {}


class ReadReplica(NamedTuple):
    """A broker of a group. A slave that has its master's id in the route is no master."""

    broker_id: int
    address: Address
    is_master: bool


def members_of(options: SourceOptions, topic: str, broker: str) -> list[ReadReplica]:
    """Return the members of a broker group in the order in which to try them.

    Raises NoRoute if no name server knows the topic with a broker of that name, and PeerUnreachable
    if no name server responds.
    """
    last: RmqkitError = NoRoute("no name server is configured: set option namesrv")
    for text in options.namesrv:
        link = None
        try:
            link = take(Address.parse(text), options.request_timeout / 1000)
            answer, body = link.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequest(topic=topic))
            give(link)
            if answer.code != 0:
                why = f"returned no route for topic {topic}: {answer.remark or answer.code}"
                if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                    why = f"has no route for topic {topic}: it was deleted, or all its brokers are down"
                last = NoRoute(f"name server {text} {why}", code=answer.code, remark=answer.remark)
            elif found := _members(read_route(topic, TopicRoute.decode(body)), broker):
                return found
            else:
                last = NoRoute(f"the route of {topic} at name server {text} has no broker {broker}")
        except (PeerUnreachable, RemoteProtocolError, ValueError) as error:
            if link is not None:
                link.close()
            last = PeerUnreachable(f"name server {text}: {error}", kind="lost" if link else "connect", address=text)
    raise last


def _members(route: Route, broker: str) -> list[ReadReplica]:
    now_s = time.monotonic()
    # The route lists an acting master under its own id, too.
    members = {
        address: ReadReplica(broker_id, address, broker_id == MASTER_ID and broker not in route.acting)
        for broker_id, address in sorted(route.brokers.get(broker, {}).items(), reverse=True)
    }
    return sorted(members.values(), key=lambda each: (_silent_until_s.get(each.address, 0) > now_s, each.broker_id))


class Replicas:
    """The members of one broker group, for one range. `link` is the connection to `member`."""

    def __init__(self, topic: str, broker: str, options: SourceOptions) -> None:
        self.link: Link | None = None
        self.member: ReadReplica | None = None
        self.round = 0
        self._topic, self._broker = topic, broker
        self._options = options
        self._timeout_s = options.request_timeout / 1000
        self._left: list[ReadReplica] = []
        #: Since when there is no progress (monotonic seconds); None while there is.
        self._stuck_since_s: float | None = None
        self._why: RmqkitError | None = None

    @property
    def read_from(self) -> str:
        return "master" if self.member is not None and self.member.is_master else "slave"

    def is_master_now(self, *, or_is_forgotten: bool = False) -> bool:
        """Whether the member is the group's master according to the name servers now.

        False if they do not respond. If it is no longer master, the other members are tried next.
        `or_is_forgotten`: also True if no name server knows the topic any more.
        """
        if self.member is None or not self.member.is_master:
            return False
        try:
            members = members_of(self._options, self._topic, self._broker)
        except NoRoute as error:
            return or_is_forgotten and error.code == ResponseCode.TOPIC_NOT_EXIST
        except PeerUnreachable:
            return False
        if any(each.is_master and each.address == self.member.address for each in members):
            return True
        self._left = [each for each in members if each.address != self.member.address]
        return False

    def stuck_s(self) -> float:
        """Return the seconds without progress, counted from the first call after `progressed`."""
        self._stuck_since_s = self._stuck_since_s or time.monotonic()
        return time.monotonic() - self._stuck_since_s

    def connected(self) -> Link:
        """Return the connection; connect to the next member if there is none.

        Raises NoRoute or PeerUnreachable once the waiting time is over.
        """
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
                self._stalled(error, silent=member.address)
        return self.link

    def progressed(self) -> None:
        """Record that messages were read: the round and the waiting time start again."""
        self.round = 0
        self._left.clear()
        self._stuck_since_s = None

    def failed(self, error: RmqkitError) -> None:
        """Record that the member did not respond or violated the protocol; close its connection."""
        assert self.link is not None
        self._stalled(error, silent=self.link.address)
        self.link.close()
        self.link = None

    def turn(self, why: RmqkitError) -> None:
        """Turn to the next member, because this one responded that it lacks the messages."""
        self._stalled(why)
        self.release()

    def _stalled(self, why: RmqkitError, silent: Address | None = None) -> None:
        self.stuck_s()
        self._why = why
        if silent is not None:
            _silent_until_s[silent] = time.monotonic() + SILENT_S

    def release(self) -> None:
        """Give the connection back for the next range."""
        if self.link is not None:
            give(self.link)
            self.link = None

    def _next_round(self) -> None:
        """Begin a round: wait, except before the first, and fetch the members.

        Raises NoRoute or PeerUnreachable if there is no waiting time left.
        """
        if self.round:
            waited_s, may_wait = self.stuck_s(), self._options.when_down == "wait"
            pause_s = min(PAUSE_FIRST_MS * 2 ** min(self.round - 1, 10), PAUSE_MAX_MS) / 1000
            if not may_wait or waited_s + pause_s > self._options.max_wait_for_broker / 1000:
                wait = f"after {waited_s:.0f} s" if may_wait else "without waiting (whenDown=fail)"
                text = f"no broker of group {self._broker} can be read for topic {self._topic}, {wait}: {self._why}"
                if isinstance(self._why, NoRoute):
                    raise NoRoute(text, code=self._why.code, remark=self._why.remark)
                raise PeerUnreachable(text, kind="timeout", address="")
            time.sleep(pause_s)
        self.round += 1
        try:
            self._left = members_of(self._options, self._topic, self._broker)
        except (NoRoute, PeerUnreachable) as error:
            self._why = error
