"""Interop tests run only with RMQKIT_INTEROP=1 (`make interop`): they want Java, Maven and a minute or two.

RMQKIT_INTEROP_AGAINST=apache turns the Java client's checks on Apache's own broker, which proves the checks.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.interop import apache

if os.environ.get("RMQKIT_INTEROP") != "1":
    collect_ignore_glob = ["test_*.py"]


class Target(NamedTuple):
    """A running cluster: where its name server is and whose it is, "rmqkit" or "apache"."""

    namesrv: str
    kind: str


@pytest.fixture(scope="session", autouse=True)
def _tools() -> None:
    lacking = apache.missing_tools()
    if lacking:
        pytest.exit(f"the interop tests need Java 17 and Maven; {lacking}", returncode=3)


@pytest.fixture(scope="session")
def apache_cluster() -> Iterator[apache.ApacheCluster]:
    """Apache's own name server and broker."""
    with apache.ApacheCluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Target]:
    """The cluster the Java client is tried against: ours, as `rmqkit cluster up` makes it."""
    if os.environ.get("RMQKIT_INTEROP_AGAINST") == "apache":
        yield Target(request.getfixturevalue("apache_cluster").namesrv, "apache")
        return
    home = tmp_path_factory.mktemp("rmqkit-home")
    up = rmqkit(home, "cluster", "up", "--any-port", "--json")
    try:
        assert up.returncode == 0, f"cluster up: {up.stdout}\n{up.stderr}"
        yield Target(json.loads(up.stdout)["namesrv"], "rmqkit")
    finally:
        rmqkit(home, "cluster", "down", "--purge")


def rmqkit(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """One `rmqkit` command with its state in `home`."""
    return subprocess.run(
        [sys.executable, "-m", "rmqkit.cli.main", *arguments],
        env={**os.environ, "RMQKIT_HOME": str(home)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
