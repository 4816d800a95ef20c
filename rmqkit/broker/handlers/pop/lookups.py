"""PEEK_MESSAGE, NOTIFICATION and POLLING_INFO: what pops would get, without popping.

- PEEK returns the messages that a pop would take, without hiding them. It counts the rest.
- NOTIFICATION tells whether a pop would find messages. If not, it waits for an arrival; the answer
  then says that there is one. A filter of tags applies to the arrival. It also applies to waiting
  messages if they are few: then Apache tests 32 of them, and this broker tests all.
- POLLING_INFO counts the pops that wait.

Source: `broker/.../processor/{PeekMessageProcessor,NotificationProcessor}.java`,
`PollingInfoProcessor.java`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from rmqkit.access.rules import GET, every, on_group, on_topic
from rmqkit.broker.filters.pull_filter import EVERYTHING, PullFilter
from rmqkit.broker.handlers.demands import POP
from rmqkit.broker.handlers.pop.checks import check_readable, check_serves, checked_filter, checked_topic
from rmqkit.broker.handlers.pop.pops import park_call, wait_until
from rmqkit.broker.special.pop.pending import PopQueue
from rmqkit.runtime.calls import Answer, Call, Handlers, Refused, Response
from rmqkit.runtime.connection import Buffer
from rmqkit.wire.bodies.pop import retry_topic, retry_topics
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.schemas.pop import (
    NotificationRequest,
    NotificationResponse,
    PeekMessageRequest,
    PollingInfoRequest,
    PollingInfoResponse,
    PopMessageResponse,
)

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

rows = Handlers()

#: limits of one peek
PEEK_COUNT_MAX = 32
PEEK_SIZE_MAX = 64 * 1024 * 1024
#: one peek of so many reads the retry topic first
PEEK_RETRY_FIRST = 5


@rows.handles(RequestCode.PEEK_MESSAGE, PeekMessageRequest, access=POP)
def peek(broker: "BrokerView", call: Call[PeekMessageRequest]) -> Response:
    """Return messages without hiding them."""
    args = call.args
    check_readable(broker, is_pop=False)
    check_serves(broker)
    config = checked_topic(broker, args.topic, args.queue_id, args.consumer_group)
    chance = broker.entropy.randrange(100)
    retries = retry_topic(args.topic, args.consumer_group, is_v2=broker.config.pop.enable_retry_topic_v2)
    own = [args.queue_id] if args.queue_id >= 0 else range(config.read_queue_nums)
    queues = [(args.topic, queue_id) for queue_id in own]
    if broker.topics.get(retries) is not None:
        queues.insert(0 if chance % PEEK_RETRY_FIRST == 0 else len(queues), (retries, 0))
    body: list[Buffer] = []
    left, rest = min(max(0, args.max_msg_nums), PEEK_COUNT_MAX), 0
    for topic, queue_id in queues:
        start = broker.pop_offsets.next((topic, args.consumer_group, queue_id))
        # Unlike a pop's, the number includes the messages of this answer.
        rest += max(0, broker.store.queue_range(topic, queue_id).offset_max - start)
        if left <= 0:
            continue
        read = broker.store.read(topic, queue_id, start, count_max=left, size_max=PEEK_SIZE_MAX)
        body.extend(read.buffers)
        left -= read.message_count
    head = PopMessageResponse(pop_time=0, invisible_time=0, revive_qid=0, rest_num=rest)
    if not body:
        return Response(ResponseCode.PULL_NOT_FOUND, head, b"", "NO_MESSAGE_IN_QUEUE")
    return Response(ResponseCode.SUCCESS, head, body, "FOUND")


@rows.handles(RequestCode.NOTIFICATION, NotificationRequest, access=POP)
def notification(broker: "BrokerView", call: Call[NotificationRequest]) -> Response:
    """Tell whether there are messages for a group, or wait until there are."""
    args = call.args
    if not args.born_time:
        args.born_time = broker.clock.wall_ms
    check_readable(broker, is_pop=False)
    check_serves(broker)
    checked_topic(broker, args.topic, args.queue_id, args.consumer_group)
    is_filtered = broker.config.pop_notices.filter_notifications
    wanted = checked_filter(broker, args.topic, args.exp_type, args.exp) if is_filtered else EVERYTHING
    if _has_messages(broker, args, wanted):
        return call.ok(NotificationResponse(has_msg=True, polling_full=False))
    deadline_ms = wait_until(broker, args.born_time, args.poll_time)
    if deadline_ms is None:
        return call.ok(NotificationResponse(has_msg=False, polling_full=False))

    def begin(answer: Answer) -> None:
        def wake(arrived: bool) -> None:
            if call.is_alive:
                answer(_woken(broker, call, wanted))

        if not park_call(broker.notification_waiters, broker, call, wanted, deadline_ms, wake):
            answer(call.ok(NotificationResponse(has_msg=False, polling_full=True)))

    return call.later(begin)


def _woken(broker: "BrokerView", call: Call[NotificationRequest], wanted: PullFilter) -> Response:
    args = call.args
    try:
        call.check_again()
        check_serves(broker)
        checked_topic(broker, args.topic, args.queue_id, args.consumer_group)
    except Refused as refused:
        return call.error(refused.code, str(refused))
    return call.ok(NotificationResponse(has_msg=_has_messages(broker, args, wanted), polling_full=False))


def _has_messages(broker: "BrokerView", args: NotificationRequest, wanted: PullFilter) -> bool:
    """Return whether a queue, or the retry topic, has messages after the group's next offset."""
    config = broker.topics.get(args.topic)
    count = config.read_queue_nums if config is not None else 0
    queues = [(args.topic, each) for each in ([args.queue_id] if args.queue_id >= 0 else range(count))]
    if not args.order:  # an ordered pop does not read retry topics
        names = retry_topics(args.topic, args.consumer_group)
        queues += [(name, 0) for name in names if broker.topics.get(name) is not None]
    for topic, queue_id in queues:
        queue = topic, args.consumer_group, queue_id
        if args.order and broker.pop_orders.is_blocked(queue, args.attempt_id, 0):
            continue
        offset = broker.pop_offsets.next(queue)
        count = broker.store.queue_range(topic, queue_id).offset_max - offset
        match = wanted.tags if topic == args.topic and count < broker.config.pop_notices.notification_filter_max else None
        if count > 0 and (match is None or _any(broker, queue, offset, count, match)):
            return True
    return False


def _any(broker: "BrokerView", queue: PopQueue, offset: int, count: int, match: Callable[[int], bool]) -> bool:
    """Return whether one of the next `count` messages of a queue has a tag that matches."""
    topic, _, queue_id = queue
    return any(match(entry.tags_code) for entry in broker.store.entries(topic, queue_id, offset, count))


@rows.handles(RequestCode.POLLING_INFO, PollingInfoRequest, access=every(on_topic(GET), on_group(GET)))
def polling_info(broker: "BrokerView", call: Call[PollingInfoRequest]) -> Response:
    """Return how many pops wait for a topic, group and queue."""
    args = call.args
    check_readable(broker, is_pop=False)
    checked_topic(broker, args.topic, args.queue_id, args.consumer_group)
    number = broker.pop_waiters.number(args.topic, args.consumer_group, max(args.queue_id, -1))
    return call.ok(PollingInfoResponse(polling_num=number))
