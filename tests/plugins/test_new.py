"""`rmqkit plugin new`: its projects are complete, formatted, found once installed, and pass."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rmqkit import plugins
from rmqkit.cli import main, plugin_new
from rmqkit.testing import SimBroker

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "plugins.md").read_text()


HOOKS_WITH_SUITE = [
    *("escape", "lock", "storage", "fault-policy", "filter", "allocator", "fault", "promise", "controller-log"),
]


def run(*words: str, cwd: Path, **env: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", *words], cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )


def pytest_of(folder: Path) -> str:
    """Run pytest in the project's folder, without installing anything. Return its output."""
    done = run("pytest", "-W", "error", "-p", "no:cacheprovider", "-q", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_every_hook_has_its_template():
    assert {kind.hook for kind in plugin_new.KINDS.values()} == set(plugins.HOOKS)


def test_the_help_and_the_guide_name_every_kind(capsys):
    assert main.run_command(["plugin", "new", "--help"]) == 0
    words = "".join(capsys.readouterr().out.split())
    assert f"Whatitadds:{','.join(plugin_new.KINDS)}." in words
    listed = GUIDE[GUIDE.index("HOOK is ") : GUIDE.index("The tests\npass before")]
    assert re.findall("`([a-z-]+)`", listed) == list(plugin_new.KINDS)


@pytest.mark.long
def test_new_projects_are_green_at_once(tmp_path):
    """One project for each hook, tested in one run. None of them is installed."""
    for hook in plugin_new.KINDS:
        files = plugin_new.make(f"my-{hook}", hook, tmp_path)
        module = f"my_{hook.replace('-', '_')}"
        written = [str(file.relative_to(tmp_path / f"my-{hook}")) for file in files]
        assert written == ["pyproject.toml", "README.md", f"{module}.py", f"tests/test_{module}.py"]
        texts = [file.read_text() for file in files]
        assert not any("$" in text for text in texts), "a word was not filled in"
        assert plugin_new.KINDS[hook].hook in texts[1]
    folders = [str(folder) for folder in sorted(tmp_path.iterdir())]
    path = os.pathsep.join([*folders, os.environ.get("PYTHONPATH", "")])
    done = run("pytest", "-W", "error", "-p", "no:cacheprovider", "-q", *folders, cwd=tmp_path, PYTHONPATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    line = ["--line-length", "124", "--no-cache", "--isolated", *folders]
    for words in (["check", "--select", "E,F,B,UP"], ["format", "--check"]):
        done = run("ruff", *words, *line, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("hook", HOOKS_WITH_SUITE)
def test_its_test_runs_the_contract_suite(tmp_path, hook):
    text = plugin_new.make("box", hook, tmp_path)[-1].read_text()
    assert "Contract):" in text
    assert "make = Box" in text


@pytest.mark.long
def test_the_guide_works_as_shown(tmp_path, install):
    """Runs the commands of the guide, up to the real cluster.

    The files of the guide replace the generated ones where the guide says so.
    """
    section = GUIDE.partition("## A project from a template\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    first, second = (text for language, text in blocks if not language)
    files = {text.split()[1]: text.partition("\n")[2] for language, text in blocks if language}
    assert set(files) == {"paced.py", "test_paced.py"}
    new, enter, test = first.splitlines()
    assert new.split()[:3] == ["rmqkit", "plugin", "new"]
    done = run("rmqkit.cli.main", *new.split()[1:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / enter.removeprefix("cd ")
    assert test == "pytest"
    assert " passed" in pytest_of(folder)
    (folder / "paced.py").write_text(files["paced.py"])
    (folder / "tests" / "test_paced.py").write_text(files["test_paced.py"])
    assert second.splitlines()[:3] == ["pytest", "pip install -e .", "rmqkit plugin list"]
    assert " passed" in pytest_of(folder)
    install("paced", files["paced.py"])
    listed = run("rmqkit.cli.main", "plugin", "list", cwd=tmp_path).stdout
    assert re.search(r"^escape_strategies +paced +paced +paced-dist$", listed, re.MULTILINE), listed
    settings = re.findall(r"--set (\S+)", second)
    assert type(SimBroker(*settings).node.escape.strategy).__name__ == "Paced"


def test_it_is_found_when_it_is_installed(tmp_path, install):
    """The entry point in its pyproject.toml registers it under its name."""
    folder = tmp_path / "my-box"
    module = plugin_new.make("my-box", "lock", tmp_path)[2]
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    ((name, value),) = project["entry-points"]["rmqkit"].items()
    assert (name, value, project["name"]) == ("my-box", "my_box", "my-box")
    install(value, module.read_text())
    rows = json.loads(run("rmqkit.cli.main", "plugin", "list", "--json", cwd=tmp_path).stdout)
    assert {"hook": "rmqkit_lock_modes", "name": "my-box", "module": "my_box", "distribution": "my_box-dist"} in rows


def test_the_command_says_what_it_wrote_and_what_comes_next(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main.run_command(["plugin", "new", "box", "--hook", "duties"]) == 0
    said = capsys.readouterr()
    assert said.out.split() == ["box/pyproject.toml", "box/README.md", "box/box.py", "box/tests/test_box.py"]
    assert "cd box && pytest" in said.err
    assert main.run_command(["plugin", "new", "other", "--hook", "lock", "--into", "deep/er", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["name"], told["hook"], told["folder"]) == ("other", "rmqkit_lock_modes", "deep/er/other")
    assert all((tmp_path / file).is_file() for file in told["files"])


@pytest.mark.parametrize(
    ("name", "hook", "says"),
    [
        ("box", "escpae", "--hook escpae: no such hook; did you mean escape?"),
        ("box", "zzz", "--hook zzz: no such hook; there are: escape, lock"),
        ("Box", "lock", "'Box' cannot be a plug-in's name: use lower-case letters"),
        ("../box", "lock", "cannot be a plug-in's name"),
        ("9box", "lock", "cannot be a plug-in's name"),
        ("box-", "lock", "cannot be a plug-in's name"),
        ("b" * 65, "lock", "cannot be a plug-in's name"),
        ("class", "lock", "it is a keyword of Python"),
        ("json", "lock", "a Python module json already exists"),
        ("rmqkit", "lock", "a Python module rmqkit already exists"),
        ("loose", "lock", "a lock mode called loose already exists: rmqkit.broker.plugin"),
        ("send", "commands", "a command called send already exists: rmqkit.cli.data.send"),
    ],
)
def test_invalid_names_and_hooks_are_errors(tmp_path, name, hook, says):
    with pytest.raises(plugin_new.UsageError) as caught:
        plugin_new.make(name, hook, tmp_path)
    assert says in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_nothing_is_written_over(tmp_path):
    plugin_new.make("box", "lock", tmp_path)
    with pytest.raises(plugin_new.Failed, match="already exists"):
        plugin_new.make("box", "duties", tmp_path)
    assert "LockTable" in (tmp_path / "box" / "box.py").read_text()


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(plugin_new.Failed, match="cannot be written"):
        plugin_new.make("box", "lock", tmp_path / "file")
