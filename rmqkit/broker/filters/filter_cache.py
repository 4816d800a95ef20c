"""The filters of one broker by name, and the expressions they have compiled.

A filter is made when its first expression comes. Compiled expressions are kept, errors too: a client that pulls with a
subscription of its own sends the same text with each pull.

Source: `filter/.../FilterFactory.java`, `filter/.../parser/SelectorParser.java` (PARSE_CACHE).
"""

from collections.abc import Mapping

from rmqkit.broker.filters.contract import CompiledFilter, Filter, FilterError
from rmqkit.hookspecs import Factory

#: expressions kept; the one not asked for the longest goes first
COMPILED_MAX = 512


class Filters:
    def __init__(self, factories: Mapping[str, Factory]) -> None:
        self._factories = factories
        self._made: dict[str, Filter] = {}
        self._kept: dict[tuple[str, str], CompiledFilter | FilterError] = {}

    def compile(self, kind: str, expression: str) -> CompiledFilter:
        """Raises FilterError, for a kind that is not there as well."""
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
                return FilterError(f"there is no filter {kind!r} on this broker; there are: {', '.join(self._factories)}")
            made = self._made[kind] = factory()
        try:
            return made.compile(expression)
        except FilterError as error:
            return error
