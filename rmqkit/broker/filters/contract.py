"""Filters: how a subscription says which messages it wants, and what a filter plug-in has to offer.

A subscription names its kind of expression (`expressionType`): `TAG` and `SQL92` are built in, plug-ins add others by the
hook `rmqkit_filters`. A filter compiles an expression once; the broker keeps the result and asks it about messages, first
with what the queue entry holds, then, when that leaves the question open, with the record's properties.

    class CompiledFilter:
        match_tags         code of the tag in the queue entry -> may this message be wanted?
        match_properties   name -> value, both text -> is it wanted?

Either may be None, which stands for "always true" and costs nothing; a message is delivered when both agree. Both are
called for each message of a pull: they must not raise, keep state or take long. `compile` is called with what a client
sent: an expression it does not take is a `FilterError`, whose text goes back to the client.

Source: `filter/.../FilterSpi.java`, `store/.../MessageFilter.java`.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

from rmqkit.errors import RmqkitError

Properties = Mapping[str, str]
MatchTags = Callable[[int], bool]
MatchProperties = Callable[[Properties], bool]


class FilterError(RmqkitError):
    """The expression is none, or goes beyond a limit; one line that says where and why."""


class CompiledFilter(Protocol):
    @property
    def match_tags(self) -> MatchTags | None: ...
    @property
    def match_properties(self) -> MatchProperties | None: ...


class Filter(Protocol):
    """What a factory of `rmqkit_filters` makes; one per broker."""

    def compile(self, expression: str) -> CompiledFilter:
        """Raises FilterError."""
