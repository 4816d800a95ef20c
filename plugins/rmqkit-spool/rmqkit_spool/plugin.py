"""Registers the escape strategy `spool`.

Every node process and every `rmqkit` command imports this module, so it imports only the hooks'
marker.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rmqkit.hookspecs import Factory, hookimpl

if TYPE_CHECKING:
    from rmqkit.broker.escape import EscapeStrategy
    from rmqkit.broker.view import BrokerView

NAME = "spool"


@hookimpl
def rmqkit_escape_strategies() -> Mapping[str, Factory]:
    return {NAME: _make}


def _make(broker: "BrokerView") -> "EscapeStrategy":
    from rmqkit.plugins import read_settings
    from rmqkit_spool.spool import Spool, SpoolSettings

    settings = read_settings(NAME, broker.config.plugins.values.get(NAME, {}), SpoolSettings)
    return Spool(broker, settings)
