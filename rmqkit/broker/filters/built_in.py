"""The built-in filters by expression type. A module is imported when its first expression comes."""

from collections.abc import Mapping

from rmqkit.broker.filters.contract import Filter
from rmqkit.hookspecs import Factory


def _tags() -> Filter:
    from rmqkit.broker.filters.tags import TagFilter

    return TagFilter()


def _sql92() -> Filter:
    from rmqkit.broker.filters.sql92 import Sql92Filter

    return Sql92Filter()


FILTERS: Mapping[str, Factory] = {"TAG": _tags, "SQL92": _sql92}
