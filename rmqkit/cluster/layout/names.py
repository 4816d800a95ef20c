"""Names of clusters and nodes.

A cluster's name is the name of its folder, so it is checked. Nodes are named `ns-0`, `ns-1`, ...,
`controller-0`, ..., and `broker-a-0`, ...: group `broker-a`, broker id 0. Broker containers
(processes of several brokers) are named `container-0`, ...

A cluster may not have the form of a selector as its name: commands such as
`cluster kill [NAME] [SELECTOR]` distinguish the two by their form alone.
"""

import re

from rmqkit.cluster.errors import UsageProblem

DEFAULT = "default"
GROUPS_MAX = 26

CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SELECTOR = re.compile(
    r"(?:all|master|slave|nameserver|ns|ns-\d+|controller|controller-\d+|container-\d+|broker-[a-z](?:[:-]\d+)?)"
)


def looks_like_selector(text: str) -> bool:
    return SELECTOR.fullmatch(text) is not None


def check_cluster_name(name: str) -> str:
    """Return the name. Raises UsageProblem if it is invalid."""
    if CLUSTER_NAME.fullmatch(name) is None or name.endswith(".lock"):
        raise UsageProblem(
            f"{name!r} cannot be a cluster's name: use at most 64 letters, digits, '.', '_' and '-',"
            " starting with a letter or digit, not ending with '.lock'"
        )
    if looks_like_selector(name):
        meant = f"as in `rmqkit cluster stop {name}` or `rmqkit cluster stop NAME {name}`"
        raise UsageProblem(f"{name!r} cannot be a cluster's name: it selects nodes, {meant}")
    return name


def container_name(number: int) -> str:
    """Return `container-0` for 0, and so on."""
    return f"container-{number}"


def number_of(name: str) -> int:
    """Return the number at the end of a container's name."""
    return int(name.rpartition("-")[2])


def group_name(number: int) -> str:
    """Return `broker-a` for 0, `broker-b` for 1, and so on."""
    return f"broker-{chr(ord('a') + number)}"
