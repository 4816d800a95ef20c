"""What `rmqkit explain NODE` says about a broker's role in its group, the reason, and advice.

The facts come from the broker (code 28; `rmqkit.cluster.health.roles`). An Apache broker reports
none, so nothing is printed for it. Nothing is printed either for an online broker whose role cannot
change (enableSlaveActingMaster is off).
"""

from collections.abc import Mapping
from typing import Any

from rmqkit.cli.explain.replicas import Sentence
from rmqkit.cluster.health.roles import RoleStatus

#: part of the reason -> what to do
DO = {
    "is registered with its": "Two brokers have the same brokerId: change one of them, or stop it; `rmqkit doctor` shows "
    "their addresses.",
    "no name server": "Check that a name server runs and that this broker can reach it; namesrvAddr has the addresses.",
    "queues do not have all": "Wait until its queues are built; its log shows the progress.",
    "was stalled": "A signal stopped it, or its machine was overloaded; it goes online again by itself.",
    "has removed it": "Its heartbeats came too late: check the network and the load of its machine.",
}


def sentences(said: RoleStatus, config: Mapping[str, str]) -> list[Sentence]:
    if config.get("enableSlaveActingMaster", "").lower() != "true":
        return []
    do = next((advice for words, advice in DO.items() if words in said.why), "")
    if not said.is_online:
        stage = f" Current step: {said.stage}." if said.stage else ""
        text = (
            f"It is {said.online}, so it is in no route and refuses clients: {said.why}.{stage} It then fetches newer "
            "metadata from its group, registers, and serves clients."
        )
        return [Sentence(text, do)]
    if said.is_acting:
        text = (
            f"It acts for its master: {said.why}. Consumers read, lock queues and commit offsets here. Delayed "
            "messages that are due go to a master of another group. It accepts no messages."
        )
        return [
            Sentence(
                text, do or "Start the master (`rmqkit cluster start`); it copies the missing messages, then it serves."
            )
        ]
    found = [Sentence(f"{_alive(said)}.")]
    note = said.why.partition("; ")[2]
    if note:
        found.append(Sentence(f"{note[0].upper()}{note[1:]}.", do))
    return found


def _alive(said: RoleStatus) -> str:
    if not said.members:
        return "It does not know which members of its group are alive"
    ids = ", ".join(said.members)
    head = "the master leads" if said.head == 0 else f"{said.head} is the smallest id, which acts if it can"
    return f"Live members of its group: {ids}; {head}"


def as_document(said: RoleStatus | None, config: Mapping[str, str]) -> dict[str, Any] | None:
    if said is None:
        return None
    return {**said._asdict(), "says": [each._asdict() for each in sentences(said, config)]}
