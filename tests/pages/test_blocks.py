"""Runs every console and Python block of the README, the tutorial and the how-to pages.

A page becomes one shell script: its blocks in order, in one folder, with one home for clusters. The
script ends at the first command that fails. Three things differ from a reader's terminal:

- Clusters take free ports, and NAMESRV_ADDR names the newest cluster.
- `pip install` only checks that the packages are available.
- A block that begins with a comment with a file name (`# orders.py`) is written to that file,
  whatever its language.

A block that cannot run here follows `<!-- not run: REASON -->`.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.ports import free_base

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs/install.md"]
PAGES += sorted(path for folder in ("learn", "do") for path in (ROOT / "docs" / folder).glob("*.md"))
LIMIT_S = 300
BLOCK = re.compile(r"(<!-- not run: (?P<reason>[^\n]+) -->\n+)?^```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S)
FILE_NAME = re.compile(r"(?:#|//|<!--) ([\w./-]+\.\w+)(?: -->)?\n")
RUN = ("console", "python")

PRELUDE = """\
set -euo pipefail
NAMESRV='import json, sys; print(json.load(sys.stdin)["namesrv"])'
rmqkit() {
    if [ "${1-} ${2-}" != "cluster up" ]; then command rmqkit "$@"; return; fi
    command rmqkit "$@" --base-port "$BASE_PORT" --any-port
    NAMESRV_ADDR=$(command rmqkit cluster status --json | python -c "$NAMESRV")
    export NAMESRV_ADDR
}
pip() { python -m pip "$@" --dry-run --quiet --no-deps; }
"""


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    reason: str | None  # why it is not run


def blocks(page: Path) -> list[Block]:
    found = BLOCK.finditer(page.read_text())
    return [Block(each["language"], each["text"], each["reason"]) for each in found]


def script(page: Path) -> str:
    """Return the page as a shell script, without the output lines of console blocks."""
    steps = [PRELUDE]
    for block in blocks(page):
        if block.reason:
            continue
        if name := FILE_NAME.match(block.text):
            steps.append(f"mkdir -p $(dirname {name[1]}) && cat > {name[1]} <<'END-OF-FILE'\n{block.text}END-OF-FILE\n")
        elif block.language == "console":
            steps.append("\n".join(commands(block.text)) + "\n")
        elif block.language == "python":
            steps.append(f"cat > block.py <<'END-OF-FILE'\n{block.text}END-OF-FILE\necho | python block.py\n")
    return "\n".join(steps)


def commands(text: str) -> list[str]:
    """Return the lines after `$ `, and those that continue one after a backslash."""
    found: list[str] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(line[2:])
        elif found and found[-1].endswith("\\"):
            found.append(line)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_blocks_of_known_languages(page):
    for block in blocks(page):
        if block.language == "console":
            assert block.text.startswith("$ "), f"a console block begins with a command: {block.text}"
            assert commands(block.text)


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_blocks_of_a_page_run(page, tmp_path):
    if not any(block.language in RUN and not block.reason for block in blocks(page)):
        pytest.skip("nothing on this page is run")
    work = tmp_path / "work"
    work.mkdir()
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("RMQKIT", "NAMESRV", "PYTEST"))}
    path = f"{Path(sys.executable).parent}:{variables['PATH']}"
    variables |= {"PATH": path, "RMQKIT_HOME": str(tmp_path / "home"), "BASE_PORT": str(free_base(range(-2, 60)))}
    try:
        done = subprocess.run(
            ["bash", "-xc", script(page)], cwd=work, env=variables, timeout=LIMIT_S, capture_output=True, text=True
        )
        told = "\n".join([*done.stdout.splitlines()[-30:], *done.stderr.splitlines()[-30:]])
        assert done.returncode == 0, f"exit {done.returncode}\n{told}"
    finally:
        for cluster in (tmp_path / "home").glob("*/state.json"):
            stop = ["rmqkit", "cluster", "down", cluster.parent.name]
            subprocess.run(stop, env=variables, capture_output=True, timeout=60)
