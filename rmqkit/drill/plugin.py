"""The built-in faults and promises of drills, registered as an outside plug-in's are."""

from collections.abc import Mapping

from rmqkit.drill.faults import FAULTS
from rmqkit.drill.promises import PROMISES
from rmqkit.hookspecs import Factory, hookimpl


@hookimpl
def rmqkit_faults() -> Mapping[str, Factory]:
    return FAULTS


@hookimpl
def rmqkit_promises() -> Mapping[str, Factory]:
    return PROMISES
