"""Filter `TAG`: selects messages with one of several tags, `TagA || TagB`, or all with `*`.

The queue entry holds the hash code of the tag, and only this code is compared here. Two tags may
have the same code, so consumers compare the tags themselves, as all RocketMQ clients do.

Source: `remoting/.../protocol/filter/FilterAPI.java`,
`broker/.../filter/ExpressionMessageFilter.java`.
"""

from typing import NamedTuple

from rmqkit.broker.filters.contract import FilterError, MatchProperties, MatchTags
from rmqkit.errors import RemoteProtocolError
from rmqkit.wire.bodies.subscription import tags_of
from rmqkit.wire.javahash import tags_code


class CompiledTags(NamedTuple):
    """A compiled expression. It needs no properties."""

    match_tags: MatchTags | None
    match_properties: MatchProperties | None = None


class TagFilter:
    """The filter for the expression type TAG."""

    def compile(self, expression: str) -> CompiledTags:
        try:
            codes = frozenset(tags_code(tag) for tag in tags_of(expression))
        except RemoteProtocolError as error:
            raise FilterError(str(error)) from None
        return CompiledTags(codes.__contains__ if codes else None)
