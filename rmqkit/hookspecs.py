"""The hooks by which plug-ins extend rmqkit.

A plug-in is a module (or object) with functions of these names, marked with `hookimpl`. An entry
point of the group `rmqkit` names the module. Each hook returns a mapping of name → factory, and has
no other effect. Configuration selects by name (`storageEngine=…`, `plugins=…`, a producer's
`fault_policy`), so an installed plug-in that is not named changes nothing. Hooks are called once,
when a node, client or command starts; never per message. `docs/plugins.md` has the signature and
contract of each hook's factory.

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
    """Storage engines, selected by `storageEngine`.

    Factory: `(parts: EngineParts) -> StorageEngine`.
    """


@hookspec
def rmqkit_fault_policies() -> Mapping[str, Factory]:
    """How a producer chooses among brokers, selected by its `fault_policy`.

    Factory: `() -> FaultPolicy`.
    """


@hookspec
def rmqkit_lock_modes() -> Mapping[str, Factory]:
    """How queue locks for orderly consumption are granted, selected by `lockMode`.

    Factory: `(broker: BrokerView) -> LockMode`.
    """


@hookspec
def rmqkit_escape_strategies() -> Mapping[str, Factory]:
    """Where an acting master puts due messages, selected by `escapeStrategy`.

    Factory: `(broker: BrokerView) -> EscapeStrategy`.
    """


@hookspec
def rmqkit_filters() -> Mapping[str, Factory]:
    """How subscriptions select messages, chosen by their `expressionType`.

    Factory: `() -> Filter`.
    """


@hookspec
def rmqkit_allocators() -> Mapping[str, Factory]:
    """How the queues of a topic are divided among a group, selected by a consumer's `allocator`.

    Factory: `() -> Allocator`.
    """


@hookspec
def rmqkit_controller_logs() -> Mapping[str, Factory]:
    """How controllers make their decisions durable, selected by `controllerType`.

    Factory: `(parts: LogParts) -> ControllerLog`.
    """


@hookspec
def rmqkit_faults() -> Mapping[str, Factory]:
    """What drills do to nodes, selected by a plan's `fault`. Factory: `() -> Fault`."""


@hookspec
def rmqkit_promises() -> Mapping[str, Factory]:
    """What drills check in their history; all that apply are used. Factory: `() -> Promise`."""


@hookspec
def rmqkit_handlers() -> Mapping[str, Factory]:
    """Request codes of a broker, enabled by naming them in `plugins`.

    Factory: `(settings: Mapping[str, str]) -> Handlers`.
    """


@hookspec
def rmqkit_duties() -> Mapping[str, Factory]:
    """Background work of a broker, enabled by naming it in `plugins`.

    Factory: `(broker: BrokerView, settings: Mapping[str, str]) -> Run`.
    """


@hookspec
def rmqkit_commands() -> Mapping[str, Factory]:
    """Sub-commands of `rmqkit`. Factory: `() -> typer.Typer`."""
