"""Admin, second part: offsets of queues and groups, groups and their members, single messages.

Resetting a group's offset. The broker gets a reset (222) and holds it until the next pull takes it,
so members keep running. If a broker cannot do that, the offset is committed as a member would
commit it (15), which online members overwrite. This happens with

- a broker that does not know the request;
- a broker that only forwards it to online members, while none is online: 4.x, or 5.x with
  `useServerSideResetOffset` off.

A broker of the second kind uses the request's time and ignores its offset, so the request carries
both. An offset that corresponds to no time is therefore never sent to it as a reset (`move_group`).

Source: `tools/.../admin/DefaultMQAdminExtImpl.java`, `client/.../impl/MQAdminImpl.java`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from rmqkit.client.admin.admin import AdminBrokers
from rmqkit.client.client import decoded, fields, refused
from rmqkit.client.consumers.pull import PullStatus, pull, unwrapped
from rmqkit.client.consumers.subscriptions import offset_for_time, offset_max
from rmqkit.client.message import MessageExt
from rmqkit.client.producers.outgoing_message import check_group
from rmqkit.errors import BrokerError, ClientError, RemoteProtocolError
from rmqkit.runtime.connection import Address
from rmqkit.wire import bodies
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.msgid import decode_offset_id
from rmqkit.wire.record import iter_records
from rmqkit.wire.schema import Ext
from rmqkit.wire.schemas import groups, offsets
from rmqkit.wire.schemas.calls import GetConsumerRunningInfoRequest
from rmqkit.wire.schemas.messages import QueryMessageRequest, ViewMessageRequest
from rmqkit.wire.schemas.topics import QueryTopicConsumeByWhoRequest, QueryTopicsByConsumerRequest

T = TypeVar("T")
C = TypeVar("C", bodies.ConsumerConnection, bodies.ProducerConnection)

#: The group that administrators read under (`MixAll.TOOLS_CONSUMER_GROUP`).
TOOLS_GROUP = "TOOLS_CONSUMER"
QUERY_MAX = 64
TIME_MAX_MS = 2**63 - 1
#: Response codes to a reset, those of brokers that cannot reset included.
_NO_RESET = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.CONSUMER_NOT_ONLINE,
        ResponseCode.SYSTEM_ERROR,
    }
)
#: Times that stand for the beginning and the end of a queue in a reset.
_TIME_FIRST, _TIME_LAST = 0, -1


class OffsetMove(NamedTuple):
    """The new offset of a group in one queue.

    `way` is `reset` if the broker reset the offset (222), or `commit` if it was committed (15).
    """

    offset: int
    way: str


class AdminCore(AdminBrokers):
    # --- offsets of queues

    """Administers groups, offsets and messages, in addition to `AdminBrokers`."""

    async def offset_min(self, queue: MessageQueue) -> int:
        """Return the offset of the first message that the queue still has.

        Args:
            queue: The queue.
        """
        request = offsets.GetMinOffsetRequest(topic=queue.topic, queue_id=queue.queue_id)
        reply = await self.client.ask(await self.reader(queue), RequestCode.GET_MIN_OFFSET, request)
        # -1 for an empty queue of a topic with queue.type=BatchCQ.
        return max(0, fields(reply, offsets.GetMinOffsetResponse).offset)

    async def offset_max(self, queue: MessageQueue) -> int:
        """Return the offset of the next message that will be stored.

        Args:
            queue: The queue.
        """
        await self.client.routes.find(queue.topic)
        return await offset_max(self.client, queue)

    async def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message that was stored at that time or later.

        Args:
            queue: The queue.
            timestamp_ms: Unix time in ms.
        """
        await self.client.routes.find(queue.topic)
        return await offset_for_time(self.client, queue, timestamp_ms)

    async def earliest_store_time(self, queue: MessageQueue) -> int:
        """Return when the first message that the queue still has was stored, as Unix ms.

        Args:
            queue: The queue.

        Returns:
            The time, or -1 for an empty queue.
        """
        request = offsets.GetEarliestMsgStoretimeRequest(topic=queue.topic, queue_id=queue.queue_id)
        reply = await self.client.ask(await self.reader(queue), RequestCode.GET_EARLIEST_MSG_STORETIME, request)
        return fields(reply, offsets.GetEarliestMsgStoretimeResponse).timestamp

    # --- offsets of groups

    async def group_offset(self, group: str, queue: MessageQueue) -> int | None:
        """Return the offset that a group has committed, or None if it never consumed the queue.

        Args:
            group: The consumer group.
            queue: The queue.
        """
        request = offsets.QueryConsumerOffsetRequest(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, set_zero_if_not_found=False
        )
        accept = frozenset({ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND})
        code = RequestCode.QUERY_CONSUMER_OFFSET
        reply = await self.client.ask(await self.reader(queue), code, request, accept=accept)
        return fields(reply, offsets.QueryConsumerOffsetResponse).offset if reply.is_ok else None

    async def group_offsets(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        """Return the committed offset of each queue of a topic. None for queues never consumed.

        Args:
            group: The consumer group.
            topic: The topic.
        """
        return {queue: await self.group_offset(group, queue) for queue in await self.queues(topic)}

    async def set_group_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Commit an offset as a member of the group would. Online members may overwrite it.

        To move a group that has members online, use `reset_group_offset`.

        Args:
            group: The consumer group.
            queue: The queue.
            offset: The offset of the next message to consume.
        """
        request = offsets.UpdateConsumerOffsetRequest(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        await self.client.ask(await self.reader(queue), RequestCode.UPDATE_CONSUMER_OFFSET, request)

    async def reset_group_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Make a group continue at an offset, whether or not members are online.

        Args:
            group: The consumer group.
            queue: The queue.
            offset: The offset of the next message to consume.
        """
        await self._reset(group, queue, offset, _TIME_LAST)

    async def reset_group_offsets(
        self, group: str, topic: str, *, to: str | None = None, timestamp_ms: int | None = None
    ) -> dict[MessageQueue, int]:
        """Move a group in all queues of a topic. Set either `to` or `timestamp_ms`.

        Args:
            group: The consumer group.
            topic: The topic.
            to: `first` or `last`.
            timestamp_ms: Continue with messages that were stored at this Unix time in ms or later.

        Returns:
            The new offset of each queue.

        Example:
            Consume the last hour again:

                an_hour_ago_ms = int(time.time() * 1000) - 3_600_000
                admin.reset_group_offsets("billing", "orders", timestamp_ms=an_hour_ago_ms)
        """
        moved = await self.move_group(group, topic, to=to, timestamp_ms=timestamp_ms)
        return {queue: each.offset for queue, each in moved.items()}

    async def move_group(
        self,
        group: str,
        topic: str,
        *,
        to: str | None = None,
        timestamp_ms: int | None = None,
        offset: int | None = None,
    ) -> dict[MessageQueue, OffsetMove]:
        """Move a group in all queues of a topic, and return how each queue was moved.

        Set exactly one of `to`, `timestamp_ms` and `offset`.

        Args:
            group: The consumer group.
            topic: The topic.
            to: `first` or `last`.
            timestamp_ms: Continue with messages that were stored at this Unix time in ms or later.
            offset: Continue at this offset in each queue, or at the nearer end of a queue without
                it.

        Returns:
            By queue, the new offset and the way (`reset` or `commit`).

        Raises:
            ClientError: If not exactly one target is set; or for an `offset`, if members are online
                and a broker can only reset to a time.
        """
        if sum(each is not None for each in (to, timestamp_ms, offset)) != 1 or to not in (None, "first", "last"):
            raise ClientError("say where to: to='first', to='last' or timestamp_ms=")
        moved: dict[MessageQueue, OffsetMove] = {}
        goes_by_time: dict[str, bool] = {}
        for queue in await self.queues(topic):
            if timestamp_ms is not None:
                place, time_ms = await self.offset_for_time(queue, timestamp_ms), timestamp_ms
            elif to == "first":
                place, time_ms = max(0, await self.offset_min(queue)), _TIME_FIRST
            elif offset is None:
                place, time_ms = await self.offset_max(queue), _TIME_LAST
            else:
                place = max(0, await self.offset_min(queue), min(offset, await self.offset_max(queue)))
                name = queue.broker_name
                if name not in goes_by_time:
                    goes_by_time[name] = await self._resets_by_time(name)
                if goes_by_time[name]:
                    await self._commit_offline(group, queue, place)
                    moved[queue] = OffsetMove(place, "commit")
                    continue
                time_ms = _TIME_LAST
            moved[queue] = OffsetMove(place, await self._reset(group, queue, place, time_ms))
        return moved

    async def _reset(self, group: str, queue: MessageQueue, offset: int, time_ms: int) -> str:
        """Reset the group's offset, or commit it if the broker cannot. Returns which one it did."""
        request = offsets.ResetOffsetRequest(
            topic=queue.topic, group=group, queue_id=queue.queue_id, offset=offset, timestamp=time_ms, is_force=True
        )
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        reply = await self.client.ask(await self.reader(queue), code, request, accept=_NO_RESET)
        if reply.is_ok:
            return "reset"
        if reply.code == ResponseCode.SYSTEM_ERROR and "consumer group <" not in reply.remark:
            raise refused(reply, code)
        await self.set_group_offset(group, queue, offset)
        return "commit"

    async def _resets_by_time(self, broker: str) -> bool:
        """Return whether the broker only forwards resets to members. Then it ignores offsets."""
        return (await self.broker_config(broker)).get("useServerSideResetOffset") != "true"

    async def _commit_offline(self, group: str, queue: MessageQueue, offset: int) -> None:
        if await self.consumer_connections(group) is not None:
            raise ClientError(
                f"group {group} has members online, and broker {queue.broker_name} can only take them to a time "
                "(useServerSideResetOffset is off): stop them first, or say a time"
            )
        await self.set_group_offset(group, queue, offset)

    async def consume_stats(self, group: str, topic: str | None = None) -> dict[MessageQueue, bodies.ConsumeProgress]:
        """Return a group's committed offset and the broker's next offset, by queue.

        The brokers report it (208). For a broker that does not know the request, and if `topic` is
        set, it is computed from single offsets.

        Args:
            group: The consumer group.
            topic: Only this topic. None: all topics of the group.

        Example:
            Print how many messages a group is behind:

                for queue, progress in admin.consume_stats("billing").items():
                    print(queue, progress.broker_offset - progress.consumer_offset)
        """
        return (await self.group_progress(group, topic)).offset_table

    async def group_progress(self, group: str, topic: str | None = None) -> bodies.ConsumeStats:
        """Return the same as `consume_stats`, plus the messages per second that the group consumes.

        Args:
            group: The consumer group.
            topic: Only this topic. None: all topics of the group.
        """
        table: dict[MessageQueue, bodies.ConsumeProgress] = {}
        tps = 0.0
        request = groups.GetConsumeStatsRequest(consumer_group=group, topic=topic)
        for address in (await self.masters()).values():
            try:
                reply = await self.client.ask(address, RequestCode.GET_CONSUME_STATS, request)
            except BrokerError as error:
                if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED or topic is None:
                    raise
                return bodies.ConsumeStats(offset_table=await self._progress(group, topic))
            stats = decoded(reply, bodies.ConsumeStats.decode)
            table |= stats.offset_table
            tps += stats.consume_tps
        return bodies.ConsumeStats(consume_tps=tps, offset_table=dict(sorted(table.items())))

    async def _progress(self, group: str, topic: str) -> dict[MessageQueue, bodies.ConsumeProgress]:
        table: dict[MessageQueue, bodies.ConsumeProgress] = {}
        for queue, offset in (await self.group_offsets(group, topic)).items():
            broker_offset = await self.offset_max(queue)
            consumer_offset = -1 if offset is None else offset
            table[queue] = bodies.ConsumeProgress(
                broker_offset=broker_offset, consumer_offset=consumer_offset, pull_offset=consumer_offset
            )
        return table

    # --- groups

    async def groups(self) -> dict[str, bodies.SubscriptionGroupConfig]:
        """Return the settings of all subscription groups of all masters, by name."""
        found: dict[str, bodies.SubscriptionGroupConfig] = {}
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        for each in await self._of_masters(code, None, bodies.SubscriptionGroupTable.decode):
            found |= each.subscription_group_table
        return dict(sorted(found.items()))

    async def group_config(self, group: str, broker: str) -> bodies.SubscriptionGroupConfig | None:
        """Return a group's settings at one broker, or None if the broker does not have the group.

        Args:
            group: The consumer group.
            broker: As in `broker_address`.
        """
        accept = frozenset({ResponseCode.SUCCESS, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST})
        request = groups.GetSubscriptionGroupConfigRequest(group=group)
        address = await self.broker_address(broker)
        reply = await self.client.ask(address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, request, accept=accept)
        return decoded(reply, bodies.SubscriptionGroupConfig.decode) if reply.is_ok else None

    async def create_group(
        self, group: str, *, cluster: str | None = None, config: bodies.SubscriptionGroupConfig | None = None
    ) -> list[str]:
        """Create or change a consumer group at the masters of a cluster.

        Args:
            group: The consumer group.
            cluster: Only the masters of this cluster. None: of all clusters.
            config: The settings. Default: Apache's defaults.

        Returns:
            The addresses of the masters.

        Raises:
            InvalidMessage: If `group` is not a valid name.
            ClientError: If the cluster is unknown.
        """
        check_group(group)
        config = config or bodies.SubscriptionGroupConfig()
        config.group_name = group
        targets = list((await self.masters(cluster)).values())
        for target in targets:
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            await self.client.ask(target, code, None, config.encode())
        return [str(target) for target in targets]

    async def delete_group(self, group: str, *, cluster: str | None = None, clean_offset: bool = False) -> None:
        """Delete a consumer group at the masters of a cluster.

        Args:
            group: The consumer group.
            cluster: Only the masters of this cluster. None: of all clusters.
            clean_offset: Whether to delete its committed offsets too.
        """
        request = groups.DeleteSubscriptionGroupRequest(group_name=group, clean_offset=clean_offset)
        for target in (await self.masters(cluster)).values():
            await self.client.ask(target, RequestCode.DELETE_SUBSCRIPTIONGROUP, request)

    async def groups_of_topic(self, topic: str) -> list[str]:
        """Return the groups that consume a topic or have consumed it, sorted.

        Args:
            topic: The topic.
        """
        found: set[str] = set()
        request = QueryTopicConsumeByWhoRequest(topic=topic)
        for name in (await self.client.routes.fetch(topic)).brokers:
            address = self.client.routes.address_to_read(name)
            reply = await self.client.ask(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, request)
            found.update(decoded(reply, bodies.GroupList.decode).group_list)
        return sorted(found)

    async def topics_of_group(self, group: str) -> list[str]:
        """Return the topics that a group consumes or has consumed, sorted.

        Args:
            group: The consumer group.
        """
        request = QueryTopicsByConsumerRequest(group=group)
        lists = await self._of_masters(RequestCode.QUERY_TOPICS_BY_CONSUMER, request, bodies.TopicList.decode)
        return sorted({topic for each in lists for topic in each.topic_list})

    async def consumer_connections(self, group: str) -> bodies.ConsumerConnection | None:
        """Return the online members of a group and their subscriptions. None if no member is
        online.

        Args:
            group: The consumer group.
        """
        request = groups.GetConsumerConnectionListRequest(consumer_group=group)
        code, none = RequestCode.GET_CONSUMER_CONNECTION_LIST, ResponseCode.CONSUMER_NOT_ONLINE
        return _merged(await self._of_masters(code, request, bodies.ConsumerConnection.decode, none))

    async def producer_connections(self, group: str) -> bodies.ProducerConnection | None:
        """Return the open producers of a group, or None if there are none.

        Args:
            group: The producer group.
        """
        request = groups.GetProducerConnectionListRequest(producer_group=group)
        # Brokers return the generic error code if the group has no producer.
        code, none = RequestCode.GET_PRODUCER_CONNECTION_LIST, ResponseCode.SYSTEM_ERROR
        merged = _merged(await self._of_masters(code, request, bodies.ProducerConnection.decode, none))
        return merged if merged is not None and merged.connection_set else None

    async def consumer_running_info(self, group: str, client_id: str, *, stack: bool = False) -> bodies.ConsumerRunningInfo:
        """Return the state that one member reports about itself.

        Args:
            group: The consumer group.
            client_id: The member's client id, from `consumer_connections`.
            stack: Whether to include the stacks of the member's threads.

        Raises:
            BrokerError: If no broker can reach the member.
            ClientError: If no master is registered.
        """
        last: ClientError | None = None
        request = GetConsumerRunningInfoRequest(consumer_group=group, client_id=client_id, jstack_enable=stack)
        for address in (await self.masters()).values():
            try:
                reply = await self.client.ask(address, RequestCode.GET_CONSUMER_RUNNING_INFO, request, timeout_ms=12_000)
                return decoded(reply, bodies.ConsumerRunningInfo.decode)
            except ClientError as error:
                last = error
        raise last or ClientError(f"no master is registered, so no broker can ask {client_id}")

    # --- messages

    async def view_message(self, offset_msg_id: str) -> MessageExt | None:
        """Return a message by its offset id, or None if the broker does not have it (any more).

        All messages of an inner batch (`queue.type=BatchCQ`) have the same offset id. It finds the
        record with the whole batch as its body.

        Args:
            offset_msg_id: The id. It contains the broker's address.

        Raises:
            ClientError: If the text is not an offset id.
        """
        try:
            place = decode_offset_id(offset_msg_id)
        except RemoteProtocolError as error:
            raise ClientError(f"{error}; a unique id is looked up with query_messages(unique=True)") from None
        address = Address(place.host, place.port)
        accept = frozenset({ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR})
        request = ViewMessageRequest(offset=place.phy_offset)
        reply = await self.client.ask(address, RequestCode.VIEW_MESSAGE_BY_ID, request, accept=accept)
        if not reply.is_ok:
            return None
        records = decoded(reply, lambda body: list(iter_records(body)))
        # The id has the broker's address but not its name. The topic's route has both.
        try:
            await self.client.routes.fetch(records[0].topic)
        except ClientError:
            pass
        return MessageExt(records[0], self.client.routes.name_of(address) or "")

    async def query_messages(
        self,
        topic: str,
        key: str,
        *,
        unique: bool = False,
        count_max: int = QUERY_MAX,
        begin_ms: int = 0,
        end_ms: int = TIME_MAX_MS,
    ) -> list[MessageExt]:
        """Return messages by key or unique id, in the order in which they were stored.

        Of a batch to a topic with `queue.type=BatchCQ`, only the id and keys of the batch are
        indexed. They find all its messages.

        Args:
            topic: The topic.
            key: The key, or the `msg_id` if `unique` is set.
            unique: Whether `key` is the `msg_id` of a message.
            count_max: The largest number of messages to return. The broker has its own limit.
            begin_ms: Only messages stored at this Unix time in ms or later.
            end_ms: Only messages stored at this Unix time in ms or earlier.

        Example:
            Print all messages with a key:

                for message in admin.query_messages("orders", "order-7"):
                    print(message.msg_id, message.store_timestamp_ms, message.body)
        """
        found: list[MessageExt] = []
        request = QueryMessageRequest(
            topic=topic,
            key=key,
            max_num=count_max,
            begin_timestamp=begin_ms,
            end_timestamp=end_ms,
            unique_key_query=unique,
        )
        accept = frozenset({ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND})
        for name in (await self.client.routes.fetch(topic)).brokers:
            address = self.client.routes.address_to_read(name)
            reply = await self.client.ask(address, RequestCode.QUERY_MESSAGE, request, timeout_ms=6000, accept=accept)
            if reply.is_ok:
                found += [MessageExt(each, name) for each in decoded(reply, lambda body: list(iter_records(body)))]
        # The broker's index stores only hash codes, so check the keys here.
        records = [each for each in found if (each.msg_id == key if unique else key in (each.keys or "").split())]
        wanted = [MessageExt(inner, each.queue.broker_name) for each in records for inner in unwrapped(each.record)]
        return sorted(wanted, key=lambda each: (each.store_timestamp_ms, each.queue, each.queue_offset))[:count_max]

    async def message_at(self, queue: MessageQueue, offset: int) -> MessageExt | None:
        """Return the message at an offset of a queue, or None.

        Args:
            queue: The queue.
            offset: The queue offset.
        """
        await self.client.routes.find(queue.topic)
        subscription = bodies.parse_subscription(queue.topic, "*")
        pulled = await pull(
            self.client, TOOLS_GROUP, queue, offset, subscription, batch_size=1, suspend_ms=0, send_subscription=True
        )
        if pulled.status is PullStatus.FOUND and pulled.messages and pulled.messages[0].queue_offset == offset:
            return pulled.messages[0]
        return None

    # --- inside

    async def reader(self, queue: MessageQueue) -> Address:
        """Return the broker that answers for a queue: its master, else a slave.

        Raises NoRoute or PeerUnreachable.
        """
        await self.client.routes.find(queue.topic)
        return self.client.routes.address_to_read(queue.broker_name)

    async def _of_masters(self, code: int, ext: Ext | None, decode: Callable[[bytes], T], none: int = 0) -> list[T]:
        """Return the result of each master, without those that respond with the code `none`."""
        accept = frozenset({ResponseCode.SUCCESS, none})
        replies = [await self.client.ask(each, code, ext, accept=accept) for each in (await self.masters()).values()]
        return [decoded(reply, decode) for reply in replies if reply.is_ok]


def _merged(found: Sequence[C]) -> C | None:
    """Merge the clients of several brokers, without duplicates. None if no broker has any."""
    for each in found[1:]:
        known = {client.client_id for client in found[0].connection_set}
        found[0].connection_set += [client for client in each.connection_set if client.client_id not in known]
    return found[0] if found else None
