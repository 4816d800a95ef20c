"""The plug-in registry, built by `load` from the entry points of the group `rmqkit`.

`load` finds every plug-in, calls each hook once and merges the results. `Plugins.broker_parts`
picks what a broker's configuration names, `pick` picks one factory, and `read_settings` reads a
plug-in's own settings into a schema.

A problem with a plug-in is a PluginError: one line that names its module, and the other plug-in if
there is a conflict.

- The module cannot be imported; the error names the distribution that installed its entry point.
- A function looks like a hook but is not one, or a hook lacks its marker.
- A hook returns anything but a mapping of names to callables.
- Two plug-ins register the same name.

What a factory creates is checked at each call (`FactoryCheck`): it must have all members of the
hook's contract.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import EntryPoint
from importlib.metadata import entry_points as installed_entry_points
from typing import Any, NamedTuple, TypeVar

import msgspec
import pluggy

from rmqkit import hookspecs
from rmqkit.broker.locks.contract import lock_mode_of
from rmqkit.config import NodeConfig
from rmqkit.errors import ConfigError, RmqkitError
from rmqkit.hookspecs import Factory
from rmqkit.suggestions import suggest

#: built-ins by the names of their entry points; listed so that they also work in a source tree
#: that is not installed
BUILT_IN = {
    "storage": "rmqkit.store.plugin",
    "client": "rmqkit.client.plugin",
    "broker": "rmqkit.broker.plugin",
    "controller": "rmqkit.controller.plugin",
    "drill": "rmqkit.drill.plugin",
}
HOOKS = tuple(name for name in vars(hookspecs) if name.startswith("rmqkit_"))

S = TypeVar("S", bound=msgspec.Struct)


class PluginError(RmqkitError):
    """A plug-in cannot be used; the text names its module."""


class HookRow(NamedTuple):
    """One row of `rmqkit plugin list`."""

    hook: str
    name: str
    module: str
    distribution: str


class Contract(NamedTuple):
    """What the factories of a hook create: its name in messages, and where it is defined.

    The definition is a Protocol, a class, or a type of function.
    """

    what: str
    module: str
    name: str


CONTRACTS: Mapping[str, Contract] = {
    "rmqkit_storage_engines": Contract("storage engine", "rmqkit.store.contract", "StorageEngine"),
    "rmqkit_fault_policies": Contract("fault policy", "rmqkit.client.fault_policy", "FaultPolicy"),
    "rmqkit_lock_modes": Contract("lock mode", "rmqkit.broker.locks.contract", "LockMode"),
    "rmqkit_escape_strategies": Contract("escape strategy", "rmqkit.broker.escape.contract", "EscapeStrategy"),
    "rmqkit_filters": Contract("filter", "rmqkit.broker.filters.contract", "Filter"),
    "rmqkit_allocators": Contract("allocator", "rmqkit.client.allocators", "Allocator"),
    "rmqkit_controller_logs": Contract("controller log", "rmqkit.controller.contract", "ControllerLog"),
    "rmqkit_faults": Contract("fault", "rmqkit.drill.contract", "Fault"),
    "rmqkit_promises": Contract("promise", "rmqkit.drill.promises.contract", "Promise"),
    "rmqkit_handlers": Contract("handlers", "rmqkit.runtime.calls", "Handlers"),
    "rmqkit_duties": Contract("duty", "rmqkit.runtime.duties", "Run"),
    "rmqkit_commands": Contract("command", "typer", "Typer"),
}


class FactoryCheck:
    """A plug-in's factory. Each call checks the created object against the contract of the hook.

    Raises PluginError. A RmqkitError from the factory itself (a ConfigError about its settings, for
    example) passes unchanged.
    """

    __slots__ = ("factory", "hook", "module", "name")

    def __init__(self, factory: Factory, *, hook: str, name: str, module: str) -> None:
        self.factory = factory
        self.hook = hook
        self.name = name
        self.module = module

    def __str__(self) -> str:
        return f"plug-in {self.module}: {CONTRACTS[self.hook].what} {self.name!r}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        contract = CONTRACTS[self.hook]
        try:
            made = self.factory(*args, **kwargs)
        except RmqkitError:
            raise
        except Exception as error:
            raise PluginError(f"{self} failed: {_in_a_line(error)}") from error
        fault = _fault(made, contract)
        if fault:
            raise PluginError(f"{self} is no {contract.name} of {contract.module}: {fault}")
        return made


def _fault(made: Any, contract: Contract) -> str:
    """Return how `made` violates the contract, "" if it does not."""
    wanted = getattr(import_module(contract.module), contract.name)
    if getattr(wanted, "_is_protocol", False):
        # `dir` first, without reading attributes: a property may have no value before the start.
        there = set(dir(made))
        missing = [name for name in _members(wanted) if name not in there and not hasattr(made, name)]
        return f"{type(made).__name__} lacks {', '.join(missing)}" if missing else ""
    if isinstance(wanted, type):
        return "" if isinstance(made, wanted) else f"it is {made!r}"
    return "" if callable(made) else f"{made!r} cannot be called"


def _members(protocol: type) -> list[str]:
    return [name for name in dict.fromkeys((*protocol.__annotations__, *vars(protocol))) if not name.startswith("_")]


class SelectedParts(NamedTuple):
    """What a broker's configuration selects.

    These are its engine, lock mode and escape strategy, and the handlers and duties of `plugins`.
    Filters are not selected here: all are passed on, since subscriptions name them.
    """

    engine: Factory
    lock_mode: Factory
    escape_strategy: Factory
    handlers: Sequence[Any]
    #: (name, factory, settings)
    duties: Sequence[tuple[str, Factory, Mapping[str, str]]]
    filters: Mapping[str, Factory]


@dataclass
class Plugins:
    """All factories by hook and name, and the origin of each."""

    by_hook: dict[str, dict[str, Factory]] = field(default_factory=lambda: {hook: {} for hook in HOOKS})
    registered: list[HookRow] = field(default_factory=list)

    @property
    def storage_engines(self) -> Mapping[str, Factory]:
        return self.by_hook["rmqkit_storage_engines"]

    @property
    def fault_policies(self) -> Mapping[str, Factory]:
        return self.by_hook["rmqkit_fault_policies"]

    @property
    def lock_modes(self) -> Mapping[str, Factory]:
        return self.by_hook["rmqkit_lock_modes"]

    @property
    def escape_strategies(self) -> Mapping[str, Factory]:
        return self.by_hook["rmqkit_escape_strategies"]

    @property
    def filters(self) -> Mapping[str, Factory]:
        return self.by_hook["rmqkit_filters"]

    @property
    def allocators(self) -> Mapping[str, Factory]:
        return self.by_hook["rmqkit_allocators"]

    @property
    def controller_logs(self) -> Mapping[str, Factory]:
        return self.by_hook["rmqkit_controller_logs"]

    @property
    def faults(self) -> Mapping[str, Factory]:
        return self.by_hook["rmqkit_faults"]

    @property
    def promises(self) -> Mapping[str, Factory]:
        return self.by_hook["rmqkit_promises"]

    @property
    def handlers(self) -> Mapping[str, Factory]:
        return self.by_hook["rmqkit_handlers"]

    @property
    def duties(self) -> Mapping[str, Factory]:
        return self.by_hook["rmqkit_duties"]

    @property
    def commands(self) -> Mapping[str, Factory]:
        return self.by_hook["rmqkit_commands"]

    def rows(self) -> list[HookRow]:
        """Return the rows of `rmqkit plugin list`, sorted."""
        return sorted(self.registered)

    def broker_parts(self, config: NodeConfig) -> SelectedParts:
        """Return what the configuration selects.

        Raises ConfigError for an unknown name, PluginError for handlers that violate their
        contract.
        """
        engine = pick(self.storage_engines, config.commit_log.storage_engine, "storageEngine")
        lock_mode = pick(self.lock_modes, lock_mode_of(config), "lockMode")
        acting = config.acting
        by_default = "auto" if acting.remote_escape else "local"
        escape_strategy = pick(self.escape_strategies, acting.escape_strategy or by_default, "escapeStrategy")
        switchable = {**self.handlers, **self.duties}
        with_settings = {**switchable, **self.storage_engines, **self.lock_modes, **self.escape_strategies}
        for name in config.plugins.values:
            # Settings of an installed but disabled plug-in are allowed; a misspelt name is not.
            if name not in with_settings:
                raise _unknown(f"plugin.{name}", name, with_settings)
        handlers = []
        duties = []
        for name in dict.fromkeys(config.plugins.plugins):
            pick(switchable, name, "plugins")
            settings = config.plugins.values.get(name, {})
            if name in self.handlers:
                handlers.append(self.handlers[name](settings))
            if name in self.duties:
                duties.append((name, self.duties[name], settings))
        return SelectedParts(engine, lock_mode, escape_strategy, handlers, duties, self.filters)


def pick(factories: Mapping[str, Factory], name: str, setting: str) -> Factory:
    """Return the factory of that name.

    Raises ConfigError, which suggests the closest known name.
    """
    factory = factories.get(name)
    if factory is None:
        raise _unknown(f"{setting}={name}", name, factories)
    return factory


def _unknown(where: str, name: str, known: Iterable[str]) -> ConfigError:
    return ConfigError(f"{where}: no plug-in of that name{suggest(name, sorted(known), 'there are: {known}')}")


def read_settings(plugin: str, settings: Mapping[str, str], schema: type[S]) -> S:
    """Convert a plug-in's own settings (`plugin.NAME.KEY`) from text to a msgspec Struct.

    Raises ConfigError for a key that the schema does not have (the text suggests the closest one),
    and for an invalid value.
    """
    known = [item.encode_name for item in msgspec.structs.fields(schema)]
    for key in settings:
        if key not in known:
            hint = suggest(key, known, "there are: {known}")
            raise ConfigError(f"config: unknown key 'plugin.{plugin}.{key}'{hint}")
    try:
        return msgspec.convert(settings, schema, strict=False)
    except msgspec.ValidationError as error:
        text = str(error)
        for key, value in settings.items():
            if f"`$.{key}`" in text:
                raise ConfigError(f"config: plugin.{plugin}.{key} = {value}: {text.partition(' - at')[0]}") from None
        raise ConfigError(f"config: plugin.{plugin}: {text}") from None


def load(names: Iterable[str] = (), *, entry_points: bool = True) -> Plugins:
    """Load every plug-in: the built-ins, the installed ones, and those in `names`.

    A name is `package.module` or `package.module:object`. Raises PluginError.
    """
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    origins = dict.fromkeys(BUILT_IN.values(), "rmqkit")
    if entry_points:
        installed = installed_entry_points(group=hookspecs.PROJECT)
        for dist, value in sorted((point.dist.name if point.dist else "?", point.value) for point in installed):
            origins.setdefault(value, dist)
    for name in names:
        origins.setdefault(name, "given by name")
    for value, origin in origins.items():
        plugin = _import(value, origin)
        _check_hooks(value, plugin)
        try:
            manager.register(plugin, value)
        except (pluggy.PluginValidationError, ValueError) as error:
            raise PluginError(f"plug-in {value}: {' '.join(str(error).split())}") from None
    plugins = Plugins()
    for hook in HOOKS:
        _collect(manager, hook, plugins, origins)
    return plugins


def _import(value: str, origin: str) -> Any:
    try:
        return EntryPoint("", value, hookspecs.PROJECT).load()
    except Exception as error:
        raise PluginError(f"plug-in {value} ({origin}) cannot be imported: {_in_a_line(error)}") from error


def _check_hooks(value: str, plugin: Any) -> None:
    """Raise PluginError for a misspelt hook and for one without its marker.

    pluggy would ignore both without a message.
    """
    for name in dir(plugin):
        function = getattr(plugin, name, None)
        options = getattr(function, f"{hookspecs.PROJECT}_impl", None)
        marked = isinstance(options, dict)
        hook = (options["specname"] or name) if marked and options else name
        if not marked and not (name.startswith("rmqkit_") and callable(function)):
            continue
        if hook not in HOOKS:
            hint = suggest(hook, HOOKS, "there are: {known}")
            raise PluginError(f"plug-in {value}: {hook} is no hook of {hookspecs.__name__}{hint}")
        if not marked:
            raise PluginError(f"plug-in {value}: {hook} lacks the decorator @hookimpl of {hookspecs.__name__}")


def _collect(manager: pluggy.PluginManager, hook: str, plugins: Plugins, origins: Mapping[str, str]) -> None:
    owners: dict[str, str] = {}
    for implementation in getattr(manager.hook, hook).get_hookimpls():
        module = implementation.plugin_name
        try:
            answer = implementation.function()
        except Exception as error:
            raise PluginError(f"plug-in {module}: {hook} failed: {_in_a_line(error)}") from error
        if not isinstance(answer, Mapping):
            raise PluginError(f"plug-in {module}: {hook} of {hookspecs.__name__} must return a mapping, not {answer!r}")
        for name, factory in answer.items():
            if not isinstance(name, str) or not callable(factory):
                raise PluginError(
                    f"plug-in {module}: {hook} of {hookspecs.__name__} must map names to factories,"
                    f" not {name!r}: {factory!r}"
                )
            if name in owners:
                raise PluginError(f"{hook}: the name {name!r} is given by both {owners[name]} and {module}")
            owners[name] = module
            plugins.by_hook[hook][name] = FactoryCheck(factory, hook=hook, name=name, module=module)
            plugins.registered.append(HookRow(hook, name, module, origins[module]))


def _in_a_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
