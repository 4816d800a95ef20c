"""Registers the plug-in `fencing`: a lock mode, and the request that shows its epochs.

Every node process and every `rmqkit` command imports this module. So the factories import the other
modules when they are called.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rmqkit.hookspecs import Factory, hookimpl

if TYPE_CHECKING:
    from rmqkit.broker.locks.contract import LockMode
    from rmqkit.broker.view import BrokerView
    from rmqkit.runtime.calls import Handlers

NAME = "fencing"


@hookimpl
def rmqkit_lock_modes() -> Mapping[str, Factory]:
    return {NAME: _mode}


@hookimpl
def rmqkit_handlers() -> Mapping[str, Factory]:
    return {NAME: _handlers}


def _mode(broker: "BrokerView") -> "LockMode":
    from rmqkit.plugins import read_settings
    from rmqkit_fencing.fencing import Fencing, FencingSettings

    fencing = Fencing(broker, read_settings(NAME, broker.config.plugins.values.get(NAME, {}), FencingSettings))
    broker.plugins[NAME] = fencing
    return fencing


def _handlers(settings: Mapping[str, str]) -> "Handlers":
    from rmqkit_fencing.epochs_handler import rows

    return rows
