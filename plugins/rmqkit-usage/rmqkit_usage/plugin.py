"""Registers the plug-in `usage`: a request code, a duty, and the command `rmqkit usage`.

Every node process and every `rmqkit` command imports this module, so it imports only the hooks'
marker. The factories import the other modules. They are called only where `usage` is enabled.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rmqkit.hookspecs import Factory, hookimpl

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView
    from rmqkit.runtime.calls import Handlers
    from rmqkit.runtime.duties import Run

NAME = "usage"


@hookimpl
def rmqkit_handlers() -> Mapping[str, Factory]:
    return {NAME: _handlers}


@hookimpl
def rmqkit_duties() -> Mapping[str, Factory]:
    return {NAME: _duty}


@hookimpl
def rmqkit_commands() -> Mapping[str, Factory]:
    return {NAME: _command}


def _handlers(settings: Mapping[str, str]) -> "Handlers":
    from rmqkit.plugins import read_settings
    from rmqkit_usage.sampler import UsageSettings
    from rmqkit_usage.usage_handler import rows

    # The duty uses the settings. They are checked here too, before the broker opens any file.
    read_settings(NAME, settings, UsageSettings)
    return rows


def _duty(broker: "BrokerView", settings: Mapping[str, str]) -> "Run":
    from rmqkit.plugins import read_settings
    from rmqkit_usage.sampler import SampleRound, UsageSettings

    sampling = SampleRound(broker, read_settings(NAME, settings, UsageSettings))
    broker.plugins[NAME] = sampling
    return sampling.run


def _command() -> Any:
    from rmqkit_usage.command import app

    return app
