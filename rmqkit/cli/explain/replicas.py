"""What `rmqkit explain NODE` says about a broker's replication: its state, the reason, and advice.

The facts come from the broker (code 28; `rmqkit.cluster.health.replicas`). An Apache broker reports
none, so nothing is printed for it.
"""

from typing import Any, NamedTuple

from rmqkit.cli.output import size_text
from rmqkit.cluster.health.replicas import ReplicaReport


class Sentence(NamedTuple):
    """A sentence about a broker, and what to do; "" if there is nothing to do."""

    what: str
    do: str = ""


#: state of a slave -> what it means, what to do
SLAVE = {
    "no-master": Sentence(
        "It knows no master, so it copies nothing",
        "Start the master of its group (`rmqkit cluster start`). Both need the same brokerName and name servers. Or set "
        "haMasterAddress.",
    ),
    "connecting": Sentence(
        "It does not reach its master",
        "Check that the master runs, and that the slave can reach its port for replication (listenPort + 1). The slave "
        "tries again every second.",
    ),
    "refused": Sentence(
        "Its master refuses it",
        "A slave needs its master's brokerName and mappedFileSizeCommitLog, and an id above 0 that no other broker of the "
        "group has. It tries again by itself. If the master has deleted the files it needs, stop the slave, move its "
        "store folder away, and start it.",
    ),
    "ahead": Sentence(
        "It has messages that its master never had, so it has stopped and copies nothing",
        "If you need them, first consume them from this slave. Then start it with haTruncateAhead=true: it copies them to "
        "diverged/ in its store folder, truncates its log, and follows.",
    ),
    "foreign": Sentence(
        "Its log is not a prefix of its master's log, so it has stopped and copies nothing",
        "If it belongs to another group, correct brokerName. Else stop it, move its store folder away, and start it: it "
        "copies everything again.",
    ),
    "stopped": Sentence(
        "It follows no master now", "Check its log, and its disk if its store has failed; then restart it."
    ),
}

#: part of a master's reason for not counting a slave -> what to do
MEMBER = {
    "it says that it comes from": "Connect them directly, without address translation, or set haAcceptAnonymous=true.",
    "no HA connection": "Start that broker, or see `rmqkit explain` for it.",
    "has not reported": "Wait: it resolves when the slave reports its offset.",
    "behind": "Wait until the slave has caught up; if it does not, check its disk and network.",
    "haAcceptAnonymous": "For an Apache slave set haAcceptAnonymous=true at the master. Else find out who connects.",
    "did not say who it is": "An Apache slave counts once it is registered. Else find out which program connects.",
}


def sentences(said: ReplicaReport) -> list[Sentence]:
    return _slave(said) if said.is_slave else _master(said)


def _slave(said: ReplicaReport) -> list[Sentence]:
    if said.follows:
        gap = said.gap or 0
        behind = f", {size_text(gap)} behind" if gap > 0 else " and has all of its log"
        found = [Sentence(f"It follows its master{behind}.")]
        if said.why:
            found.append(
                Sentence(f"{said.why}.", "The missing messages can only be copied by hand, from a broker that has them.")
            )
        return found
    state = SLAVE.get(said.state, Sentence(f"Its state is {said.state}"))
    if "could not be written" in said.why:
        state = Sentence(
            "It cannot store what its master sends", "Free space on its disk, or repair it; it tries again every second."
        )
    return [Sentence(f"{state.what}: {said.why}." if said.why else f"{state.what}.", state.do)]


def _master(said: ReplicaReport) -> list[Sentence]:
    found = []
    if said.wanted is not None and said.in_sync is not None:
        waits = "waits for no other" if said.wanted < 2 else f"waits for {said.wanted} of them"
        found.append(Sentence(f"{_brokers(said.in_sync)} in sync, this one included; a put {waits}."))
        if said.wanted > said.in_sync:
            found.append(
                Sentence(
                    f"It refuses messages: waiting for {said.wanted} of {max(said.wanted, len(said.members) + 1)} brokers.",
                    "Start the slaves. With enableAutoInSyncReplicas=true the master continues with the slaves in sync, "
                    "down to minInSyncReplicas.",
                )
            )
        elif said.why.startswith("no slave"):
            found.append(Sentence(f"{said.why}.", "Start a slave; until then only the master has the messages."))
    for member in said.members:
        if why := member.get("why"):
            name = f"Slave {member['broker_id']}" if member.get("broker_id", -1) > 0 else "A slave"
            found.append(Sentence(f"{name} ({member.get('address')}) is not counted: {why}.", _advice(str(why))))
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
