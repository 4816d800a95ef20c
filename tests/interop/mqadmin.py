"""Runs commands of Apache's mqadmin 5.5.0 in one JVM and returns their output.

The Java side is `driver/.../Mqadmin.java`.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.interop import apache

#: logback's messages about its own set-up
_LOGBACK = re.compile(r"^\d\d:\d\d:\d\d,\d+ \|-.*\n", re.MULTILINE)


class Printed(NamedTuple):
    """The output of one command."""

    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """The words of each line, without blank lines and headings."""
        return [line.split() for line in self.out.splitlines() if line.strip() and not line.startswith("#")]

    def row(self, *first: str) -> list[str]:
        """Return the only row that begins with these words. Fail the test if there are more or
        none.
        """
        found = [row for row in self.rows if row[: len(first)] == list(first)]
        assert len(found) == 1, f"{len(found)} rows begin with {' '.join(first)}:\n{self.out}\n{self.err}"
        return found[0]


class Mqadmin:
    """The JVM. Every command gets the name server's address."""

    def __init__(self, namesrv: str, home: Path, properties: Mapping[str, str] | None = None) -> None:
        self.namesrv = namesrv
        self._errors = open(home / "stderr", "w+", encoding="utf-8")  # noqa: SIM115 -- closed with the JVM
        self._process = apache.start_java(
            "rmqkit.interop.Mqadmin",
            [],
            home=home,
            stderr=self._errors,
            heap_mb=256,
            lifeline=False,
            properties=properties,
        )

    def __call__(self, command: str, *words: str) -> Printed:
        """Run `mqadmin command -n NAMESRV words`. Fail the test if it does not end."""
        return self._run([command, "-n", self.namesrv, *words])

    def consume(self, group: str, topic: str) -> str:
        """Keep a push consumer of the group online; return its client id."""
        return self._run(["@consume", self.namesrv, group, topic]).out

    def produce(self, group: str, topic: str) -> str:
        """Keep a producer of the group online that has sent one message; return its offset id."""
        return self._run(["@produce", self.namesrv, group, topic]).out

    def close(self) -> None:
        apache.end(self._process, clean=False)
        self._errors.close()

    def _run(self, words: list[str]) -> Printed:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            pytest.fail(f"the JVM ended ({self._process.wait()}) at {words}: {self._errors.read()[-2000:]}")
        said = json.loads(line)
        assert not said.get("error"), f"{words}: {said}"
        return Printed(_LOGBACK.sub("", said["out"]), said["err"])
