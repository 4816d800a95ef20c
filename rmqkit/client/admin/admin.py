"""Admin: what administrators ask of name servers and brokers. One method is one task, most of them several calls.

A broker is named by its address (`host:port`), its broker name (the master), `name:id` or `name-id`.
Tasks that change something go to every place that must know: a topic is created at the masters of a
cluster and deleted at all its brokers and at every name server. Errors are BrokerError,
PeerUnreachable, NoRoute; a task of several calls stops at the first.

Groups, offsets and messages are in `groups.py`.

Source: `tools/.../admin/DefaultMQAdminExtImpl.java`, `client/.../impl/MQAdminImpl.java`.
"""

from collections.abc import Container, Mapping, Sequence

from rmqkit.client.client import Client, decoded, fields, refused
from rmqkit.client.producers.outgoing_message import check_topic
from rmqkit.errors import ClientError, NoRoute
from rmqkit.runtime.calls import Reply
from rmqkit.runtime.connection import Address
from rmqkit.wire import bodies, properties_text
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.schema import Ext
from rmqkit.wire.schemas import nameserver as schemas
from rmqkit.wire.schemas.topics import (
    CreateTopicRequest,
    DeleteTopicRequest,
    GetTopicConfigRequest,
    GetTopicStatsInfoRequest,
)

MASTER_ID = 0
#: brokers listen on no port below this
PORT_MIN = 1024
QUEUE_NUMS = 8
ROUTED_TRIES = 40
ROUTED_PAUSE_MS = 50
_NONE_FOUND = frozenset({ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND})


