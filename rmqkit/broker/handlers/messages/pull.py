"""Pulls: PULL_MESSAGE and LITE_PULL_MESSAGE, with long polling.

A pull is checked, reads its queue once, and is answered with slices of the log. If it is at the end
of the queue (PULL_NOT_FOUND) and the client allows it, the call is parked by (topic, queue id). It
is woken by the arrival of a matching record, by a scan every 5 s, or at its deadline. Then the pull
runs once more and is answered with whatever it finds.

A subscription by tags is matched with queue entries. One by properties (SQL92) is also matched with
the records' properties. Its filter was registered by a heartbeat, or comes with the request
(`broker/filters/`).

An acting slave that hands over to its master (`roles/handover.py`) holds pulls until the route has
changed, and refuses pulls that may not wait.

A slave serves pulls if `slaveReadEnable` is set, or while it acts for its master. Unless
`offsetCheckInSlave` is set it corrects no offset, as it may lack records that its master has.
With `slaveReadEnable`, it answers PULL_RETRY_IMMEDIATELY with the requested offset instead of
PULL_OFFSET_MOVED. Before that it parks the pull like one at the end of the queue, so that a
consumer ahead of the slave does not pull in a tight loop.

With `slaveReadEnable`, `suggestWhichBrokerId` directs consumers that read messages no longer in
memory to a slave, and all others to the broker id that their group configures.

Answers with the codes 0, 19, 20 and 21 all carry nextBeginOffset, minOffset, maxOffset and
suggestWhichBrokerId, since Java's client always reads them.

Source: `broker/.../processor/PullMessageProcessor.java`,
`broker/.../processor/DefaultPullMessageResultHandler.java`,
`broker/.../longpolling/PullRequestHoldService.java`.
"""

from functools import lru_cache, partial
from typing import TYPE_CHECKING

from rmqkit.broker.filters.contract import FilterError, MatchProperties
from rmqkit.broker.filters.pull_filter import PullFilter, by_filter, by_registered, by_retried_topic, by_tags
from rmqkit.broker.handlers.demands import PULL
from rmqkit.broker.handlers.messages.pull_answers import pull_head
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import LATER, Call, Handlers, Refused, Response
from rmqkit.runtime.waiters import ArrivalWaiter
from rmqkit.store.contract import GetStatus, Read
from rmqkit.wire.bodies import SubscriptionData, SubscriptionGroupConfig, parse_subscription
from rmqkit.wire.codes import PermName, PullSysFlag, RequestCode, ResponseCode
from rmqkit.wire.schemas.pull import PullMessageRequest
from rmqkit.wire.topic_names import RETRY_PREFIX

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

rows = Handlers()
_new = tuple.__new__

#: limit of the time that a pull is parked, whatever the client asks for
SUSPEND_MS_MAX = 60_000
#: limit of an answer in bytes, if the client names none
PULL_SIZE_MAX = 64 * 1024 * 1024
#: interval of the scan for parked pulls whose queue grew without a match
HOLD_SCAN_MS = 5000
#: settings of a group that a slave's table lacks, since its master has not heard of the group
DEFAULT_GROUP = SubscriptionGroupConfig()
#: expression types that stand for a filter by tag
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


@rows.handles(RequestCode.PULL_MESSAGE, PullMessageRequest, access=PULL)
@rows.handles(RequestCode.LITE_PULL_MESSAGE, PullMessageRequest, access=PULL)
def pull(broker: "BrokerView", call: Call[PullMessageRequest]) -> Response:
    """Answer or park a pull, after the commit that it may carry."""
    args = call.args
    group = _checked(broker, args)
    wanted = _wanted(broker, args, group)
    if args.sys_flag & PullSysFlag.COMMIT_OFFSET and args.commit_offset >= 0:
        guard = broker.commit_guard
        if guard is None or not guard(args.consumer_group, args.topic, args.queue_id, call.conn):
            broker.offsets.commit(args.consumer_group, args.topic, args.queue_id, args.commit_offset)
    handover = broker.role.handover
    if handover:
        if args.sys_flag & PullSysFlag.SUSPEND and _park(broker, call, wanted):
            return LATER
        raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {handover}")
    read = _read(broker, args, wanted)
    is_at_end = _code(read, args) is ResponseCode.PULL_NOT_FOUND or _is_uncorrected(broker, read, args)
    may_wait = args.sys_flag & PullSysFlag.SUSPEND and is_at_end
    if may_wait and _park(broker, call, wanted):
        return LATER
    return _answer(broker, call, read)


