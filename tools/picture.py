"""Draws the picture of the README: runs a real drill in a terminal and renders its output as SVG.

`python -m tools.picture` starts a cluster in a temporary folder and runs `rmqkit fail-master` in a
pseudo-terminal of 100 columns. It writes docs/pictures/fail-master.svg. Times and counts differ
from run to run, so `make docs` does not include it.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import pexpect
from rich.console import Console
from rich.text import Text

from tools import docs

PICTURE = docs.DOCS / "pictures" / "fail-master.svg"
RMQKIT = str(Path(sys.executable).with_name("rmqkit"))
COLUMNS = 100
DRILL_SECONDS = 180
CLEAR = re.compile(r"\x1b\[[0-9;?]*[A-HJKSThl]|\r(?!\n)")  # cursor movements of a progress line, but not colours
LINKED_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def main() -> None:
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(drawn(output()))


def output() -> str:
    """Return what `rmqkit fail-master` prints in a terminal, with colours.

    Raises RuntimeError if the drill fails.
    """
    with tempfile.TemporaryDirectory() as home:
        variables = {**os.environ, "RMQKIT_HOME": home, "TERM": "xterm-256color"}
        variables.pop("NAMESRV_ADDR", None)
        try:
            run("cluster up --any-port", variables)
            return run("fail-master", variables)
        finally:
            run("cluster down --purge", variables)


def run(command: str, variables: dict[str, str]) -> str:
    text, code = pexpect.run(
        f"{RMQKIT} {command}",
        env=variables,
        dimensions=(200, COLUMNS),
        timeout=DRILL_SECONDS,
        withexitstatus=True,
        encoding="utf-8",
    )
    if code != 0:
        raise RuntimeError(f"rmqkit {command}: exit {code}\n{text}")
    return str(text)


def drawn(text: str) -> str:
    """Return the terminal's text as SVG, without the run's paths and without external fonts."""
    lines = [line for line in CLEAR.sub("", text).splitlines() if not line.startswith(("run  ", "report  "))]
    console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True)  # noqa: SIM115
    console.print(Text.from_ansi("\n".join(["$ rmqkit fail-master", *lines]).strip()))
    return LINKED_FONT.sub("", console.export_svg(title="rmqkit fail-master", unique_id="drill"))


if __name__ == "__main__":
    main()
