"""The project's modules for the tidy tests; each is read, parsed and walked once.

A rule is one test over all modules. It collects its offenders, and `none` reports all of them.
Tests that read the modules belong to the group `GROUP`, as each worker of `make test` parses the
modules for itself.
"""

import ast
import gc
from collections.abc import Iterable
from functools import cache, cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GROUP = pytest.mark.xdist_group("tests/tidy")


class Module:
    def __init__(self, path: Path) -> None:
        relative = path.relative_to(ROOT).with_suffix("")
        parts = relative.parts[:-1] if relative.name == "__init__" else relative.parts
        self.path = path
        #: `rmqkit.broker.handlers.messages.send`
        self.name = ".".join(parts)
        #: `broker`; "" for modules right below `rmqkit`
        self.package = relative.parts[1] if len(relative.parts) > 2 else ""

    @cached_property
    def text(self) -> str:
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        # The trees live as long as the tests. Collecting garbage while they grow takes twice the
        # time of parsing.
        gc.disable()
        try:
            return ast.parse(self.text)
        finally:
            gc.enable()

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        return tuple(ast.walk(self.tree))

    @cached_property
    def imports(self) -> list[tuple[str, int]]:
        """Return (dotted name, line) of each import, including those under `if TYPE_CHECKING`."""
        found = []
        for node in self.nodes:
            if isinstance(node, ast.Import):
                found += [(alias.name, node.lineno) for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.append((node.module, node.lineno))
                found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
        return found


@cache
def _modules(top: str) -> tuple[Module, ...]:
    return tuple(Module(path) for path in sorted((ROOT / top).rglob("*.py")))


def modules(*tops: str) -> tuple[Module, ...]:
    """Return the modules below these folders of the project; by default those of `rmqkit`."""
    return tuple(module for top in tops or ("rmqkit",) for module in _modules(top))


def none(offenders: Iterable[str]) -> None:
    """Fail with one line for each offender."""
    found = list(offenders)
    assert not found, "\n".join(["", *found])
