"""Files and modules named in a text exist, so a reader can find them."""

import ast
import re
from functools import cache

from tests.tidy.tree import ROOT

PATH = re.compile(r"`((?:[a-z_0-9]+/)*[a-z_0-9]+\.py)`")
FOLDER = re.compile(r"`((?:rmqkit|broker|wire|runtime|client|cluster|drill|shell|spark|tests|tools)(?:/[a-z_0-9]+)+)/?`")
DOTTED = re.compile(r"`(rmqkit(?:\.[a-z_0-9]+)+)(?=[`.(])")
#: `whole/test_crash::test_x[case]`, `spark/delta/test_lake_table::TestCompaction::test_x`
TEST = re.compile(r"`((?:[a-z_0-9-]+/)*test_[a-z_0-9]+)((?:::\w+)*)(?:\[[^`\]]*\])?`")
#: paths in commands and comments
TEST_PATH = re.compile(r"(?<![`\w/-])(tests/[a-z_0-9/]+\.py)\b")
#: names that a user chooses, and files that only Apache or a run creates
ELSEWHERE = {"conftest.py", "paced.py", "pipeline.py", "tests/test_paced.py", "pyspark/daemon.py"}


@cache
def tree() -> tuple[frozenset[str], frozenset[str]]:
    """Return the paths of the checkout's Python files, and of their folders."""
    roots = ("rmqkit", "tests", "tools", "plugins", "examples", "pyspark_rmqkit", "pyspark_rmqkit_store")
    files = [path.relative_to(ROOT) for root in roots for path in (ROOT / root).rglob("*.py")]
    folders = {str(parent) for path in files for parent in path.parents}
    return frozenset(map(str, files)), frozenset(folders)


def unknown_tests(text: str) -> list[str]:
    """Return the tests and paths of tests in a page that are not in the tree."""
    files, _ = tree()
    found = [path for path in TEST_PATH.findall(text) if path not in files and path not in ELSEWHERE]
    for module, names in TEST.findall(text):
        path = next((each for each in (f"tests/{module}.py", f"{module}.py") if each in files), "")
        content = (ROOT / path).read_text() if path else ""
        if not path or not all(re.search(rf"(?:def|class) {each}\b", content) for each in names.split("::")[1:]):
            found.append(f"{module}{names}")
    return found


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


#: a line of the list of modules in a package's docstring: `name  text`, `a, b  text`, `name/  text`
MODULE_LINE = re.compile(r"^ {0,4}([a-z_]\w*(?:/|\.py)?(?:, [a-z_]\w*)*) {2,}\S", re.MULTILINE)
#: modules that need no line: each package registers its built-in plug-ins in one of this name
NOT_LISTED = {"plugin"}


def listing_faults(listed: list[str], modules: set[str]) -> list[str]:
    """Compare the modules that a package's docstring lists with those that the package has."""
    names = {each.strip().rstrip("/").removesuffix(".py") for line in listed for each in line.split(",")}
    missing = [f"lists {name}, which is not there" for name in sorted(names - modules)]
    return missing + [f"does not list {name}" for name in sorted(modules - names - NOT_LISTED)]


def test_package_heads_list_their_modules():
    faults = []
    for path in sorted((ROOT / "rmqkit").rglob("__init__.py")):
        listed = MODULE_LINE.findall(ast.get_docstring(ast.parse(path.read_text())) or "")
        if len(listed) > 1:
            modules = {each.stem for each in path.parent.glob("*.py")} - {"__init__"}
            modules |= {each.parent.name for each in path.parent.glob("*/__init__.py")}
            faults += [f"{path.relative_to(ROOT)} {fault}" for fault in listing_faults(listed, modules)]
    assert not faults, "\n".join(faults)


def test_a_module_that_a_package_head_lacks_is_found():
    assert listing_faults(["node", "one, two", "gone"], {"node", "one", "two", "new", "plugin"}) == [
        "lists gone, which is not there",
        "does not list new",
    ]


def test_texts_name_files_and_modules_that_exist():
    texts = [
        *(ROOT / "rmqkit").rglob("*.py"),
        *(ROOT / "tools").rglob("*.py"),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
    ]
    wrong = [f"{path.relative_to(ROOT)}: `{name}`" for path in texts for name in unknown_names(path.read_text())]
    assert not wrong, "\n".join(wrong)


def test_pages_name_tests_that_exist():
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    wrong = [f"{path.relative_to(ROOT)}: {name}" for path in pages for name in unknown_tests(path.read_text())]
    assert not wrong, "\n".join(wrong)


def test_a_test_that_is_gone_is_found():
    assert unknown_tests("`tidy/test_mentions::test_gone[x]`, `sim/test_gone`, run tests/sim/test_gone.py") == [
        "tests/sim/test_gone.py",
        "tidy/test_mentions::test_gone",
        "sim/test_gone",
    ]
    assert unknown_tests("`tidy/test_mentions::test_a_test_that_is_gone_is_found[x]`, tests/tidy/tree.py") == []


def test_a_name_that_leads_nowhere_is_found():
    assert unknown_names("see `broker/nowhere.py`, `rmqkit.broker.nowhere.thing` and `broker/nowhere/`") == [
        "broker/nowhere.py",
        "broker/nowhere",
        "rmqkit.broker.nowhere.thing",
    ]
    assert unknown_names("see `broker/node.py`, `rmqkit.broker.node.Broker`, `rmqkit.broker` and `drill/sim`") == []
