"""Shares the tests of `make test` between its workers.

pytest-xdist runs with `--dist loadgroup --no-loadscope-reorder`. A group of tests runs on one
worker, in the order of collection. A worker that has finished a group takes the next one:

1. Tests that share a cluster (one group per folder) or Spark's session. It starts once, not once
   per worker.
2. Tests of folders where single tests take seconds, each on its own. So all workers end at about
   the same time.
3. All other tests, one group per module.

`pytest` run by hand uses one process, where none of this applies.
"""

import os
from pathlib import PurePath

import pytest

#: fixtures of clusters that live for a session or a module
CLUSTERS = frozenset({"own", "pair", "rmqkit_clean", "rmqkit_cluster", "secure", "up", "usage_clean", "usage_cluster"})
LONG = frozenset({"cli", "container", "drill", "hostile", "plugins", "shell", "sim", "testing", "whole"})


def share_out(items: list[pytest.Item]) -> None:
    """Mark each test with its group, and sort the groups in the order in which they start."""
    ranks: dict[str, int] = {}
    for item in items:
        rank, group = _group(item)
        ranks[item.nodeid] = rank
        if group and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=lambda item: ranks[item.nodeid])


def _group(item: pytest.Item) -> tuple[int, str]:
    module = PurePath(item.nodeid.partition("::")[0])
    folder = module.parts[1] if len(module.parts) > 2 else ""
    if "spark" in getattr(item, "fixturenames", ()):
        return 0, "spark"
    if CLUSTERS.intersection(getattr(item, "fixturenames", ())):
        return 0, folder
    if folder in LONG:
        return 1, ""
    return 2, str(module)


def share_of(numbers: range) -> range:
    """Return this worker's part of the numbers; all of them if there is one process."""
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    place = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    size = len(numbers) // count
    return numbers[place * size : (place + 1) * size]
