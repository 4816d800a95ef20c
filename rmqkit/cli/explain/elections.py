"""What `rmqkit explain NODE` says in controller mode: why a broker is or is not master, whether it
can be elected, whether it is fenced; and who leads the controllers.

The facts are the broker's (code 28; `rmqkit.cluster.health.elections`) and, if a controller
answers, what the controllers know of its group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rmqkit.cli.explain.replicas import Sentence
from rmqkit.cluster.health.elections import MASTER, SLAVE, BrokerElection, ids
from rmqkit.errors import ClientError

if TYPE_CHECKING:
    from rmqkit import Admin
    from rmqkit.wire.bodies import ReplicasInfo

#: part of the reason -> what to do
DO = {
    "no controller leads": "Check the controllers: `rmqkit controller status`. More than half of them must answer.",
    "no controller has confirmed": "It takes messages again once a leading controller answers: `rmqkit controller status`.",
    "no master was elected": "Start a member that is in sync: `rmqkit controller status` lists them.",
    "lost their data": "See docs/elections.md, `When a group has no master`, before you remove a file.",
}
#: states before a broker has a role -> what they mean
WAITING = {
    "discover": "it looks for the controller that leads",
    "identity": "it asks the controllers for its id",
    "register": "it tells the controllers its address",
    "elect": "its group has no master, and it asks for an election",
    "takeover": "it is elected, and prepares to serve: its queues must have the whole log",
}


def sentences(said: BrokerElection, info: ReplicasInfo | None, *, is_online: bool) -> list[Sentence]:
    """`info` is what the controllers know of the group; None if no leader answers."""
    do = next((advice for words, advice in DO.items() if words in said.why), "")
    why = f": {said.why}" if said.why else ""
    if said.state == MASTER:
        found = [_master(said)]
        found += [Sentence(f"It refuses messages{why}.", do)] if why else []
    elif said.state == SLAVE:
        found = [_slave(said, info)]
        found += [Sentence(f"It waits{why}.", do)] if why else []
    else:
        found = [Sentence(f"It has no role: {WAITING.get(said.state, said.state)}{why}.", do)]
    if not is_online:
        found.append(Sentence("It is fenced: it is in no route and refuses clients until it has a role."))
    if info is None:
        found.append(Sentence("No controller reports which members can be elected now.", "`rmqkit controller status`"))
    return found


def _master(said: BrokerElection) -> Sentence:
    alone = " It is the only one, so no other can be elected." if len(said.in_sync) < 2 else ""
    text = f"It is master: the controllers elected it in epoch {said.epoch}. In sync are {ids(said.in_sync)}.{alone}"
    return Sentence(text, "Start the other members." if alone else "")


def _slave(said: BrokerElection, info: ReplicasInfo | None) -> Sentence:
    if info is None:
        return Sentence(f"It is no master: another member was elected in epoch {said.epoch}.")
    in_sync = [each.broker_id for each in info.in_sync_replicas]
    if info.master_broker_id is None or info.master_broker_id < 0 or not info.master_address:
        who = f"the group has no master since epoch {info.master_epoch}"
    else:
        who = f"member {info.master_broker_id} at {info.master_address} was elected in epoch {info.master_epoch}"
    if said.broker_id in in_sync:
        return Sentence(f"It is no master: {who}. It is in sync, so it can be elected.")
    text = f"It is no master: {who}. It is not in sync, so it cannot be elected; in sync are {ids(_numbers(in_sync))}."
    return Sentence(text, "Wait until it has caught up; if it does not, see below.")


def _numbers(found: Sequence[int | None]) -> list[int]:
    return [each for each in found if each is not None]


def known_of(admin: Admin, config: Mapping[str, str], name: str) -> ReplicasInfo | None:
    """Ask the controllers that a broker's settings name for its group; None without an answer."""
    addresses = [each.strip() for each in config.get("controllerAddr", "").split(";") if each.strip()]
    if not addresses:
        return None
    try:
        return admin.broker_sets(addresses, [name]).get(name)
    except ClientError:
        return None


def as_document(said: BrokerElection | None, info: ReplicasInfo | None, *, is_online: bool = True) -> dict[str, Any] | None:
    if said is None:
        return None
    return {**said._asdict(), "says": [each._asdict() for each in sentences(said, info, is_online=is_online)]}


def controller(local: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is known about a controller of a local cluster, from its status."""
    term = "" if local["term"] is None else f" in term {local['term']}"
    if local["leads"]:
        says = Sentence(f"It leads the controllers{term}: brokers register with it, and it elects masters.")
    elif local["leader"]:
        says = Sentence(f"It follows the leader at {local['leader']}{term}, and can take its place.")
    else:
        says = Sentence(
            f"It knows no leader{term}: more than half of the controllers must answer each other.",
            "Start the others: `rmqkit cluster start controller`.",
        )
    trouble = [Sentence(f"It has a problem: {local['problem']}.")] if local["problem"] else []
    return {
        "node": local["node"],
        "kind": "controller",
        "state": "up",
        "address": local["address"],
        "election": {"says": [each._asdict() for each in (*trouble, says)]},
        "refuses": [],
    }
