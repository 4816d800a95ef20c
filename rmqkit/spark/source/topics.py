"""Queries a cluster for the topics of a Spark query: their queues, and where each begins and ends.

`Topics.look` asks the name servers for the routes. It then asks each broker group once per topic
for all queues of that topic (code 202). The group's master answers or, if it does not, a slave. The
result, a `TopicSnapshot`, also lists what is missing: broker groups that do not answer, and topics
without a route. It draws no conclusions; `bounds.py` and `query_plan.py` do.

This runs on the driver, over rmqkit's own client. The client's route cache keeps known routes while
the name servers are down.

Source: `tools/.../admin/DefaultMQAdminExtImpl.java` (`examineTopicStats`).
"""

from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rmqkit.api import Admin
from rmqkit.client.client import decoded, fields
from rmqkit.client.consumers.offset_store import RemoteOffsets
from rmqkit.client.consumers.pull import BATCH_SIZE, pull
from rmqkit.client.flow import gather, start
from rmqkit.client.routes import MASTER_ID, Route
from rmqkit.errors import BrokerError, ClientError, NoRoute, PeerUnreachable
from rmqkit.runtime.connection import Address
from rmqkit.spark.source.ranges import Ends, OffsetRange, QueueKey
from rmqkit.spark.source.topic_reader import READER_GROUP
from rmqkit.wire.bodies import TopicOffset, TopicStatsTable, parse_subscription
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.schemas.offsets import GetMaxOffsetRequest, GetMaxOffsetResponse, GetMinOffsetRequest, GetMinOffsetResponse
from rmqkit.wire.schemas.topics import GetTopicStatsInfoRequest

if TYPE_CHECKING:
    from rmqkit.spark.options import SourceOptions

PULL_TIMEOUT_MS = 3000

T = TypeVar("T")


class TopicSnapshot(NamedTuple):
    """State of the topics at one moment.

    `begins`, `ends` and `newest_ms` have the readable queues of the broker groups that answered.
    """

    begins: Ends
    ends: Ends
    #: Store time of the newest message in Unix ms; 0 for an empty queue.
    newest_ms: Ends
    #: (topic, broker) of the groups whose master answered. Only its offsets are authoritative.
    by_master: frozenset[tuple[str, str]] = frozenset()
    #: (topic, broker) of the groups that did not answer -> the reason.
    silent: Mapping[tuple[str, str], str] = {}
    #: Selected topics that no name server knows.
    missing: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()
    #: End of each queue that a broker has but does not let clients read (readQueueNums was
    #: reduced).
    closed: Mapping[QueueKey, int] = {}


