"""Routes and broker groups: the responses of a name server to 105, 106 and 901.

`encode` writes the standard form (quoted broker ids, no whitespace), which all versions of Java,
C++, Node and Go read.

Source: `remoting/.../protocol/route/{TopicRouteData,BrokerData,QueueData}.java`,
`remoting/.../protocol/body/{ClusterInfo,BrokerMemberGroup,GetBrokerMemberGroupResponseBody}.java`.
"""

from typing import Any

from msgspec import field

from rmqkit.wire.bodies.base import Body
from rmqkit.wire.schema import Int32, Int64


class QueueData(Body, kw_only=True):
    broker_name: str
    perm: Int32 = 0
    read_queue_nums: Int32 = 0
    topic_sys_flag: Int32 = 0
    write_queue_nums: Int32 = 0


class BrokerData(Body, kw_only=True):
    """A broker group: the addresses of its members by broker id."""

    broker_addrs: dict[Int64, str] = field(default_factory=dict)
    broker_name: str
    cluster: str = ""
    enable_acting_master: bool = False
    zone_name: str | None = None


class TopicRoute(Body, kw_only=True):
    """`order_topic_conf` has the form `broker-a:4;broker-b:4`."""

    broker_datas: list[BrokerData] = field(default_factory=list)
    filter_server_table: dict[str, list[str]] = field(default_factory=dict)
    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = field(default_factory=list)
    topic_queue_mapping_by_broker: dict[str, Any] | None = None


class ClusterInfo(Body, kw_only=True):
    broker_addr_table: dict[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = field(default_factory=dict)


class MemberGroup(Body, kw_only=True):
    """The live members of a broker group, by their real broker ids."""

    broker_addrs: dict[Int64, str] = field(default_factory=dict)
    broker_name: str = ""
    cluster: str = ""


class MemberGroupBody(Body, kw_only=True):
    """The response to 901; the group is None if the name server does not know it."""

    broker_member_group: MemberGroup | None = None
