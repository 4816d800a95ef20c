"""What brokers in controller mode and controllers report about elections.

A broker has its report in its runtime facts (code 28), under names that begin with `election`. A
controller says who leads (1005). The leader knows each group: its master, the master's epoch, and
the members in sync (1006). `query_elections` asks all controllers of a cluster at once.
"""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqkit.cluster.health.caller import NoAnswer
from rmqkit.errors import RemoteProtocolError
from rmqkit.wire.bodies import BrokerReplicasInfo
from rmqkit.wire.bodies.replication import encode_names
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schema import from_ext
from rmqkit.wire.schemas.controller import GetMetaDataResponse

if TYPE_CHECKING:
    from rmqkit.cluster.health.caller import Caller
    from rmqkit.cluster.health.readiness import Target

MASTER = "master"
SLAVE = "slave"


class BrokerElection(NamedTuple):
    """The election report of one broker.

    `state` is that of `rmqkit.broker.election`, `why` what it waits for ("" if nothing). `epoch` is
    -1 before it knows one, `broker_id` -1 before it has one. `in_sync` are ids; only a master knows
    them.
    """

    state: str
    epoch: int
    broker_id: int
    why: str = ""
    leader: str = ""
    in_sync: tuple[int, ...] = ()
    confirm_offset: int | None = None

    @property
    def is_master(self) -> bool:
        return self.state == MASTER

    @property
    def is_slave(self) -> bool:
        return self.state == SLAVE


def election_of(facts: Mapping[str, str]) -> BrokerElection | None:
    """Return the report in a broker's runtime facts; None for one that no controller elects."""
    if "electionState" not in facts:
        return None
    ids = facts.get("syncStateSet", "").split(";")
    return BrokerElection(
        state=facts["electionState"],
        epoch=_number(facts.get("electionEpoch"), -1),
        broker_id=_number(facts.get("electionId"), -1),
        why=facts.get("electionWhy", ""),
        leader=facts.get("controllerLeader", ""),
        in_sync=tuple(int(each) for each in ids if each.isdigit()),
        confirm_offset=_number(facts.get("confirmOffset"), -1),
    )


def _number(text: str | None, default: int) -> int:
    return int(text) if text is not None and text.removeprefix("-").isdigit() else default


class ControllerStatus(NamedTuple):
    """What one controller says. `term` is None at Apache's; `leader` is an address, "" for none.

    `problem` says why it takes no part in its group, or not as it should; "" if it does.
    """

    leads: bool
    leader: str
    term: int | None = None
    problem: str = ""


def controller_of(asked: "Caller") -> ControllerStatus:
    """Ask a controller who leads. Raises NoAnswer, RemoteProtocolError."""
    answer = asked.ask(RequestCode.CONTROLLER_GET_METADATA_INFO)
    found = from_ext(GetMetaDataResponse, answer.head.ext_fields or {})
    return ControllerStatus(found.is_leader, found.controller_leader_address or "", found.term, found.problem or "")


class BrokerSetStatus(NamedTuple):
    """What the controllers know of a group. The ids are the brokers' own, from 1."""

    #: None while no member is master
    master: int | None
    master_epoch: int
    in_sync: tuple[int, ...]
    alive: tuple[int, ...]
    #: id -> address
    members: Mapping[int, str]

    def id_of(self, address: str) -> int | None:
        return next((each for each, at in self.members.items() if at == address), None)

    def as_document(self) -> dict[str, Any]:
        return {
            "master": self.master,
            "epoch": self.master_epoch,
            "in_sync": list(self.in_sync),
            "alive": list(self.alive),
            "members": {str(each): address for each, address in self.members.items()},
        }


def groups_of(leader: "Caller", names: Sequence[str]) -> dict[str, BrokerSetStatus]:
    """Ask the controller that leads for groups; unknown ones are left out. Raises NoAnswer,
    RemoteProtocolError."""
    answer = leader.ask(RequestCode.CONTROLLER_GET_SYNC_STATE_DATA, None, encode_names(names))
    found = {}
    for name, info in BrokerReplicasInfo.decode(answer.body).replicas_info_table.items():
        everyone = [*info.in_sync_replicas, *info.not_in_sync_replicas]
        master = info.master_broker_id
        found[name] = BrokerSetStatus(
            master if master is not None and master > 0 and info.master_address else None,
            info.master_epoch or 0,
            tuple(sorted(each.broker_id or 0 for each in info.in_sync_replicas)),
            tuple(sorted(each.broker_id or 0 for each in everyone if each.alive)),
            {each.broker_id or 0: each.broker_address or "" for each in everyone},
        )
    return found


