"""Every public name has a docstring, its parameters are documented, and classes have an example.

Public are the names in `__all__` of the modules in `PUBLIC`, and the public methods and properties
of these classes, with those inherited from rmqkit. Tests of a contract suite (`test_*`) are exempt:
their names document them. Errors and enums need only a docstring: programs do not create them.
"""

import enum
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import is_dataclass
from importlib import import_module
from typing import Any

import pytest

from tests.tidy.tree import none

PUBLIC = ("rmqkit", "rmqkit.aio", "rmqkit.testing", "rmqkit.spark")
#: a section "Example:", or a paragraph that is indented below one that is not
EXAMPLE = re.compile(r"^Examples?:$|^\S.*\n\n {4}", re.MULTILINE)


def names(module: str) -> Iterator[tuple[str, Any]]:
    """Yield the public classes and functions of a module, each with its label."""
    loaded = import_module(module)
    for name in loaded.__all__:
        thing = getattr(loaded, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            yield f"{module}.{name}", thing


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class, each with its name."""
    for name in dir(kind):
        owner = next((base for base in kind.__mro__ if name in vars(base)), object)
        member = getattr(kind, name, None)
        is_public = owner.__module__.startswith("rmqkit") and not name.startswith(("_", "test_"))
        if is_public and (inspect.isroutine(member) or isinstance(member, property)):
            yield name, member


def everything(module: str) -> Iterator[tuple[str, Any, list[str]]]:
    """Yield the label, the object and the parameters of each public name and member."""
    for label, thing in names(module):
        yield label, thing, [] if is_error_or_enum(thing) else parameters(thing)
        for name, member in members(thing) if inspect.isclass(thing) else ():
            has_self = inspect.isfunction(member) and not isinstance(inspect.getattr_static(thing, name), staticmethod)
            is_called = inspect.isfunction(member) or inspect.ismethod(member)  # unlike properties and fixtures
            yield f"{label}.{name}", member, parameters(member)[has_self:] if is_called else []


def parameters(function: Any) -> list[str]:
    """Return the names of the parameters, without *args and **kwargs."""
    found = inspect.signature(function).parameters.values()
    return [each.name for each in found if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]


def is_error_or_enum(thing: Any) -> bool:
    return inspect.isclass(thing) and issubclass(thing, BaseException | enum.Enum)


def is_result(kind: type) -> bool:
    """Return whether it only carries values: named tuples and dataclasses do."""
    return issubclass(kind, tuple) or is_dataclass(kind)


def text_of(thing: Any) -> str:
    """Return its docstring. A method may inherit it; a class may not.

    A signature does not count: Python makes it for named tuples and dataclasses.
    """
    if not inspect.isclass(thing):
        return inspect.getdoc(thing) or ""
    text = inspect.cleandoc(vars(thing).get("__doc__") or "")
    return "" if text.startswith(f"{thing.__name__}(") else text


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_name_has_a_docstring(module):
    none(f"{label}: no docstring" for label, thing, _ in everything(module) if not text_of(thing))


@pytest.mark.parametrize("module", PUBLIC)
def test_every_parameter_is_documented_by_its_name(module):
    """The docstring of a class documents the parameters of its `__init__`."""
    none(
        f"{label}: the docstring does not name {name}"
        for label, thing, found in everything(module)
        for name in found
        if not re.search(rf"\b{name}\b", text_of(thing))
    )


@pytest.mark.parametrize("module", PUBLIC)
def test_every_public_class_has_an_example(module):
    """In its docstring or in that of its module. Errors, enums and plain results need none."""
    kinds = [(label, kind) for label, kind in names(module) if inspect.isclass(kind)]
    none(
        f"{label}: no example"
        for label, kind in kinds
        if not (is_error_or_enum(kind) or is_result(kind))
        and not any(EXAMPLE.search(text_of(each)) for each in (kind, sys.modules[kind.__module__]))
    )
