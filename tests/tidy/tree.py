"""What the tidy tests look at: modules as syntax trees, those of `rmqkit` with the package each belongs to."""

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]


class Module(NamedTuple):
    path: Path
    #: `rmqkit.broker.handlers.send`
    name: str
    #: `broker`; "" for modules right below `rmqkit`
    package: str
    tree: ast.Module
    text: str

    def __str__(self) -> str:
        return self.name

    @property
    def imports(self) -> list[tuple[str, int]]:
        """(dotted name, line) of each import, those under `if TYPE_CHECKING` included."""
        found = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                found += [(alias.name, node.lineno) for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.append((node.module, node.lineno))
                found += [(f"{node.module}.{alias.name}", node.lineno) for alias in node.names]
        return found


@cache
def modules(top: str = "rmqkit") -> tuple[Module, ...]:
    found = []
    for path in sorted((ROOT / top).rglob("*.py")):
        relative = path.relative_to(ROOT).with_suffix("")
        parts = relative.parts[:-1] if relative.name == "__init__" else relative.parts
        package = relative.parts[1] if len(relative.parts) > 2 else ""
        text = path.read_text()
        found.append(Module(path, ".".join(parts), package, ast.parse(text), text))
    return tuple(found)
