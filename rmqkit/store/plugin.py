"""The built-in storage engines, registered as an outside plug-in's are."""

from collections.abc import Mapping

from rmqkit.hookspecs import Factory, hookimpl
from rmqkit.store import ENGINES


@hookimpl
def rmqkit_storage_engines() -> Mapping[str, Factory]:
    return ENGINES
