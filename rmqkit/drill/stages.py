"""The stages of a takeover and of the return of the broken node.

A stage is an event of the timeline (`timeline.derive` finds most of them in the rows). Its time
counts from the start of the fault (takeover) or from the end of the fault (return). The watcher
polls the nodes every 30 ms while anything changes, so stage times are accurate to 30 ms.
"""

from collections.abc import Mapping
from typing import NamedTuple

from rmqkit.drill import history as names
from rmqkit.drill.history import History
from rmqkit.drill.promises.contract import Finding
from rmqkit.drill.verdict import Verdict

TAKEOVER = "takeover"
RETURN = "return"

#: event → name of the stage, in the usual order
STAGES: Mapping[str, Mapping[str, str]] = {
    TAKEOVER: {
        names.FIRST_FAILED_SEND: "first failed send",
        names.NOTICED: "noticed by the name server",
        names.ANNOUNCED: "known in the group",
        names.ROUTE_CHANGED: "route changed",
        names.ACTS: "a slave acts",
        names.CHOSEN: "another master elected",
        names.SERVES: "the elected master serves",
        names.SLAVE_READ: "first read served from a slave",
        names.LOCK_GRANTED: "lock granted",
        names.DELAY_DELIVERED: "delayed message released",
        names.TIMER_DELIVERED: "timer released",
        names.CHECKED: "transaction resolved",
        names.ACK_ACCEPTED: "pop ack accepted",
        names.LATE_READ: "a new group reads",
    },
    RETURN: {
        names.NODE_BACK: "node answers",
        names.PRE_ONLINE_DONE: "pre-online done",
        names.REGISTERED: "registered",
        names.FOLLOWS_AGAIN: "slave of the new master",
        names.FIRST_SEND_AGAIN: "first send acknowledged",
        names.IN_SYNC_AGAIN: "everything as before",
    },
}
SINCE = {TAKEOVER: names.FAULT_BEGINS, RETURN: names.FAULT_ENDS}


class Stage(NamedTuple):
    """A stage that the drill reached. `part` is `TAKEOVER` or `RETURN`."""

    part: str
    name: str
    #: milliseconds since the fault began (takeover) or ended (return)
    after_ms: int
    #: details of the event, for instance which node was seen
    more: str


def stages(history: History) -> list[Stage]:
    """Return the stages that the drill reached, in order of time.

    Events of the return that precede the recorded end of the fault are left out: a node may answer
    before the engine records that end.
    """
    found = []
    for part, table in STAGES.items():
        since_ms = history.event_ms(SINCE[part])
        if since_ms is None:
            continue
        for row in history.events:
            if row.key in table and (part == TAKEOVER or row.invoke_ms >= since_ms):
                found.append(Stage(part, table[row.key], row.invoke_ms - since_ms, row.value))
    return found


def measured(history: History, verdict: Verdict) -> dict[str, float]:
    """Return the figures that compare drills: seconds per stage, counts of redeliveries."""
    found: dict[str, float] = {}
    for stage in stages(history):
        whence = "fault" if stage.part == TAKEOVER else "fault's end"
        found.setdefault(f"{whence} → {stage.name}, s", stage.after_ms / 1000)
    found |= given_again(verdict)
    return found


#: promise → its counts of redeliveries and overlaps, and the names of the figures
AGAIN: Mapping[str, Mapping[str, str]] = {
    "progress-forward": {
        "given again at takeover": "messages given again at takeover",
        "given again at return": "messages given again at return",
        "given back at takeover": "offsets given back at takeover",
        "given back at return": "offsets given back at return",
    },
    "delay-kept": {
        "escaped": "delayed messages escaped",
        "released twice": "delayed messages released twice",
        "latest ms": "latest delayed message, ms",
    },
    "timer-kept": {
        "escaped": "timers escaped",
        "released twice": "timers released twice",
        "latest ms": "latest timer, ms",
    },
    "transaction-atomic": {
        "asked about": "transactions that brokers asked about",
        "escaped": "committed messages escaped",
        "released twice": "committed messages released twice",
    },
    "pop-kept": {
        "returned": "popped messages that returned",
        "again after the ack, allowed": "messages popped again after the ack",
        "again while invisible, allowed": "messages popped again while invisible",
        "again as a second copy": "messages popped again as a second copy",
    },
    "locks-exclusive": {
        "leases that overlap": "leases that overlap",
        "longest overlap ms": "longest overlap of leases, ms",
        "gap at takeover ms": "gap of locks at takeover, ms",
    },
    "acknowledged-survive": {"lost where nothing is promised": "messages lost, as the mode allows"},
    "one-master": {"master and acting at once, ms": "master and acting at once, ms"},
}


def given_again(verdict: Verdict) -> dict[str, float]:
    """Return the figures of `AGAIN`: what takeovers and returns repeated, or let overlap."""
    findings: dict[str, Finding] = {each.name: each.finding for each in verdict.promises}
    return {
        words: float(findings[name].counts.get(count, 0))
        for name, table in AGAIN.items()
        if name in findings
        for count, words in table.items()
    }
