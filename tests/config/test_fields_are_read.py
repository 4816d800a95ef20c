"""Every field of a settings section is read by some code."""

from __future__ import annotations

import ast

from rmqkit.settings.keys import declared
from tests.tidy.tree import GROUP, modules


def attributes_read() -> set[str]:
    """Return the name of every attribute that code outside the settings package reads.

    A section's own properties count as well: other code reads them.
    """
    names: set[str] = set()
    for module in modules():
        if module.package == "settings" or module.name == "rmqkit.config":
            own = (node for node in module.nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name))
            names.update(node.attr for node in own if node.value.id == "self")  # type: ignore[attr-defined]
            continue
        names.update(
            node.attr for node in module.nodes if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
        )
    return names


@GROUP
def test_every_field_of_a_section_is_read_somewhere():
    read = attributes_read()
    assert [f"{each.section}.{each.field}" for each in declared() if each.field not in read] == []
