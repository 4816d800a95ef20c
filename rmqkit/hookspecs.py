"""The hooks: where other behaviour snaps in.

A plug-in is a module (or object) with functions of these names, marked with `hookimpl`, named by an entry point of the
group `rmqkit`. Each hook returns a mapping of name → factory; it registers and does nothing else. Configuration picks by
name (`storageEngine=…`, `plugins=…`, a producer's `fault_policy`), so an installed plug-in that nobody names changes
nothing. Hooks are called once, when a node, client or command starts: never per message. `docs/plugins.md` has each hook
with its factory's signature and contract.

    from rmqkit.hookspecs import hookimpl

    @hookimpl
    def rmqkit_storage_engines():
        return {"mine": make_engine}
"""

from collections.abc import Callable, Mapping
from typing import Any

import pluggy

PROJECT = "rmqkit"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)

Factory = Callable[..., Any]


@hookspec
def rmqkit_storage_engines() -> Mapping[str, Factory]:
    """Storage engines, chosen by `storageEngine`. Factory: `(parts: EngineParts) -> StorageEngine`."""


@hookspec
def rmqkit_fault_policies() -> Mapping[str, Factory]:
    """How a producer chooses among brokers, chosen by its `fault_policy`. Factory: `() -> FaultPolicy`."""


@hookspec
def rmqkit_lock_modes() -> Mapping[str, Factory]:
    """How queue locks of ordered consumption are granted, chosen by `lockMode`.

    Factory: `(broker: BrokerView) -> LockMode`.
    """


@hookspec
def rmqkit_escape_strategies() -> Mapping[str, Factory]:
    """Where an acting master puts messages that are due, chosen by `escapeStrategy`.

    Factory: `(broker: BrokerView) -> EscapeStrategy`.
    """


@hookspec
def rmqkit_filters() -> Mapping[str, Factory]:
    """How subscriptions say which messages they want, chosen by their `expressionType`. Factory: `() -> Filter`."""


@hookspec
def rmqkit_allocators() -> Mapping[str, Factory]:
    """How a group's queues are shared, chosen by a consumer's `allocator`. Factory: `() -> Allocator`."""


@hookspec
def rmqkit_faults() -> Mapping[str, Factory]:
    """What drills do to nodes, chosen by a plan's `fault`. Factory: `() -> Fault`."""


@hookspec
def rmqkit_promises() -> Mapping[str, Factory]:
    """What drills check over their history; every one that applies. Factory: `() -> Promise`."""


@hookspec
def rmqkit_handlers() -> Mapping[str, Factory]:
    """Request codes of a broker, switched on by naming them in `plugins`.

    Factory: `(settings: Mapping[str, str]) -> Handlers`.
    """


@hookspec
def rmqkit_duties() -> Mapping[str, Factory]:
    """Background work of a broker, switched on by naming it in `plugins`.

    Factory: `(broker: BrokerView, settings: Mapping[str, str]) -> Run`.
    """


@hookspec
def rmqkit_commands() -> Mapping[str, Factory]:
    """Sub-commands of `rmqkit`. Factory: `() -> typer.Typer`."""
