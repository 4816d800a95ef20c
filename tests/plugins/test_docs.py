"""The plug-in guide and the page about fixtures are complete, and their examples run."""

import inspect
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rmqkit import hookspecs, plugins, testing
from rmqkit.testing import SimBroker, clusters, factories, fixtures

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "plugins.md").read_text()
TESTING = (ROOT / "docs" / "testing.md").read_text()
BLOCK = re.compile(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FIRST = ("quiet_topics.py", "pyproject.toml", "test_quiet_topics.py")


def section(hook: str) -> str:
    found = re.search(rf"^### `{hook}`\n(.*?)(?=^##)", GUIDE, re.MULTILINE | re.DOTALL)
    assert found, f"docs/plugins.md has no section of {hook}"
    return found[1]


def in_backticks(text: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", text))


@pytest.mark.parametrize("hook", plugins.HOOKS)
def test_every_hook_and_its_factory_is_documented(hook):
    """The guide has the hook's signature, each of its arguments, and the module of the contract."""
    text = section(hook)
    doc = inspect.getdoc(getattr(hookspecs, hook)) or ""
    signature = re.search(r"Factory: `(\((.*)\) -> (.+))`", doc)
    assert signature, f"{hook} does not have the signature of its factory"
    assert f"Factory: `{signature[1]}`" in text
    named = in_backticks(text)
    for argument in filter(None, (part.partition(":")[0].strip() for part in signature[2].split(", "))):
        if argument.isidentifier():
            assert argument in named, f"{hook}: argument {argument} is not explained"
    contract = plugins.CONTRACTS[hook]
    assert contract.name in text
    assert contract.module in text


@pytest.mark.parametrize(
    "hook",
    [
        *("rmqkit_fault_policies", "rmqkit_lock_modes", "rmqkit_escape_strategies", "rmqkit_filters"),
        *("rmqkit_allocators", "rmqkit_controller_logs"),
    ],
)
def test_every_member_of_a_short_contract_is_documented(hook):
    contract = plugins.CONTRACTS[hook]
    protocol = getattr(__import__(contract.module, fromlist=[contract.name]), contract.name)
    text = section(hook)
    for name, member in vars(protocol).items():
        if inspect.isfunction(member) and not name.startswith("_"):
            for argument in list(inspect.signature(member).parameters)[1:]:
                assert re.search(rf"`{name}\([^`]*\b{argument}\b", text), f"{hook}: {name}({argument})"
    for name in protocol.__annotations__:
        assert f"`{name}`" in text


def test_built_in_names_are_documented():
    for row in plugins.load(entry_points=False).rows():
        assert f"`{row.name}`" in section(row.hook)


def test_what_a_plug_in_may_use_of_a_broker_is_there():
    table = GUIDE.partition("## What a handler or duty may use of its broker")[2].partition("\n## ")[0]
    names = re.findall(r"^\| `broker\.(\w+)` \| (.*) \|$", table, re.MULTILINE)
    assert len(names) > 8
    view = SimBroker().node.view
    for name, text in names:
        there = getattr(view, name)
        for member in re.findall(r"`(\w+)(?:\([\w, ]*\))?`", text):
            if member not in ("NodeConfig", "NAME"):
                assert hasattr(there, member) or member in dir(type(there)), f"broker.{name}.{member}"


def test_every_public_name_of_testing_is_documented():
    for name in testing.__all__:
        assert name in GUIDE + TESTING, name
        assert getattr(testing, name)
    for name, _ in inspect.getmembers(SimBroker, inspect.isfunction):
        if not name.startswith("_"):
            assert f"`{name}`" in GUIDE, f"SimBroker.{name}"


def test_every_fixture_factory_and_option_is_documented():
    found = [name for name in vars(fixtures) if name.startswith("rmqkit_")]
    assert sorted(found) == ["rmqkit_clean", "rmqkit_cluster", "rmqkit_running"]
    for name in found:
        assert f"| `{name}` |" in TESTING
    for name in (*factories.OPTIONS, factories.SETTINGS):
        assert f"| `{name}` |" in TESTING
    for factory in (factories.cluster, factories.running, factories.clean):
        shown = " ".join(re.findall(rf"`factories\.{factory.__name__}\(([^`]*)\)`", TESTING))
        for argument in inspect.signature(factory).parameters:
            assert re.search(rf"\b{argument}\b", shown), f"{factory.__name__}({argument})"


@pytest.mark.parametrize("kind", [clusters.Clean, clusters.RunningCluster])
def test_every_member_of_what_fixtures_give_is_documented(kind):
    made = set(re.findall(r"self\.([a-z]\w*)(?:: [^=]+)? = ", inspect.getsource(kind.__init__)))
    names = made | {name for name in vars(kind) if not name.startswith("_")} - {"down", "end"}
    text = TESTING.partition(f"### `{kind.__name__}`")[2].partition("\n##")[0]
    for name in names:
        assert re.search(rf"`{name}(\([^`]*\))?`", text), f"{kind.__name__}.{name}"


# --- the examples run


def blocks(text: str, folder: Path) -> list[str]:
    """Write the files that a page shows, and return their names.

    The first line of a block has the name of its file.
    """
    shown = BLOCK.findall(text)
    for name, content in shown:
        (folder / name).write_text(content)
    return [name for name, _ in shown]


@pytest.mark.long
def test_the_first_plug_in_works_as_shown(tmp_path, install):
    """The entry point of its pyproject.toml installs it, and its own test passes."""
    assert set(FIRST) <= set(blocks(GUIDE, tmp_path))
    project = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]
    ((name, module),) = project["entry-points"]["rmqkit"].items()
    assert name == project["name"]
    install(module, (tmp_path / f"{module}.py").read_text())
    # The same run includes the example of a contract suite.
    tests = [str(tmp_path / name) for name in ("test_quiet_topics.py", "test_contract_example.py")]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-W", "error", "-p", "no:cacheprovider", "-q", "--rootdir", str(tmp_path), *tests],
        cwd=tmp_path, env=os.environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert re.search(r"\b\d{2,} passed", done.stdout), done.stdout


def test_the_other_examples_of_the_guide_work(tmp_path, monkeypatch):
    """The example of settings, and the handler."""
    names = blocks(GUIDE, tmp_path)
    assert {"settings_example.py", "handlers_example.py"} <= set(names)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "guide_hooks.py").write_text(
        "import handlers_example, settings_example\n"
        "from rmqkit.hookspecs import hookimpl\n"
        "@hookimpl\ndef rmqkit_handlers():\n    return {'box': handlers_example.make}\n"
        "@hookimpl\ndef rmqkit_duties():\n    return {'box': settings_example.make_duty}\n"
    )
    broker = SimBroker("plugins=box", "plugin.box.sizeMax=1000", modules=["guide_hooks"])
    broker.send("T", b"hello")
    assert broker.ask(70_001, {"topic": "T"}).ext == {"count": "1"}
    assert "plugin-box" in broker.node.duties.names


@pytest.mark.long
def test_the_test_that_the_page_shows_works(tmp_path, rmqkit_cluster):
    names = blocks(TESTING, tmp_path)
    assert names == ["test_orders.py", "conftest.py"]
    (tmp_path / "conftest.py").write_text(
        (tmp_path / "conftest.py").read_text() + 'rmqkit_clean = factories.clean("rmqkit_running")\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-W", "error", "-p", "no:cacheprovider", "-q", "--rootdir", str(tmp_path), "."],
        cwd=tmp_path, env=rmqkit_cluster.env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_error_lines_of_the_guide_are_the_real_ones(install):
    """One example of each kind; `test_broken.py` checks the wording of the other errors."""
    shown = GUIDE.partition("## When something is wrong")[2].partition("\n## ")[0]
    lines = [line.removeprefix("error: ") for line in shown.splitlines() if line.startswith("error: ")]
    install("box", "@hookimpl\ndef rmqkit_storage_engines():\n    return {'mapped': dict}")
    with pytest.raises(plugins.PluginError) as caught:
        plugins.load()
    assert str(caught.value) in lines