class Topics:
    """The topics that the options select, in the cluster behind `namesrv`.

    Methods raise ClientError if no node answers.
    """

    def __init__(self, options: "SourceOptions") -> None:
        self._options = options
        self._admin = Admin(options.namesrv)
        self._client = self._admin.core.client
        self._commits: dict[str, RemoteOffsets] = {}
        #: The topics that matched the pattern so far; None before the first query.
        self._matched: list[str] | None = None

    def close(self) -> None:
        self._admin.close()

    def look(self, known: Iterable[QueueKey] = ()) -> TopicSnapshot:
        """Return the current state of the topics.

        `known` queues are queried even if they are no longer in a route.
        """
        return self._admin.io.wait("look", lambda: start(self._look(list(known))))

    def all_topics(self) -> list[str]:
        return self._admin.topics()

    def at_time(self, keys: Iterable[QueueKey], time_ms: int) -> Ends:
        """Return the offset of each queue's first message stored at `time_ms` (Unix ms) or later.

        For a queue without such a message, it is the end of the queue.
        """
        return self._of_each("at_time", keys, lambda key: self._admin.core.offset_for_time(_queue(key), time_ms))

    def of_group(self, group: str, keys: Iterable[QueueKey]) -> Ends:
        """Return the committed offsets of a group; without queues that it never consumed."""
        return self._of_each("of_group", keys, lambda key: self._admin.core.group_offset(group, _queue(key)))

    def commit(self, group: str, ends: Mapping[QueueKey, int]) -> list[str]:
        """Commit offsets of a group and return a text for each failure.

        Offsets that failed are kept and committed by the next call for the same queues.
        """
        return self._admin.io.wait("commit", lambda: start(self._commit(group, ends)))

    def sizes(self, ranges: Iterable[OffsetRange]) -> dict[QueueKey, float]:
        """Return the average stored size of a message per queue, in bytes.

        It is measured where each range begins. Queues that returned no message are left out.
        """
        of_keys = {each.key: each for each in ranges}
        return self._of_each("sizes", of_keys, lambda key: self._size(of_keys[key]))

    def stored_ms(self, key: QueueKey, offset: int) -> int | None:
        """Return the message's store time in Unix ms, or None if the message cannot be read."""
        try:
            message = self._admin.message_at(_queue(key), offset)
        except ClientError:
            return None
        return None if message is None else message.store_timestamp_ms

    def _of_each(
        self, name: str, keys: Iterable[QueueKey], ask: Callable[[QueueKey], Coroutine[Any, Any, T | None]]
    ) -> dict[QueueKey, T]:
        """Return the answers of all queues, without None."""

        async def ask_all() -> dict[QueueKey, T]:
            wanted = list(keys)
            found = await gather([start(ask(key)) for key in wanted])
            return {key: each for key, each in zip(wanted, found, strict=True) if each is not None}

        return self._admin.io.wait(name, lambda: start(ask_all()))

    # --- looking

    async def _look(self, known: Iterable[QueueKey]) -> TopicSnapshot:
        names = await self._names()
        routes = await gather([start(self._route(name)) for name in names])
        found = [route for route in routes if route is not None]
        asked = [(route, name) for route in found for name in route.brokers if self._options.selects(route.topic, name)]
        answers = await gather([start(self._group(route, broker, known)) for route, broker in asked])
        queues: dict[QueueKey, TopicOffset] = {}
        closed: Ends = {}
        masters: set[tuple[str, str]] = set()
        silent: dict[tuple[str, str], str] = {}
        for (route, broker), answer in zip(asked, answers, strict=True):
            if isinstance(answer, str):
                silent[route.topic, broker] = answer
                continue
            table, is_master = answer
            if is_master:
                masters.add((route.topic, broker))
            readable = set(route.subscribe)
            for queue, offsets in table.items():
                key = QueueKey(route.topic, broker, queue.queue_id)
                if queue in readable and self._options.selects(*key):
                    queues[key] = offsets
                elif self._options.selects(*key):
                    closed[key] = offsets.max_offset
        return TopicSnapshot(
            {key: queues[key].min_offset for key in sorted(queues)},
            {key: queues[key].max_offset for key in sorted(queues)},
            {key: queues[key].last_update_timestamp for key in sorted(queues)},
            frozenset(masters),
            silent,
            tuple(name for name, route in zip(names, routes, strict=True) if route is None),
            tuple(sorted({cluster for route in found for cluster in route.clusters})),
            closed,
        )

    async def _names(self) -> list[str]:
        options = self._options
        if not options.subscribe_pattern:
            return sorted(options.topics)
        try:
            info = await self._admin.core.cluster_info()
            others = info.cluster_addr_table.keys() | info.broker_addr_table.keys()
            names = await self._admin.core.topics()
        except PeerUnreachable:
            if self._matched is None:
                raise
            return self._matched
        # A name server that was just started knows few topics. So keep topics that matched before.
        matched = [name for name in names if name not in others and options.selects(name)]
        self._matched = sorted({*matched, *(self._matched or ())})
        return self._matched

    async def _route(self, topic: str) -> Route | None:
        """Return the route, or None if no name server knows the topic and none is cached.

        Raises PeerUnreachable if a name server gives another error: that proves nothing.
        """
        try:
            return await self._client.routes.fetch(topic)
        except NoRoute as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise PeerUnreachable(str(error), kind="lost", address="") from None
            return None

    async def _group(
        self, route: Route, broker: str, known: Iterable[QueueKey]
    ) -> tuple[dict[MessageQueue, TopicOffset], bool] | str:
        """Return a broker group's queues and whether its master answered, or why none answered."""
        failures = []
        for broker_id, address in sorted(route.brokers[broker].items()):
            try:
                request = GetTopicStatsInfoRequest(topic=route.topic)
                reply = await self._client.ask(address, RequestCode.GET_TOPIC_STATS_INFO, request)
                table = decoded(reply, TopicStatsTable.decode).offset_table
                # The tables of old brokers lack queues that are readable but no longer writable.
                wanted = [queue for queue in route.subscribe if queue.broker_name == broker]
                wanted += [_queue(key) for key in known if key.topic == route.topic and key.broker == broker]
                for queue in wanted:
                    if queue not in table and self._options.selects(queue.topic, broker, queue.queue_id):
                        table[queue] = await self._ends_of(queue, address)
                return table, broker_id == MASTER_ID and broker not in route.acting
            except (PeerUnreachable, BrokerError) as error:
                failures.append(str(error))
                self._client.routes.refresh_soon(route.topic)
        return "; ".join(failures) or "the name servers have no address for it"

    async def _ends_of(self, queue: MessageQueue, address: Address) -> TopicOffset:
        ask, topic, queue_id = self._client.ask, queue.topic, queue.queue_id
        first = await ask(address, RequestCode.GET_MIN_OFFSET, GetMinOffsetRequest(topic=topic, queue_id=queue_id))
        last = await ask(address, RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequest(topic=topic, queue_id=queue_id))
        return TopicOffset(
            min_offset=max(0, fields(first, GetMinOffsetResponse).offset),
            max_offset=max(0, fields(last, GetMaxOffsetResponse).offset),
        )

    # --- groups and sizes

    async def _commit(self, group: str, ends: Mapping[QueueKey, int]) -> list[str]:
        offsets = self._commits.setdefault(group, RemoteOffsets(self._client, group))
        queues = [_queue(key) for key in ends]
        for key, queue in zip(ends, queues, strict=True):
            offsets.update(queue, ends[key], increase_only=False)
        errors = await offsets.persist(queues)
        if any(error.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST for error in errors):
            try:
                await self._admin.core.create_group(group)
            except ClientError as error:
                return [f"group {group} does not exist and cannot be created: {error}"]
            errors = await offsets.persist(queues)
        return [str(error) for error in errors]

    async def _size(self, queue_range: OffsetRange) -> float | None:
        try:
            pulled = await pull(
                self._client,
                READER_GROUP,
                _queue(queue_range.key),
                queue_range.begin,
                parse_subscription(queue_range.topic, "*"),
                batch_size=min(BATCH_SIZE, queue_range.size),
                suspend_ms=0,
                timeout_ms=PULL_TIMEOUT_MS,
                send_subscription=True,
            )
        except ClientError:
            return None
        sizes = [message.record.size for message in pulled.messages]
        return sum(sizes) / len(sizes) if sizes else None


def _queue(key: QueueKey) -> MessageQueue:
    return MessageQueue(*key)
