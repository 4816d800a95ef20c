"""Filters: how a subscription selects messages, and what a filter plug-in must provide.

A subscription names the type of its expression (`expressionType`). `TAG` and `SQL92` are built in;
plug-ins add others through the hook `rmqkit_filters`. A filter compiles an expression once. The
broker keeps the result and asks it about each message: first with the tag's code in the queue entry
and, if that does not rule the message out, with the record's properties.

    class CompiledFilter:
        match_tags         code of the tag in the queue entry -> may this message be wanted?
        match_properties   name -> value, both text -> is it wanted?

Either may be None, which means "always true" and costs nothing. A message is delivered if both are
true. Both are called for each message of a pull: they must not raise, keep state or take long.

`compile` gets the text that a client sent. It raises `FilterError` for an expression that it does
not accept, and the text of the error is returned to the client.

Source: `filter/.../FilterSpi.java`, `store/.../MessageFilter.java`.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from rmqkit.errors import RmqkitError

Properties = Mapping[str, str]
MatchTags = Callable[[int], bool]
MatchProperties = Callable[[Properties], bool]


class FilterError(RmqkitError):
    """The expression is invalid or exceeds a limit. The text says where and why, in one line."""


class CompiledFilter(Protocol):
    """A compiled expression: two tests, of which either may be None (always true)."""

    @property
    def match_tags(self) -> MatchTags | None: ...
    @property
    def match_properties(self) -> MatchProperties | None: ...


class Filter(Protocol):
    """Made by a factory of `rmqkit_filters`; there is one per broker and expression type."""

    def compile(self, expression: str) -> CompiledFilter:
        """Compile an expression. Raises FilterError if it is not accepted."""
