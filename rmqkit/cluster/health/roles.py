"""The role reports of brokers, and remarks on them.

An rmqkit broker includes its report in its runtime facts (code 28), under names that begin with
`role`. An Apache broker reports nothing there. `remarks` are the lines that `cluster status` shows.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rmqkit.cluster.health import elections

ONLINE = "online"
ACTING = "acting"
MASTER = "master"


class RoleStatus(NamedTuple):
    """The role report of one broker.

    `role` is master, slave or acting. `online` is isolated, pre-online or online. `since_ms` is the
    wall time of the last change. `stage` is what the broker does to get online. `members` are the
    live brokers of its group that it knows, address by id. `head` is the smallest id of them, or
    None if it knows none.
    """

    role: str
    online: str
    since_ms: int
    why: str
    stage: str = ""
    members: Mapping[str, str] = {}
    head: int | None = None

    @property
    def is_online(self) -> bool:
        return self.online == ONLINE

    @property
    def is_acting(self) -> bool:
        return self.role == ACTING and self.is_online

    @property
    def is_master(self) -> bool:
        return self.role == MASTER and self.is_online


def role_of(facts: Mapping[str, str]) -> RoleStatus | None:
    """Return the report in a broker's runtime facts, or None if there is none."""
    if "role" not in facts or "roleOnline" not in facts:
        return None
    since, head = facts.get("roleSince", ""), facts.get("roleHead", "")
    return RoleStatus(
        role=facts["role"],
        online=facts["roleOnline"],
        since_ms=int(since) if since.isdigit() else 0,
        why=facts.get("roleWhy", ""),
        stage=facts.get("roleStage", ""),
        members=_members(facts.get("roleMembers", "")),
        head=int(head) if head.isdigit() else None,
    )


def _members(text: str) -> dict[str, str]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def shown(node: Mapping[str, Any]) -> str | None:
    """Format a broker's role for a table cell: configured, and current if it differs."""
    said = node.get("standing")
    role: str | None = node.get("role")
    if node.get("election") is not None:
        return elections.shown(node)
    if said is None or role is None:
        return role
    if said["online"] != ONLINE:
        return f"{role}, {said['online']}"
    return f"{role}, {ACTING}" if node["acting"] else role


def remarks(nodes: Sequence[Mapping[str, Any]], now_ms: int) -> list[tuple[str, str]]:
    """Return remarks on roles as (node, line).

    There is one for each broker that acts or is not online, and for each setting that prevents an
    acting master. `nodes` are those of the status document.
    """
    lines = []
    for node in nodes:
        said = node.get("standing")
        if said is None:
            continue
        since = f" for {_duration((now_ms - said['since_ms']) / 1000)}" if said["since_ms"] else ""
        why = f": {said['why']}" if said["why"] else ""
        if said["online"] != ONLINE:
            stage = f"; {said['stage']}" if said["stage"] else ""
            lines.append((node["node"], f"{said['online']}{since}{why}{stage}"))
        elif node["acting"]:
            lines.append((node["node"], f"acts for the master of {node['broker_name']}{since}{why}"))
        elif node.get("acting_enabled") and (note := said["why"].partition("; ")[2]):
            lines.append((node["node"], note))
    return lines + _mixed(nodes) + _unsupported(nodes)


def _unsupported(nodes: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    if not any(node.get("acting_enabled") for node in nodes):
        return []
    without = [node for node in nodes if node["kind"] == "nameserver" and node.get("acting_supported") is False]
    text = (
        "supportActingMaster is off: its clients find no acting master and read from slaves under the slaves' own ids; "
        "turn it on with `rmqkit config set nameserver supportActingMaster=true`"
    )
    return [(node["node"], text) for node in without]


def _mixed(nodes: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return remarks on groups whose brokers disagree on enableSlaveActingMaster."""
    lines = []
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for node in nodes:
        if node["kind"] == "broker" and node.get("acting_enabled") is not None:
            groups.setdefault(node["broker_name"], []).append(node)
    for brokers in groups.values():
        off = [node for node in brokers if not node["acting_enabled"]]
        if off and len(off) < len(brokers):
            text = "enableSlaveActingMaster is off here but on at other brokers of its group: set the same value on all"
            lines += [(node["node"], text) for node in off]
    return lines


def _duration(seconds: float) -> str:
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole // 3600} h"
