"""The `groups` check of `rmqkit doctor`: contradicting settings in the groups of running clusters.

It queries this user's clusters, and the one of NAMESRV_ADDR. From each cluster it requests the
settings of every name server, and of every broker registered there, all at once. Nodes that do not
answer are left out. The checks (`CHECKS`) are functions of a `GroupSettings`, so that a test can
give them any cluster.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from rmqkit.cli.output import count_text
from rmqkit.cluster import Cluster, ClusterError, clusters
from rmqkit.cluster.health.caller import Caller, NoAnswer
from rmqkit.cluster.health.readiness import Target, query_all
from rmqkit.cluster.layout.description import NodePlan
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.connection import Address
from rmqkit.wire.bodies import ClusterInfo
from rmqkit.wire.codes import RequestCode

ASK_S = 1.0
QUORUM_MIN = 3
#: settings that all brokers of a group must agree on -> what happens otherwise
AGREED: Mapping[str, str] = {
    "enableSlaveActingMaster": "a slave may act for a master that does not isolate itself after it was away",
    "totalReplicas": "the size of a quorum follows from it",
    "lockMode": "two consumers may lock the same queue",
    "lockInStrictMode": "two consumers may lock the same queue",
    "brokerNotActiveTimeoutMillis": "a master may still serve while its slave already acts",
    "messageDelayLevel": "an acting master delivers delayed messages at other times",
    "mappedFileSizeCommitLog": "a slave cannot copy its master's files",
}

#: state, text, advice
Found = tuple[str, str, str]


class GroupSettings(NamedTuple):
    """The settings of one cluster's brokers (by name and id) and name servers (by address).

    `registered` has the broker addresses that each name server lists. `own` has the addresses of
    brokers that this machine's cluster has started.
    """

    name: str
    brokers: Mapping[tuple[str, int], Mapping[str, str]]
    nameservers: Mapping[str, Mapping[str, str]]
    registered: Mapping[str, Mapping[tuple[str, int], str]]
    own: Mapping[tuple[str, int], str] = {}

    def groups(self) -> dict[str, list[tuple[str, Mapping[str, str]]]]:
        """Return broker name -> (name:id, settings), ordered by id."""
        found: dict[str, list[tuple[str, Mapping[str, str]]]] = {}
        for (name, broker_id), settings in sorted(self.brokers.items()):
            found.setdefault(name, []).append((f"{name}:{broker_id}", settings))
        return found


def findings() -> Iterator[Found]:
    """Check every cluster that can be queried; a cluster without problems yields one `ok`."""
    for seen in _seen():
        found = [each for check in CHECKS for each in check(seen)]
        yield from found or [
            ("ok", f"{seen.name}: settings of {count_text(len(seen.groups()), 'group')} are consistent", "")
        ]


# --- checks


def strict_locks(seen: GroupSettings) -> Iterator[Found]:
    for name, brokers in seen.groups().items():
        settings = brokers[0][1]
        replicas = _number(settings, "totalReplicas", 1)
        if (_is_on(settings, "lockInStrictMode") or settings.get("lockMode") == "strict") and replicas < QUORUM_MIN:
            text = f"{name} locks queues by a quorum of {count_text(replicas, 'broker')}"
            advice = (
                f"give it {QUORUM_MIN} replicas, or set lockMode=loose: with two, both must be alive, else ordered"
                " consumers stop"
            )
            yield "warn", text, advice


def mixed_settings(seen: GroupSettings) -> Iterator[Found]:
    for brokers in seen.groups().values():
        for key, harm in AGREED.items():
            values = {name: settings[key] for name, settings in brokers if key in settings}
            if len(set(values.values())) > 1:
                found = ", ".join(f"{value} at {name}" for name, value in values.items())
                yield "warn", f"{key} is {found}", f"set it to the same value at all brokers of the group: {harm}"


def name_servers_without_acting(seen: GroupSettings) -> Iterator[Found]:
    if not any(_is_on(settings, "enableSlaveActingMaster") for settings in seen.brokers.values()):
        return
    for address, settings in seen.nameservers.items():
        if not _is_on(settings, "supportActingMaster"):
            text = f"name server {address} has supportActingMaster=false, but brokers have enableSlaveActingMaster=true"
            yield (
                "warn",
                text,
                "turn it on: without it clients find no acting master; they read from slaves and cannot lock queues",
            )


def pre_online_left_out(seen: GroupSettings) -> Iterator[Found]:
    for brokers in seen.groups().values():
        for name, settings in brokers:
            if not _is_on(settings, "enableSlaveActingMaster"):
                continue
            why = ""
            if _is_on(settings, "skipPreOnline"):
                why = "skipPreOnline=true"
            elif len(brokers) > 1 and _number(settings, "totalReplicas", 1) < 2:
                why = f"totalReplicas=1 in a group of {len(brokers)}"
            if why:
                advice = "correct it: else consumers go back to old offsets when a master returns"
                yield "warn", f"{name} goes online without fetching newer metadata from its group: {why}", advice


def late_heartbeats(seen: GroupSettings) -> Iterator[Found]:
    for brokers in seen.groups().values():
        for name, settings in brokers:
            every_ms = _number(settings, "brokerHeartbeatInterval", 1000)
            silent_ms = _number(settings, "brokerNotActiveTimeoutMillis", 10_000)
            if _is_on(settings, "enableSlaveActingMaster") and 3 * every_ms > silent_ms:
                text = f"{name} is removed after {silent_ms} ms of silence, but sends a heartbeat only every {every_ms} ms"
                yield "warn", text, "set brokerNotActiveTimeoutMillis to at least three times brokerHeartbeatInterval"


def one_id_twice(seen: GroupSettings) -> Iterator[Found]:
    advice = "give one of them another brokerId: each registration removes the other from the routes"
    for key, own in seen.own.items():
        for nameserver, registered in seen.registered.items():
            if key in registered and registered[key] != own:
                text = f"{key[0]}:{key[1]} runs at {own}, but name server {nameserver} has that id at {registered[key]}"
                yield "warn", text, advice
    registrations: dict[tuple[str, int], dict[str, str]] = {}
    for nameserver, registered in seen.registered.items():
        for key, address in registered.items():
            if key not in seen.own:
                registrations.setdefault(key, {}).setdefault(address, nameserver)
    for key, addresses in registrations.items():
        if len(addresses) > 1:
            where = ", ".join(f"{address} (name server {nameserver})" for address, nameserver in addresses.items())
            yield "warn", f"{key[0]}:{key[1]} is registered at {where}", advice


CHECKS: tuple[Callable[[GroupSettings], Iterator[Found]], ...] = (
    strict_locks,
    mixed_settings,
    name_servers_without_acting,
    pre_online_left_out,
    late_heartbeats,
    one_id_twice,
)


# --- queries


def _seen() -> Iterator[GroupSettings]:
    asked: set[str] = set()
    for cluster in clusters():
        try:
            if not cluster.is_running:
                continue
            addresses = cluster.namesrv.split(";")
            own = _own(cluster)
        except ClusterError:
            continue
        asked.update(addresses)
        yield _query_cluster(f"cluster {cluster.name}", addresses, own)
    others = [each for each in os.environ.get("NAMESRV_ADDR", "").split(";") if each.strip() and each not in asked]
    if others:
        yield _query_cluster("NAMESRV_ADDR", others, {})


def _own(cluster: Cluster) -> dict[tuple[str, int], str]:
    running = cluster.running()
    plans = [(target.plan, target.address) for target in cluster.targets() if target.plan.node in running]
    # An elected broker's id on the wire changes, and the controllers see to it that ids differ.
    return {
        (plan.broker_name, plan.broker_id): address for plan, address in plans if plan.is_broker and not plan.is_elected
    }


def _query_cluster(name: str, addresses: Sequence[str], own: Mapping[tuple[str, int], str]) -> GroupSettings:
    registered: dict[str, Mapping[tuple[str, int], str]] = {}
    for text in addresses:
        try:
            registered[text] = _registered(Address.parse(text.strip()))
        except (NoAnswer, RemoteProtocolError, ValueError):
            continue
    targets = [_target(text, "", 0) for text in registered]
    for (broker_name, broker_id), address in {
        key: at for known in registered.values() for key, at in known.items()
    }.items():
        targets.append(_target(address, broker_name, broker_id))
    answers = query_all(targets, ASK_S)
    seen = {target.plan: answers[target.plan.node].settings for target in targets if target.plan.node in answers}
    return GroupSettings(
        name,
        {(plan.broker_name, plan.broker_id): settings for plan, settings in seen.items() if plan.is_broker},
        {plan.node: settings for plan, settings in seen.items() if not plan.is_broker},
        registered,
        own,
    )


def _registered(nameserver: Address) -> dict[tuple[str, int], str]:
    with Caller(nameserver.host, nameserver.port, time.monotonic() + ASK_S) as asked:
        groups = ClusterInfo.decode(asked.ask(RequestCode.GET_BROKER_CLUSTER_INFO).body).broker_addr_table
    return {
        (name, broker_id): address for name, group in groups.items() for broker_id, address in group.broker_addrs.items()
    }


def _target(text: str, broker_name: str, broker_id: int) -> Target:
    address = Address.parse(text.strip())
    return Target(NodePlan(node=text, port=address.port, broker_name=broker_name, broker_id=broker_id), *address)


def _is_on(settings: Mapping[str, str], key: str) -> bool:
    return settings.get(key, "").lower() == "true"


def _number(settings: Mapping[str, str], key: str, default: int) -> int:
    text = settings.get(key, "")
    return int(text) if text.isdigit() else default
