"""ForeignMessages: reads popped messages that are in the log of another broker.

A checkpoint may name another broker: an Apache slave that acts for its master puts the checkpoints
of its pops into the revive topic of another group, which hands the messages out again. They are
pulled from the broker that the name servers show for that name: the group's master, or the slave
that acts for it.

A message is gone if that broker answers that its queue has no such offset any more. After any other
failure the request is repeated `RETRY_MS` later, so the message waits until the broker is back.

Limit: `FETCHES_MAX` messages are fetched or held at a time.

Source: `broker/.../failover/EscapeBridge.java` (`getMessageFromRemoteAsync`).
"""

from collections.abc import Callable

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.special.pop.pending import Pending
from rmqkit.errors import CorruptRecord, RemoteProtocolError
from rmqkit.runtime.calls import CallFailed, Outcome
from rmqkit.runtime.connection import Address
from rmqkit.wire.bodies import TopicRoute
from rmqkit.wire.codes import PullSysFlag, RequestCode, ResponseCode
from rmqkit.wire.record import Record, iter_records
from rmqkit.wire.schemas.nameserver import GetRouteInfoRequest
from rmqkit.wire.schemas.pull import PullMessageRequest

FETCHES_MAX = 8
ROUTE_TIMEOUT_MS = 1_000
PULL_TIMEOUT_MS = 10_000
RETRY_MS = 2_000
#: the queue has other messages, or the offset is outside of it
_GONE = (ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)

#: a checkpoint and the index of one of its messages
Item = tuple[Pending, int]


class _Fetch:
    """One message. `record` is None if it is gone, or not here yet."""

    __slots__ = ("is_here", "record", "retry_ms")

    def __init__(self) -> None:
        self.is_here = False
        self.record: Record | None = None
        #: when to ask again (monotonic ms); -1: it is being asked for
        self.retry_ms = -1


class ForeignMessages:
    """Messages of other brokers, fetched one by one."""

    def __init__(self, context: BrokerContext, wake: Callable[[int], None]) -> None:
        """`wake(due_ms)` makes the duty look again."""
        self._context = context
        self._wake = wake
        identity = context.config.identity
        self._group = f"InnerConsumerGroup_{identity.broker_name}_{identity.broker_id}"
        self._fetches: dict[Item, _Fetch] = {}

    def clear(self) -> None:
        self._fetches = {}

    def is_here(self, item: Item) -> bool:
        """Return whether the answer is known; ask for the message if not."""
        now_ms, fetch = self._context.clock.mono_ms, self._fetches.get(item)
        if fetch is None:
            if len(self._fetches) >= FETCHES_MAX:
                return False
            fetch = self._fetches[item] = _Fetch()
            self._ask_route(item, fetch, 0)
        elif 0 <= fetch.retry_ms <= now_ms:
            fetch.retry_ms = -1
            self._ask_route(item, fetch, 0)
        return fetch.is_here

    def record(self, item: Item) -> Record | None:
        """Return the message; None if it is gone."""
        fetch = self._fetches.get(item)
        return fetch.record if fetch is not None else None

    def forget(self, item: Item) -> None:
        """Drop a message that is finished."""
        if self._fetches.pop(item, None) is not None:
            self._wake(self._context.clock.mono_ms)

    # --- calls ------------------------------------------------------------------------------------

    def _ask_route(self, item: Item, fetch: _Fetch, number: int) -> None:
        """Ask the name servers in turn, from the `number`th on."""
        nameservers = self._context.config.network.namesrv_addrs
        if number >= len(nameservers):
            self._failed(item, fetch, "no name server shows this broker")
            return
        topic, _, _, _, _, name = item[0].key

        def answered(outcome: Outcome) -> None:
            address = None if isinstance(outcome, CallFailed) or not outcome.is_ok else _address(outcome.body, name)
            if address is None:
                self._ask_route(item, fetch, number + 1)
            else:
                self._pull(item, fetch, address)

        request = GetRouteInfoRequest(topic=topic, accept_standard_json_only=True)
        self._context.remoting.call(
            Address.parse(nameservers[number]),
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            request,
            timeout_ms=ROUTE_TIMEOUT_MS,
            then=answered,
        )

    def _pull(self, item: Item, fetch: _Fetch, address: Address) -> None:
        pending, index = item
        topic, _, queue_id, _, _, _ = pending.key
        request = PullMessageRequest(
            consumer_group=self._group,
            topic=topic,
            queue_id=queue_id,
            queue_offset=pending.offsets[index],
            max_msg_nums=1,
            sys_flag=PullSysFlag.SUBSCRIPTION,
            subscription="*",
            expression_type="TAG",
        )

        def answered(outcome: Outcome) -> None:
            if isinstance(outcome, CallFailed):
                self._failed(item, fetch, outcome.text)
            elif outcome.code in _GONE:
                self._came(fetch, None)
            elif not outcome.is_ok:
                self._failed(item, fetch, f"code {outcome.code}: {outcome.remark}")
            else:
                try:
                    found = next(iter(iter_records(outcome.body, check_crc=True)), None)
                except CorruptRecord as error:
                    self._failed(item, fetch, str(error))
                else:
                    is_it = found is not None and found.queue_offset == request.queue_offset
                    self._came(fetch, found if is_it else None)

        self._context.remoting.call(address, RequestCode.PULL_MESSAGE, request, timeout_ms=PULL_TIMEOUT_MS, then=answered)

    def _came(self, fetch: _Fetch, record: Record | None) -> None:
        fetch.is_here, fetch.record = True, record
        self._wake(self._context.clock.mono_ms)

    def _failed(self, item: Item, fetch: _Fetch, why: str) -> None:
        topic, _, queue_id, _, _, name = item[0].key
        self._context.log.warning("popped-message-not-fetched", broker=name, topic=topic, queue=queue_id, why=why)
        fetch.retry_ms = self._context.clock.mono_ms + RETRY_MS
        self._wake(fetch.retry_ms)


def _address(body: bytes, broker_name: str) -> Address | None:
    """Return where a route shows a broker: its master, else its smallest id."""
    try:
        route = TopicRoute.decode(body)
        for data in route.broker_datas:
            if data.broker_name == broker_name and data.broker_addrs:
                return Address.parse(data.broker_addrs[min(data.broker_addrs)])
    except (RemoteProtocolError, ValueError):
        return None
    return None
