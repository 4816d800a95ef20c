"""The dependencies of `pip install rmqkit`: docs/install.md lists each; an error names a missing
extra."""

import importlib.util
import re
import tomllib
from pathlib import Path

import pytest

from rmqkit import config
from rmqkit.errors import ConfigError
from rmqkit.process import node_specs

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=\[;]", each)[0] for each in requirements}


def rows(heading: str) -> set[str]:
    """Return the first cells of the table below a heading of docs/install.md."""
    section = (ROOT / "docs" / "install.md").read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]
    return set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))


def test_the_table_names_every_dependency():
    assert rows("What is installed, and what for") == names(PROJECT["dependencies"])


def test_the_table_names_every_extra():
    extras = set(PROJECT["optional-dependencies"]) - {"dev"}
    assert rows("Extras") == {f"rmqkit[{extra}]" for extra in extras}


def broker(settings):
    return node_specs.broker_spec(settings, "b", None)


def nameserver(settings):
    return node_specs.nameserver_spec(settings, "ns")


@pytest.mark.parametrize("spec", [broker, nameserver])
def test_an_endpoint_without_its_packages_names_the_extra(spec, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "h11" else found(name, *rest))
    settings = config.load([], ["metricsExporterType=PROM"], spec.__name__)
    with pytest.raises(ConfigError, match=r"needs h11: pip install 'rmqkit\[metrics\]'"):
        spec(settings)
