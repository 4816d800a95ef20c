"""RouteTable: which brokers are alive, and which topic is on which broker.

It is pure state: it does no I/O, and time is an argument.

    groups    broker name -> BrokerGroup: cluster, zone, and its members by broker id
    clusters  cluster -> broker names
    topics    topic -> broker name -> QueueData
    mappings  topic -> broker name -> mapping info of a static topic

A `BrokerEntry` is both the address entry and the live entry of a broker. Apache has two tables
(`brokerAddrTable` and `brokerLiveTable`), which can disagree and leak: an address that another one
replaces stays in the live table for ever. Here a broker is live exactly while its group lists it.
`validate()` checks the other invariants. Two groups may contain the same address; they do not
affect each other.

`registration.py` adds brokers. This module removes them: a broker that unregisters, whose
connection closes, or that was silent for too long. If a broker name loses its last member, its
topics are removed too. If it keeps members, the topics stay; they lose their write bit if the
group may have an acting master and has no id 0 any more.

`take_changes` returns the groups whose smallest broker id, or its address, differs from the
previous call; `notices.py` sends them to the members. Several changes of a group count as one, and
a change that was reverted does not count.

Source: `namesrv/.../routeinfo/RouteInfoManager.java`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, NamedTuple

from rmqkit.nameserver.names import TableLimits
from rmqkit.wire.bodies import DataVersion, QueueData
from rmqkit.wire.codes import PermName

MASTER_ID = 0


@dataclass(slots=True, eq=False, kw_only=True)
class BrokerEntry:
    """One live broker.

    `conn_id` is the connection of its last registration; when that closes, the broker is
    unregistered. `heard_ms` is the monotonic time of its last registration, version query or
    heartbeat (103, 322 or 904).
    """

    broker_id: int
    address: str
    ha_address: str
    data_version: DataVersion
    conn_id: int
    heard_ms: int
    timeout_ms: int
    filter_servers: tuple[str, ...]


@dataclass(slots=True, eq=False)
class BrokerGroup:
    """The live brokers of one broker name, by id. Never empty while it is in the table."""

    cluster: str
    broker_name: str
    zone_name: str | None = None
    enable_acting_master: bool = False
    members: dict[int, BrokerEntry] = field(default_factory=dict)

    @property
    def broker_id_min(self) -> int:
        return min(self.members)

    @property
    def master(self) -> BrokerEntry | None:
        return self.members.get(MASTER_ID)

    @property
    def needs_acting_master(self) -> bool:
        return self.enable_acting_master and MASTER_ID not in self.members

    def addresses(self) -> dict[int, str]:
        """Return addresses by broker id, in the order of the ids."""
        return {broker_id: self.members[broker_id].address for broker_id in sorted(self.members)}

    def at(self, address: str) -> BrokerEntry | None:
        for member in self.members.values():
            if member.address == address:
                return member
        return None


class MinIdChange(NamedTuple):
    """A group whose smallest broker id, or the address of that id, has changed.

    `newcomer` is the new smallest member; None if a departure made an existing member the smallest.
    `offline` is the address of the previous smallest member if it left the group.
    """

    group: BrokerGroup
    newcomer: BrokerEntry | None
    offline: str | None


class RouteTable:
    """The tables of brokers and topics. `validate` checks their invariants."""

    def __init__(self, limits: TableLimits | None = None) -> None:
        self.limits = limits or TableLimits()
        self.groups: dict[str, BrokerGroup] = {}
        self.clusters: dict[str, dict[str, None]] = {}
        self.topics: dict[str, dict[str, QueueData]] = {}
        self.mappings: dict[str, dict[str, Mapping[str, Any]]] = {}
        self.member_count = 0
        self.queue_count = 0
        #: by connection id: (broker name, broker id) of each broker whose last registration came
        #: over it
        self.by_connection: dict[int, dict[tuple[str, int], None]] = {}
        #: groups that changed since `take_changes`, with their smallest member before; None: a new
        #: group
        self._touched: dict[str, BrokerEntry | None] = {}

    # --- queries

    def member(self, cluster: str, broker_name: str, address: str) -> BrokerEntry | None:
        group = self.groups.get(broker_name)
        return group.at(address) if group is not None and group.cluster == cluster else None

    def record_heartbeat(self, cluster: str, broker_name: str, address: str, now_ms: int) -> BrokerEntry | None:
        """Record that a broker is alive; return its entry, or None if it is not registered."""
        member = self.member(cluster, broker_name, address)
        if member is not None:
            member.heard_ms = now_ms
        return member

    def topics_of(self, broker_name: str) -> list[str]:
        return [topic for topic, queues in self.topics.items() if broker_name in queues]

    def expired(self, now_ms: int) -> list[tuple[str, BrokerEntry]]:
        """Return (broker name, member) of each broker silent for longer than its timeout."""
        return [
            (group.broker_name, member)
            for group in self.groups.values()
            for member in group.members.values()
            if member.heard_ms + member.timeout_ms < now_ms
        ]

    def expiry_ms(self) -> int | None:
        """Return when the first member expires if all stay silent; None if there are no members."""
        heard = (member.heard_ms + member.timeout_ms for group in self.groups.values() for member in group.members.values())
        first_ms = min(heard, default=None)
        return None if first_ms is None else first_ms + 1

    def take_changes(self) -> list[MinIdChange]:
        """Return the groups whose smallest member changed since the last call.

        Groups that are new, or were removed, are not included.
        """
        if not self._touched:
            return []
        touched, self._touched = self._touched, {}
        found = ((self.groups.get(name), before) for name, before in touched.items())
        changes = (_min_id_change(group, before) for group, before in found if group is not None and before is not None)
        return [change for change in changes if change is not None]

    # --- members

    def put_member(self, group: BrokerGroup, member: BrokerEntry) -> None:
        """Enter a member; it replaces the previous holder of its id."""
        if group.broker_name not in self.groups:
            self.groups[group.broker_name] = group
            self.clusters.setdefault(group.cluster, {})[group.broker_name] = None
        self._touch(group)
        self.drop_member(group, member.broker_id)
        group.members[member.broker_id] = member
        self.member_count += 1
        self.by_connection.setdefault(member.conn_id, {})[group.broker_name, member.broker_id] = None

    def drop_member(self, group: BrokerGroup, broker_id: int) -> None:
        """Remove a member, if it is there, without changing topics.

        The group must have further members, or get one before the turn ends.
        """
        if broker_id not in group.members:
            return
        self._touch(group)
        member = group.members.pop(broker_id)
        self.member_count -= 1
        registered = self.by_connection[member.conn_id]
        del registered[group.broker_name, broker_id]
        if not registered:
            del self.by_connection[member.conn_id]

    def move_group(self, group: BrokerGroup, cluster: str) -> None:
        """Move a group to the cluster that its only broker has registered with."""
        self._leave_cluster(group)
        group.cluster = cluster
        self.clusters.setdefault(cluster, {})[group.broker_name] = None

    def unregister(self, leaving: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
        """Remove brokers and the topics that depend on them; return those that were registered.

        Brokers are given as (broker name, broker id).
        """
        gone = [key for key in leaving if key[0] in self.groups and key[1] in self.groups[key[0]].members]
        for name, broker_id in gone:
            self.drop_member(self.groups[name], broker_id)
        names = dict.fromkeys(name for name, _ in gone)
        removed = {name: None for name in names if not self.groups[name].members}
        read_only = {name: None for name in names if name not in removed and self.groups[name].needs_acting_master}
        for name in removed:
            self._leave_cluster(self.groups.pop(name))
        if removed or read_only:
            self._clean_topics(removed, read_only)
        return gone

    def unregister_address(self, cluster: str, broker_name: str, address: str) -> bool:
        """Remove a broker that unregisters; return whether it was registered.

        It is found by its address, because its request may contain an id from before a role change.
        """
        member = self.member(cluster, broker_name, address)
        return member is not None and bool(self.unregister([(broker_name, member.broker_id)]))

    def unregister_connection(self, conn_id: int) -> list[tuple[str, int]]:
        """Remove each broker whose last registration came over this connection, and return them."""
        return self.unregister(list(self.by_connection.get(conn_id, ())))

    # --- topics

    def put_queues(self, topic: str, queues: QueueData) -> bool:
        """Enter or replace a broker name's queues of a topic. Return False if the table is full."""
        by_broker = self.topics.get(topic)
        is_new = by_broker is None or queues.broker_name not in by_broker
        if is_new and self.queue_count >= self.limits.topic_queues_max:
            return False
        if by_broker is None:
            if len(self.topics) >= self.limits.topics_max:
                return False
            by_broker = self.topics[topic] = {}
        by_broker[queues.broker_name] = queues
        self.queue_count += is_new
        return True

    def register_topic(self, topic: str, queues: list[QueueData]) -> bool:
        """Enter a topic's queues as given by an administrator. Return False if the table is full.

        The first queue with an unknown broker name, and all after it, are skipped. If any is
        skipped, a new topic is not created at all.

        Source: `RouteInfoManager.registerTopic`.
        """
        known = list(takewhile(lambda each: each.broker_name in self.groups, queues))
        if len(known) < len(queues) and topic not in self.topics:
            return True
        taken = [self.put_queues(topic, each) for each in known]
        return all(taken)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Delete a topic, or only its queues on the brokers of one cluster."""
        by_broker = self.topics.get(topic)
        if by_broker is None:
            return
        names = (
            list(by_broker) if cluster is None else [name for name in self.clusters.get(cluster, ()) if name in by_broker]
        )
        for name in names:
            self.delete_queues(topic, name)

    def delete_queues(self, topic: str, broker_name: str) -> None:
        by_broker = self.topics[topic]
        del by_broker[broker_name]
        self.queue_count -= 1
        if not by_broker:
            del self.topics[topic]
            self.mappings.pop(topic, None)

    def put_mapping(self, topic: str, broker_name: str, mapping: Mapping[str, Any]) -> None:
        """Enter the mapping info of a static topic unchanged; ignore it if the topic is unknown."""
        if topic in self.topics:
            self.mappings.setdefault(topic, {})[broker_name] = mapping

    def change_perm(self, broker_name: str, *, writable: bool) -> int:
        """Remove or add the write permission of all queues of a broker name.

        Returns the number of its topics.

        Source: `RouteInfoManager.operateWritePermOfBroker`.
        """
        count = 0
        for by_broker in self.topics.values():
            queues = by_broker.get(broker_name)
            if queues is not None:
                queues.perm = PermName.PERM_READ | PermName.PERM_WRITE if writable else queues.perm & ~PermName.PERM_WRITE
                count += 1
        return count

    # --- internal

    def _touch(self, group: BrokerGroup) -> None:
        if group.broker_name not in self._touched:
            self._touched[group.broker_name] = group.members[group.broker_id_min] if group.members else None

    def _leave_cluster(self, group: BrokerGroup) -> None:
        names = self.clusters[group.cluster]
        del names[group.broker_name]
        if not names:
            del self.clusters[group.cluster]

    def _clean_topics(self, removed: dict[str, None], read_only: dict[str, None]) -> None:
        """Delete the queues of removed names; make those of read-only names unwritable.

        Source: `RouteInfoManager.cleanTopicByUnRegisterRequests`.
        """
        for topic, by_broker in list(self.topics.items()):
            for name in [name for name in by_broker if name in removed]:
                self.delete_queues(topic, name)
            for name, queues in by_broker.items():
                if name in read_only:
                    queues.perm &= ~PermName.PERM_WRITE

    def validate(self) -> None:
        """Check the invariants, for tests and the simulator.

        Raises AssertionError if one is violated.
        """
        by_connection: dict[int, set[tuple[str, int]]] = {}
        for name, group in self.groups.items():
            assert name == group.broker_name, f"group {group.broker_name} is filed as {name}"
            assert group.members, f"group {name} has no members"
            assert name in self.clusters.get(group.cluster, ()), f"group {name} is not in its cluster {group.cluster}"
            addresses = [member.address for member in group.members.values()]
            assert len(set(addresses)) == len(addresses), f"an address of group {name} has two ids"
            for broker_id, member in group.members.items():
                assert member.broker_id == broker_id, f"{name}:{member.broker_id} is filed as {broker_id}"
                by_connection.setdefault(member.conn_id, set()).add((name, broker_id))
        assert {conn_id: set(keys) for conn_id, keys in self.by_connection.items()} == by_connection
        assert self.member_count == sum(len(group.members) for group in self.groups.values())
        assert sorted(_all_names(self.clusters)) == sorted(self.groups), "a cluster lists an unknown broker name"
        assert all(self.clusters.values()), "a cluster without brokers"
        for topic, by_broker in self.topics.items():
            assert by_broker, f"topic {topic} has no queues"
            for name, queues in by_broker.items():
                assert name == queues.broker_name, f"queues of {queues.broker_name} are filed as {name}"
                assert name in self.groups, f"topic {topic} is on {name}, which is not registered"
        assert self.queue_count == sum(len(by_broker) for by_broker in self.topics.values())
        assert all(topic in self.topics for topic in self.mappings), "mapping info of an unknown topic"
        assert len(self.topics) <= self.limits.topics_max
        assert self.member_count <= self.limits.brokers_max


def _min_id_change(group: BrokerGroup, before: BrokerEntry) -> MinIdChange | None:
    now = group.members[group.broker_id_min]
    if (now.broker_id, now.address) == (before.broker_id, before.address):
        return None
    is_newcomer = now.broker_id <= before.broker_id
    return MinIdChange(group, now if is_newcomer else None, None if group.at(before.address) else before.address)


def _all_names(clusters: dict[str, dict[str, None]]) -> Iterator[str]:
    for names in clusters.values():
        yield from names
