"""Which topics and queues the options of a query select, in a cluster or in a store folder."""

import re
from collections.abc import Collection

from rmqkit.spark.options import SourceOptions
from rmqkit.wire.topic_names import SYSTEM_PREFIX, SYSTEM_TOPICS

SYSTEM_PREFIXES = (SYSTEM_PREFIX, SYSTEM_PREFIX.upper())
GROUP_PREFIX = "%"
SYSTEM_SUFFIX = "_REPLY_TOPIC"


def chosen(name: str, pattern: str, others: Collection[str] = ()) -> bool:
    """Whether a pattern selects a topic.

    It never selects `others` or system topics. It selects topics of groups (`%RETRY%`, `%DLQ%`)
    only if it begins with `%`.
    """
    if name in SYSTEM_TOPICS or name in others or name.startswith(SYSTEM_PREFIXES) or name.endswith(SYSTEM_SUFFIX):
        return False
    if name.startswith(GROUP_PREFIX) and not pattern.lstrip("^(").startswith(GROUP_PREFIX):
        return False
    return re.fullmatch(pattern, name) is not None


def selects(options: SourceOptions, topic: str, broker: str = "", queue: int = -1) -> bool:
    """Whether the options select a topic; if given, also the broker and the queue."""
    if options.subscribe_pattern:
        return chosen(topic, options.subscribe_pattern)
    if not options.assign:
        return topic in options.subscribe
    brokers = options.assign.get(topic, {})
    return (broker in brokers or not broker) and (queue in brokers.get(broker, ()) or queue < 0)
