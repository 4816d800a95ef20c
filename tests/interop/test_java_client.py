"""Apache's Java client 5.5.0 against our cluster.

One JVM runs every check (`java.py`); each check is one test.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop import apache, java
from tests.interop.clusters import Target
from tests.interop.lines import CheckRun, chosen_checks

CLIENT = f"java-{apache.VERSION}"
SHOWS = java.shows(apache.VERSION)


@pytest.fixture(scope="module")
def driver(target: Target, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[CheckRun]:
    home = tmp_path_factory.mktemp("driver")
    running = java.run(target.namesrv, home, apache.VERSION, chosen_checks(request))
    try:
        yield running
    finally:
        running.close()


@pytest.mark.parametrize("check", java.chosen(apache.VERSION))
def test_java_client(driver: CheckRun, check: str) -> None:
    result = driver.result(check)
    assert result["ok"], result.get("trace", result)


def test_every_check_of_the_driver_is_listed(tmp_path: Path) -> None:
    assert java.listed(apache.VERSION, tmp_path) == set(java.known(apache.VERSION))