def _checked(broker: "BrokerView", args: PullMessageRequest) -> SubscriptionGroupConfig:
    """Check a pull and return its group. Raises Refused.

    The order is upstream's, since it decides which code a client gets.
    """
    topic = args.topic
    if not broker.config.topics.broker_permission & PermName.PERM_READ:
        ip = broker.config.network.broker_ip1
        raise Refused(ResponseCode.NO_PERMISSION, f"the broker[{ip}] pulling message is forbidden")
    is_slave = broker.replication.is_slave and not broker.role.is_acting
    if is_slave and not broker.config.replication.slave_read_enable:
        raise Refused(
            ResponseCode.SYSTEM_BUSY,
            "[REJECTREQUEST]system busy, start flow control for a while: slaveReadEnable is false on this slave",
        )
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


_parsed = lru_cache(maxsize=4096)(parse_subscription)


def _wanted(broker: "BrokerView", args: PullMessageRequest, group: SubscriptionGroupConfig) -> PullFilter:
    """Return the pull's filter, from the request if it carries one, else from the heartbeat."""
    if args.sys_flag & PullSysFlag.SUBSCRIPTION:
        if args.expression_type not in TAG_TYPES:
            return _sent_filter(broker, args, str(args.expression_type))
        try:
            subscription = _parsed(args.topic, args.subscription or "")
        except (RemoteProtocolError, ValueError) as error:
            raise Refused(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {error}"
            ) from None
    else:
        subscription = _heartbeat_subscription(broker, args, group)
        if subscription.expression_type not in TAG_TYPES:
            return _registered_filter(broker, args, subscription)
    return by_tags(tuple(subscription.code_set))


def check_filters_allowed(broker: "BrokerView", kind: str | None) -> None:
    """Raise Refused if expressions over properties are switched off."""
    if not broker.config.filters.enable_property_filter:
        raise Refused(
            ResponseCode.SYSTEM_ERROR,
            f"The broker does not support consumer to filter message by {kind} (enablePropertyFilter is false)",
        )


def _sent_filter(broker: "BrokerView", args: PullMessageRequest, kind: str) -> PullFilter:
    check_filters_allowed(broker, kind)
    try:
        compiled = broker.filters.filters.compile(kind, args.subscription or "")
    except FilterError as error:
        raise Refused(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {error}"
        ) from None
    if broker.config.filters.filter_support_retry and args.topic.startswith(RETRY_PREFIX):
        return by_retried_topic(broker.filters, args.topic)
    return by_filter(compiled)


