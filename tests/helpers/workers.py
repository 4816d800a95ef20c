"""How `make test` shares the tests between its workers (pytest-xdist, `--dist loadgroup --no-loadscope-reorder`).

A group of tests runs on one worker, in the order in which it was collected; a worker that is through takes the next one:

1. tests that share a cluster (a group for each folder) or Spark's session: it is started once, not once a worker;
2. tests of the folders where single tests take seconds, each by itself: the workers end at about the same time;
3. all others, a group for each module.

`pytest` by hand runs everything in one process, where none of this matters.
"""

import os
from pathlib import PurePath

import pytest

#: fixtures that stand for a cluster of a session or a module
CLUSTERS = frozenset({"own", "pair", "rmqkit_clean", "rmqkit_cluster", "up", "usage_clean", "usage_cluster"})
LONG = frozenset({"cli", "container", "drill", "hostile", "plugins", "shell", "sim", "testing", "whole"})


def share_out(items: list[pytest.Item]) -> None:
    """Mark each test with its group and put the groups in the order in which they are to begin."""
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
    """This worker's part of the numbers; all of them where there is one process."""
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    place = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    size = len(numbers) // count
    return numbers[place * size : (place + 1) * size]
