"""The built wheels in a virtual environment outside the checkout: commands, a plug-in, fixtures.

Needs the package index, as pip does.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.ports import free_base

ROOT = Path(__file__).parents[2]
PLUGINS = sorted(path.parent for path in (ROOT / "plugins").glob("*/pyproject.toml"))

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("tests/packaging/wheels")]

COUNT_OFTEN = ("--set", "plugin.usage.intervalMillis=200")
FOREIGN_TEST = """
from rmqkit import Message

def test_a_message_comes_back(rmqkit_clean):
    topic = rmqkit_clean.topic("orders")
    reader = rmqkit_clean.pull_consumer(consume_from="first")
    reader.subscribe(topic)
    rmqkit_clean.producer().send(Message(topic, b"one"))
    assert [message.body for message in reader.poll(timeout_ms=10_000)] == [b"one"]
"""


class Environment:
    """A virtual environment, and a home for clusters, below one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "venv" / "bin"
        own = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "RMQKIT", "NAMESRV"))}
        self.variables = {**own, "PATH": f"{self.bin}:{own['PATH']}", "RMQKIT_HOME": str(folder / "home")}
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)

    def run(self, *command: str | Path) -> str:
        done = subprocess.run(command, cwd=self.folder, env=self.variables, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{command}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def soon(holds: Callable[[], bool]) -> bool:
    """Return whether `holds()` is true within a minute; the plug-in counts at intervals."""
    deadline = time.monotonic() + 60
    while not (ended := holds()) and time.monotonic() < deadline:
        time.sleep(0.5)
    return ended


@pytest.fixture(scope="module")
def wheels(tmp_path_factory):
    """Build the wheels of rmqkit and of each plug-in, each from its sdist."""
    out = tmp_path_factory.mktemp("dist")
    for source in (ROOT, *PLUGINS):
        subprocess.run([sys.executable, "-m", "build", "--outdir", out, source], check=True, capture_output=True)
    assert len(list(out.glob("*.tar.gz"))) == 1 + len(PLUGINS)
    return sorted(out.glob("*.whl"))


@pytest.fixture(scope="module")
def environment(wheels, tmp_path_factory):
    made = Environment(tmp_path_factory.mktemp("environment"))
    made.run("python", "-m", "pip", "install", "--quiet", *wheels)
    return made


def test_the_first_commands_need_no_extra(environment):
    assert "rmqkit 0" in environment.run("python", "-m", "rmqkit", "--version")
    base = str(free_base(range(-2, 42)))
    environment.run("rmqkit", "cluster", "up", "--base-port", base, "--any-port", "--set", "plugins=usage", *COUNT_OFTEN)
    try:
        environment.run("rmqkit", "send", "greetings", "hello", "--key", "k1")
        assert "hello" in environment.run("rmqkit", "consume", "greetings")
        assert "hello" in environment.run("rmqkit", "message", "query", "greetings", "--key", "k1", "--json")
        assert soon(lambda: "greetings" in environment.run("rmqkit", "usage")), "the plug-in counted nothing"
    finally:
        environment.run("rmqkit", "cluster", "down", "--purge")


def test_a_new_plug_in_passes_its_own_tests(environment):
    environment.run("rmqkit", "plugin", "new", "rmqkit-sample", "--hook", "lock")
    environment.run("python", "-m", "pip", "install", "--quiet", "pytest", "-e", "rmqkit-sample")
    assert "sample" in environment.run("rmqkit", "plugin", "list")
    environment.run("python", "-m", "pytest", "-q", "rmqkit-sample")


def test_the_fixtures_serve_a_foreign_project(environment):
    environment.run("python", "-m", "pip", "install", "--quiet", "pytest")
    (environment.folder / "test_foreign.py").write_text(FOREIGN_TEST)
    assert "1 passed" in environment.run("python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_foreign.py")
