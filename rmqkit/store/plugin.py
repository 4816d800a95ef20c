"""Registers the built-in storage engines through the same hook as external plug-ins."""

from collections.abc import Mapping

from rmqkit.hookspecs import Factory, hookimpl
from rmqkit.store import ENGINES


@hookimpl
def rmqkit_storage_engines() -> Mapping[str, Factory]:
    return ENGINES
