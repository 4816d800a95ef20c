"""mqadmin of Apache's tools 5.5.0 in one JVM: words in, what it printed out (`driver/.../Mqadmin.java`)."""

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.interop import apache

#: what the logging library says of its own set-up
_LOGBACK = re.compile(r"^\d\d:\d\d:\d\d,\d+ \|-.*\n", re.MULTILINE)


class Printed(NamedTuple):
    """What a command printed."""

    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """The words of each line that says something and is no heading."""
        return [line.split() for line in self.out.splitlines() if line.strip() and not line.startswith("#")]

    def row(self, *first: str) -> list[str]:
        """The one row that begins with these words. Fails the test when there is none or more."""
        found = [row for row in self.rows if row[: len(first)] == list(first)]
        assert len(found) == 1, f"{len(found)} rows begin with {' '.join(first)}:\n{self.out}\n{self.err}"
        return found[0]


class Mqadmin:
    """The JVM. Commands are given the name server's address."""

    def __init__(self, namesrv: str, home: Path) -> None:
        self.namesrv = namesrv
        self._errors = open(home / "stderr", "w+", encoding="utf-8")  # noqa: SIM115 -- closed with the JVM
        self._process = apache.start_java(
            "rmqkit.interop.Mqadmin", [], home=home, stderr=self._errors, heap_mb=256, lifeline=False
        )

    def __call__(self, command: str, *words: str) -> Printed:
        """Runs `mqadmin command -n NAMESRV words`. Fails the test when it does not end."""
        return self._run([command, "-n", self.namesrv, *words])

    def consume(self, group: str, topic: str) -> str:
        """Keeps a push consumer of the group on line; its client id."""
        return self._run(["@consume", self.namesrv, group, topic]).out

    def produce(self, group: str, topic: str) -> str:
        """Keeps a producer of the group on line, which has sent one message; that message's offset id."""
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
