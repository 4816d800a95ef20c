"""Builds the name server's answers: routes, cluster info, member groups, topic lists.

A topic has a route only if it has queues on a broker name with a live broker.

A group without id 0 is shown unchanged, unless it may have an acting master and
`supportActingMaster` is true. Then its smallest live id is shown as id 0, and its queues have no
write bit, even if the table has one. Clients of any version then read from the group, and do not
send to it. (If an administrator restored the write bit, Apache shows such a group unchanged. But
no broker of the group accepts writes.)

Member topics (`MEMBER_TOPIC_PREFIX`) always show real ids, because brokers use them to find the
members of their group.

Source: `namesrv/.../routeinfo/RouteInfoManager.java` (`pickupTopicRouteData`, `getAllClusterInfo`,
the topic lists), `namesrv/.../route/ZoneRouteRPCHook.java`.
"""

from collections.abc import Callable

from msgspec.structs import replace

from rmqkit.nameserver.route_table import MASTER_ID, BrokerGroup, RouteTable
from rmqkit.wire.bodies import BrokerData, ClusterInfo, MemberGroup, QueueData, TopicList, TopicRoute
from rmqkit.wire.codes import PermName, TopicSysFlag

#: prefix of member topics; the broker name follows. Brokers read their group from the topic's route
#: (`TopicValidator`)
MEMBER_TOPIC_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"


def route(
    table: RouteTable, topic: str, zone_name: str | None = None, *, support_acting: bool = False
) -> TopicRoute | None:
    """Return the route of a topic, or None if it has none.

    With a zone, only groups of that zone and groups without id 0 are shown.
    """
    by_broker = table.topics.get(topic)
    if by_broker is None:
        return None
    groups = [table.groups[name] for name in by_broker]
    queues = list(by_broker.values())
    if zone_name is not None:
        groups = [group for group in groups if group.master is None or _in_zone(group, zone_name)]
        shown = {group.broker_name for group in groups}
        queues = [each for each in queues if each.broker_name in shown]
    broker_datas = [_broker_data(group) for group in groups]
    if support_acting and not topic.startswith(MEMBER_TOPIC_PREFIX):
        acting = {group.broker_name for group in groups if group.needs_acting_master}
        if acting:
            broker_datas = [_with_acting_master(each) if each.broker_name in acting else each for each in broker_datas]
            queues = [_read_only(each) if each.broker_name in acting else each for each in queues]
    return TopicRoute(
        broker_datas=broker_datas,
        queue_datas=queues,
        filter_server_table={
            member.address: list(member.filter_servers)
            for group in groups
            for member in group.members.values()
            if member.filter_servers
        },
        topic_queue_mapping_by_broker=table.mappings.get(topic),
    )


def cluster_info(table: RouteTable) -> ClusterInfo:
    return ClusterInfo(
        broker_addr_table={name: _broker_data(group) for name, group in table.groups.items()},
        cluster_addr_table={cluster: list(names) for cluster, names in table.clusters.items()},
    )


def member_group(table: RouteTable, cluster: str, broker_name: str) -> MemberGroup:
    """Return the live brokers of a broker name; empty if the name is unknown.

    As in Apache, the answer repeats the cluster name of the request without a check.
    """
    group = table.groups.get(broker_name)
    return MemberGroup(cluster=cluster, broker_name=broker_name, broker_addrs=group.addresses() if group else {})


def all_topics(table: RouteTable) -> TopicList:
    return TopicList(topic_list=list(table.topics))


def topics_of_cluster(table: RouteTable, cluster: str) -> TopicList:
    names = table.clusters.get(cluster, {}).keys()
    return TopicList(topic_list=[topic for topic, queues in table.topics.items() if not names.isdisjoint(queues)])


def system_topics(table: RouteTable) -> TopicList:
    """Return the system topics that the name server knows: the names of all clusters and brokers.

    The address in the answer is a broker that knows the remaining system topics.
    """
    names: dict[str, None] = {}
    for cluster, broker_names in table.clusters.items():
        names[cluster] = None
        names.update(broker_names)
    first = next(iter(table.groups.values()), None)
    return TopicList(
        topic_list=list(names), broker_addr=first.members[first.broker_id_min].address if first is not None else None
    )


def unit_topics(table: RouteTable) -> TopicList:
    return _topics_by_flag(table, lambda flag: bool(flag & TopicSysFlag.UNIT))


def unit_sub_topics(table: RouteTable) -> TopicList:
    return _topics_by_flag(table, lambda flag: bool(flag & TopicSysFlag.UNIT_SUB))


def unit_sub_ununit_topics(table: RouteTable) -> TopicList:
    return _topics_by_flag(table, lambda flag: bool(flag & TopicSysFlag.UNIT_SUB) and not flag & TopicSysFlag.UNIT)


def _topics_by_flag(table: RouteTable, wanted: Callable[[int], bool]) -> TopicList:
    """Return the topics whose flags satisfy `wanted`.

    As in Apache, only the flags of a topic's first broker count.
    """
    return TopicList(topic_list=[topic for topic, queues in table.topics.items() if wanted(_first(queues).topic_sys_flag)])


def _first(by_broker: dict[str, QueueData]) -> QueueData:
    return next(iter(by_broker.values()))


def _in_zone(group: BrokerGroup, zone_name: str) -> bool:
    return (group.zone_name or "").lower() == zone_name.lower()


def _with_acting_master(data: BrokerData) -> BrokerData:
    """Return the group with its smallest id shown as id 0.

    Source: the end of `RouteInfoManager.pickupTopicRouteData`.
    """
    (_, acting), *others = data.broker_addrs.items()
    return replace(data, broker_addrs={MASTER_ID: acting, **dict(others)})


def _read_only(queues: QueueData) -> QueueData:
    return replace(queues, perm=queues.perm & ~PermName.PERM_WRITE)


def _broker_data(group: BrokerGroup) -> BrokerData:
    return BrokerData(
        cluster=group.cluster,
        broker_name=group.broker_name,
        broker_addrs=group.addresses(),
        zone_name=group.zone_name,
        enable_acting_master=group.enable_acting_master,
    )
