"""Coupling: import cycles, modules that name the whole broker, sizes of folders.

The ceilings are today's numbers. A change may lower a ceiling and must not raise it.
"""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

from tests.tidy.tree import GROUP, ROOT, Module, modules, none

pytestmark = GROUP

#: modules in the largest import cycle that reaches beyond one folder
CYCLE_BY_TYPE_MAX = 3
CYCLE_AT_RUN_TIME_MAX = 0
#: modules of `rmqkit/broker` that name the class `Broker`
BROKER_USERS_MAX = 1
#: attributes of a `Broker` without a leading underscore, besides those of every node
BROKER_ATTRIBUTES_MAX = 20
FOLDER_MODULES_MAX = 15
#: folder with more modules than that: (number of modules, reason)
LARGE_FOLDERS: Mapping[str, tuple[int, str]] = {
    "rmqkit/wire/bodies": (19, "one module for each family of JSON bodies"),
    "rmqkit/drill/promises": (16, "one module for each subject of promises"),
    "rmqkit/testing": (16, "one module for each contract that a plug-in tests"),
}

Graph = Mapping[str, set[str]]


def test_no_import_cycle_grows_beyond_a_folder():
    found = (
        ("by type", _largest(graph(at_run_time=False)), CYCLE_BY_TYPE_MAX),
        ("at run time", _largest(graph(at_run_time=True)), CYCLE_AT_RUN_TIME_MAX),
    )
    none(
        f"{len(cycle)} modules import one another {how}, the ceiling is {most}: {' '.join(cycle)}"
        for how, cycle, most in found
        if len(cycle) > most
    )


def test_few_modules_name_the_whole_broker():
    users = [module.name for module in modules() if module.name.startswith("rmqkit.broker.") and _names_broker(module)]
    assert len(users) <= BROKER_USERS_MAX, f"{len(users)} modules name Broker: {' '.join(users)}"


def test_a_broker_has_few_public_attributes():
    module = next(each for each in modules() if each.name == "rmqkit.broker.node")
    found = sorted(_attributes(module, "Broker"))
    assert len(found) <= BROKER_ATTRIBUTES_MAX, f"{len(found)} public attributes: {' '.join(found)}"


def test_folders_stay_small():
    sizes = Counter(module.path.parent for module in modules() if module.path.name != "__init__.py")
    found = {str(path.relative_to(ROOT)): count for path, count in sizes.items() if count > FOLDER_MODULES_MAX}
    known = {folder: count for folder, (count, _) in LARGE_FOLDERS.items()}
    none(
        f"{folder} has {count} modules: is there a package inside?"
        for folder, count in found.items()
        if count > known.get(folder, 0)
    )
    assert found.keys() == known.keys(), "a folder is small now: remove its exception"


def test_a_cycle_is_found():
    """Checks the search itself: two separate cycles, and a module that leads into one of them."""
    known = {"f.a": {"f.b"}, "f.b": {"f.a"}, "g.c": {"h.d"}, "h.d": {"h.e"}, "h.e": {"g.c"}, "g.x": {"g.c"}}
    assert sorted(map(sorted, cycles(known))) == [["f.a", "f.b"], ["g.c", "h.d", "h.e"]]
    assert _largest(known) == ["g.c", "h.d", "h.e"]


# --- graph of imports


@cache
def graph(*, at_run_time: bool) -> Graph:
    """Return module → modules of `rmqkit` that it imports.

    `at_run_time` leaves out imports under `if TYPE_CHECKING`.
    """
    known = {module.name for module in modules()}
    return {module.name: set(_imported(module, known, at_run_time)) - {module.name} for module in modules()}


def _imported(module: Module, known: set[str], at_run_time: bool) -> Iterator[str]:
    hidden = _type_checking_lines(module) if at_run_time else set()
    for node in module.nodes:
        if isinstance(node, ast.Import) and node.lineno not in hidden:
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known and node.lineno not in hidden:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else node.module


def _type_checking_lines(module: Module) -> set[int]:
    """Return the lines under `if TYPE_CHECKING`."""
    return {
        line
        for node in module.nodes
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for line in range(node.lineno, (node.body[-1].end_lineno or node.lineno) + 1)
    }


def _largest(imports: Graph) -> list[str]:
    """Return the largest cycle that spans several folders, sorted; empty if there is none."""
    wide = [cycle for cycle in cycles(imports) if len({name.rpartition(".")[0] for name in cycle}) > 1]
    return sorted(max(wide, key=len, default=()))


def cycles(imports: Graph) -> list[list[str]]:
    """Return sets of modules that import each other, directly or indirectly.

    They are Tarjan's strongly connected components.
    """
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        number[name] = lowest[name] = len(number)
        stack.append(name)
        for other in sorted(imports.get(name, ())):
            if other not in number:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in stack:
                lowest[name] = min(lowest[name], number[other])
        if lowest[name] == number[name]:
            at = stack.index(name)
            if len(stack) - at > 1:
                found.append(stack[at:])
            del stack[at:]

    for name in sorted(imports):
        if name not in number:
            visit(name)
    return found


# --- the broker


def _names_broker(module: Module) -> bool:
    """Return whether the module imports or defines `Broker`."""
    return any(
        (isinstance(node, ast.alias) and node.name == "Broker")
        or (isinstance(node, ast.ClassDef) and node.name == "Broker")
        for node in module.nodes
    )


def _attributes(module: Module, name: str) -> set[str]:
    """Return the public attributes that the methods of a class assign to `self`."""
    kind = next(node for node in module.nodes if isinstance(node, ast.ClassDef) and node.name == name)
    targets: Iterable[ast.AST] = (
        target
        for node in ast.walk(kind)
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for each in (node.targets if isinstance(node, ast.Assign) else [node.target])
        for target in ast.walk(each)
    )
    return {
        target.attr
        for target in targets
        if isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
        and not target.attr.startswith("_")
    }
