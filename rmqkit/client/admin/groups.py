"""Admin, second part: offsets of queues and groups, groups and their members, single messages.

A reset of a group's offsets is asked of the broker (222), which holds it until the next pull takes it, so members need not
be stopped. Where that is not possible the offset is set as a member would commit it (15), which online members overwrite:
a broker that does not know the request, or one that only passes it on to members (4.x; 5.x with `useServerSideResetOffset`
off) while none is online. Such a broker goes by the request's time and not by its offset, so both are sent, and an offset
that no time stands for is not asked of it (`move_group`).

Source: `tools/.../admin/DefaultMQAdminExtImpl.java`, `client/.../impl/MQAdminImpl.java`.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from rmqkit.client.admin.admin import AdminBrokers
from rmqkit.client.client import decoded, fields, refused
from rmqkit.client.consumers.pull import PullStatus, pull
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

#: the group in whose name administrators read (`MixAll.TOOLS_CONSUMER_GROUP`)
TOOLS_GROUP = "TOOLS_CONSUMER"
QUERY_MAX = 64
TIME_MAX_MS = 2**63 - 1
#: of a reset: what a broker that only passes it on says when it cannot
_NO_RESET = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        ResponseCode.CONSUMER_NOT_ONLINE,
        ResponseCode.SYSTEM_ERROR,
    }
)
#: the times that stand for the ends of a queue in a reset
_TIME_FIRST, _TIME_LAST = 0, -1


class OffsetMove(NamedTuple):
    """Where a group was put in one queue. `way`: `reset` was asked of the broker (222), `commit` set the offset (15)."""

    offset: int
    way: str


class AdminCore(AdminBrokers):
    # --- offsets of queues

    async def offset_min(self, queue: MessageQueue) -> int:
        """The first offset that is still there."""
        request = offsets.GetMinOffsetRequest(topic=queue.topic, queue_id=queue.queue_id)
        reply = await self.client.ask(await self.reader(queue), RequestCode.GET_MIN_OFFSET, request)
        return fields(reply, offsets.GetMinOffsetResponse).offset

    async def offset_max(self, queue: MessageQueue) -> int:
        """The offset of the next message."""
        await self.client.routes.find(queue.topic)
        return await offset_max(self.client, queue)

    async def offset_for_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """The offset of the first message that was stored at that time or later."""
        await self.client.routes.find(queue.topic)
        return await offset_for_time(self.client, queue, timestamp_ms)

    async def earliest_store_time(self, queue: MessageQueue) -> int:
        """When the first message that is still there was stored, in ms; -1 for an empty queue."""
        request = offsets.GetEarliestMsgStoretimeRequest(topic=queue.topic, queue_id=queue.queue_id)
        reply = await self.client.ask(await self.reader(queue), RequestCode.GET_EARLIEST_MSG_STORETIME, request)
        return fields(reply, offsets.GetEarliestMsgStoretimeResponse).timestamp

    # --- offsets of groups

    async def group_offset(self, group: str, queue: MessageQueue) -> int | None:
        """How far a group has consumed a queue, None when it never did."""
        request = offsets.QueryConsumerOffsetRequest(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, set_zero_if_not_found=False
        )
        accept = frozenset({ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND})
        code = RequestCode.QUERY_CONSUMER_OFFSET
        reply = await self.client.ask(await self.reader(queue), code, request, accept=accept)
        return fields(reply, offsets.QueryConsumerOffsetResponse).offset if reply.is_ok else None

    async def group_offsets(self, group: str, topic: str) -> dict[MessageQueue, int | None]:
        return {queue: await self.group_offset(group, queue) for queue in await self.queues(topic)}

    async def set_group_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """As a member of the group would commit it; online members may overwrite it. `reset_group_offset` is stronger."""
        request = offsets.UpdateConsumerOffsetRequest(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        await self.client.ask(await self.reader(queue), RequestCode.UPDATE_CONSUMER_OFFSET, request)

    async def reset_group_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """The group goes on at `offset`, whether it has members online or not."""
        await self._reset(group, queue, offset, _TIME_LAST)

    async def reset_group_offsets(
        self, group: str, topic: str, *, to: str | None = None, timestamp_ms: int | None = None
    ) -> dict[MessageQueue, int]:
        """All queues of a topic to `first`, `last`, or what was stored at `timestamp_ms` or later; the new offsets."""
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
        """As `reset_group_offsets`, or to one `offset` in each queue (its nearest end where it has no such); says how.

        Raises ClientError when a broker can take a group with members online to a time only, and an offset was given.
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
        """The way it went."""
        request = offsets.ResetOffsetRequest(
            topic=queue.topic, group=group, queue_id=queue.queue_id, offset=offset, timestamp=time_ms, is_force=True
        )
        code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
        reply = await self.client.ask(await self.reader(queue), code, request, accept=_NO_RESET)
        if reply.is_ok:
            return "reset"
        if reply.code == ResponseCode.SYSTEM_ERROR and "consumer group <" not in reply.remark:
            raise refused(reply)
        await self.set_group_offset(group, queue, offset)
        return "commit"

    async def _resets_by_time(self, broker: str) -> bool:
        """Whether that broker passes resets on to members, and so cannot be told an offset."""
        return (await self.broker_config(broker)).get("useServerSideResetOffset") != "true"

    async def _commit_offline(self, group: str, queue: MessageQueue, offset: int) -> None:
        if await self.consumer_connections(group) is not None:
            raise ClientError(
                f"group {group} has members online, and broker {queue.broker_name} can only take them to a time "
                "(useServerSideResetOffset is off): stop them first, or say a time"
            )
        await self.set_group_offset(group, queue, offset)

    async def consume_stats(self, group: str, topic: str | None = None) -> dict[MessageQueue, bodies.ConsumeProgress]:
        """How far a group is in each queue, and how far behind, over all brokers.

        From the brokers (208), or for one topic put together from offsets when they do not know that request.
        """
        return (await self.group_progress(group, topic)).offset_table

    async def group_progress(self, group: str, topic: str | None = None) -> bodies.ConsumeStats:
        """As `consume_stats`, with how many messages a second the group consumes."""
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
        """Subscription groups of all masters by name."""
        found: dict[str, bodies.SubscriptionGroupConfig] = {}
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        for each in await self._of_masters(code, None, bodies.SubscriptionGroupTable.decode):
            found |= each.subscription_group_table
        return dict(sorted(found.items()))

    async def group_config(self, group: str, broker: str) -> bodies.SubscriptionGroupConfig | None:
        accept = frozenset({ResponseCode.SUCCESS, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST})
        request = groups.GetSubscriptionGroupConfigRequest(group=group)
        address = await self.broker_address(broker)
        reply = await self.client.ask(address, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, request, accept=accept)
        return decoded(reply, bodies.SubscriptionGroupConfig.decode) if reply.is_ok else None

    async def create_group(
        self, group: str, *, cluster: str | None = None, config: bodies.SubscriptionGroupConfig | None = None
    ) -> list[str]:
        """Create a group or change it at the masters of a cluster (of all by default); their addresses."""
        check_group(group)
        config = config or bodies.SubscriptionGroupConfig()
        config.group_name = group
        targets = list((await self.masters(cluster)).values())
        for target in targets:
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            await self.client.ask(target, code, None, config.encode())
        return [str(target) for target in targets]

    async def delete_group(self, group: str, *, cluster: str | None = None, clean_offset: bool = False) -> None:
        """`clean_offset` also forgets how far it has consumed."""
        request = groups.DeleteSubscriptionGroupRequest(group_name=group, clean_offset=clean_offset)
        for target in (await self.masters(cluster)).values():
            await self.client.ask(target, RequestCode.DELETE_SUBSCRIPTIONGROUP, request)

    async def groups_of_topic(self, topic: str) -> list[str]:
        """Groups that consume a topic or have."""
        found: set[str] = set()
        request = QueryTopicConsumeByWhoRequest(topic=topic)
        for name in (await self.client.routes.fetch(topic)).brokers:
            address = self.client.routes.address_to_read(name)
            reply = await self.client.ask(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, request)
            found.update(decoded(reply, bodies.GroupList.decode).group_list)
        return sorted(found)

    async def topics_of_group(self, group: str) -> list[str]:
        """Topics that a group consumes or has."""
        request = QueryTopicsByConsumerRequest(group=group)
        lists = await self._of_masters(RequestCode.QUERY_TOPICS_BY_CONSUMER, request, bodies.TopicList.decode)
        return sorted({topic for each in lists for topic in each.topic_list})

    async def consumer_connections(self, group: str) -> bodies.ConsumerConnection | None:
        """Members of a group and what they subscribe to, None when nobody is online."""
        request = groups.GetConsumerConnectionListRequest(consumer_group=group)
        code, none = RequestCode.GET_CONSUMER_CONNECTION_LIST, ResponseCode.CONSUMER_NOT_ONLINE
        return _merged(await self._of_masters(code, request, bodies.ConsumerConnection.decode, none))

    async def producer_connections(self, group: str) -> bodies.ProducerConnection | None:
        """Open producers of a group, None when there is none."""
        request = groups.GetProducerConnectionListRequest(producer_group=group)
        # "No such producer" is the plain error code here.
        code, none = RequestCode.GET_PRODUCER_CONNECTION_LIST, ResponseCode.SYSTEM_ERROR
        merged = _merged(await self._of_masters(code, request, bodies.ProducerConnection.decode, none))
        return merged if merged is not None and merged.connection_set else None

    async def consumer_running_info(self, group: str, client_id: str, *, stack: bool = False) -> bodies.ConsumerRunningInfo:
        """What one member says it is doing, with the `stack`s of its threads. Raises BrokerError when none reaches it."""
        last: ClientError | None = None
        request = GetConsumerRunningInfoRequest(consumer_group=group, client_id=client_id, jstack_enable=stack)
        for address in (await self.masters()).values():
            try:
                reply = await self.client.ask(address, RequestCode.GET_CONSUMER_RUNNING_INFO, request, timeout_ms=12_000)
                return decoded(reply, bodies.ConsumerRunningInfo.decode)
            except ClientError as error:
                last = error
        raise last or ClientError(f"no master is registered, so nobody can ask {client_id}")

    # --- messages

    async def view_message(self, offset_msg_id: str) -> MessageExt | None:
        """A message by its offset id, which has the broker's address in it; None when it is not there (any more)."""
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
        # The id does not tell the broker's name; a route of the topic does.
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
        """Messages that have `key` among their keys, or (`unique`) as their `msg_id`, in order of storing."""
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
        # The index knows only hash codes.
        wanted = [each for each in found if (each.msg_id == key if unique else key in (each.keys or "").split())]
        return sorted(wanted, key=lambda each: (each.store_timestamp_ms, each.queue, each.queue_offset))[:count_max]

    async def message_at(self, queue: MessageQueue, offset: int) -> MessageExt | None:
        """The message at one place of a queue."""
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
        """The broker that answers for a queue: its master, else a slave. Raises NoRoute, PeerUnreachable."""
        await self.client.routes.find(queue.topic)
        return self.client.routes.address_to_read(queue.broker_name)

    async def _of_masters(self, code: int, ext: Ext | None, decode: Callable[[bytes], T], none: int = 0) -> list[T]:
        """What each master answers. A master that answers with the code `none` has nothing to say."""
        accept = frozenset({ResponseCode.SUCCESS, none})
        replies = [await self.client.ask(each, code, ext, accept=accept) for each in (await self.masters()).values()]
        return [decoded(reply, decode) for reply in replies if reply.is_ok]


def _merged(found: Sequence[C]) -> C | None:
    """The clients of several brokers, each once; None without any broker."""
    for each in found[1:]:
        known = {client.client_id for client in found[0].connection_set}
        found[0].connection_set += [client for client in each.connection_set if client.client_id not in known]
    return found[0] if found else None
