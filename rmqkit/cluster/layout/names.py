"""Names of clusters and nodes.

A cluster's name becomes a folder, so it is checked. Nodes are called `ns-0`, `ns-1`, ... and `broker-a-0`, ...: group
`broker-a`, broker id 0. A process of several brokers is called `container-0`, ... A cluster may not be called like a
selector: commands such as `cluster kill [NAME] [SELECTOR]` tell the two apart by their form alone.
"""

import re

from rmqkit.cluster.errors import UsageProblem

DEFAULT = "default"
GROUPS_MAX = 26

CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SELECTOR = re.compile(r"(?:all|master|slave|nameserver|ns|ns-\d+|container-\d+|broker-[a-z](?:[:-]\d+)?)")


def looks_like_selector(text: str) -> bool:
    return SELECTOR.fullmatch(text) is not None


def check_cluster_name(name: str) -> str:
    """The name itself. Raises UsageProblem."""
    if CLUSTER_NAME.fullmatch(name) is None or name.endswith(".lock"):
        raise UsageProblem(
            f"{name!r} cannot be a cluster's name: letters, digits, '.', '_' and '-', at most 64, not starting with a sign"
        )
    if looks_like_selector(name):
        meant = f"as in `rmqkit cluster stop {name}` or `rmqkit cluster stop NAME {name}`"
        raise UsageProblem(f"{name!r} cannot be a cluster's name: it stands for nodes, {meant}")
    return name


def container_name(number: int) -> str:
    """`container-0` for 0, ..."""
    return f"container-{number}"


def number_of(name: str) -> int:
    """The number at the end of such a name."""
    return int(name.rpartition("-")[2])


def group_name(number: int) -> str:
    """`broker-a` for 0, `broker-b` for 1, ..."""
    return f"broker-{chr(ord('a') + number)}"
