"""Waits for a takeover or for its end, as `cluster wait --for acting|master-back` does.

    acting       At least one master does not answer. Each of these masters has a slave that acts
                 for it, and the name servers that answer show that slave as id 0.
    master-back  Every master answers, is online and registered under id 0, and no slave acts for
                 it any more. In controller mode: a member of each group is such a master.

A master does not answer if its process is gone or paused, if a drill has isolated it, or if it does
not reply in time.

Both conditions are polled until they hold. On timeout, ClusterError says what is not fulfilled.
"""

import time
from collections.abc import Callable, Mapping, Sequence

from rmqkit.cluster.errors import ClusterError
from rmqkit.cluster.health import readiness
from rmqkit.cluster.health.caller import NoAnswer
from rmqkit.cluster.health.readiness import NodeStatus, Target
from rmqkit.errors import RemoteProtocolError
from rmqkit.wire.bodies import ClusterInfo, TopicRoute
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schemas.nameserver import GetRouteInfoRequest

#: timeout of a node's answer in one poll
LOOK_S = 0.5
#: pause between polls
PAUSE_S = 0.05

Look = Callable[[], tuple[Sequence[Target], Mapping[str, NodeStatus]]]


def wait_acting(look: Look, deadline_s: float, tell: Callable[[str], None]) -> None:
    """Wait until slaves act for the masters that do not answer. Raises ClusterError on timeout.

    `look` returns the nodes that have an address, and the status of those that answer. `tell` is
    called with what is not fulfilled yet, after each poll.
    """
    _wait(lambda: _lacks_acting(*look()), "no slave acts in time", deadline_s, tell)


def wait_master_back(look: Look, deadline_s: float, tell: Callable[[str], None]) -> None:
    """Wait until every master serves again. Arguments and errors are those of `wait_acting`."""
    _wait(lambda: _lacks_masters(*look()), "a master is not back in time", deadline_s, tell)


def _wait(lacking: Callable[[], str], late: str, deadline_s: float, tell: Callable[[str], None]) -> None:
    while lack := lacking():
        if time.monotonic() > deadline_s:
            raise ClusterError(f"{late}: {lack}")
        tell(f"waiting: {lack}")
        time.sleep(PAUSE_S)


def _lacks_acting(targets: Sequence[Target], seen: Mapping[str, NodeStatus]) -> str:
    nameservers, masters, slaves = _sorted(targets)
    if any(each.plan.is_elected for each in targets):
        return "the controllers elect masters, so no slave acts"
    without = [master for master in masters if master.plan.node not in seen]
    if not without:
        return "every master answers"
    for master in without:
        answering = [each for each in slaves if each.plan.master == master.plan.node and each.plan.node in seen]
        acting = next((each for each in answering if _acts(seen[each.plan.node])), None)
        if acting is None:
            return _why_nobody(master, answering, seen)
        for nameserver in nameservers:
            if nameserver.plan.node in seen and _shown_master(nameserver, master.plan.broker_name) != acting.address:
                off = " (supportActingMaster is off)" if seen[nameserver.plan.node].supports_acting is False else ""
                return f"{nameserver.plan.node} does not show {acting.plan.node} in its master's place yet{off}"
    return ""


def _acts(seen: NodeStatus) -> bool:
    return seen.standing is not None and seen.standing.is_acting


def _why_nobody(master: Target, slaves: Sequence[Target], seen: Mapping[str, NodeStatus]) -> str:
    name = master.plan.broker_name
    if not slaves:
        return f"no slave of {name} answers"
    first = seen[slaves[0].plan.node]
    if first.acting_enabled is False:
        return f"{slaves[0].plan.node} may not act: enableSlaveActingMaster is off"
    why = first.standing.why if first.standing is not None else "it reports no role"
    return f"{slaves[0].plan.node} does not act for {master.plan.node} yet: {why}"


def _lacks_masters(targets: Sequence[Target], seen: Mapping[str, NodeStatus]) -> str:
    nameservers, masters, slaves = _sorted(targets)
    for name in dict.fromkeys(each.plan.broker_name for each in targets if each.plan.is_elected):
        if lack := _lacks_elected(name, targets, seen, nameservers):
            return lack
    for master in masters:
        node = master.plan.node
        if node not in seen:
            return f"{node} does not answer"
        standing = seen[node].standing
        if standing is not None and not standing.is_master:
            stage = f", {standing.stage}" if standing.stage else ""
            return f"{node} is {standing.online}: {standing.why}{stage}"
        for nameserver in nameservers:
            if nameserver.plan.node in seen and _registered_master(nameserver, master.plan.broker_name) != master.address:
                return f"{nameserver.plan.node} does not know {node} yet"
    acting = next((each for each in slaves if each.plan.node in seen and _acts(seen[each.plan.node])), None)
    return "" if acting is None else f"{acting.plan.node} still acts for its master"


def _lacks_elected(
    name: str, targets: Sequence[Target], seen: Mapping[str, NodeStatus], nameservers: Sequence[Target]
) -> str:
    for target in targets:
        said = seen.get(target.plan.node)
        if target.plan.broker_name == name and said is not None and said.election is not None and said.election.is_master:
            for nameserver in nameservers:
                if nameserver.plan.node in seen and _registered_master(nameserver, name) != target.address:
                    return f"{nameserver.plan.node} does not know {target.plan.node} as master yet"
            return ""
    return f"no member of {name} is master"


def _sorted(targets: Sequence[Target]) -> tuple[list[Target], list[Target], list[Target]]:
    """Split the nodes into name servers, masters and slaves."""
    brokers = [each for each in targets if each.plan.is_broker and not each.plan.is_elected]
    return (
        [each for each in targets if each.plan.is_nameserver],
        [each for each in brokers if not each.plan.is_slave],
        [each for each in brokers if each.plan.is_slave],
    )


def _shown_master(nameserver: Target, broker_name: str) -> str | None:
    """Return the address that clients get for id 0 of a group, or None if unknown.

    This is from the route of the broker's own topic, which has the group's name.
    """
    try:
        with nameserver.call(time.monotonic() + readiness.ASK_S) as asked:
            answer = asked.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfoRequest(topic=broker_name))
        groups = TopicRoute.decode(answer.body).broker_datas
    except (NoAnswer, RemoteProtocolError):
        return None
    return next((group.broker_addrs.get(0) for group in groups if group.broker_name == broker_name), None)


def _registered_master(nameserver: Target, broker_name: str) -> str | None:
    """Return the address registered under id 0 of a group, or None if unknown."""
    try:
        with nameserver.call(time.monotonic() + readiness.ASK_S) as asked:
            groups = ClusterInfo.decode(asked.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body).broker_addr_table
    except (NoAnswer, RemoteProtocolError):
        return None
    return groups[broker_name].broker_addrs.get(0) if broker_name in groups else None
