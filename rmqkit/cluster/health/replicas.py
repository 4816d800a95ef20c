"""What brokers say of replication, and what that means for their group.

A broker of rmqkit tells it among its runtime facts (code 28), under names that begin with `replication`; an Apache broker
tells nothing there. `reasons` puts the brokers of a group together: why one is not in sync, in a line each, as `cluster
status` shows them.
"""

import json
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

FOLLOWING = "following"
#: states of a slave that it does not leave by itself
STUCK = ("ahead", "foreign")
#: what one of them says while it is on its way out of it all the same
CUTTING = "cut off now"
#: what stands before the reason in the stage of a slave that cannot stand for its group (`rmqkit.broker.roles.pre_online`)
KEPT_AWAY = "kept away from clients: "


class ReplicaReport(NamedTuple):
    """What one broker says. Numbers that it does not say are None; `gap` is in bytes.

    `members` are a master's slaves, each with `broker_id address acked gap in_sync state why`.
    """

    is_slave: bool
    state: str
    why: str
    in_sync: int | None = None
    wanted: int | None = None
    gap: int | None = None
    members: tuple[dict[str, Any], ...] = ()
    #: why clients are not sent to this slave although it is up, "" when they are
    kept_away: str = ""

    @property
    def follows(self) -> bool:
        return self.state == FOLLOWING

    @property
    def is_stuck(self) -> bool:
        return self.is_slave and self.state in STUCK and CUTTING not in self.why

    def hears(self, broker_id: int) -> bool:
        """Whether a master has had a report of that slave."""
        member = self.member(broker_id)
        return member is not None and member.get("acked", -1) >= 0

    def member(self, broker_id: int) -> dict[str, Any] | None:
        """What a master says of one of its slaves."""
        return next((each for each in self.members if each.get("broker_id") == broker_id), None)


def replication_of(facts: Mapping[str, str]) -> ReplicaReport | None:
    """From a broker's runtime facts; None when it says nothing of replication."""
    if "replicationRole" not in facts:
        return None
    return ReplicaReport(
        is_slave=facts["replicationRole"] == "slave",
        state=facts.get("replicationState", ""),
        why=facts.get("replicationWhy", ""),
        in_sync=_number(facts.get("replicationInSync")),
        wanted=_number(facts.get("replicationWanted")),
        gap=_number(facts.get("replicationGap")),
        members=_members(facts.get("replicationMembers", "")),
        kept_away=facts.get("roleStage", "").partition(KEPT_AWAY)[2],
    )


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.removeprefix("-").isdigit() else None


def _members(text: str) -> tuple[dict[str, Any], ...]:
    try:
        found = json.loads(text)
    except ValueError:
        return ()
    return tuple(each for each in found if isinstance(each, dict)) if isinstance(found, list) else ()


def reasons(nodes: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Why brokers are not as they should be, by node; `nodes` are those of the status document."""
    brokers = [node for node in nodes if node["kind"] == "broker"]
    masters = {node["broker_name"]: node for node in brokers if node["broker_id"] == 0}
    lacks = {node["node"]: _slave_lacks(node, masters.get(node["broker_name"])) for node in brokers if node["broker_id"]}
    for name, master in masters.items():
        told = {node["broker_id"] for node in brokers if node["broker_name"] == name and lacks.get(node["node"])}
        lacks[master["node"]] = _master_lacks(master["replication"], told) if master["replication"] else ""
    return {node["node"]: lacks[node["node"]] for node in brokers if lacks[node["node"]]}


def _slave_lacks(slave: Mapping[str, Any], master: Mapping[str, Any] | None) -> str:
    own = slave["replication"]
    if own is None or slave.get("acting"):
        # Who acts for its master has nobody to follow; the status says it in words of its own.
        return ""
    if own["state"] != FOLLOWING:
        return f"{own['state']}: {own['why']}" if own["why"] else str(own["state"])
    if master is None or master["replication"] is None:
        return "its master does not answer"
    for member in master["replication"]["members"]:
        if member.get("broker_id") == slave["broker_id"]:
            return "" if member.get("in_sync") else f"not in sync: {member.get('why') or 'it is behind'}"
    return "not in sync: its master has no HA connection from it"


def _master_lacks(own: Mapping[str, Any], told: Container[int]) -> str:
    """With the connections that belong to nobody, which no node of the cluster has a line for.

    `told`: ids of the slaves that have a line of their own.
    """
    members = own["members"]
    known = [each["why"] for each in members if each.get("broker_id") in told and each.get("why")]
    # A master that is content in itself says no more than what its slaves lack.
    if own["why"] and not any(why in own["why"] for why in known):
        return str(own["why"])
    return "; ".join(f"{each.get('address')} {each['why']}" for each in members if each.get("broker_id", 0) < 0)
