"""Registers the built-in faults and promises of drills through the hooks that plug-ins use.

Every node process loads this module, but no node runs drills. So the module has only the names; a
factory imports the implementation when it is called.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from rmqkit.hookspecs import Factory, hookimpl

FAULTS = ("kill", "pause", "isolate", "isolate-in", "isolate-out", "isolate-ha", "isolate-controllers", "kill-leader")
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
    "one-master-per-epoch",
    "confirm-forward",
    "epochs-equal",
    "lease-kept",
    "election-ends",
    "locks-exclusive",
    "delay-kept",
    "timer-kept",
    "transaction-atomic",
    "pop-kept",
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
