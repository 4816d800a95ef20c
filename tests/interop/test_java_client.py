"""Apache's Java client 5.5.0 against our cluster. One JVM runs every check; each is one test here.

The checks are in `driver/src/main/java/rmqkit/interop`. Those of `NOT_YET` need what our broker refuses so far; they run
against Apache's broker only (RMQKIT_INTEROP_AGAINST=apache).
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop import apache
from tests.interop.conftest import Target

SENDING = [
    "send_sync",
    "send_async",
    "send_oneway",
    "send_batch",
    "send_properties",
    "send_unicode",
    "send_large",
    "send_to_chosen_queue",
    "send_to_unknown_topic",
    "send_refused",
]
PUSHING = ["push_one_member", "push_tag_filter", "push_rebalance", "push_broadcast", "push_resume"]
PULLING = [
    "pull_plain",
    "pull_long_poll",
    "pull_tag_filter",
    "pull_offsets",
    "lite_assign_seek",
    "lite_subscribe_resume",
]
ADMIN = [
    "admin_topic",
    "admin_cluster",
    "admin_delete_topic",
    "admin_offsets",
    "admin_view_message",
    "admin_kv",
    "admin_write_perm",
    "admin_broker_config",
    "admin_group",
    "admin_topic_stats",
    "admin_connections",
    "admin_broker_runtime",
    "query_by_key",
    "query_by_unique_id",
]
NOT_YET = [
    "admin_consume_stats",
    "push_orderly",
    "push_retry",
    "send_delay_level",
    "send_transaction",
    "consumer_running_info",
]
WORKING = [*SENDING, *PUSHING, *PULLING, *ADMIN]
_CHOSEN = [*WORKING, *NOT_YET] if os.environ.get("RMQKIT_INTEROP_AGAINST") == "apache" else WORKING


class Driver:
    """The JVM with the checks. Results are read as they come, so a test waits for its own check only."""

    def __init__(self, namesrv: str, home: Path) -> None:
        self._errors = open(home / "stderr", "w+", encoding="utf-8")  # noqa: SIM115 -- closed with the driver
        self._process = apache.start_java(
            "rmqkit.interop.Driver", [namesrv, *_CHOSEN], home=home, stderr=self._errors, heap_mb=256
        )
        self._results: dict[str, dict[str, Any]] = {}

    def result(self, check: str) -> dict[str, Any]:
        """What the driver printed for `check`. Fails the test when the JVM ends without it."""
        while check not in self._results:
            line = self._process.stdout.readline() if self._process.stdout else ""
            if not line:
                pytest.fail(f"the driver ended ({self._process.wait()}) before {check}: {self._said()}")
            found = json.loads(line)
            self._results[found["check"]] = found
        return self._results[check]

    def close(self) -> None:
        apache.end(self._process, clean=False)
        self._errors.close()

    def _said(self) -> str:
        self._errors.seek(0)
        return self._errors.read()[-2000:]


@pytest.fixture(scope="module")
def driver(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    running = Driver(target.namesrv, tmp_path_factory.mktemp("driver"))
    try:
        yield running
    finally:
        running.close()


@pytest.mark.parametrize("check", _CHOSEN)
def test_java_client(driver: Driver, check: str) -> None:
    result = driver.result(check)
    assert result["ok"], result.get("trace", result)


def test_every_check_of_the_driver_is_listed_here(tmp_path: Path) -> None:
    process = apache.start_java("rmqkit.interop.Driver", ["list"], home=tmp_path, stderr=None)
    lines = process.stdout.read().splitlines() if process.stdout else []
    apache.end(process, clean=False)
    listed = {row["check"] for row in map(json.loads, lines) if row["group"] != "sample"}
    assert listed == {*WORKING, *NOT_YET}