class ElectionsStatus(NamedTuple):
    """The answers of a cluster's controllers: by node, and the groups that the leader knows."""

    controllers: Mapping[str, ControllerStatus]
    groups: Mapping[str, BrokerSetStatus]


def query_elections(controllers: Sequence["Target"], names: Sequence[str], timeout_s: float) -> ElectionsStatus:
    """Ask all controllers at once; silent ones are left out."""
    from concurrent.futures import ThreadPoolExecutor

    if not controllers:
        return ElectionsStatus({}, {})
    deadline_s = time.monotonic() + timeout_s

    def ask(target: "Target") -> tuple[ControllerStatus | None, Mapping[str, BrokerSetStatus]]:
        said = None
        try:
            with target.call(deadline_s) as asked:
                said = controller_of(asked)
                return said, groups_of(asked, names) if said.leads else {}
        except (NoAnswer, RemoteProtocolError):
            return said, {}

    with ThreadPoolExecutor(max_workers=len(controllers)) as pool:
        answers = list(pool.map(ask, controllers))
    return ElectionsStatus(
        {target.plan.node: said for target, (said, _) in zip(controllers, answers, strict=True) if said is not None},
        {name: group for _, groups in answers for name, group in groups.items()},
    )


def shown(node: Mapping[str, Any]) -> str:
    """Format the role of a broker of the status document, for a table cell."""
    said = node["election"]
    if said["state"] not in (MASTER, SLAVE):
        return f"fenced, {said['state']}" if said["fenced"] else str(said["state"])
    return f"{said['state']}, epoch {said['epoch']}{', fenced' if said['fenced'] else ''}"


def remarks(status: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return remarks on elections as (node or group, line), for a status document."""
    groups = status.get("groups")
    if groups is None:
        return []
    lines = []
    led = {node["broker_name"] for node in status["nodes"] if (node.get("election") or {}).get("state") == MASTER}
    controllers = [node for node in status["nodes"] if node["kind"] == "controller"]
    lines += [(node["node"], node["problem"]) for node in controllers if node["problem"]]
    if not any(node["leads"] for node in controllers):
        answering = [node["node"] for node in controllers if node["state"] == "up"]
        lines.append(
            (
                "controllers",
                f"no leader: {len(answering)} of {len(controllers)} answer, and more than half must agree;"
                " until then no master is elected, and masters refuse messages once their lease ends",
            )
        )
    for name, group in groups.items():
        if group["master"] is None:
            who = f"only members in sync can be elected: {ids(group['in_sync'])}; alive: {ids(group['alive'])}"
            lines.append((name, f"no master; {who}"))
    for node in status["nodes"]:
        said = node.get("election")
        if said is not None and said["why"]:
            lines.append((node["node"], said["why"]))
        elif said is not None and said["in_set"] is False and node["broker_name"] not in led:
            lines.append((node["node"], "not in the set of in-sync replicas, so it cannot be elected"))
    return lines


def ids(found: Sequence[int]) -> str:
    return ", ".join(map(str, found)) or "none"


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return what elections have changed between two status documents, as lines."""
    lines = []
    names = {node["address"]: node["node"] for node in after["nodes"]}
    leaders = [_leader(each) for each in (before, after)]
    if leaders[0] != leaders[1]:
        node, term = leaders[1]
        lines.append(
            f"controllers: {node} leads{'' if term is None else f', term {term}'}" if node else "controllers: no leader"
        )
    for name, now in after.get("groups", {}).items():
        was = before.get("groups", {}).get(name)
        if was is None or (was["master"], was["epoch"]) != (now["master"], now["epoch"]):
            master = names.get(now["members"].get(str(now["master"])), f"broker {now['master']}")
            lines.append(f"{name}: {'no master' if now['master'] is None else f'{master} is master'}, epoch {now['epoch']}")
        if was is not None and was["in_sync"] != now["in_sync"]:
            lines.append(f"{name}: in sync are {ids(now['in_sync'])}")
    return lines


def _leader(status: Mapping[str, Any]) -> tuple[str, int | None]:
    return next(((node["node"], node["term"]) for node in status["nodes"] if node.get("leads")), ("", None))
