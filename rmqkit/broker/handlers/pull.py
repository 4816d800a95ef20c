"""Pulls: PULL_MESSAGE and LITE_PULL_MESSAGE, with long polling.

A pull is checked, reads its queue once, and is answered with slices of the log. When there is nothing at the end of the
queue (PULL_NOT_FOUND) and the client allows it, the call is parked by (topic, queue): the arrival of a matching record, a
scan each 5 s, or its deadline wakes it; then the pull runs once more and answers whatever it finds.

All four outcomes 0, 19, 20 and 21 carry the four offsets, since Java's client reads them always.

Source: `broker/.../processor/PullMessageProcessor.java`, `broker/.../processor/DefaultPullMessageResultHandler.java`,
`broker/.../longpolling/PullRequestHoldService.java`.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import LATER, Call, Handlers, Refused, Response
from rmqkit.runtime.waiters import ArrivalWaiter
from rmqkit.store.contract import GetStatus, Read, TagMatch
from rmqkit.wire.bodies import SubscriptionData, parse_subscription
from rmqkit.wire.codes import PermName, PullSysFlag, RequestCode, ResponseCode
from rmqkit.wire.schemas.pull import PullMessageRequest, PullMessageResponse

if TYPE_CHECKING:
    from rmqkit.broker.node import Broker
    from rmqkit.wire.bodies import SubscriptionGroupConfig

rows = Handlers()

#: the longest time a pull may be held, whatever the client asks for
SUSPEND_MS_MAX = 60_000
#: bytes of an answer when the client names no bound
PULL_SIZE_MAX = 64 * 1024 * 1024
#: how often a parked pull looks whether the queue has moved past it without a match
HOLD_SCAN_MS = 5000
#: how clients say that they filter by tag
TAG_TYPES = (None, "", "TAG")

_CODES = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_RESET: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
}


@rows.handles(RequestCode.PULL_MESSAGE, PullMessageRequest)
@rows.handles(RequestCode.LITE_PULL_MESSAGE, PullMessageRequest)
def pull(broker: "Broker", call: Call[PullMessageRequest]) -> Response:
    args = call.args
    group = _checked(broker, args)
    match = _tag_match(broker, args, group)
    if args.sys_flag & PullSysFlag.COMMIT_OFFSET and args.commit_offset >= 0:
        broker.offsets.commit(args.consumer_group, args.topic, args.queue_id, args.commit_offset)
    read = _read(broker, args, match)
    may_wait = args.sys_flag & PullSysFlag.SUSPEND and _code(read, args) is ResponseCode.PULL_NOT_FOUND
    if may_wait and _park(broker, call, match):
        return LATER
    return _response(broker, read, args)


def _checked(broker: "Broker", args: PullMessageRequest) -> "SubscriptionGroupConfig":
    """The checks in upstream's order, as clients tell the outcomes apart by them."""
    topic = args.topic
    if not broker.config.topics.broker_permission & PermName.PERM_READ:
        ip = broker.config.network.broker_ip1
        raise Refused(ResponseCode.NO_PERMISSION, f"the broker[{ip}] pulling message is forbidden")
    group = broker.groups.get(args.consumer_group)
    if group is None:
        raise Refused(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{args.consumer_group}] does not exist"
        )
    if not group.consume_enable:
        raise Refused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {args.consumer_group}")
    config = broker.topics.get(topic)
    if config is None:
        raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!")
    if not config.perm & PermName.PERM_READ:
        raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{topic}] pulling message is forbidden")
    if not 0 <= args.queue_id < config.read_queue_nums:
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"queueId[{args.queue_id}] is illegal, topic:[{topic}] readQueueNums:[{config.read_queue_nums}]",
        )
    return group


@lru_cache(maxsize=4096)
def _parsed(topic: str, expression: str) -> SubscriptionData:
    return parse_subscription(topic, expression)


@lru_cache(maxsize=4096)
def _match_of(codes: tuple[int, ...]) -> TagMatch | None:
    return frozenset(codes).__contains__ if codes else None


def _tag_match(broker: "Broker", args: PullMessageRequest, group: "SubscriptionGroupConfig") -> TagMatch | None:
    """The filter on tag codes: from the request when it carries the subscription, else from the heartbeat."""
    if args.expression_type not in TAG_TYPES:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {args.expression_type}",
        )
    if args.sys_flag & PullSysFlag.SUBSCRIPTION:
        try:
            subscription = _parsed(args.topic, args.subscription or "")
        except (RemoteProtocolError, ValueError) as error:
            raise Refused(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {error}"
            ) from None
    else:
        subscription = _heartbeat_subscription(broker, args, group)
    return _match_of(tuple(subscription.code_set))


