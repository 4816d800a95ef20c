"""Applies a broker's registration (103) to the route table.

`check` validates the registration before anything changes. `enter` then applies Apache's rules in
Apache's order:

1. A broker that does not mention acting masters is an old one. Its group has no acting master, and
   the broker is never a prime slave.
2. If the address is registered under another id of the group, that entry is removed first: the
   broker has changed its role.
3. If another address holds the id, the newcomer takes it over, unless the holder's DataVersion has
   a greater state version. Then the newcomer is ignored, and its answer has no addresses. The
   remark of the answer reports both cases (Apache reports neither), because two live brokers with
   one id keep taking it from each other.
4. A registration with an id that is new to the group must not have exactly one topic: that is a
   change notice to a name server that does not know the remaining topics. The broker must send its
   whole table first.
5. Topics come from id 0. If the group has no id 0, they come from the smallest id (the prime
   slave), and lose the write bit if the group may have an acting master. A topic is entered if the
   id is new, if the DataVersion differs from the last one, or if the topic lacks this broker name.
   Topics that the registration does not contain stay, unless `deleteTopicWithBrokerRegistration`
   is true.
6. The answer to an id other than 0 contains the master's address and HA address.

Differences from Apache:

- A refused registration changes nothing. (Apache has created an empty group by then.)
- A broker name belongs to one cluster. (Apache mixes brokers of two clusters in one group, and can
  unregister only some of them.)
- An address that lost its id does not stay in the live table.
- Tables have limits.
- A topic that cannot be entered (invalid name, full table) is left out alone, and named in the
  remark of the answer. Refusing the whole registration would make the broker unreachable for all
  its other topics.

Source: `namesrv/.../routeinfo/RouteInfoManager.registerBroker`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from rmqkit.nameserver.route_table import MASTER_ID, BrokerEntry, BrokerGroup, RouteTable
from rmqkit.runtime.calls import Refused
from rmqkit.runtime.names import BROKER_ID_MAX, NAME_SIZE_MAX, check_address, check_name, name_fault, shown
from rmqkit.wire.bodies import DataVersion, QueueData, TopicConfig
from rmqkit.wire.codes import PermName, ResponseCode

#: timeout of a broker whose registration has none
BROKER_TIMEOUT_MS = 120_000
_NAMED_IN_REMARK_MAX = 3
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRegistration:
    """A broker's registration as received.

    None means that the broker did not send the field. With `filter_servers` None the known ones
    stay.
    """

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str
    conn_id: int
    data_version: DataVersion
    topics: Mapping[str, TopicConfig]
    mappings: Mapping[str, Any]
    filter_servers: Sequence[str] | None = None
    zone_name: str | None = None
    timeout_ms: int | None = None
    enable_acting_master: bool | None = None


class RegistrationResult(NamedTuple):
    """The result of a registration.

    `master` is the master of a slave's group, if it is alive. `ignored`: another broker holds the
    id, with a greater state version. `left_out` lists the topics that were not entered, with
    reasons. `conflict` describes another broker that was registered with the same id, "" if there
    is none.
    """

    master: BrokerEntry | None = None
    ignored: bool = False
    left_out: tuple[str, ...] = ()
    conflict: str = ""

    @property
    def remark(self) -> str | None:
        return "; ".join(filter(None, (self.conflict, self.topics_left_out))) or None

    @property
    def topics_left_out(self) -> str:
        if not self.left_out:
            return ""
        more = ", ..." if len(self.left_out) > _NAMED_IN_REMARK_MAX else ""
        return f"{len(self.left_out)} topics left out: {', '.join(self.left_out[:_NAMED_IN_REMARK_MAX])}{more}"


def check(table: RouteTable, newcomer: BrokerRegistration) -> None:
    """Validate a registration; change nothing. Raises Refused if it cannot be entered."""
    check_name("cluster name", newcomer.cluster)
    check_name("broker name", newcomer.broker_name)
    check_address("broker address", newcomer.address)
    if newcomer.ha_address and len(newcomer.ha_address) > NAME_SIZE_MAX:
        raise _refused(f"HA address {shown(newcomer.ha_address)} is longer than {NAME_SIZE_MAX} characters")
    if newcomer.zone_name:
        check_name("zone name", newcomer.zone_name)
    if not 0 <= newcomer.broker_id <= BROKER_ID_MAX:
        raise _refused(f"broker id {newcomer.broker_id} is negative")
    if newcomer.filter_servers is not None:
        if len(newcomer.filter_servers) > table.limits.filter_servers_max:
            raise _refused(f"more than {table.limits.filter_servers_max} filter servers")
        for each in newcomer.filter_servers:
            check_address("filter server", each)
    for topic, mapping in newcomer.mappings.items():
        if not isinstance(mapping, dict) or not isinstance(mapping.get("bname"), str) or name_fault(mapping["bname"]):
            raise _refused(f"the mapping of topic {shown(topic)} names no valid broker")
    group = table.groups.get(newcomer.broker_name)
    if group is not None and group.cluster != newcomer.cluster and not _is_alone(group, newcomer.address):
        raise _refused(f"broker name {shown(newcomer.broker_name)} belongs to cluster {shown(group.cluster)} here")
    if group is None or newcomer.broker_id not in group.members:
        if len(newcomer.topics) == 1:
            raise _refused("register broker failed")
        _check_room(table, group, newcomer)


def enter(
    table: RouteTable, newcomer: BrokerRegistration, now_ms: int, *, delete_missing_topics: bool = False
) -> RegistrationResult:
    """Apply a registration that passed `check`, and return the result.

    `delete_missing_topics`: remove the broker's topics that the registration does not contain.
    """
    group = table.groups.get(newcomer.broker_name) or BrokerGroup(newcomer.cluster, newcomer.broker_name)
    if group.cluster != newcomer.cluster:
        table.move_group(group, newcomer.cluster)
    before = group.at(newcomer.address)
    if before is not None and before.broker_id != newcomer.broker_id:
        table.drop_member(group, before.broker_id)
    holder = group.members.get(newcomer.broker_id)
    if holder is not None and _holds_against(holder, newcomer):
        conflict = f"broker id {newcomer.broker_id} stays with {holder.address}, which has the newer state version"
        return RegistrationResult(ignored=True, conflict=conflict)
    conflict = ""
    if holder is not None and holder.address != newcomer.address:
        conflict = f"broker id {newcomer.broker_id} was taken over from {holder.address}, which is no longer in the routes"

    group.enable_acting_master = bool(newcomer.enable_acting_master)
    group.zone_name = newcomer.zone_name
    table.put_member(group, _member(newcomer, before, now_ms))
    changed = holder is None or before is None or before.data_version != newcomer.data_version
    is_master = newcomer.broker_id == MASTER_ID
    is_prime_slave = (
        not is_master and newcomer.enable_acting_master is not None and newcomer.broker_id == group.broker_id_min
    )
    left_out: tuple[str, ...] = ()
    if is_master or is_prime_slave:
        if delete_missing_topics and not newcomer.mappings:
            _delete_missing(table, newcomer)
        read_only = is_prime_slave and group.enable_acting_master
        left_out = tuple(_enter_topics(table, newcomer, changed=changed, read_only=read_only))
        if changed:
            for topic, mapping in newcomer.mappings.items():
                table.put_mapping(topic, mapping["bname"], mapping)
    return RegistrationResult(None if is_master else group.master, False, left_out, conflict)


def _member(newcomer: BrokerRegistration, before: BrokerEntry | None, now_ms: int) -> BrokerEntry:
    filter_servers = newcomer.filter_servers
    if filter_servers is None:
        filter_servers = before.filter_servers if before is not None else ()
    return BrokerEntry(
        broker_id=newcomer.broker_id,
        address=newcomer.address,
        ha_address=newcomer.ha_address,
        data_version=newcomer.data_version,
        conn_id=newcomer.conn_id,
        heard_ms=now_ms,
        timeout_ms=BROKER_TIMEOUT_MS if newcomer.timeout_ms is None else newcomer.timeout_ms,
        filter_servers=tuple(filter_servers),
    )


def _enter_topics(table: RouteTable, newcomer: BrokerRegistration, *, changed: bool, read_only: bool) -> list[str]:
    """Enter new and changed topics; return those that were left out, with reasons.

    Source: `RouteInfoManager.isTopicConfigChanged`, `RouteInfoManager.createAndUpdateQueueData`.
    """
    broker_name = newcomer.broker_name
    left_out = []
    for key, config in newcomer.topics.items():
        topic = config.topic_name or key
        if not changed and broker_name in table.topics.get(topic, ()):
            continue
        fault = name_fault(topic) or _numbers_fault(config)
        if fault is None:
            queues = QueueData(
                broker_name=broker_name,
                read_queue_nums=config.read_queue_nums,
                write_queue_nums=config.write_queue_nums,
                perm=config.perm & ~PermName.PERM_WRITE if read_only else config.perm,
                topic_sys_flag=config.topic_sys_flag,
            )
            fault = None if table.put_queues(topic, queues) else "does not fit into the table of topics"
        if fault is not None:
            left_out.append(f"{shown(topic)} {fault}")
    return left_out


def _numbers_fault(config: TopicConfig) -> str | None:
    """Return what is wrong with the numbers of a topic, or None.

    The deflated form of a registration carries numbers of any size, but clients read them as Java's
    int.
    """
    if not 0 <= config.read_queue_nums <= _INT32_MAX or not 0 <= config.write_queue_nums <= _INT32_MAX:
        return "has an invalid number of queues"
    if not 0 <= config.perm <= _INT32_MAX:
        return "has an invalid permission"
    return None


def _delete_missing(table: RouteTable, newcomer: BrokerRegistration) -> None:
    named = {config.topic_name or key for key, config in newcomer.topics.items()}
    for topic in table.topics_of(newcomer.broker_name):
        if topic not in named:
            table.delete_queues(topic, newcomer.broker_name)


def _holds_against(holder: BrokerEntry, newcomer: BrokerRegistration) -> bool:
    is_older = holder.data_version.state_version > newcomer.data_version.state_version
    return holder.address != newcomer.address and is_older


def _is_alone(group: BrokerGroup, address: str) -> bool:
    return all(member.address == address for member in group.members.values())


def _check_room(table: RouteTable, group: BrokerGroup | None, newcomer: BrokerRegistration) -> None:
    if group is not None and group.at(newcomer.address) is not None:
        return
    if table.member_count >= table.limits.brokers_max:
        raise _refused(f"this name server knows {table.limits.brokers_max} brokers and takes no more")
    if group is not None and len(group.members) >= table.limits.group_members_max:
        raise _refused(f"a broker name has at most {table.limits.group_members_max} brokers")


def _refused(remark: str) -> Refused:
    return Refused(ResponseCode.SYSTEM_ERROR, remark)
