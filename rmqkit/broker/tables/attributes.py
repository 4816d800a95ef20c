"""Attributes of topics and groups: names, values, and changes written as `+key=value,-key`.

A new topic can only be given attributes. For an existing topic, attributes can be added, changed
and removed if they are changeable. Setting an attribute to the value that it has already changes
nothing and is allowed; upstream refuses this for attributes that are not changeable. Values that
need an unsupported feature are refused, because a topic with such a value would not behave as it
says.

Source: `common/.../{TopicAttributes,SubscriptionGroupAttributes}.java`,
`common/.../attribute/{AttributeParser,AttributeUtil,EnumAttribute,LongRangeAttribute}.java`.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

#: the kind of a topic's queues; without the attribute they are SimpleCQ
QUEUE_TYPE, BATCH_QUEUE = "queue.type", "BatchCQ"
MESSAGE_TYPES = ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED")

Changes = list[tuple[str, str]]
#: returns what is wrong with a value, None if it is valid
Check = Callable[[str], str | None]


class Attribute(NamedTuple):
    """One attribute: whether it may change after creation, and the check of its values."""

    changeable: bool
    check: Check


def _one_of(*allowed: str, later: tuple[str, ...] = ()) -> Check:
    def check(value: str) -> str | None:
        if value in later:
            return f"{value} is not supported by this broker yet"
        return None if value in allowed else f"{value!r} is not one of {', '.join(allowed)}"

    return check


def _within(low: int, high: int) -> Check:
    def check(value: str) -> str | None:
        digits = value.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 20):
            return f"{value!r} is not a whole number"
        return None if low <= int(value) <= high else f"{value} is not between {low} and {high}"

    return check


TOPIC_ATTRIBUTES: Mapping[str, Attribute] = {
    QUEUE_TYPE: Attribute(False, _one_of("SimpleCQ", BATCH_QUEUE)),
    "cleanup.policy": Attribute(False, _one_of("DELETE", later=("COMPACTION",))),
    "message.type": Attribute(True, _one_of(*MESSAGE_TYPES, later=("PRIORITY", "LITE"))),
    "reserve.time": Attribute(True, _within(-1, 2**63 - 1)),
}
#: empty: 5.x before 5.4 has no attributes of groups, and those of 5.4 and later belong to priority
#: and lite topics
GROUP_ATTRIBUTES: Mapping[str, Attribute] = {}


def parse(text: str | None) -> Changes:
    """Return (signed key, value) of each change. Raises ValueError if the format is wrong."""
    changes = []
    for change in filter(None, (text or "").split(",")):
        key, equals, value = change.partition("=")
        if equals and not key.startswith("+"):
            raise ValueError(f"add/alter attribute format is wrong: {key}")
        if not equals and not key.startswith("-"):
            raise ValueError(f"delete attribute format is wrong: {key}")
        changes.append((key, value))
    return changes


def altered(
    known: Mapping[str, str] | None, changes: Iterable[tuple[str, str]], table: Mapping[str, Attribute]
) -> dict[str, str]:
    """Return the attributes after the changes.

    `known` has the attributes before them, None for a topic or group that is being created. Raises
    ValueError if a change is not allowed.
    """
    result = dict(known or {})
    seen: set[str] = set()
    for signed, value in changes:
        sign, key = signed[:1], signed[1:]
        if sign not in ("+", "-") and result.get(signed) == value:
            continue  # a tool writes back the attributes that it has read
        if not key or "+" in key or "-" in key:
            raise ValueError(f"attribute change {signed!r} is neither +key=value nor -key")
        if key in seen:
            raise ValueError(f"alter duplication key. key: {key}")
        seen.add(key)
        attribute = table.get(key)
        if attribute is None:
            raise ValueError(f"unsupported key: {key}")
        if sign == "-" and known is None:
            raise ValueError(f"only add attribute is supported while creating topic. key: {key}")
        if sign not in ("+", "-"):
            raise ValueError(f"wrong format key: {signed}")
        if sign == "-" and key not in result:
            raise ValueError(f"attempt to delete a nonexistent key: {key}")
        if known is not None and not attribute.changeable and (sign == "-" or result.get(key) != value):
            raise ValueError(f"attempt to update an unchangeable attribute. key: {key}")
        if sign == "-":
            del result[key]
            continue
        fault = attribute.check(value)
        if fault:
            raise ValueError(f"{key}: {fault}")
        result[key] = value
    return result
