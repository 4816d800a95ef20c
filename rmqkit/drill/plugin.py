"""The built-in faults and promises of drills, registered as an outside plug-in's are.

Every node loads this module, and no node drills: the names stand here, what they mean is imported when it is made.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from rmqkit.hookspecs import Factory, hookimpl

FAULTS = ("kill", "pause", "isolate", "isolate-in", "isolate-out", "isolate-ha")
#: in the order in which reports show them
PROMISES = (
    "acknowledged-survive",
    "nothing-unsent",
    "everything-delivered",
    "queue-order",
    "offsets-stable",
    "commits-forward",
    "logs-equal",
    "one-master",
    "locks-exclusive",
    "delay-kept",
    "progress-forward",
    "waits-bounded",
    "recovers",
)


def _from(module: str, table: str, name: str) -> Factory:
    def make() -> Any:
        return getattr(import_module(module), table)[name]()

    return make


@hookimpl
def rmqkit_faults() -> Mapping[str, Factory]:
    return {name: _from("rmqkit.drill.faults", "FAULTS", name) for name in FAULTS}


@hookimpl
def rmqkit_promises() -> Mapping[str, Factory]:
    return {name: _from("rmqkit.drill.promises", "PROMISES", name) for name in PROMISES}
