"""Every schema of a request or response by its class name, whichever module defines it."""

from importlib import import_module
from pkgutil import iter_modules
from types import SimpleNamespace

from rmqkit.wire import schemas as package
from rmqkit.wire.schema import Ext

SCHEMAS: dict[str, type[Ext]] = {
    name: value
    for found in iter_modules(package.__path__)
    for name, value in vars(import_module(f"{package.__name__}.{found.name}")).items()
    if isinstance(value, type) and issubclass(value, Ext) and value.__module__ == f"{package.__name__}.{found.name}"
}
schemas = SimpleNamespace(**SCHEMAS)
