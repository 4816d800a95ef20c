"""Creates a new plug-in project from templates: one module, and one test that passes as it is.

A template is a file of `plugin_templates/` with `$name`, `$module` and `$Class` to fill in
(`string.Template`). Each module is small but complete. Its test runs the contract suite of the hook
if there is one. The test finds the module by `pythonpath` in the project's pyproject.toml, so it
runs without installing anything.
"""

import keyword
import re
from collections.abc import Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import NamedTuple

from rmqkit.cli.errors import Failed, UsageError
from rmqkit.suggestions import suggest

NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
NAME_SIZE_MAX = 64


class HookKind(NamedTuple):
    """What `--hook` selects: the hook, a name for what it adds, and how to switch that on."""

    hook: str
    what: str
    #: how to switch it on, for the README and the last line of the command
    use: str


_IN_BROKER = "In a broker's settings: `{}`; with a cluster: `rmqkit cluster up --set {}`."


def _setting(text: str) -> str:
    return _IN_BROKER.format(text, text)


KINDS: Mapping[str, HookKind] = {
    "escape": HookKind("rmqkit_escape_strategies", "An escape strategy", _setting("escapeStrategy=$name")),
    "lock": HookKind("rmqkit_lock_modes", "A lock mode", _setting("lockMode=$name")),
    "storage": HookKind("rmqkit_storage_engines", "A storage engine", _setting("storageEngine=$name")),
    "fault-policy": HookKind("rmqkit_fault_policies", "A fault policy", 'In a producer: `Producer(fault_policy="$name")`.'),
    "filter": HookKind(
        "rmqkit_filters", "A filter", 'In a consumer: `consumer.subscribe(topic, expression, expression_type="$name")`.'
    ),
    "allocator": HookKind("rmqkit_allocators", "An allocator", 'In a consumer: `PushConsumer(…, allocator="$name")`.'),
    "controller-log": HookKind(
        "rmqkit_controller_logs", "A log of a controller", "In a controller's settings: `controllerType=$name`."
    ),
    "fault": HookKind("rmqkit_faults", "A fault for drills", "In a drill: `rmqkit fail-master --fault $name`."),
    "promise": HookKind("rmqkit_promises", "A promise that drills check", "Every drill checks it: `rmqkit fail-master`."),
    "handlers": HookKind("rmqkit_handlers", "A request code", _setting("plugins=$name")),
    "duties": HookKind("rmqkit_duties", "Background work of a broker", _setting("plugins=$name")),
    "commands": HookKind("rmqkit_commands", "A command", "On the command line: `rmqkit $name`."),
}


def make(name: str, hook: str, into: Path) -> list[Path]:
    """Write the project `into/name` and return its files.

    Raises UsageError for an invalid name or hook, Failed if the folder exists or cannot be written.
    """
    kind = KINDS.get(hook)
    if kind is None:
        raise UsageError(f"--hook {hook}: no such hook{suggest(hook, KINDS, 'there are: {known}')}")
    module = module_of(name)
    check_free(name, kind)
    folder = into / name
    if folder.exists():
        raise Failed(f"{folder} already exists")
    words = {
        "name": name,
        "module": module,
        "Class": "".join(part.capitalize() for part in module.split("_")),
        "hook": kind.hook,
        "what": kind.what,
    }
    words["use"] = Template(kind.use).substitute(words)
    texts = {
        "pyproject.toml": _filled("pyproject.toml", words),
        "README.md": _filled("README.md", words),
        f"{module}.py": _filled(f"{hook}.py", words),
        f"tests/test_{module}.py": _filled(f"{hook}_test.py", words),
    }
    try:
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
    except OSError as error:
        raise Failed(f"{folder} cannot be written: {error.strerror}") from None
    return [folder / path for path in texts]


def module_of(name: str) -> str:
    """Return the module name of a plug-in. Raises UsageError if the name cannot be used."""
    module = name.replace("-", "_")
    if not NAME.fullmatch(name) or len(name) > NAME_SIZE_MAX:
        raise UsageError(
            f"{name!r} cannot be a plug-in's name: use lower-case letters, digits, - and _, and begin with a letter"
        )
    if keyword.iskeyword(module):
        raise UsageError(f"{name!r} cannot be a plug-in's name: it is a keyword of Python")
    if find_spec(module) is not None:
        raise UsageError(f"{name!r} cannot be a plug-in's name: a Python module {module} already exists")
    return module


def check_free(name: str, kind: HookKind) -> None:
    """Raises UsageError if another plug-in already uses the name under that hook."""
    from rmqkit import plugins
    from rmqkit.cli.commands import TABLE

    taken = {row.name: row.module for row in plugins.load().rows() if row.hook == kind.hook}
    if kind.hook == "rmqkit_commands":
        taken.update({command: lazy.module for command, lazy in TABLE.items()})
    if name in taken:
        raise UsageError(f"{kind.what.lower()} called {name} already exists: {taken[name]}")


def _filled(template: str, words: Mapping[str, str]) -> str:
    text = (files("rmqkit.cli") / "plugin_templates" / f"{template}.txt").read_text()
    return Template(text).substitute(words)
