"""Sizes and names. Split a function or module that exceeds its limit; do not add an exception."""

import ast
import re

from tests.tidy.tree import GROUP, modules, none

pytestmark = GROUP

MODULE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
BANNED_ENDINGS = ("Manager", "Impl", "Helper", "Util", "Utils", "Service", "Wrapper")
BANNED_TEXT = re.compile(r"\b(TODO|FIXME|XXX|NotImplementedError)\b(?!XX)")
#: modules that are tables of data, and therefore long
DATA = re.compile(r"rmqkit\.wire\.codes")


def test_modules_stay_small():
    none(
        f"{module.path} has {lines} lines: is there a seam inside?"
        for module in modules("rmqkit", "tools")
        if not DATA.match(module.name) and (lines := module.text.count("\n")) > MODULE_LINES_MAX
    )


def test_functions_fit_on_a_screen():
    none(
        f"{module.path}:{node.lineno} {node.name} has {lines} lines"
        for module in modules("rmqkit", "tools")
        for node in module.nodes
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
    )


def test_names_say_what_a_thing_is():
    none(
        f"{module.path}:{node.lineno} class {node.name}"
        for module in modules("rmqkit", "tools")
        for node in module.nodes
        if isinstance(node, ast.ClassDef) and node.name.endswith(BANNED_ENDINGS)
    )


def test_nothing_is_left_for_later():
    none(
        f"{module.path}: {found[0]}" for module in modules("rmqkit", "tools") if (found := BANNED_TEXT.search(module.text))
    )


def test_a_module_says_how_it_works():
    none(
        f"{module.path} has no docstring at its head"
        for module in modules("rmqkit", "tools")
        if module.path.name != "__init__.py" and not ast.get_docstring(module.tree)
    )
