"""Measures the style of text and names: `python -m tools.measure`, a part of `make lint`.

There are four counts. Each has a ceiling that a change may lower, but must not raise:

    wide          lines of docstrings, comments and Markdown prose over 100 columns
    participles   modules and classes whose name ends in a participle or a gerund
    twice         class names of rmqkit with more than one meaning
    undocumented  public classes, functions and methods without a docstring

`--list COUNT` lists the places of one count. Exceptions to the rules:

- Tables, code blocks, links and headings of Markdown may be wide. CHANGELOG.md is not measured.
- Exceptions are named after what happened, and promises after what they promise, so both may be
  participles.
- The tests of a contract suite need no docstrings, since their names document them.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[1]
WIDTH = 100
SHIPPED = ("rmqkit", "plugins", "tools", "examples")
PUBLIC = ("rmqkit", "rmqkit.aio", "rmqkit.testing", "rmqkit.spark")

PARTICIPLE = re.compile(r"(^|_)(\w{2,}ing|\w{2,}ed|shown|kept|held|told|seen|found|taken|made|been|known|done|gone)$")
#: allowed names: nouns of the field, the storage engine `mapped`, old names that plug-ins import
NOUNS = frozenset(
    (
        "setting",
        "settings",
        "testing",
        "remoting",
        "string",
        "ring",
        "king",
        "binding",
        "finding",
        "meaning",
        "drawing",
        "feed",
        "bed",
        "seed",
        "escaping",
        "pending",
        "deferred",
        "locked",
        "billing",
        "mapped",
        "ordered",
        "kept",
        "fencing",
    )
)
#: old modules of rmqkit.cli that plug-ins import
FORMER = ("finding", "usage")
#: classes that exist twice on purpose: blocking and asyncio
FACES = frozenset(("Admin", "Producer", "PullConsumer", "PushConsumer"))
ERRORS = ("Error", "Exception", "Failed", "Closed")

CEILINGS: Mapping[str, int] = {"wide": 0, "participles": 0, "twice": 0, "undocumented": 0}


@cache
def trees() -> Mapping[Path, ast.Module]:
    paths = (path for folder in SHIPPED for path in (ROOT / folder).rglob("*.py"))
    return {path: ast.parse(path.read_text()) for path in sorted(paths)}


def wide() -> Iterator[str]:
    for path in (*trees(), *(ROOT / "tests").rglob("*.py")):
        if "golden" not in path.parts:
            yield from (f"{path.relative_to(ROOT)}:{line}" for line in _wide_in_module(path))
    pages = (path for folder in (ROOT, ROOT / "docs", ROOT / "plugins") for path in _pages(folder))
    for page in pages:
        yield from (f"{page.relative_to(ROOT)}:{line}" for line in _wide_in_page(page))


def _pages(folder: Path) -> list[Path]:
    found = folder.glob("*.md") if folder == ROOT else folder.rglob("*.md")
    return sorted(page for page in found if page.name != "CHANGELOG.md")


def _wide_in_module(path: Path) -> Iterator[int]:
    """Yield the numbers of wide lines that consist only of a docstring or a comment."""
    text = path.read_text()
    lines = text.splitlines()
    prose = {number for number, line in enumerate(lines, 1) if line.lstrip().startswith("#")}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
                prose.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return (number for number in sorted(prose) if len(lines[number - 1]) > WIDTH)


def _wide_in_page(page: Path) -> Iterator[int]:
    in_code = False
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code and len(line) > WIDTH and not line.startswith(("|", "#", "!", "[", "<!--")):
            yield number


def participles() -> Iterator[str]:
    for path, tree in trees().items():
        if "tests" in path.parts or path.parts[-2:-1] == ("plugin_templates",):
            continue
        if PARTICIPLE.search(path.stem) and path.stem.rpartition("_")[2] not in NOUNS and path.stem not in FORMER:
            yield str(path.relative_to(ROOT))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and _is_participle(node) and "promises" not in path.parts:
                yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"


def _is_participle(node: ast.ClassDef) -> bool:
    words = re.findall(r"[A-Z][a-z0-9]*", node.name)
    last = words[-1].lower() if words else ""
    is_error = node.name.endswith(ERRORS) or any(ast.unparse(base).endswith(ERRORS) for base in node.bases)
    return not is_error and last not in NOUNS and PARTICIPLE.search(last) is not None


def twice() -> Iterator[str]:
    homes = defaultdict(list)
    for path, tree in trees().items():
        if path.is_relative_to(ROOT / "rmqkit"):
            for node in tree.body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name not in FACES:
                    homes[node.name].append(str(path.relative_to(ROOT)))
    yield from (f"{name}: {', '.join(paths)}" for name, paths in sorted(homes.items()) if len(paths) > 1)


def undocumented() -> Iterator[str]:
    for module in PUBLIC:
        loaded = import_module(module)
        for name in getattr(loaded, "__all__", ()):
            thing = getattr(loaded, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                yield from _undocumented(f"{module}.{name}", thing)


def _undocumented(name: str, thing: object) -> Iterator[str]:
    if not thing.__doc__:
        yield name
    if inspect.isclass(thing):
        for member, value in vars(thing).items():
            is_method = inspect.isfunction(value) or isinstance(value, property | classmethod | staticmethod)
            if is_method and not member.startswith(("_", "test_")) and not inspect.getdoc(getattr(thing, member)):
                yield f"{name}.{member}"


COUNTS: Mapping[str, Callable[[], Iterator[str]]] = {
    "wide": wide,
    "participles": participles,
    "twice": twice,
    "undocumented": undocumented,
}


def main(words: list[str]) -> int:
    if words[:1] == ["--list"]:
        print("\n".join(COUNTS[words[1]]()))
        return 0
    over = 0
    for name, count in COUNTS.items():
        found = sum(1 for _ in count())
        over += found > CEILINGS[name]
        print(f"{name:13} {found:5}  ceiling {CEILINGS[name]}")
    if over:
        print("a count is above its ceiling; `python -m tools.measure --list COUNT` lists the places", file=sys.stderr)
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
