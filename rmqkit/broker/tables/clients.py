"""Online clients: producers and consumers by group, and what each group subscribes to.

A client is a connection with a client id. A group's members, subscriptions and modes come from
heartbeats. A member is removed when it unregisters, when its connection closes, or after 120 s
without a heartbeat. After each change of the members or subscriptions of a clustering group, all
its members are notified (NOTIFY_CONSUMER_IDS_CHANGED), so that they rebalance the queues.

Source: `broker/.../client/{ConsumerManager,ConsumerGroupInfo,ProducerManager}.java`,
`broker/.../processor/ClientManageProcessor.java`.
"""

from typing import Any

from rmqkit.runtime.connection import Connection
from rmqkit.wire.bodies import ConsumerData, SubscriptionData

#: limit of clients, counted as members of all groups; heartbeats above it are refused
CLIENTS_MAX = 100_000


class ClientChannel:
    """One client in one group. `last_ms` is the monotonic time of its last heartbeat."""

    __slots__ = ("client_id", "conn", "language", "last_ms", "version")

    def __init__(self, conn: Connection, client_id: str, language: Any, version: int, now_ms: int) -> None:
        self.conn = conn
        self.client_id = client_id
        self.language = language
        self.version = version
        self.last_ms = now_ms


class ConsumerGroup:
    """The members of a consumer group by connection id, and what it subscribes to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.members: dict[int, ClientChannel] = {}
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.consume_type = "CONSUME_PASSIVELY"
        self.message_model = "CLUSTERING"
        self.consume_from_where = "CONSUME_FROM_LAST_OFFSET"
        #: of the last heartbeat; 0 stands for one of the first version, None for no heartbeat yet
        self.fingerprint: int | None = None

    @property
    def client_ids(self) -> list[str]:
        return list(dict.fromkeys(member.client_id for member in self.members.values()))

    def take(self, data: ConsumerData, *, without_sub: bool = False) -> bool:
        """Take the modes and subscriptions of a heartbeat; with `without_sub` it has none.

        Return whether the subscriptions changed.
        """
        self.consume_type = str(data.consume_type)
        self.message_model = str(data.message_model)
        self.consume_from_where = str(data.consume_from_where)
        if without_sub:
            return False
        changed = False
        topics: dict[str, None] = {}
        for each in data.subscription_data_set:
            topics[each.topic] = None
            known = self.subscriptions.get(each.topic)
            if known is None:
                self.subscriptions[each.topic] = each
                changed = True
            elif each.sub_version > known.sub_version:
                changed = changed or each.sub_string != known.sub_string
                self.subscriptions[each.topic] = each
        for topic in [topic for topic in self.subscriptions if topic not in topics]:
            del self.subscriptions[topic]
            changed = True
        return changed


class Clients:
    """All online clients. `count` is the number of members in all groups together."""

    def __init__(self) -> None:
        self.consumers: dict[str, ConsumerGroup] = {}
        self.producers: dict[str, dict[int, ClientChannel]] = {}
        #: the newest connection of each producing client id
        self._producing: dict[str, Connection] = {}
        #: the client id of each connection in `_producing`, by connection id
        self._producer_ids: dict[int, str] = {}
        #: consumer groups whose members are to be notified, in the order of the changes
        self.changed: dict[str, None] = {}
        self.count = 0

    def consumer_heartbeat(
        self,
        conn: Connection,
        client_id: str,
        data: ConsumerData,
        language: Any,
        version: int,
        now_ms: int,
        notify: bool,
        *,
        without_sub: bool = False,
    ) -> bool:
        """Register a member and its subscriptions. Return whether anything changed.

        With `without_sub`, the heartbeat leaves the subscriptions as they are.
        """
        group = self.consumers.get(data.group_name)
        if group is None:
            group = self.consumers[data.group_name] = ConsumerGroup(data.group_name)
        member = group.members.get(conn.id)
        changed = False
        if member is None or member.client_id != client_id:
            if member is None:
                self.count += 1
            group.members[conn.id] = ClientChannel(conn, client_id, language, version, now_ms)
            changed = True
        else:
            member.last_ms = now_ms
        changed = group.take(data, without_sub=without_sub) or changed
        if changed and notify and data.message_model != "BROADCASTING":
            self.changed[group.name] = None
        return changed

    def is_fingerprint_new(self, group: str, fingerprint: int, *, without_sub: bool) -> bool:
        """Note a heartbeat's fingerprint. Return whether the client is to send its subscriptions.

        A first heartbeat with subscriptions needs no second one. A first one without asks for them:
        the broker has started since the client sent them. (Apache's does not ask, and has no
        subscription until the client's next rebalancing.)

        Source: `ClientManageProcessor.heartBeatV2`.
        """
        known = self.consumers.get(group)
        if known is None:
            return False
        before, known.fingerprint = known.fingerprint, fingerprint
        return without_sub if before is None else before != fingerprint

    def producer_heartbeat(
        self, conn: Connection, group: str, client_id: str, language: Any, version: int, now_ms: int
    ) -> None:
        members = self.producers.setdefault(group, {})
        member = members.get(conn.id)
        if member is None:
            self.count += 1
            members[conn.id] = ClientChannel(conn, client_id, language, version, now_ms)
            self._forget_producing(conn)
            self._producing[client_id] = conn
            self._producer_ids[conn.id] = client_id
        else:
            member.last_ms = now_ms

    def consumer(self, group: str, client_id: str) -> ClientChannel | None:
        """Return the member of a group with that client id, the newest if there are several."""
        members = self.consumers[group].members if group in self.consumers else {}
        return next((each for each in reversed(members.values()) if each.client_id == client_id), None)

    def producer(self, client_id: str) -> Connection | None:
        """Return the connection of the producer with this client id.

        Source: `ProducerManager.findChannel`.
        """
        return self._producing.get(client_id)

    def unregister(self, conn: Connection, producer_group: str | None, consumer_group: str | None) -> None:
        if producer_group:
            self._drop_producer(producer_group, conn.id)
        if consumer_group:
            self._drop_consumer(consumer_group, conn.id)

    def connection_closed(self, conn: Connection) -> None:
        for group in [name for name, members in self.producers.items() if conn.id in members]:
            self._drop_producer(group, conn.id)
        for group in [name for name, each in self.consumers.items() if conn.id in each.members]:
            self._drop_consumer(group, conn.id)
        self._forget_producing(conn)

    def _forget_producing(self, conn: Connection) -> None:
        """Drop a connection as producer; it has one client id, the last one it sent."""
        client_id = self._producer_ids.pop(conn.id, "")
        if self._producing.get(client_id) is conn:
            del self._producing[client_id]

    def silent(self, before_ms: int) -> list[Connection]:
        """Return the connections whose last heartbeat was before `before_ms`."""
        found: dict[int, Connection] = {}
        for members in (*self.producers.values(), *(group.members for group in self.consumers.values())):
            for member in members.values():
                if member.last_ms < before_ms:
                    found[member.conn.id] = member.conn
        return list(found.values())

    def take_changed(self) -> list[ConsumerGroup]:
        """Return the groups to notify since the last call, each once."""
        if not self.changed:
            return []
        changed, self.changed = self.changed, {}
        return [group for name in changed if (group := self.consumers.get(name)) is not None]

    def _drop_producer(self, group: str, conn_id: int) -> None:
        members = self.producers.get(group)
        if members is not None and members.pop(conn_id, None) is not None:
            self.count -= 1
            if not members:
                del self.producers[group]

    def _drop_consumer(self, name: str, conn_id: int) -> None:
        group = self.consumers.get(name)
        if group is None or group.members.pop(conn_id, None) is None:
            return
        self.count -= 1
        if not group.members:
            del self.consumers[name]
        elif group.message_model != "BROADCASTING":
            self.changed[name] = None
