"""npm's ali-ons, a client in plain JavaScript, against our cluster.

One process runs every check (`node/checks.js`). The client creates no topics, because a
TOPIC_NOT_EXIST of a name server makes it throw; so the tests create them. It answers no broker
requests, so it notices a change of members only at its own rebalance, every 10 s.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from typing import IO

import pytest

from rmqkit import Admin
from tests.interop import packages
from tests.interop.clusters import Target
from tests.interop.lines import CheckRun, chosen_checks
from tests.interop.until import until

CLIENT = f"ali-ons-{packages.ALI_ONS}"
SHOWS = {
    "sync": ["send_sync", "send_compressed"],
    "ordered": ["send_by_sharding_key"],
    "tag": ["tag_filter"],
    "SQL92": ["sql_filter"],
    "broadcasting": ["broadcasting"],
    "rebalance": ["rebalance", "resume"],
    "delay level": ["delay_level"],
    "timer": ["timer"],
    "retry → DLQ": ["retry"],
}
CHECKS = [check for checks in SHOWS.values() for check in checks]


@pytest.fixture(scope="module")
def client(target: Target, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[CheckRun]:
    assert packages.no_node() is None, f"ali-ons needs node and npm; {packages.no_node()}"
    modules = packages.node_folder()
    checks = chosen_checks(request)
    with Admin(target.namesrv) as admin:
        for check in checks:
            admin.create_topic(f"node_{check}", queue_nums=4)
            until("a route", lambda check=check: len(admin.queues(f"node_{check}")) == 4)
    home = tmp_path_factory.mktemp("node")

    def start(errors: IO[str]) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            ["node", str(packages.NODE / "checks.js"), target.namesrv, *checks],
            cwd=home,
            env={**os.environ, "NODE_PATH": str(modules), "HOME": str(home)},
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
def test_ali_ons(client: CheckRun, check: str) -> None:
    result = client.result(check)
    assert result["ok"], result.get("error", result)


def test_every_check_of_the_program_is_listed() -> None:
    env = {**os.environ, "NODE_PATH": str(packages.node_folder())}
    command = ["node", str(packages.NODE / "checks.js"), "list"]
    said = subprocess.run(command, env=env, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout
    assert sorted(json.loads(said)) == sorted(CHECKS)
