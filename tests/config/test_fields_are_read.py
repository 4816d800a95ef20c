"""A setting that works is read by somebody: no field of a section without code that looks at it."""

from __future__ import annotations

import ast

from rmqkit.settings.keys import declared
from tests.tidy.tree import GROUP, modules


def attributes_read() -> set[str]:
    """The name of every attribute that code outside the settings themselves loads."""
    names: set[str] = set()
    for module in modules():
        if module.package == "settings" or module.name == "rmqkit.config":
            continue
        names.update(
            node.attr for node in module.nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        )
    return names


@GROUP
def test_every_field_of_a_section_is_read_somewhere():
    read = attributes_read()
    assert [f"{each.section}.{each.field}" for each in declared() if each.field not in read] == []
