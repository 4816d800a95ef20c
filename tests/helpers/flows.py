"""Checks flows with named states (`rmqkit.runtime.states`) after every test, and their drawings."""

import inspect
import textwrap
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from rmqkit.runtime.states import Moves, StateMachine


def validated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Record every flow made while this runs, then validate each."""
    made: list[StateMachine[Any]] = []
    begin = StateMachine.__init__

    def noted(self: StateMachine[Any], moves: Moves[Any]) -> None:
        begin(self, moves)
        made.append(self)

    monkeypatch.setattr(StateMachine, "__init__", noted)
    yield
    for flow in made:
        flow.validate()


def is_drawn(moves: Moves[Any], module: ModuleType) -> bool:
    """Return whether the docstring of a flow's module has the drawing of its table."""
    return textwrap.indent(moves.drawing(), "    ") in (inspect.getdoc(module) or "")
