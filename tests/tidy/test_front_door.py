"""The pages that contributors read first name commands, files and versions that exist."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.tidy.tree import GROUP, ROOT, none

pytestmark = GROUP

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PAGES = ("CONTRIBUTING.md", "SECURITY.md", ".github/pull_request_template.md")
FORMS = ("bug.yml", "feature.yml")
FRAGMENTS = sorted((ROOT / "changelog.d").glob("*.md"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def load(path: str) -> dict:
    return yaml.safe_load((ROOT / path).read_text())


@pytest.mark.parametrize("page", PAGES)
def test_make_targets_exist(page):
    named = re.findall(r"`make ([a-z -]+)`", (ROOT / page).read_text())
    none(f"{page}: make {target}" for group in named for target in group.split() if target not in TARGETS)


@pytest.mark.parametrize("page", PAGES)
def test_files_exist(page):
    """Check links, and names in backticks that contain a slash."""
    text = (ROOT / page).read_text()
    named = re.findall(r"`([\w.-]+/[\w./-]*)`", text) + re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    known = (path for path in named if not path.startswith("changelog.d/+"))
    none(f"{page}: {path}" for path in known if not (ROOT / path).exists())


def test_ci_runs_every_python_that_the_package_names():
    ci = load(".github/workflows/ci.yml")
    versions = ci["jobs"]["ci"]["strategy"]["matrix"]["python"]
    found = (
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", name) for name in PROJECT["project"]["classifiers"]
    )
    assert versions == [each[1] for each in found if each]
    assert any(step.get("run") == ".ci/run" for step in ci["jobs"]["ci"]["steps"])


def test_a_release_builds_rmqkit_and_each_plug_in():
    release = load(".github/workflows/release.yml")
    commands = "\n".join(step.get("run", "") for step in release["jobs"]["build"]["steps"])
    assert "build --outdir dist ." in commands
    assert "plugins/*/" in commands
    assert release["jobs"]["publish"]["needs"] == "build"
    assert release["jobs"]["publish"]["permissions"] == {"id-token": "write", "attestations": "write"}


def test_hooks_use_tools_of_the_environment():
    (local,) = load(".pre-commit-config.yaml")["repos"]
    for hook in local["hooks"]:
        tool = hook["entry"].split()[0]
        assert tool.startswith(".venv/bin/"), hook["id"]
    assert {"ruff", "ruff-format", "mypy", "docs"} == {hook["id"] for hook in local["hooks"]}


@pytest.mark.parametrize("form", FORMS)
def test_forms_ask_for_something(form):
    body = load(f".github/ISSUE_TEMPLATE/{form}")["body"]
    assert any(field.get("validations", {}).get("required") for field in body)
    assert all(field["attributes"]["label"] for field in body)


def test_fragments_have_a_known_type_and_a_sentence():
    types = {kind["directory"] for kind in PROJECT["tool"]["towncrier"]["type"]}
    none(f"{path.name}: {why}" for path in FRAGMENTS for why in faults(path, types))


def faults(path: Path, types: set[str]) -> list[str]:
    text = path.read_text().strip()
    kind = path.name.split(".")[-2]
    found = [] if kind in types else [f"{kind} is none of {', '.join(sorted(types))}"]
    return found if text.endswith(".") and text[0].isupper() else [*found, "is no sentence"]


def test_a_wrong_fragment_is_found(tmp_path):
    wrong = tmp_path / "12.speed.md"
    wrong.write_text("faster\n")
    assert faults(wrong, {"fix"}) == ["speed is none of fix", "is no sentence"]
