"""A setting that works is read by somebody: no field of a section without code that looks at it."""

from __future__ import annotations

import ast
from pathlib import Path

import rmqkit
from rmqkit.settings.build import field_names

ROOT = Path(rmqkit.__file__).parent

# Fields whose reader is still being built. This list only gets shorter.
NOT_YET: set[str] = set()


def attributes_read() -> set[str]:
    """The name of every attribute that code outside the settings themselves loads."""
    names: set[str] = set()
    for path in ROOT.rglob("*.py"):
        if path.is_relative_to(ROOT / "settings") or path == ROOT / "config.py":
            continue
        tree = ast.parse(path.read_text())
        names.update(
            node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        )
    return names


def test_every_field_of_a_section_is_read_somewhere():
    read = attributes_read()
    assert {field for field in field_names() if field.partition(".")[2] not in read} <= NOT_YET


def test_the_list_of_exceptions_names_real_fields():
    assert field_names() >= NOT_YET
