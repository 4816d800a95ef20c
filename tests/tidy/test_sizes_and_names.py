"""Sizes and names. Lengths are limits, not goals; a function or module over its limit wants a seam, not an exception."""

import ast
import re

import pytest

from tests.tidy.tree import Module, modules

ALL = (*modules(), *modules("tools"))

MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
BANNED_ENDINGS = ("Manager", "Impl", "Helper", "Util", "Utils", "Service", "Wrapper")
BANNED_TEXT = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b(?!XX)")
#: tables of data are long by nature
DATA = re.compile(r"rmqkit\.settings\.\w+_keys|rmqkit\.wire\.codes")


@pytest.mark.parametrize("module", [m for m in ALL if not DATA.match(m.name)], ids=str)
def test_modules_stay_small(module: Module):
    lines = module.text.count("\n")
    assert lines <= MODULE_LINES_MAX, f"{module.path} has {lines} lines: is there a seam inside?"


@pytest.mark.parametrize("module", ALL, ids=str)
def test_functions_fit_on_a_screen(module: Module):
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= FUNCTION_LINES_MAX, f"{module.path}:{node.lineno} {node.name} has {lines} lines"


@pytest.mark.parametrize("module", ALL, ids=str)
def test_names_say_what_a_thing_is(module: Module):
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef):
            assert not node.name.endswith(BANNED_ENDINGS), f"{module.path}:{node.lineno} class {node.name}"


@pytest.mark.parametrize("module", ALL, ids=str)
def test_nothing_is_left_for_later(module: Module):
    found = BANNED_TEXT.search(module.text)
    assert found is None, f"{module.path}: {found}"


@pytest.mark.parametrize("module", [m for m in ALL if m.path.name != "__init__.py"], ids=str)
def test_a_module_says_how_it_works(module: Module):
    assert ast.get_docstring(module.tree), f"{module.path} has no docstring at its head"
