"""`rmqkit explain` knows every event that the code logs."""

import ast
from collections.abc import Iterator

from rmqkit.cli.explain.events import events, find_event
from tests.tidy.tree import GROUP, Module, modules, none

#: names of the objects that take events (`rmqkit.runtime.ports.Log`)
LOGS = {"log", "_log", "driver_log", "_notes", "failures", "NodeLog"}
#: this package and these names log texts with Python's `logging`
LOGGING_PACKAGE, LOGGER = "spark", "logger"
#: `LogSink` writes this line itself
OF_THE_SINK = "log lines lost"


def name_of(node: ast.expr) -> str:
    if isinstance(node, ast.Call):
        return name_of(node.func)
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def names_in(event: ast.expr) -> list[str]:
    """Return the names that the first argument of a log call may have; [] if it is no literal."""
    if isinstance(event, ast.IfExp):
        return names_in(event.body) + names_in(event.orelse)
    if isinstance(event, ast.JoinedStr):
        return ["".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in event.values)]
    return [event.value] if isinstance(event, ast.Constant) and isinstance(event.value, str) else []


def logged(module: Module) -> Iterator[tuple[int, list[str]]]:
    """Yield the line and the events of each log call, but not of one that passes `event` on."""
    for node in module.nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
            continue
        taker, level = name_of(node.func.value), node.func.attr
        # Other objects have a method `error` too: a call of a peer, for example.
        is_log = taker in LOGS if level == "error" else level in ("info", "warning") and taker != LOGGER
        if is_log and name_of(node.args[0]) != "event":
            yield node.lineno, names_in(node.args[0])


@GROUP
def test_every_event_is_explained():
    found = [
        (f"{module.path}:{line}", names)
        for module in modules()
        if module.package != LOGGING_PACKAGE
        for line, names in logged(module)
    ]
    none(f"{where}: the event of a log line must be a literal" for where, names in found if not names)
    known = {row.event for row in events()}
    missing = [(where, name) for where, names in found for name in names if name not in known]
    none(f"{where}: rmqkit/cli/explain/events.toml lacks {name}" for where, name in missing)
    unused = known - {name for _, names in found for name in names} - {OF_THE_SINK}
    none(f"rmqkit/cli/explain/events.toml: no code logs {name}" for name in unused)


def test_each_event_is_found_by_its_name():
    for row in events():
        assert find_event(row.event.replace("{}", "group-offsets")) == row
        assert row.meaning.endswith((".", "?")), row.event
