"""The broker's built-in plug-in: lock modes, escape strategies and filters.

They are registered in the same way as those of external plug-ins.
"""

from collections.abc import Mapping

from rmqkit.broker.escape.strategies import ESCAPE_STRATEGIES
from rmqkit.broker.filters.built_in import FILTERS
from rmqkit.broker.locks import LOCK_MODES
from rmqkit.hookspecs import Factory, hookimpl


@hookimpl
def rmqkit_lock_modes() -> Mapping[str, Factory]:
    return LOCK_MODES


@hookimpl
def rmqkit_escape_strategies() -> Mapping[str, Factory]:
    return ESCAPE_STRATEGIES


@hookimpl
def rmqkit_filters() -> Mapping[str, Factory]:
    return FILTERS