def _registered_filter(broker: "BrokerView", args: PullMessageRequest, subscription: SubscriptionData) -> PullFilter:
    check_filters_allowed(broker, subscription.expression_type)
    entry = broker.filters.get(args.topic, args.consumer_group)
    if entry is None:
        why = broker.filters.why_not(subscription)
        raise Refused(ResponseCode.FILTER_DATA_NOT_EXIST, f"The broker's consumer filter data is not exist: {why}")
    if entry.data.client_version < args.sub_version:
        raise Refused(ResponseCode.FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest")
    try:
        wanted = by_registered(entry, has_bit_maps=broker.config.consume_queue.enable_consume_queue_ext)
    except FilterError as error:
        raise Refused(ResponseCode.FILTER_DATA_NOT_EXIST, f"the consumer's filter cannot be used: {error}") from None
    if broker.config.filters.filter_support_retry and args.topic.startswith(RETRY_PREFIX):
        return by_retried_topic(broker.filters, args.topic)
    return wanted


def _heartbeat_subscription(
    broker: "BrokerView", args: PullMessageRequest, group: SubscriptionGroupConfig
) -> SubscriptionData:
    members = broker.clients.consumers.get(args.consumer_group)
    if members is None:
        raise Refused(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's group info not exist")
    if not group.consume_broadcast_enable and members.message_model == "BROADCASTING":
        raise Refused(
            ResponseCode.NO_PERMISSION, f"the consumer group[{args.consumer_group}] can not consume by broadcast way"
        )
    if broker.groups.forbidden and not broker.groups.may_read(args.consumer_group, args.topic):
        remark = f"the consumer group[{args.consumer_group}] is forbidden for topic[{args.topic}]"
        raise Refused(ResponseCode.NO_PERMISSION, remark)
    subscription = members.subscriptions.get(args.topic)
    if subscription is None:
        raise Refused(ResponseCode.SUBSCRIPTION_NOT_EXIST, "the consumer's subscription not exist")
    if subscription.sub_version < args.sub_version:
        raise Refused(ResponseCode.SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
    return subscription


def _read(broker: "BrokerView", args: PullMessageRequest, wanted: PullFilter) -> Read:
    reset = broker.offsets.take_reset(args.consumer_group, args.topic, args.queue_id)
    if reset is not None:
        known = broker.store.queue_range(args.topic, args.queue_id)
        return Read(GetStatus.OFFSET_RESET, reset, known.offset_min, known.offset_max)
    # The engine limits both by its settings, which allow more for messages in the page cache.
    size_max = args.max_msg_bytes if args.max_msg_bytes is not None and args.max_msg_bytes > 0 else PULL_SIZE_MAX
    return broker.store.read(
        args.topic,
        args.queue_id,
        args.queue_offset,
        count_max=max(1, args.max_msg_nums),
        size_max=size_max,
        tag_match=wanted.tags,
        record_match=wanted.record,
    )


def _code(read: Read, args: PullMessageRequest) -> ResponseCode:
    if read.status in (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE):
        return ResponseCode.PULL_OFFSET_MOVED if args.queue_offset != 0 else ResponseCode.PULL_NOT_FOUND
    return _CODES[read.status]


def _answer(broker: "BrokerView", call: Call[PullMessageRequest], read: Read) -> Response:
    args = call.args
    queue_id, offset = args.queue_id, args.queue_offset
    broker.statistics.got(args.topic, args.consumer_group, queue_id, offset, read.message_count, read.size)
    code, suggested = _code(read, args), 0
    if broker.config.replication.slave_read_enable:
        code, suggested = _suggestion(broker, read, args, code)
    head = pull_head(call.codec, call.opaque, code, read, suggested)
    return _new(Response, (code, None, read.buffers, None, head))


def _suggestion(broker: "BrokerView", read: Read, args: PullMessageRequest, code: ResponseCode) -> tuple[ResponseCode, int]:
    """Return the code to answer, and the broker id to pull from next.

    Source: `PullMessageProcessor.composeResponseHeader`.
    """
    group = broker.groups.by_name.get(args.consumer_group, DEFAULT_GROUP)
    if _is_uncorrected(broker, read, args):
        return ResponseCode.PULL_RETRY_IMMEDIATELY, group.broker_id
    in_memory = broker.ports.memory_size * broker.config.pull.access_message_in_memory_max_ratio // 100
    is_slow = 0 <= read.phy_offset_last < broker.store.offset_written - in_memory
    return code, group.which_broker_when_consume_slowly if is_slow else group.broker_id


def _is_uncorrected(broker: "BrokerView", read: Read, args: PullMessageRequest) -> bool:
    """Return whether the offset is outside the queue and this slave does not correct it."""
    return (
        broker.replication.is_slave
        and not broker.config.replication.offset_check_in_slave
        and _code(read, args) is ResponseCode.PULL_OFFSET_MOVED
    )


def _park(broker: "BrokerView", call: Call[PullMessageRequest], wanted: PullFilter) -> bool:
    args = call.args
    settings = broker.config.pull
    suspend_ms = args.suspend_timeout_millis if settings.long_polling_enable else settings.short_polling_time_ms
    suspend_ms = min(suspend_ms, SUSPEND_MS_MAX)
    if suspend_ms <= 0:
        return False

    def wake(arrived: bool) -> None:
        if call.is_alive:
            _run_again(broker, call, wanted)

    deadline_ms = broker.clock.mono_ms + suspend_ms
    key = args.topic, args.queue_id
    accepts = None if wanted.properties is None else partial(_is_wanted, broker, key, wanted.properties)
    waiter = ArrivalWaiter(key, args.queue_offset, deadline_ms, call.conn, wanted.tags, wake, accepts)
    if not broker.arrivals.park(waiter):
        return False
    broker.duties.wake("pull-deadlines", deadline_ms)
    broker.duties.wake("pull-hold-scan", broker.clock.mono_ms + HOLD_SCAN_MS)
    return True


def _is_wanted(broker: "BrokerView", key: tuple[str, int], match: MatchProperties, offset: int) -> bool:
    return broker.arrived.is_wanted(*key, offset, match)


def _run_again(broker: "BrokerView", call: Call[PullMessageRequest], wanted: PullFilter) -> None:
    """Run a parked pull for the second time, and answer it.

    The checks are repeated, as the topic may be deleted, the group disabled, or a right withdrawn
    meanwhile. A deleted group is not created again.
    """
    group = call.args.consumer_group
    if group not in broker.groups.by_name and not broker.groups.is_copy:
        call.finish(call.error(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{group}] does not exist"))
        return
    try:
        call.check_again()
        _checked(broker, call.args)
    except Refused as refused:
        call.finish(call.error(refused.code, str(refused)))
        return
    call.finish(_answer(broker, call, _read(broker, call.args, wanted)))


def hold_scan(broker: "BrokerView", now_ms: int) -> int | None:
    """Wake pulls whose queue grew by records that did not match, so that their offset moves on.

    Return when to run next, or None while no pull is parked.
    """
    for key in list(broker.arrivals.by_key):
        offset_max = broker.store.queue_range(*key).offset_max
        for waiter in list(broker.arrivals.by_key.get(key, ())):
            if offset_max > waiter.offset:
                broker.arrivals.end(waiter, True)
    return now_ms + HOLD_SCAN_MS if broker.arrivals.count else None
