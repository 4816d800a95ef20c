"""Apache's C++ client (PyPI's rocketmq 0.4.4) against our cluster. Each check is a process.

The library sends numbers in its headers, reads only JSON headers, and accepts any error for the
offset query of a new group. `cpp_checks.py` lists the package's faults and their workarounds.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from rmqkit import Admin
from tests.interop import packages
from tests.interop.clusters import Target
from tests.interop.lines import CheckRun, chosen_checks
from tests.interop.until import until

PROGRAM = str(Path(__file__).with_name("cpp_checks.py"))
CLIENT = f"rocketmq-cpp (PyPI {packages.CPP})"
SHOWS = {
    "sync": ["send_sync"],
    "async": ["send_async"],
    "one-way": ["send_oneway"],
    "batch": ["send_batch"],
    "ordered": ["ordered"],
    "tag": ["tag_filter"],
    "broadcasting": ["broadcasting"],
    "rebalance": ["rebalance"],
    "delay level": ["delay_level"],
    "timer": ["timer"],
    "retry → DLQ": ["retry"],
}
CHECKS = [*(check for checks in SHOWS.values() for check in checks), "pull"]

pytestmark = pytest.mark.skipif(packages.no_cpp() is not None, reason=f"rocketmq-cpp: {packages.no_cpp()}")


def environment(home: Path) -> dict[str, str]:
    # The client writes its log below HOME.
    return {**os.environ, "PYTHONPATH": str(packages.cpp_folder()), "HOME": str(home)}


@pytest.fixture(scope="module")
def client(target: Target, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[CheckRun]:
    checks = chosen_checks(request)
    with Admin(target.namesrv) as admin:
        for check in checks:
            admin.create_topic(f"cpp_{check}", queue_nums=4)
            until("a route", lambda check=check: len(admin.queues(f"cpp_{check}")) == 4)
    home = tmp_path_factory.mktemp("cpp")

    def start(errors: IO[str]) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, PROGRAM, target.namesrv, *checks],
            cwd=home,
            env=environment(home),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )

    running = CheckRun(home, start)
    try:
        yield running
    finally:
        running.close()


@pytest.mark.parametrize("check", CHECKS)
def test_rocketmq_cpp(client: CheckRun, check: str) -> None:
    result = client.result(check)
    assert result["ok"], result.get("error", result)


def test_every_check_of_the_program_is_listed(tmp_path: Path) -> None:
    command = [sys.executable, PROGRAM, "list"]
    said = subprocess.run(command, env=environment(tmp_path), capture_output=True, text=True, check=True).stdout
    assert sorted(json.loads(said)) == sorted(CHECKS)