def _heartbeat_subscription(
    broker: "Broker", args: PullMessageRequest, group: "SubscriptionGroupConfig"
) -> SubscriptionData:
    members = broker.clients.consumers.get(args.consumer_group)
    if members is None:
        raise Refused(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")
    if not group.consume_broadcast_enable and members.message_model == "BROADCASTING":
        raise Refused(
            ResponseCode.NO_PERMISSION, f"the consumer group[{args.consumer_group}] can not consume by broadcast way"
        )
    subscription = members.subscriptions.get(args.topic)
    if subscription is None:
        raise Refused(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist")
    if subscription.sub_version < args.sub_version:
        raise Refused(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
    if subscription.expression_type not in TAG_TYPES:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {subscription.expression_type}",
        )
    return subscription


def _read(broker: "Broker", args: PullMessageRequest, match: TagMatch | None) -> Read:
    reset = broker.offsets.take_reset(args.consumer_group, args.topic, args.queue_id)
    if reset is not None:
        known = broker.store.queue_range(args.topic, args.queue_id)
        return Read(GetStatus.OFFSET_RESET, reset, known.offset_min, known.offset_max)
    # The engine bounds both by its settings; what stands in the page cache may be more than what does not.
    size_max = args.max_msg_bytes if args.max_msg_bytes is not None and args.max_msg_bytes > 0 else PULL_SIZE_MAX
    return broker.store.read(
        args.topic,
        args.queue_id,
        args.queue_offset,
        count_max=max(1, args.max_msg_nums),
        size_max=size_max,
        tag_match=match,
    )


def _code(read: Read, args: PullMessageRequest) -> ResponseCode:
    if read.status in (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE):
        return ResponseCode.PULL_OFFSET_MOVED if args.queue_offset != 0 else ResponseCode.PULL_NOT_FOUND
    return _CODES[read.status]


def _response(broker: "Broker", read: Read, args: PullMessageRequest) -> Response:
    broker.statistics.got(read.message_count, read.size)
    ext = PullMessageResponse(
        suggest_which_broker_id=0,
        next_begin_offset=read.offset_next,
        min_offset=read.offset_min,
        max_offset=read.offset_max,
        topic_sys_flag=0,
        group_sys_flag=0,
    )
    return Response(_code(read, args), ext, read.buffers, read.status.name)


def _park(broker: "Broker", call: Call[PullMessageRequest], match: TagMatch | None) -> bool:
    args = call.args
    settings = broker.config.pull
    suspend_ms = args.suspend_timeout_millis if settings.long_polling_enable else settings.short_polling_time_ms
    suspend_ms = min(suspend_ms, SUSPEND_MS_MAX)
    if suspend_ms <= 0:
        return False

    def wake(arrived: bool) -> None:
        if call.is_alive:
            call.finish(_again(broker, call, match))

    deadline_ms = broker.clock.mono_ms + suspend_ms
    waiter = ArrivalWaiter((args.topic, args.queue_id), args.queue_offset, deadline_ms, call.conn, match, wake)
    if not broker.arrivals.park(waiter):
        return False
    broker.duties.wake("pull-deadlines", deadline_ms)
    broker.duties.wake("pull-hold-scan", broker.clock.mono_ms + HOLD_SCAN_MS)
    return True


def _again(broker: "Broker", call: Call[PullMessageRequest], match: TagMatch | None) -> Response:
    """The second pass of a parked pull: what was checked may have changed meanwhile (topic deleted, group disabled)."""
    try:
        _checked(broker, call.args)
    except Refused as refused:
        return Response(refused.code, remark=str(refused))
    return _response(broker, _read(broker, call.args, match), call.args)


def hold_scan(broker: "Broker", now_ms: int) -> int | None:
    """Wakes pulls whose queue has grown by records that none of them wanted, so that their offset moves on."""
    for key in list(broker.arrivals.by_key):
        offset_max = broker.store.queue_range(*key).offset_max
        for waiter in list(broker.arrivals.by_key.get(key, ())):
            if offset_max > waiter.offset:
                broker.arrivals.end(waiter, True)
    return now_ms + HOLD_SCAN_MS if broker.arrivals.count else None
