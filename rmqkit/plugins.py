"""The plug-in registry: built by a function from the entry points of the group `rmqkit`, built-ins among them.

`load` finds every plug-in, asks each hook once and merges the answers. It refuses, in one line that names the modules: a
name two plug-ins give, a function that looks like a hook and is none, an answer that is not a mapping of names to
callables, a plug-in that cannot be imported. `broker_parts` picks what a broker's configuration names.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points as installed_entry_points
from types import ModuleType
from typing import Any, NamedTuple

import pluggy

from rmqkit import hookspecs
from rmqkit.config import NodeConfig
from rmqkit.errors import ConfigError, RmqkitError
from rmqkit.hookspecs import Factory

#: built-ins by the names of their entry points; they are found here even in a tree that is not installed
BUILT_IN = {"storage": "rmqkit.store.plugin", "client": "rmqkit.client.plugin"}
HOOKS = tuple(name for name in vars(hookspecs) if name.startswith("rmqkit_"))


class PluginError(RmqkitError):
    """A plug-in that cannot be used; the text names its module."""


class Registered(NamedTuple):
    """One row of `rmqkit plugin list`."""

    hook: str
    name: str
    module: str
    distribution: str


class BrokerParts(NamedTuple):
    """What a broker's configuration names: its engine, and the handlers and duties of `plugins`."""

    engine: Factory
    handlers: Sequence[Any] = ()
    #: (name, factory, settings)
    duties: Sequence[tuple[str, Factory, Mapping[str, str]]] = ()


@dataclass
class Plugins:
    """Factories by hook and name, and where each came from."""

    by_hook: dict[str, dict[str, Factory]] = field(default_factory=lambda: {hook: {} for hook in HOOKS})
    registered: list[Registered] = field(default_factory=list)

    @property
    def storage_engines(self) -> Mapping[str, Factory]:
        return self.by_hook["rmqkit_storage_engines"]

    @property
    def fault_policies(self) -> Mapping[str, Factory]:
        return self.by_hook["rmqkit_fault_policies"]

    @property
    def allocators(self) -> Mapping[str, Factory]:
        return self.by_hook["rmqkit_allocators"]

    @property
    def handlers(self) -> Mapping[str, Factory]:
        return self.by_hook["rmqkit_handlers"]

    @property
    def duties(self) -> Mapping[str, Factory]:
        return self.by_hook["rmqkit_duties"]

    @property
    def commands(self) -> Mapping[str, Factory]:
        return self.by_hook["rmqkit_commands"]

    def rows(self) -> list[Registered]:
        return sorted(self.registered)

    def broker_parts(self, config: NodeConfig) -> BrokerParts:
        """Raises ConfigError for a name that no plug-in gives."""
        engine = pick(self.storage_engines, config.commit_log.storage_engine, "storageEngine")
        handlers = []
        duties = []
        for name in config.plugins.plugins:
            settings = config.plugins.values.get(name, {})
            if name not in self.handlers and name not in self.duties:
                pick({**self.handlers, **self.duties}, name, "plugins")
            if name in self.handlers:
                handlers.append(self.handlers[name](settings))
            if name in self.duties:
                duties.append((name, self.duties[name], settings))
        return BrokerParts(engine, handlers, duties)


def pick(factories: Mapping[str, Factory], name: str, setting: str) -> Factory:
    """The factory of that name. Raises ConfigError with the nearest valid one."""
    factory = factories.get(name)
    if factory is not None:
        return factory
    near = get_close_matches(name, factories, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(sorted(factories)) or 'none'}"
    raise ConfigError(f"{setting}={name}: no plug-in of that name; {hint}")


def load(names: Iterable[str] = (), *, entry_points: bool = True) -> Plugins:
    """Every plug-in: the built-ins, installed ones, and modules given by name (`package.module`). Raises PluginError."""
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    origins: dict[str, str] = {}
    found = dict.fromkeys(BUILT_IN.values(), "rmqkit")
    if entry_points:
        for point in installed_entry_points(group=hookspecs.PROJECT):
            found.setdefault(point.value, point.dist.name if point.dist else "?")
    found.update((name, "given by name") for name in names if name not in found)
    for module_name, distribution in found.items():
        module = _import(module_name)
        origins[module.__name__] = distribution
        try:
            manager.register(module, module.__name__)
        except (pluggy.PluginValidationError, ValueError) as error:
            raise PluginError(f"plug-in {module.__name__}: {' '.join(str(error).split())}") from None
        _refuse_unknown_hooks(module)
    plugins = Plugins()
    for hook in HOOKS:
        _collect(manager, hook, plugins, origins)
    return plugins


def _import(name: str) -> ModuleType:
    try:
        return import_module(name)
    except Exception as error:
        raise PluginError(f"plug-in {name} cannot be imported: {type(error).__name__}: {error}") from error


def _refuse_unknown_hooks(module: ModuleType) -> None:
    """A misspelt hook would be silence; say so."""
    for name, value in vars(module).items():
        marked = hasattr(value, f"{hookspecs.PROJECT}_impl")
        if name not in HOOKS and (marked or (name.startswith("rmqkit_") and callable(value))):
            near = get_close_matches(name, HOOKS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"hooks are: {', '.join(HOOKS)}"
            raise PluginError(f"plug-in {module.__name__}: {name} is no hook; {hint}")


def _collect(manager: pluggy.PluginManager, hook: str, plugins: Plugins, origins: Mapping[str, str]) -> None:
    owners: dict[str, str] = {}
    for implementation in getattr(manager.hook, hook).get_hookimpls():
        module = implementation.plugin_name
        try:
            answer = implementation.function()
        except Exception as error:
            raise PluginError(f"plug-in {module}: {hook} failed: {type(error).__name__}: {error}") from error
        if not isinstance(answer, Mapping) or not all(isinstance(k, str) and callable(v) for k, v in answer.items()):
            raise PluginError(f"plug-in {module}: {hook} must return a mapping of name to factory, got {answer!r}")
        for name, factory in answer.items():
            if name in owners:
                raise PluginError(f"{hook}: the name {name!r} is given by both {owners[name]} and {module}")
            owners[name] = module
            plugins.by_hook[hook][name] = factory
            plugins.registered.append(Registered(hook, name, module, origins[module]))
