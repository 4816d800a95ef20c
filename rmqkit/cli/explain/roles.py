"""What `rmqkit explain NODE` says of a broker's role: what it does in its group now, why, and what to do about it.

The facts come from the broker (code 28; `rmqkit.cluster.health.roles`). An Apache broker has none, so nothing is printed
for it. A broker whose role cannot change (enableSlaveActingMaster is off) and that is online has nothing to say either.
"""

from collections.abc import Mapping
from typing import Any

from rmqkit.cli.explain.replicas import Said
from rmqkit.cluster.health.roles import RoleStatus

#: by what is part of the reason: what to do
DO = {
    "is registered with its": "Two brokers have one brokerId: give one of them another, or stop it; `rmqkit doctor` says "
    "where they are.",
    "no name server": "Look whether a name server runs and can be reached from here; namesrvAddr has their addresses.",
    "queues do not have all": "It goes by itself when its queues are built; its log tells how far they are.",
    "was stalled": "It was stopped by a signal, or its machine was overloaded; it goes back by itself.",
    "has removed it": "Its signs of life came too late: look at the network and at the load of its machine.",
}


def sentences(said: RoleStatus, config: Mapping[str, str]) -> list[Said]:
    if config.get("enableSlaveActingMaster", "").lower() != "true":
        return []
    do = next((advice for words, advice in DO.items() if words in said.why), "")
    if not said.is_online:
        stage = f" It is at this: {said.stage}." if said.stage else ""
        text = (
            f"It is {said.online}, so it is in no route and refuses clients: {said.why}.{stage} Then it takes over what "
            "the others of its group know better, registers, and serves."
        )
        return [Said(text, do)]
    if said.is_acting:
        text = (
            f"It acts for its master: {said.why}. Consumers read from it, lock queues and keep their offsets here; delayed "
            "messages that are due go to a master of another group. It takes no messages."
        )
        return [
            Said(text, do or "Start the master (`rmqkit cluster start`); it takes back what it missed and serves again.")
        ]
    found = [Said(f"{_alive(said)}.")]
    note = said.why.partition("; ")[2]
    if note:
        found.append(Said(f"{note[0].upper()}{note[1:]}.", do))
    return found


def _alive(said: RoleStatus) -> str:
    if not said.members:
        return "It does not know who else of its group is alive"
    ids = ", ".join(said.members)
    head = "the master leads it" if said.head == 0 else f"{said.head} is the smallest of them, which acts if it may"
    return f"Of its group are alive: {ids}; {head}"


def as_document(said: RoleStatus | None, config: Mapping[str, str]) -> dict[str, Any] | None:
    if said is None:
        return None
    return {**said._asdict(), "says": [each._asdict() for each in sentences(said, config)]}
