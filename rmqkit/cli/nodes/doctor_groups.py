"""What `rmqkit doctor` finds in the broker groups of clusters that run: settings that do not go together.

Looked at are this user's clusters and the one that NAMESRV_ADDR names: each name server and each broker that it knows is
asked for its configuration, all at once, and one that does not answer is left out. The checks (`CHECKS`) are functions of
what was seen, so that a test can give them any cluster.
"""

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from rmqkit.cli.output import count_text
from rmqkit.cluster import Cluster, ClusterError, clusters
from rmqkit.cluster.health.caller import Caller, NoAnswer
from rmqkit.cluster.health.readiness import Target, look
from rmqkit.cluster.layout.description import NodePlan
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.connection import Address
from rmqkit.wire.bodies import ClusterInfo
from rmqkit.wire.codes import RequestCode

ASK_S = 1.0
QUORUM_MIN = 3
#: what all brokers of a group have to agree on, and what happens when they do not
AGREED: Mapping[str, str] = {
    "enableSlaveActingMaster": "a slave may act for a master that does not isolate itself when it was away",
    "totalReplicas": "quorums are counted from it",
    "lockMode": "a queue may be locked by two consumers",
    "lockInStrictMode": "a queue may be locked by two consumers",
    "brokerNotActiveTimeoutMillis": "a master may still trust itself while its slave acts",
    "messageDelayLevel": "delayed messages are delivered at another time by an acting master",
    "mappedFileSizeCommitLog": "a slave cannot copy its master's files",
}

#: state, text, advice
Found = tuple[str, str, str]


class GroupSettings(NamedTuple):
    """One cluster: settings by broker (name and id) and by name server; `registered` what each name server tells of ids.

    `own` are the addresses of brokers that this machine's cluster has started, by name and id.
    """

    name: str
    brokers: Mapping[tuple[str, int], Mapping[str, str]]
    nameservers: Mapping[str, Mapping[str, str]]
    registered: Mapping[str, Mapping[tuple[str, int], str]]
    own: Mapping[tuple[str, int], str] = {}

    def groups(self) -> dict[str, list[tuple[str, Mapping[str, str]]]]:
        """Broker name -> (name:id, settings) in the order of the ids."""
        found: dict[str, list[tuple[str, Mapping[str, str]]]] = {}
        for (name, broker_id), settings in sorted(self.brokers.items()):
            found.setdefault(name, []).append((f"{name}:{broker_id}", settings))
        return found


def findings() -> Iterator[Found]:
    """Of all clusters that can be asked; one that is well has one line."""
    for seen in _seen():
        found = [each for check in CHECKS for each in check(seen)]
        yield from found or [("ok", f"{seen.name}: settings of {count_text(len(seen.groups()), 'group')} go together", "")]


# --- checks


def strict_locks(seen: GroupSettings) -> Iterator[Found]:
    for name, brokers in seen.groups().items():
        settings = brokers[0][1]
        replicas = _number(settings, "totalReplicas", 1)
        if (_is_on(settings, "lockInStrictMode") or settings.get("lockMode") == "strict") and replicas < QUORUM_MIN:
            text = f"{name} locks queues by a quorum of {count_text(replicas, 'broker')}"
            advice = (
                f"give it {QUORUM_MIN} replicas: of two, both have to live, and consumers in order stop when one is away; "
                "or lockMode=loose"
            )
            yield "warn", text, advice


def mixed_settings(seen: GroupSettings) -> Iterator[Found]:
    for brokers in seen.groups().values():
        for key, harm in AGREED.items():
            values = {name: settings[key] for name, settings in brokers if key in settings}
            if len(set(values.values())) > 1:
                told = ", ".join(f"{value} at {name}" for name, value in values.items())
                yield "warn", f"{key} is {told}", f"give all brokers of a group the same: {harm}"


def name_servers_without_acting(seen: GroupSettings) -> Iterator[Found]:
    if not any(_is_on(settings, "enableSlaveActingMaster") for settings in seen.brokers.values()):
        return
    for address, settings in seen.nameservers.items():
        if not _is_on(settings, "supportActingMaster"):
            text = f"name server {address} has supportActingMaster=false, and brokers have enableSlaveActingMaster=true"
            yield "warn", text, "turn it on: its clients find no acting master, they read from slaves and lock no queue"


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
                advice = "consumers go back to old offsets when a master returns: let it take the newer ones over first"
                yield "warn", f"{name} goes online without asking its group: {why}", advice


def late_heartbeats(seen: GroupSettings) -> Iterator[Found]:
    for brokers in seen.groups().values():
        for name, settings in brokers:
            every_ms = _number(settings, "brokerHeartbeatInterval", 1000)
            silent_ms = _number(settings, "brokerNotActiveTimeoutMillis", 10_000)
            if _is_on(settings, "enableSlaveActingMaster") and 3 * every_ms > silent_ms:
                text = f"{name} is taken out after {silent_ms} ms of silence, and gives a sign of life every {every_ms} ms"
                yield "warn", text, "brokerNotActiveTimeoutMillis should be three times brokerHeartbeatInterval at least"


def one_id_twice(seen: GroupSettings) -> Iterator[Found]:
    advice = "give one of them another brokerId: each registration puts the other out of the routes"
    for key, own in seen.own.items():
        for nameserver, registered in seen.registered.items():
            if key in registered and registered[key] != own:
                text = f"{key[0]}:{key[1]} at {own} runs, and name server {nameserver} knows that id at {registered[key]}"
                yield "warn", text, advice
    told: dict[tuple[str, int], dict[str, str]] = {}
    for nameserver, registered in seen.registered.items():
        for key, address in registered.items():
            if key not in seen.own:
                told.setdefault(key, {}).setdefault(address, nameserver)
    for key, addresses in told.items():
        if len(addresses) > 1:
            where = ", ".join(f"{address} (name server {nameserver})" for address, nameserver in addresses.items())
            yield "warn", f"{key[0]}:{key[1]} is known at {where}", advice


CHECKS: tuple[Callable[[GroupSettings], Iterator[Found]], ...] = (
    strict_locks,
    mixed_settings,
    name_servers_without_acting,
    pre_online_left_out,
    late_heartbeats,
    one_id_twice,
)


# --- looking


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
        yield _look_at(f"cluster {cluster.name}", addresses, own)
    others = [each for each in os.environ.get("NAMESRV_ADDR", "").split(";") if each.strip() and each not in asked]
    if others:
        yield _look_at("NAMESRV_ADDR", others, {})


def _own(cluster: Cluster) -> dict[tuple[str, int], str]:
    running = cluster.running()
    plans = [(target.plan, target.address) for target in cluster.targets() if target.plan.node in running]
    return {(plan.broker_name, plan.broker_id): address for plan, address in plans if plan.is_broker}


def _look_at(name: str, addresses: Sequence[str], own: Mapping[tuple[str, int], str]) -> GroupSettings:
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
    answers = look(targets, ASK_S)
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
