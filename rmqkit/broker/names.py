"""Names of topics and groups: which are valid, which are system names, and derived names.

A name from the wire reaches the disk (as a queue folder) and other brokers. So the rule is
upstream's alphabet and length, checked wherever a name can create something.

Source: `common/.../topic/TopicValidator.java`, `common/.../MixAll.java`,
`client/.../Validators.java`.
"""

import re

from rmqkit.wire.topic_names import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_PREFIX, SYSTEM_TOPICS

TOPIC_SIZE_MAX = 127
RETRY_TOPIC_SIZE_MAX = 255
GROUP_SIZE_MAX = 120

SYSTEM_GROUPS = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
)

_ALLOWED = re.compile(r"[%|a-zA-Z0-9_-]+").fullmatch
#: characters of a refused name that the error repeats
_SHOWN_SIZE_MAX = 300


def topic_fault(topic: str) -> str | None:
    """Return what is wrong with a topic name, or None."""
    if not topic or not topic.strip():
        return "The specified topic is blank."
    if not _ALLOWED(topic):
        return f"The specified topic: {_shown(topic)}, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        if len(topic) > RETRY_TOPIC_SIZE_MAX:
            return (
                f"The specified topic is DLQ or Retry topic: {_shown(topic)}, "
                f"and it's longer than topic max length: {RETRY_TOPIC_SIZE_MAX}"
            )
    elif len(topic) > TOPIC_SIZE_MAX:
        return f"The specified topic: {_shown(topic)}, is longer than topic max length: {TOPIC_SIZE_MAX}"
    return None


def group_fault(group: str) -> str | None:
    """Return what is wrong with a group name, or None."""
    if not group or not group.strip():
        return "The specified group is blank."
    if not _ALLOWED(group):
        return f"The specified group: {_shown(group)}, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    if len(group) > GROUP_SIZE_MAX:
        return f"The specified group: {_shown(group)}, is longer than group max length: {GROUP_SIZE_MAX}"
    return None


def _shown(name: str) -> str:
    return name[:_SHOWN_SIZE_MAX]


def is_system_topic(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group
