"""A setting that works is read by somebody: no field of a section without code that looks at it."""

from __future__ import annotations

import ast

from rmqkit.settings.build import field_names
from tests.tidy.tree import GROUP, modules

# Fields whose reader is still being built. This list only gets shorter.
NOT_YET: set[str] = set()


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
    assert {field for field in field_names() if field.partition(".")[2] not in read} <= NOT_YET


def test_the_list_of_exceptions_names_real_fields():
    assert field_names() >= NOT_YET
