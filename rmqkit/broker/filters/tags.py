"""Filter `TAG`: messages with one of some tags, `TagA || TagB`, or `*` for all.

The queue entry holds the tag's hash code, and only that is compared here: two tags may share one. Consumers compare the
tags themselves, as all of RocketMQ's clients do.

Source: `remoting/.../protocol/filter/FilterAPI.java`, `broker/.../filter/ExpressionMessageFilter.java`.
"""

from typing import NamedTuple

from rmqkit.broker.filters.contract import FilterError, MatchProperties, MatchTags
from rmqkit.errors import RemoteProtocolError
from rmqkit.wire.bodies.subscription import tags_of
from rmqkit.wire.javahash import tags_code


class CompiledTags(NamedTuple):
    match_tags: MatchTags | None
    match_properties: MatchProperties | None = None


class TagFilter:
    def compile(self, expression: str) -> CompiledTags:
        try:
            codes = frozenset(tags_code(tag) for tag in tags_of(expression))
        except RemoteProtocolError as error:
            raise FilterError(str(error)) from None
        return CompiledTags(codes.__contains__ if codes else None)
