"""What `subscribePattern` means: topics of users, in a cluster as in a store folder."""

import re
from collections.abc import Collection

#: names of topics that are nobody's own; those called as clusters and brokers come on top
SYSTEM_TOPICS = frozenset(
    {
        "BenchmarkTest",
        "OFFSET_MOVED_EVENT",
        "SCHEDULE_TOPIC_XXXX",
        "SELF_TEST_TOPIC",
        "TBW102",
        "TRANS_CHECK_MAX_TIME_TOPIC",
    }
)
SYSTEM_PREFIXES = ("rmq_sys_", "RMQ_SYS_")
GROUP_PREFIX = "%"
SYSTEM_SUFFIX = "_REPLY_TOPIC"


def chosen(name: str, pattern: str, others: Collection[str] = ()) -> bool:
    """Whether a pattern means a topic: not `others`, nor those of the system, and of groups (retry, dead letters) only if
    it says so."""
    if name in SYSTEM_TOPICS or name in others or name.startswith(SYSTEM_PREFIXES) or name.endswith(SYSTEM_SUFFIX):
        return False
    if name.startswith(GROUP_PREFIX) and not pattern.lstrip("^(").startswith(GROUP_PREFIX):
        return False
    return re.fullmatch(pattern, name) is not None
