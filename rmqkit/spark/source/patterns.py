"""Matches topics against `subscribePattern`, in a cluster or in a store folder."""

import re
from collections.abc import Collection

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
