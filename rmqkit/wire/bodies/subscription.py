"""SubscriptionData: what a group wants of a topic, and how an expression becomes one.

A tag expression is `TagA || TagB`; `*` or nothing means every message. The broker compares hash codes of tags with the
consume queue (`code_set`), the client compares the tags themselves (`tags_set`).

Source: `remoting/.../protocol/filter/FilterAPI.java`, `remoting/.../protocol/heartbeat/SubscriptionData.java`.
"""

from msgspec import field

from rmqkit.errors import RemoteProtocolError
from rmqkit.wire.bodies.base import Body
from rmqkit.wire.javahash import tags_code
from rmqkit.wire.schema import Int64

SUB_ALL = "*"
EXPRESSION_TAG = "TAG"
EXPRESSION_SQL92 = "SQL92"


class SubscriptionData(Body, kw_only=True):
    """`sub_version` says which of two is newer (milliseconds of its making, in every client)."""

    class_filter_mode: bool = False
    code_set: list[int] = field(default_factory=list)
    expression_type: str | None = EXPRESSION_TAG
    sub_string: str = ""
    sub_version: Int64 = 0
    tags_set: list[str] = field(default_factory=list)
    topic: str

    @property
    def is_tag_type(self) -> bool:
        """No type at all means tags (`ExpressionType.isTagType`)."""
        return not self.expression_type or self.expression_type == EXPRESSION_TAG


def parse_subscription(
    topic: str, expression: str | None, expression_type: str | None = EXPRESSION_TAG, sub_version: int = 0
) -> SubscriptionData:
    """The subscription to a topic by an expression (`FilterAPI.build`).

    Raises RemoteProtocolError for a tag expression of nothing but `|` pairs and for an empty one of another type.
    """
    if expression_type and expression_type != EXPRESSION_TAG:
        if not expression:
            raise RemoteProtocolError(f"a subscription of type {expression_type} needs an expression")
        return SubscriptionData(
            topic=topic, sub_string=expression, expression_type=expression_type, sub_version=sub_version
        )
    tags = tags_of(expression)
    return SubscriptionData(
        topic=topic,
        sub_string=expression or SUB_ALL,
        sub_version=sub_version,
        tags_set=tags,
        code_set=[tags_code(tag) for tag in tags],
    )


def tags_of(expression: str | None) -> list[str]:
    """The different tags of an expression in its order; none when it means every message. Raises RemoteProtocolError."""
    if not expression or expression == SUB_ALL:
        return []
    pieces = expression.split("||")
    if not any(pieces):
        raise RemoteProtocolError(f"subscription {expression!r} names no tag")
    return list(dict.fromkeys(tag for piece in pieces if (tag := piece.strip())))
