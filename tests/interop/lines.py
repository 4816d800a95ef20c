"""A program that runs checks and prints one JSON line for each: {"check", "ok", ...}.

Results are read as they arrive.
"""

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import pytest

from tests.interop import apache


class CheckRun:
    """The program, started at once. Each test waits only for its own check."""

    def __init__(self, home: Path, start: Callable[[IO[str]], "subprocess.Popen[str]"]) -> None:
        self._errors = open(home / "stderr", "w+", encoding="utf-8")  # noqa: SIM115 -- closed with the program
        self._process = start(self._errors)
        self._results: dict[str, Mapping[str, Any]] = {}

    def result(self, check: str) -> Mapping[str, Any]:
        """Return the line printed for `check`. Fail the test if the program ends before it."""
        while check not in self._results:
            line = self._process.stdout.readline() if self._process.stdout else ""
            if not line:
                pytest.fail(f"the program ended ({self._process.wait()}) before {check}: {self._said()}")
            if line.startswith("{"):
                found = json.loads(line)
                self._results[found["check"]] = found
        return self._results[check]

    def close(self) -> None:
        apache.end(self._process, clean=False)
        self._errors.close()

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-2000:]


def chosen_checks(request: pytest.FixtureRequest) -> list[str]:
    """Return the checks of this module that the run has not deselected."""
    mine = [item for item in request.session.items if getattr(item, "module", None) is request.module]
    return [item.callspec.params["check"] for item in mine if hasattr(item, "callspec")]