class AdminBrokers:
    """Name servers, brokers and topics."""

    def __init__(self, client: Client) -> None:
        self.client = client

    # --- cluster and routes

    async def cluster_info(self) -> bodies.ClusterInfo:
        """Brokers by name with their addresses, and broker names by cluster."""
        return decoded(await self._name_server(RequestCode.GET_BROKER_CLUSTER_INFO), bodies.ClusterInfo.decode)

    async def topics(self) -> list[str]:
        """Every topic that the name server knows, the system's own among them."""
        reply = await self._name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(decoded(reply, bodies.TopicList.decode).topic_list)

    async def topics_of_cluster(self, cluster: str) -> list[str]:
        request = schemas.GetTopicsByClusterRequest(cluster=cluster)
        reply = await self._name_server(RequestCode.GET_TOPICS_BY_CLUSTER, request)
        return sorted(decoded(reply, bodies.TopicList.decode).topic_list)

    async def route(self, topic: str) -> bodies.TopicRoute:
        """The route as the name server has it now. Raises BrokerError with code 17 for an unknown topic."""
        request = schemas.GetRouteInfoRequest(topic=topic, accept_standard_json_only=True)
        return decoded(await self._name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, request), bodies.TopicRoute.decode)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be read. Raises NoRoute."""
        return list((await self.client.routes.fetch(topic)).subscribe)

    async def broker_address(self, broker: str) -> Address:
        """The address behind `host:port` or a name that `find_broker` knows. Raises ClientError."""
        groups = (await self.cluster_info()).broker_addr_table
        name, broker_id = find_broker(broker, groups) or ("", MASTER_ID)
        members = groups[name].broker_addrs if name else {}
        if broker_id in members:
            return Address.parse(members[broker_id])
        if name:
            there = ", ".join(f"{name}:{each}" for each in sorted(members)) or "none"
            missing = "its master" if broker == name else f"id {broker_id}"
            raise ClientError(f"broker {broker!r}: {missing} is not registered; of {name} there are: {there}")
        try:
            return Address.parse(broker)
        except ValueError:
            known = ", ".join(sorted(groups)) or "none"
            raise ClientError(f"broker {broker!r} is not known; there are: {known}") from None

    async def masters(self, cluster: str | None = None) -> dict[str, Address]:
        """Addresses of the masters of a cluster (of all by default) by broker name. Raises ClientError for none."""
        return {name: members[MASTER_ID] for name, members in (await self._groups(cluster)).items() if MASTER_ID in members}

    # --- topics

    async def create_topic(
        self,
        topic: str,
        *,
        queue_nums: int = QUEUE_NUMS,
        read_queue_nums: int | None = None,
        write_queue_nums: int | None = None,
        perm: int = 6,
        order: bool = False,
        cluster: str | None = None,
        broker: str | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Create a topic or change it, at one broker or at all masters of a cluster (of all clusters by default).

        The addresses where that was done. Returns when the name server shows it, so that the next send or subscription
        finds it. `perm`: 4 read, 2 write.
        """
        check_topic(topic)
        if broker is not None:
            targets = [await self.broker_address(broker)]
        else:
            targets = list((await self.masters(cluster)).values())
        if not targets:
            raise ClientError(f"topic {topic} cannot be created: no master is registered")
        request = CreateTopicRequest(
            topic=topic,
            default_topic="TBW102",
            read_queue_nums=queue_nums if read_queue_nums is None else read_queue_nums,
            write_queue_nums=queue_nums if write_queue_nums is None else write_queue_nums,
            perm=perm,
            topic_filter_type="SINGLE_TAG",
            topic_sys_flag=0,
            order=order,
            attributes=",".join(f"+{name}={value}" for name, value in (attributes or {}).items()),
        )
        for target in targets:
            await self.client.ask(target, RequestCode.UPDATE_AND_CREATE_TOPIC, request)
        await self._until_routed(topic, targets)
        return [str(target) for target in targets]

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic at every broker of a cluster (of all by default), then at every name server."""
        for members in (await self._groups(cluster)).values():
            for broker_id in sorted(members):
                request = DeleteTopicRequest(topic=topic)
                await self.client.ask(members[broker_id], RequestCode.DELETE_TOPIC_IN_BROKER, request)
        await self._each_name_server(
            RequestCode.DELETE_TOPIC_IN_NAMESRV, schemas.DeleteTopicFromNamesrvRequest(topic=topic, cluster_name=cluster)
        )

    async def topic_config(self, topic: str, broker: str) -> bodies.TopicConfig | None:
        """A topic's settings at one broker, None when it is not there."""
        address = await self.broker_address(broker)
        accept = frozenset({ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST})
        request = GetTopicConfigRequest(topic=topic)
        reply = await self.client.ask(address, RequestCode.GET_TOPIC_CONFIG, request, accept=accept)
        return decoded(reply, bodies.TopicConfig.decode) if reply.is_ok else None

    async def topic_stats(self, topic: str) -> dict[MessageQueue, bodies.TopicOffset]:
        """Smallest and next offset of every queue, and when it last grew."""
        table: dict[MessageQueue, bodies.TopicOffset] = {}
        request = GetTopicStatsInfoRequest(topic=topic)
        for name in (await self.client.routes.fetch(topic)).brokers:
            address = self.client.routes.address_to_read(name)
            reply = await self.client.ask(address, RequestCode.GET_TOPIC_STATS_INFO, request)
            table |= decoded(reply, bodies.TopicStatsTable.decode).offset_table
        return dict(sorted(table.items()))

    # --- brokers

    async def broker_config(self, broker: str) -> dict[str, str]:
        reply = await self.client.ask(await self.broker_address(broker), RequestCode.GET_BROKER_CONFIG)
        return properties_text.decode(reply.body)

    async def update_broker_config(self, broker: str, changes: Mapping[str, str]) -> None:
        """Change settings of a running broker. Raises BrokerError for a key that cannot be changed."""
        body = properties_text.encode(changes).encode()
        await self.client.ask(await self.broker_address(broker), RequestCode.UPDATE_BROKER_CONFIG, None, body)

    async def broker_runtime(self, broker: str) -> dict[str, str]:
        """Facts about a running broker, as upstream names them."""
        reply = await self.client.ask(await self.broker_address(broker), RequestCode.GET_BROKER_RUNTIME_INFO)
        return decoded(reply, bodies.KVTable.decode).table

    async def ask_broker(
        self, broker: str, code: int, ext: Ext | Mapping[str, str] | None = None, body: bytes = b""
    ) -> Reply:
        """Any request to a broker, as for codes that plug-ins add; its answer. Raises BrokerError for an error answer."""
        return await self.client.ask(await self.broker_address(broker), code, ext, body)

    async def timer_counts(self, broker: str) -> dict[str, int]:
        """How many timer messages wait at a broker for each topic."""
        reply = await self.client.ask(await self.broker_address(broker), RequestCode.GET_TIMER_METRICS)
        table = decoded(reply, bodies.TimerMetrics.decode).timing_count
        return {topic: metric.count for topic, metric in table.items()}

    async def ha_status(self, broker: str) -> bodies.HARuntimeInfo:
        reply = await self.client.ask(await self.broker_address(broker), RequestCode.GET_BROKER_HA_STATUS)
        return decoded(reply, bodies.HARuntimeInfo.decode)

    # --- name servers

    async def nameserver_config(self) -> dict[str, dict[str, str]]:
        """Settings of each name server by its address."""
        replies = await self._each_name_server(RequestCode.GET_NAMESRV_CONFIG)
        return {str(reply.address): properties_text.decode(reply.body) for reply in replies}

    async def update_nameserver_config(self, changes: Mapping[str, str]) -> None:
        body = properties_text.encode(changes).encode()
        await self._each_name_server(RequestCode.UPDATE_NAMESRV_CONFIG, None, body)

    async def wipe_write_perm(self, broker_name: str) -> int:
        """Take the write permission from all topics of a broker, at every name server; how many topics, at most."""
        request = schemas.WipeWritePermOfBrokerRequest(broker_name=broker_name)
        replies = await self._each_name_server(RequestCode.WIPE_WRITE_PERM_OF_BROKER, request)
        return max(fields(reply, schemas.WipeWritePermOfBrokerResponse).wipe_topic_count for reply in replies)

    async def add_write_perm(self, broker_name: str) -> int:
        request = schemas.AddWritePermOfBrokerRequest(broker_name=broker_name)
        replies = await self._each_name_server(RequestCode.ADD_WRITE_PERM_OF_BROKER, request)
        return max(fields(reply, schemas.AddWritePermOfBrokerResponse).add_topic_count for reply in replies)

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        request = schemas.PutKVConfigRequest(namespace=namespace, key=key, value=value)
        await self._each_name_server(RequestCode.PUT_KV_CONFIG, request)

    async def get_kv(self, namespace: str, key: str) -> str | None:
        request = schemas.GetKVConfigRequest(namespace=namespace, key=key)
        reply = await self._name_server(RequestCode.GET_KV_CONFIG, request, accept=_NONE_FOUND)
        return fields(reply, schemas.GetKVConfigResponse).value if reply.is_ok else None

    async def delete_kv(self, namespace: str, key: str) -> None:
        request = schemas.DeleteKVConfigRequest(namespace=namespace, key=key)
        await self._each_name_server(RequestCode.DELETE_KV_CONFIG, request)

    async def kv_list(self, namespace: str) -> dict[str, str]:
        request = schemas.GetKVListByNamespaceRequest(namespace=namespace)
        reply = await self._name_server(RequestCode.GET_KVLIST_BY_NAMESPACE, request, accept=_NONE_FOUND)
        return decoded(reply, bodies.KVTable.decode).table if reply.is_ok else {}

    # --- inside

    async def _until_routed(self, topic: str, targets: Sequence[Address]) -> None:
        """Brokers tell their name servers of a new topic at once, but not before they answer."""
        for _ in range(ROUTED_TRIES):
            try:
                route = await self.client.routes.fetch(topic)
            except NoRoute:
                pass
            else:
                if set(targets) <= {address for members in route.brokers.values() for address in members.values()}:
                    return
            await self.client.timers.sleep(ROUTED_PAUSE_MS)

    async def _name_server(
        self, code: int, ext: Ext | None = None, *, accept: frozenset[int] = frozenset({ResponseCode.SUCCESS})
    ) -> Reply:
        reply = await self.client.name_servers.ask(code, ext)
        if reply.code not in accept:
            raise refused(reply)
        return reply

    async def _each_name_server(self, code: int, ext: Ext | None = None, body: bytes = b"") -> Sequence[Reply]:
        return [await self.client.ask(each, code, ext, body) for each in self.client.name_servers.addresses]

    async def _groups(self, cluster: str | None) -> dict[str, dict[int, Address]]:
        """Members by broker name and id. Raises ClientError for a cluster that is not there."""
        info = await self.cluster_info()
        if cluster is not None and cluster not in info.cluster_addr_table:
            known = ", ".join(sorted(info.cluster_addr_table)) or "none"
            raise ClientError(f"cluster {cluster!r} is not known; there are: {known}")
        names = info.broker_addr_table if cluster is None else info.cluster_addr_table[cluster]
        return {
            name: {broker_id: Address.parse(text) for broker_id, text in info.broker_addr_table[name].broker_addrs.items()}
            for name in sorted(names)
            if name in info.broker_addr_table
        }


def find_broker(text: str, groups: Container[str]) -> tuple[str, int] | None:
    """The broker name and id that a text means, registered or not; None if it names no known group.

    `broker-a` is the master of that group; `broker-a:1` and `broker-a-1` are its broker with id 1.
    """
    if text in groups:
        return text, MASTER_ID
    for separator in ":-":
        name, _, number = text.rpartition(separator)
        # A host may be called as a group is; its port is no broker id.
        if name in groups and number.isdigit() and (separator == "-" or int(number) < PORT_MIN):
            return name, int(number)
    return None
