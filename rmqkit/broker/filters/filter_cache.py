"""The filters of one broker by expression type, and a cache of compiled expressions.

A filter is created when its first expression comes. Compiled expressions are cached, and errors
too: a client whose pulls carry the subscription sends the same text with each pull.

Source: `filter/.../FilterFactory.java`, `filter/.../parser/SelectorParser.java` (PARSE_CACHE).
"""

from collections.abc import Mapping

from rmqkit.broker.filters.contract import CompiledFilter, Filter, FilterError
from rmqkit.hookspecs import Factory

#: limit of cached expressions; the least recently used one is evicted first
COMPILED_MAX = 512


class Filters:
    """Creates the filters on first use and caches at most `COMPILED_MAX` expressions."""

    def __init__(self, factories: Mapping[str, Factory]) -> None:
        self._factories = factories
        self._made: dict[str, Filter] = {}
        self._kept: dict[tuple[str, str], CompiledFilter | FilterError] = {}

    def compile(self, kind: str, expression: str) -> CompiledFilter:
        """Return the compiled expression. Raises FilterError, also if the broker lacks the type."""
        key = (kind, expression)
        kept = self._kept.pop(key, None)
        if kept is None:
            kept = self._compile(kind, expression)
            if len(self._kept) >= COMPILED_MAX:
                del self._kept[next(iter(self._kept))]
        self._kept[key] = kept
        if isinstance(kept, FilterError):
            raise FilterError(str(kept))
        return kept

    def _compile(self, kind: str, expression: str) -> CompiledFilter | FilterError:
        made = self._made.get(kind)
        if made is None:
            factory = self._factories.get(kind)
            if factory is None:
                return FilterError(f"this broker has no filter type {kind!r}; it has {', '.join(self._factories)}")
            made = self._made[kind] = factory()
        try:
            return made.compile(expression)
        except FilterError as error:
            return error
