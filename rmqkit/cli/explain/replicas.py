"""What `rmqkit explain NODE` says of a broker's replication: how it stands, why, and what to do about it.

The facts come from the broker (code 28; `rmqkit.cluster.health.replicas`). An Apache broker has none, so nothing is printed
for it.
"""

from typing import Any, NamedTuple

from rmqkit.cli.output import size_text
from rmqkit.cluster.health.replicas import ReplicaReport


class Said(NamedTuple):
    """A sentence of the broker's, and what to do; "" when there is nothing to do."""

    what: str
    do: str = ""


#: by state of a slave: what it means, what to do
SLAVE = {
    "no-master": Said(
        "It knows no master, so it copies nothing",
        "Start its group's master (`rmqkit cluster start`). Both need the same brokerName and the same name servers; or "
        "set haMasterAddress.",
    ),
    "connecting": Said(
        "It does not reach its master",
        "Look whether the master runs, and whether its port for replication (listenPort + 1) can be reached from here; "
        "it tries again every second.",
    ),
    "refused": Said(
        "Its master refuses it",
        "A slave has its master's brokerName and mappedFileSizeCommitLog, and an id above 0 that no other broker of the "
        "group has; it tries again. Where the master has removed what it needs, move its store folder away and start it.",
    ),
    "ahead": Said(
        "It has messages that its master never had, so it has stopped and copies nothing",
        "If they matter, consume them from it first. Then start it with haTruncateAhead=true: it keeps a copy in "
        "diverged/ of its store folder, cuts them off and follows.",
    ),
    "foreign": Said(
        "Its log is not the beginning of its master's, so it has stopped and copies nothing",
        "If it belongs to another group, correct brokerName. Else stop it, move its store folder away, and start it: it "
        "copies everything anew.",
    ),
    "stopped": Said(
        "It does not follow anybody now", "Look at its log, and at its disk if its store has failed; restart it."
    ),
}

#: what a master says of a slave that it does not count, by words of the reason
MEMBER = {
    "it says that it comes from": "Connect the two directly, without translated addresses; or set haAcceptAnonymous=true.",
    "no HA connection": "Look at that broker: `rmqkit explain` it, or start it.",
    "has not reported": "It goes by itself when the slave says where it stands.",
    "behind": "It goes by itself when the slave has caught up; look at its disk and network if it does not.",
    "haAcceptAnonymous": "For slaves of Apache set haAcceptAnonymous=true at the master; else find out who connects there.",
    "did not say who it is": "For a slave of Apache: it counts once it is registered. Else find out who connects there.",
}


def sentences(said: ReplicaReport) -> list[Said]:
    return _slave(said) if said.is_slave else _master(said)


def _slave(said: ReplicaReport) -> list[Said]:
    if said.follows:
        gap = said.gap or 0
        behind = f", {size_text(gap)} behind" if gap > 0 else " and has all of its log"
        found = [Said(f"It follows its master{behind}.")]
        if said.why:
            found.append(Said(f"{said.why}.", "What is missing can only be copied by hand, from a broker that has it."))
        return found
    state = SLAVE.get(said.state, Said(f"Its state is {said.state}"))
    if "could not be written" in said.why:
        state = Said(
            "It cannot store what its master sends", "Make room on its disk, or mend it; it tries again every second."
        )
    return [Said(f"{state.what}: {said.why}." if said.why else f"{state.what}.", state.do)]


def _master(said: ReplicaReport) -> list[Said]:
    found = []
    if said.wanted is not None and said.in_sync is not None:
        waits = "waits for no other" if said.wanted < 2 else f"waits for {said.wanted} of them"
        found.append(Said(f"{_brokers(said.in_sync)} in sync, this one included; a put {waits}."))
        if said.wanted > said.in_sync:
            found.append(
                Said(
                    f"It refuses messages: waiting for {said.wanted} of {max(said.wanted, len(said.members) + 1)} brokers.",
                    "Start the slaves. enableAutoInSyncReplicas=true goes on with those that are there, down to "
                    "minInSyncReplicas.",
                )
            )
        elif said.why.startswith("no slave"):
            found.append(Said(f"{said.why}.", "Start a slave; until then messages are at the master alone."))
    for member in said.members:
        if why := member.get("why"):
            name = f"Slave {member['broker_id']}" if member.get("broker_id", -1) > 0 else "A slave"
            found.append(Said(f"{name} ({member.get('address')}) is not counted: {why}.", _advice(str(why))))
    return found


def _brokers(count: int) -> str:
    return "1 broker is" if count == 1 else f"{count} brokers are"


def _advice(why: str) -> str:
    return next((advice for words, advice in MEMBER.items() if words in why), "")


def as_document(said: ReplicaReport | None) -> dict[str, Any] | None:
    if said is None:
        return None
    return {
        "state": said.state,
        "in_sync": said.in_sync,
        "gap": said.gap,
        "says": [each._asdict() for each in sentences(said)],
    }
