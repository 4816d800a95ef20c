"""What brokers say of their role, and what that means for their group.

A broker of rmqkit tells it among its runtime facts (code 28), under names that begin with `role`; an Apache broker tells
nothing there. `remarks` puts it into lines, as `cluster status` shows them.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

ONLINE = "online"
ACTING = "acting"
MASTER = "master"


class RoleStatus(NamedTuple):
    """`role` is master, slave or acting; `online` isolated, pre-online or online; `since_ms` wall time of the last change.

    `stage` is what is done to get online; `members` the live brokers of the group that this one knows of, address by id;
    `head` the smallest id of them, None while it knows nobody.
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
    """From a broker's runtime facts; None when it says nothing of roles."""
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
    """A broker's role in a cell of a table: what it was configured for, and what it is instead."""
    said = node.get("standing")
    role: str | None = node.get("role")
    if said is None or role is None:
        return role
    if said["online"] != ONLINE:
        return f"{role}, {said['online']}"
    return f"{role}, {ACTING}" if node["acting"] else role


def remarks(nodes: Sequence[Mapping[str, Any]], now_ms: int) -> list[tuple[str, str]]:
    """(node, line) of who acts, who is not online, and what keeps a group from having an acting master.

    `nodes` are those of the status document.
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
        "supportActingMaster is off: its clients find no acting master, they read from slaves under their own ids; "
        "turn it on with `rmqkit config set nameserver supportActingMaster=true`"
    )
    return [(node["node"], text) for node in without]


def _mixed(nodes: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Groups of which some brokers may act, or have to do with it, and others not."""
    lines = []
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for node in nodes:
        if node["kind"] == "broker" and node.get("acting_enabled") is not None:
            groups.setdefault(node["broker_name"], []).append(node)
    for brokers in groups.values():
        off = [node for node in brokers if not node["acting_enabled"]]
        if off and len(off) < len(brokers):
            text = "enableSlaveActingMaster is off here and on at others of its group: give all of them the same"
            lines += [(node["node"], text) for node in off]
    return lines


def _duration(seconds: float) -> str:
    whole = max(0, int(seconds))
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole // 3600} h"
