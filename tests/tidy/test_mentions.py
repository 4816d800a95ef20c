"""Files and modules named in a text exist, so a reader can find them."""

import re
from functools import cache

from tests.tidy.tree import ROOT

PATH = re.compile(r"`((?:[a-z_0-9]+/)*[a-z_0-9]+\.py)`")
FOLDER = re.compile(r"`((?:rmqkit|broker|wire|runtime|client|cluster|drill|shell|spark|tests|tools)(?:/[a-z_0-9]+)+)/?`")
DOTTED = re.compile(r"`(rmqkit(?:\.[a-z_0-9]+)+)(?=[`.(])")
#: names that a user chooses, and files that only Apache or a run creates
ELSEWHERE = {"conftest.py", "paced.py", "tests/test_paced.py", "pyspark/daemon.py"}


@cache
def tree() -> tuple[frozenset[str], frozenset[str]]:
    """Return the paths of the checkout's Python files, and of their folders."""
    roots = ("rmqkit", "tests", "tools", "plugins", "examples", "pyspark_rmqkit", "pyspark_rmqkit_store")
    files = [path.relative_to(ROOT) for root in roots for path in (ROOT / root).rglob("*.py")]
    folders = {str(parent) for path in files for parent in path.parents}
    return frozenset(map(str, files)), frozenset(folders)


def is_there(name: str, known: frozenset[str]) -> bool:
    return any(path == name or path.endswith(f"/{name}") for path in known)


def unknown_names(text: str) -> list[str]:
    files, folders = tree()
    found = [name for name in PATH.findall(text) if name not in ELSEWHERE and not is_there(name, files)]
    for name in FOLDER.findall(text):
        if not (is_there(name, folders) or is_there(f"{name}.py", files) or (ROOT / name).exists()):
            found.append(name)
    for name in DOTTED.findall(text):
        path, _, last = name.replace(".", "/").rpartition("/")
        modules = {f"{path}/{last}.py", f"{path}.py", f"{path}/__init__.py"} & files
        if not modules and f"{path}/{last}" not in folders:
            found.append(name)
    return found


def test_texts_name_files_and_modules_that_exist():
    texts = [
        *(ROOT / "rmqkit").rglob("*.py"),
        *(ROOT / "tools").rglob("*.py"),
        *(ROOT / "docs").glob("*.md"),
        ROOT / "README.md",
    ]
    wrong = [f"{path.relative_to(ROOT)}: `{name}`" for path in texts for name in unknown_names(path.read_text())]
    assert not wrong, "\n".join(wrong)


def test_a_name_that_leads_nowhere_is_found():
    assert unknown_names("see `broker/nowhere.py`, `rmqkit.broker.nowhere.thing` and `broker/nowhere/`") == [
        "broker/nowhere.py",
        "broker/nowhere",
        "rmqkit.broker.nowhere.thing",
    ]
    assert unknown_names("see `broker/node.py`, `rmqkit.broker.node.Broker`, `rmqkit.broker` and `drill/sim`") == []
