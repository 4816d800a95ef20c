"""The replication reports of brokers, and why a broker is not in sync.

An rmqkit broker includes its report in its runtime facts (code 28), under names that begin with
`replication`. An Apache broker reports nothing there. `reasons` compares the brokers of each group
and gives one line for each that is not in sync, as `cluster status` shows it.
"""

import json
from collections.abc import Container, Mapping, Sequence
from typing import Any, NamedTuple

FOLLOWING = "following"
#: states that a slave does not leave by itself
STUCK = ("ahead", "foreign")
#: part of the reason while a slave truncates its log to leave one of them
#: (`rmqkit.broker.replication.ha_client`)
CUTTING = "cut off now"
#: prefix of the reason in `roleStage` of a slave that clients must not use
#: (`rmqkit.broker.roles.pre_online`)
KEPT_AWAY = "kept away from clients: "


class ReplicaReport(NamedTuple):
    """The replication report of one broker. Missing numbers are None; `gap` is in bytes.

    `members` are a master's slaves, each with `broker_id address acked gap in_sync state why`.
    """

    is_slave: bool
    state: str
    why: str
    in_sync: int | None = None
    wanted: int | None = None
    gap: int | None = None
    members: tuple[dict[str, Any], ...] = ()
    #: why clients are not sent to this slave although it is up; "" if they are
    kept_away: str = ""

    @property
    def follows(self) -> bool:
        return self.state == FOLLOWING

    @property
    def is_stuck(self) -> bool:
        return self.is_slave and self.state in STUCK and CUTTING not in self.why

    def hears(self, broker_id: int) -> bool:
        """Whether a master has a report from that slave."""
        member = self.member(broker_id)
        return member is not None and member.get("acked", -1) >= 0

    def member(self, broker_id: int) -> dict[str, Any] | None:
        """Return a master's entry for one of its slaves, or None."""
        return next((each for each in self.members if each.get("broker_id") == broker_id), None)


def replication_of(facts: Mapping[str, str]) -> ReplicaReport | None:
    """Return the report in a broker's runtime facts, or None if there is none."""
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
    """Return why brokers are not in sync, by node. `nodes` are those of the status document."""
    brokers = [node for node in nodes if node["kind"] == "broker"]
    masters = {node["broker_name"]: node for node in brokers if _wire_id(node) == 0}
    lacks = {node["node"]: _slave_lacks(node, masters.get(node["broker_name"])) for node in brokers if _wire_id(node)}
    for name, master in masters.items():
        listed = {_wire_id(node) for node in brokers if node["broker_name"] == name and lacks.get(node["node"])}
        lacks[master["node"]] = _master_lacks(master["replication"], listed) if master["replication"] else ""
    return {node["node"]: lacks[node["node"]] for node in brokers if lacks[node["node"]]}


def _wire_id(node: Mapping[str, Any]) -> int:
    """Return a broker's id in requests: 0 is the master, also one that was elected."""
    election = node.get("election")
    if election is None:
        return int(node["broker_id"])
    return 0 if election["state"] == "master" else int(election["broker_id"])


def _slave_lacks(slave: Mapping[str, Any], master: Mapping[str, Any] | None) -> str:
    own = slave["replication"]
    if own is None or slave.get("acting"):
        # An acting slave has no master to follow. `roles.remarks` has a line for it.
        return ""
    if own["state"] != FOLLOWING:
        return f"{own['state']}: {own['why']}" if own["why"] else str(own["state"])
    if master is None or master["replication"] is None:
        return "its master does not answer"
    for member in master["replication"]["members"]:
        if member.get("broker_id") == _wire_id(slave):
            return "" if member.get("in_sync") else f"not in sync: {member.get('why') or 'it is behind'}"
    return "not in sync: its master has no HA connection from it"


def _master_lacks(own: Mapping[str, Any], listed: Container[int]) -> str:
    """Return what a master lacks beyond the lines of its slaves, or "".

    `listed` are the ids of the slaves that have lines. The result may name HA connections of
    unidentified peers, for which no node of the cluster has a line.
    """
    members = own["members"]
    known = [each["why"] for each in members if each.get("broker_id") in listed and each.get("why")]
    # Do not repeat the reason of a slave.
    if own["why"] and not any(why in own["why"] for why in known):
        return str(own["why"])
    return "; ".join(f"{each.get('address')} {each['why']}" for each in members if each.get("broker_id", 0) < 0)
