"""Admin, first part: the cluster, topics, brokers and name servers.

A method is one task, often several calls.

A broker is given as its broker name (which means the master), `name:id`, `name-id` or `host:port`.
A task that changes state goes to every node that must know: a topic is created at the masters of a
cluster, and deleted at all its brokers and at every name server. Errors are BrokerError,
PeerUnreachable and NoRoute. A task of several calls stops at the first error.

Groups, offsets and messages are in `groups.py`.

The docstrings of public methods are the documentation of `rmqkit.Admin`.

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
#: Brokers listen on no port below this. So `name:5` is a broker id, and `host:10911` an address.
PORT_MIN = 1024
QUEUE_NUMS = 8
ROUTED_TRIES = 40
ROUTED_PAUSE_MS = 50
_NONE_FOUND = frozenset({ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND})


class AdminBrokers:
    """Administers name servers, brokers and topics."""

    def __init__(self, client: Client) -> None:
        self.client = client

    # --- cluster and routes

    async def cluster_info(self) -> bodies.ClusterInfo:
        """Return the addresses of all brokers by broker name, and the broker names by cluster."""
        return decoded(await self._name_server(RequestCode.GET_BROKER_CLUSTER_INFO), bodies.ClusterInfo.decode)

    async def topics(self) -> list[str]:
        """Return all topics that the name server knows, system topics included, sorted."""
        reply = await self._name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return sorted(decoded(reply, bodies.TopicList.decode).topic_list)

    async def topics_of_cluster(self, cluster: str) -> list[str]:
        """Return the topics of a cluster, sorted.

        Args:
            cluster: The cluster's name.
        """
        request = schemas.GetTopicsByClusterRequest(cluster=cluster)
        reply = await self._name_server(RequestCode.GET_TOPICS_BY_CLUSTER, request)
        return sorted(decoded(reply, bodies.TopicList.decode).topic_list)

    async def route(self, topic: str) -> bodies.TopicRoute:
        """Return the name server's current route of a topic.

        Args:
            topic: The topic.

        Raises:
            BrokerError: With code 17 (TOPIC_NOT_EXIST) for an unknown topic.
        """
        request = schemas.GetRouteInfoRequest(topic=topic, accept_standard_json_only=True)
        return decoded(await self._name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, request), bodies.TopicRoute.decode)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that can be read.

        Args:
            topic: The topic.

        Raises:
            NoRoute: If no name server knows the topic.
        """
        return list((await self.client.routes.fetch(topic)).subscribe)

    async def broker_address(self, broker: str) -> Address:
        """Return the address of a broker.

        Args:
            broker: A broker name (its master), `name:id`, `name-id` or `host:port`.

        Raises:
            ClientError: If the broker is unknown or not registered. The error lists those that are.
        """
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
        """Return the addresses of masters by broker name.

        Args:
            cluster: Only masters of this cluster. None: of all clusters.

        Raises:
            ClientError: If the cluster is unknown.
        """
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
        """Create or change a topic, at one broker or at all masters of a cluster.

        Waits up to 2 s until the name server shows the topic, so that the next send or subscription
        finds it.

        Args:
            topic: The topic, at most 127 characters.
            queue_nums: Number of queues per broker.
            read_queue_nums: Number of queues to read from. Default: `queue_nums`.
            write_queue_nums: Number of queues to write to. Default: `queue_nums`.
            perm: Permissions, the sum of 4 (read) and 2 (write).
            order: Whether the topic is marked as ordered.
            cluster: Only the masters of this cluster. None: of all clusters.
            broker: Only this broker.
            attributes: Topic attributes of Apache 5.x.

        Returns:
            The addresses of the brokers that now have the topic.

        Raises:
            InvalidMessage: If `topic` is not a valid name.
            ClientError: If no master is registered, or the broker or cluster is unknown.

        Example:
            Create a topic with four queues on every master:

                admin.create_topic("orders", queue_nums=4)
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
        """Delete a topic at every broker of a cluster, then at every name server.

        Args:
            topic: The topic.
            cluster: Only this cluster. None: all clusters.
        """
        for members in (await self._groups(cluster)).values():
            for broker_id in sorted(members):
                request = DeleteTopicRequest(topic=topic)
                await self.client.ask(members[broker_id], RequestCode.DELETE_TOPIC_IN_BROKER, request)
        await self._each_name_server(
            RequestCode.DELETE_TOPIC_IN_NAMESRV, schemas.DeleteTopicFromNamesrvRequest(topic=topic, cluster_name=cluster)
        )

    async def topic_config(self, topic: str, broker: str) -> bodies.TopicConfig | None:
        """Return the settings of a topic at one broker, or None if it does not have the topic.

        Args:
            topic: The topic.
            broker: As in `broker_address`.
        """
        address = await self.broker_address(broker)
        accept = frozenset({ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST})
        request = GetTopicConfigRequest(topic=topic)
        reply = await self.client.ask(address, RequestCode.GET_TOPIC_CONFIG, request, accept=accept)
        return decoded(reply, bodies.TopicConfig.decode) if reply.is_ok else None

    async def topic_stats(self, topic: str) -> dict[MessageQueue, bodies.TopicOffset]:
        """Return the smallest and next offset of every queue, and when it was last written to (Unix
        ms).

        Args:
            topic: The topic.
        """
        table: dict[MessageQueue, bodies.TopicOffset] = {}
        request = GetTopicStatsInfoRequest(topic=topic)
        for name in (await self.client.routes.fetch(topic)).brokers:
            address = self.client.routes.address_to_read(name)
            reply = await self.client.ask(address, RequestCode.GET_TOPIC_STATS_INFO, request)
            table |= decoded(reply, bodies.TopicStatsTable.decode).offset_table
        return dict(sorted(table.items()))

    # --- brokers

    async def broker_config(self, broker: str) -> dict[str, str]:
        """Return the settings of a running broker.

        Args:
            broker: As in `broker_address`.
        """
        reply = await self.client.ask(await self.broker_address(broker), RequestCode.GET_BROKER_CONFIG)
        return properties_text.decode(reply.body)

    async def update_broker_config(self, broker: str, changes: Mapping[str, str]) -> None:
        """Change settings of a running broker.

        Args:
            broker: As in `broker_address`.
            changes: New values by key.

        Raises:
            BrokerError: If a key cannot be changed.

        Example:
            Make a broker read-only:

                admin.update_broker_config("broker-a", {"brokerPermission": "4"})
        """
        body = properties_text.encode(changes).encode()
        await self.client.ask(await self.broker_address(broker), RequestCode.UPDATE_BROKER_CONFIG, None, body)

    async def broker_runtime(self, broker: str) -> dict[str, str]:
        """Return the runtime facts of a broker, under Apache's names.

        Args:
            broker: As in `broker_address`.
        """
        reply = await self.client.ask(await self.broker_address(broker), RequestCode.GET_BROKER_RUNTIME_INFO)
        return decoded(reply, bodies.KVTable.decode).table

    async def ask_broker(
        self, broker: str, code: int, ext: Ext | Mapping[str, str] | None = None, body: bytes = b""
    ) -> Reply:
        """Send any request to a broker and return its response. Useful for codes that plug-ins add.

        Args:
            broker: As in `broker_address`.
            code: The request code.
            ext: The ext fields.
            body: The body.

        Raises:
            BrokerError: If the broker responds with an error code.
        """
        return await self.client.ask(await self.broker_address(broker), code, ext, body)

    async def timer_counts(self, broker: str) -> dict[str, int]:
        """Return the number of timer messages that wait at a broker, by topic.

        Args:
            broker: As in `broker_address`.
        """
        reply = await self.client.ask(await self.broker_address(broker), RequestCode.GET_TIMER_METRICS)
        table = decoded(reply, bodies.TimerMetrics.decode).timing_count
        return {topic: metric.count for topic, metric in table.items()}

    async def ha_status(self, broker: str) -> bodies.HARuntimeInfo:
        """Return a broker's replication status: for a master its slaves, for a slave its own
        progress.

        Args:
            broker: As in `broker_address`.
        """
        reply = await self.client.ask(await self.broker_address(broker), RequestCode.GET_BROKER_HA_STATUS)
        return decoded(reply, bodies.HARuntimeInfo.decode)

    # --- name servers

    async def nameserver_config(self) -> dict[str, dict[str, str]]:
        """Return the settings of each name server, by its address."""
        replies = await self._each_name_server(RequestCode.GET_NAMESRV_CONFIG)
        return {str(reply.address): properties_text.decode(reply.body) for reply in replies}

    async def update_nameserver_config(self, changes: Mapping[str, str]) -> None:
        """Change settings of all name servers.

        Args:
            changes: New values by key.
        """
        body = properties_text.encode(changes).encode()
        await self._each_name_server(RequestCode.UPDATE_NAMESRV_CONFIG, None, body)

    async def wipe_write_perm(self, broker_name: str) -> int:
        """Remove the write permission from all topics of a broker, at every name server.

        Args:
            broker_name: The broker name.

        Returns:
            The number of topics, the largest that a name server reports.
        """
        request = schemas.WipeWritePermOfBrokerRequest(broker_name=broker_name)
        replies = await self._each_name_server(RequestCode.WIPE_WRITE_PERM_OF_BROKER, request)
        return max(fields(reply, schemas.WipeWritePermOfBrokerResponse).wipe_topic_count for reply in replies)

    async def add_write_perm(self, broker_name: str) -> int:
        """Restore the write permission of all topics of a broker, at every name server.

        Args:
            broker_name: The broker name.

        Returns:
            The number of topics, the largest that a name server reports.
        """
        request = schemas.AddWritePermOfBrokerRequest(broker_name=broker_name)
        replies = await self._each_name_server(RequestCode.ADD_WRITE_PERM_OF_BROKER, request)
        return max(fields(reply, schemas.AddWritePermOfBrokerResponse).add_topic_count for reply in replies)

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Store a value in the key-value configuration of every name server.

        Args:
            namespace: The namespace of the key.
            key: The key.
            value: The value.
        """
        request = schemas.PutKVConfigRequest(namespace=namespace, key=key, value=value)
        await self._each_name_server(RequestCode.PUT_KV_CONFIG, request)

    async def get_kv(self, namespace: str, key: str) -> str | None:
        """Return a value of the name servers' key-value configuration, or None.

        Args:
            namespace: The namespace of the key.
            key: The key.
        """
        request = schemas.GetKVConfigRequest(namespace=namespace, key=key)
        reply = await self._name_server(RequestCode.GET_KV_CONFIG, request, accept=_NONE_FOUND)
        return fields(reply, schemas.GetKVConfigResponse).value if reply.is_ok else None

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Delete a key from the key-value configuration of every name server.

        Args:
            namespace: The namespace of the key.
            key: The key.
        """
        request = schemas.DeleteKVConfigRequest(namespace=namespace, key=key)
        await self._each_name_server(RequestCode.DELETE_KV_CONFIG, request)

    async def kv_list(self, namespace: str) -> dict[str, str]:
        """Return all keys and values of a namespace. Empty if the namespace is unknown.

        Args:
            namespace: The namespace.
        """
        request = schemas.GetKVListByNamespaceRequest(namespace=namespace)
        reply = await self._name_server(RequestCode.GET_KVLIST_BY_NAMESPACE, request, accept=_NONE_FOUND)
        return decoded(reply, bodies.KVTable.decode).table if reply.is_ok else {}

    # --- inside

    async def _until_routed(self, topic: str, targets: Sequence[Address]) -> None:
        """Wait until the name server shows the topic at all targets, for 2 s at most.

        Brokers register a new topic at once, but they respond before that.
        """
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
            raise refused(reply, code)
        return reply

    async def _each_name_server(self, code: int, ext: Ext | None = None, body: bytes = b"") -> Sequence[Reply]:
        return [await self.client.ask(each, code, ext, body) for each in self.client.name_servers.addresses]

    async def _groups(self, cluster: str | None) -> dict[str, dict[int, Address]]:
        """Return the addresses of members by broker name and id.

        Raises ClientError if the cluster is unknown.
        """
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
    """Return the broker name and id that a text names, registered or not. None if it names no
    group.

    `broker-a` is the master of that group; `broker-a:1` and `broker-a-1` are its broker with id 1.
    """
    if text in groups:
        return text, MASTER_ID
    for separator in ":-":
        name, _, number = text.rpartition(separator)
        # A host may have the same name as a group. Then the number is a port.
        if name in groups and number.isdigit() and (separator == "-" or int(number) < PORT_MIN):
            return name, int(number)
    return None
