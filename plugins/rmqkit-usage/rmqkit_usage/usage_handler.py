"""The handler of code 71001: returns the history, filtered and sorted."""

from typing import TYPE_CHECKING

from rmqkit.access.rules import TOPIC, lists
from rmqkit.broker.names import is_system_topic
from rmqkit.runtime.calls import Call, Handlers, Refused, Response
from rmqkit.wire.codes import ResponseCode
from rmqkit_usage.history import Line
from rmqkit_usage.plugin import NAME
from rmqkit_usage.protocol import GET_USAGE, GetUsageRequest, TopicUsage, UsageBody

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView
    from rmqkit_usage.sampler import SampleRound

rows = Handlers()


@rows.handles(GET_USAGE, GetUsageRequest, access=lists(TOPIC))
def usage(broker: "BrokerView", call: Call[GetUsageRequest]) -> Response:
    args = call.args
    exact = args.topic is not None and not args.topic.endswith("*")
    if args.points and not exact:
        raise Refused(ResponseCode.INVALID_PARAMETER, "points need one whole topic name, without *")
    sampling: SampleRound = broker.plugins[NAME]
    history = sampling.history
    visible = call.visible(TOPIC, history.lines)
    since_ms = None if args.since_millis is None else history.round_ms - args.since_millis
    chosen = [
        _topic_usage(topic, line, since_ms, points=args.points)
        for topic, line in history.lines.items()
        if topic in visible and _matches(topic, args.topic) and (exact or args.system or not _is_own(broker, topic))
    ]
    chosen.sort(key=lambda each: (-each.added, each.topic))
    body = UsageBody(
        broker_name=broker.config.identity.broker_name,
        interval_millis=sampling.settings.interval_millis,
        left_out=history.left_out,
        round_millis=history.round_ms,
        topics=chosen[: args.top],
    )
    return call.ok(body=body.encode())


def _matches(topic: str, wanted: str | None) -> bool:
    if wanted is None:
        return True
    return topic.startswith(wanted[:-1]) if wanted.endswith("*") else topic == wanted


def _is_own(broker: "BrokerView", topic: str) -> bool:
    return topic in broker.topics.system or is_system_topic(topic)


def _topic_usage(topic: str, line: Line, since_ms: int | None, *, points: bool) -> TopicUsage:
    growth = line.growth(since_ms)
    return TopicUsage(
        topic=topic,
        messages=line.last.messages,
        kept=line.kept,
        queues=len(line.queue_ends),
        added=growth.messages,
        size_added=growth.size,
        from_millis=growth.from_ms,
        grown_millis=line.last.at_ms,
        points=[tuple(point) for point in line.points_since(since_ms)] if points else None,  # type: ignore[misc]
    )
