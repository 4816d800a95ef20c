"""SubscriptionData: the messages of a topic that a group wants, and the parser for tag expressions.

A tag expression is `TagA || TagB`; `*` or an empty one matches every message. The broker compares
hash codes of tags (`code_set`) with the entries of the consume queue; the client compares the tags
themselves (`tags_set`).

Source: `remoting/.../protocol/filter/FilterAPI.java`,
`remoting/.../protocol/heartbeat/SubscriptionData.java`.
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
    """One subscription of a group.

    Of two subscriptions the one with the greater `sub_version` is newer; all clients use the time
    of creation in ms.
    """

    class_filter_mode: bool = False
    code_set: list[int] = field(default_factory=list)
    expression_type: str | None = EXPRESSION_TAG
    sub_string: str = ""
    sub_version: Int64 = 0
    tags_set: list[str] = field(default_factory=list)
    topic: str

    @property
    def is_tag_type(self) -> bool:
        """Whether the expression lists tags.

        An absent type means tags, too (`ExpressionType.isTagType`).
        """
        return not self.expression_type or self.expression_type == EXPRESSION_TAG


def parse_subscription(
    topic: str, expression: str | None, expression_type: str | None = EXPRESSION_TAG, sub_version: int = 0
) -> SubscriptionData:
    """Return the subscription to a topic for an expression (`FilterAPI.build`).

    Raises RemoteProtocolError for a tag expression that consists of `|` pairs only, and for an
    empty expression of another type.
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
    """Return the distinct tags of an expression in order; none if it matches every message.

    Raises RemoteProtocolError if the expression consists of `|` pairs only.
    """
    if not expression or expression == SUB_ALL:
        return []
    pieces = expression.split("||")
    if not any(pieces):
        raise RemoteProtocolError(f"subscription {expression!r} names no tag")
    return list(dict.fromkeys(tag for piece in pieces if (tag := piece.strip())))
