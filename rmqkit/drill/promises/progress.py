"""Progress goes forward through a takeover and back: who serves a group of brokers now knows what the one before knew a
second before it went.

The one who serves (`heads`) is the master, then who acts for it, then the master again. At each change the new one's
offsets of consumer groups are compared with what the old one was seen to hold a second before its end. Less is broken; what
was committed within that second may be given back, and is counted. And a message that lies behind an offset committed more
than a second before the change is not given to its group again: that is what consumers would see. How many were given again
at takeovers and at returns is counted.

Who takes over can only know what it could be told. When both were whole as it began to serve (the one before for a moment
already: who has just come back is not asked yet), that is all; else what the one before held a second before the end of the
last stretch of `TOGETHER_MS` in which both were.

After a power cut or a lost disk the messages themselves may be gone, and others stand in their places: counted only.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from rmqkit.drill.history import OK, History, HistoryRow
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises.contract import Broken, Finding, judged
from rmqkit.drill.promises.facts import fault_of
from rmqkit.drill.promises.heads import ACTING, ServiceInterval, broken_times, heads
from rmqkit.drill.promises.table import Harm

#: how much consumption a change may give back
ALLOWED_MS = 1_000
#: a look so soon after a change shows what the new one began with
LOOK_MS = 400
#: where each look is a row: how late the first one may be on a machine that is busy; later nothing is known
LATE_LOOK_MS = 5_000
#: in so long a stretch what one knows is told to the other, whatever both were before
TOGETHER_MS = 2_000
#: until one that is back is known to be
BACK_MS = 1_000
LACKING = "no broker that served the group reported its offsets"
REWINDING = (Harm.POWER_CUT, Harm.DISK_LOSS)

#: group and queue of a broker
Kept = tuple[str, int]


class Change(NamedTuple):
    broker: str
    before: ServiceInterval
    after: ServiceInterval

    @property
    def what(self) -> str:
        return "takeover" if self.after.role == ACTING else "return"

    def sure_ms(self, broken: Mapping[str, Sequence[tuple[int, int]]]) -> int:
        """What was committed by then is kept; -1: nothing could be told. `broken` is from when to when each node was."""
        begin_ms = self.after.begin_ms
        sure_ms = min(self.before.end_ms, begin_ms) - ALLOWED_MS
        both = sorted((*broken.get(self.before.node, ()), *broken.get(self.after.node, ())))
        gone = [(since, until + BACK_MS) for since, until in broken.get(self.before.node, ())]
        # One that serves in the very moment in which its fault ends has asked nobody.
        gone += broken.get(self.after.node, ())
        if not any(since <= begin_ms < until for since, until in gone):
            return sure_ms
        # The load began in a steady state: before the first fault both were whole for long enough.
        whole_ms, together_ms = -TOGETHER_MS, -1
        for since, until in both:
            if since > begin_ms:
                break
            if since - whole_ms >= TOGETHER_MS:
                together_ms = since
            whole_ms = max(whole_ms, until)
        return min(sure_ms, together_ms - ALLOWED_MS)


class Looks:
    """What nodes were seen to hold, by time."""

    def __init__(self, history: History) -> None:
        self._rows: dict[tuple[str, str, int], list[HistoryRow]] = {}
        for row in sorted(history.by_kind["committed"], key=lambda row: (row.complete_ms, row.op)):
            if row.outcome == OK:
                self._rows.setdefault((row.client, row.key, row.queue), []).append(row)
        self._times = {place: [row.complete_ms for row in rows] for place, rows in self._rows.items()}

    def kept(self, node: str) -> list[Kept]:
        return sorted((group, queue) for client, group, queue in self._rows if client == node)

    def at(self, node: str, kept: Kept, at_ms: int) -> int:
        """The offset at the last look until then; -1 for none."""
        place = (node, *kept)
        number = bisect_right(self._times.get(place, ()), at_ms)
        return self._rows[place][number - 1].offset if number else -1

    def soon(self, node: str, kept: Kept, at_ms: int) -> int | None:
        """The offset then, by the looks just before and just after; what an earlier run of the node had does not count.
        None: the first look came too late to say."""
        rows = self._rows.get((node, *kept), [])
        number = bisect_right(self._times.get((node, *kept), ()), at_ms)
        before = rows[number - 1] if number else None
        after = rows[number] if number < len(rows) else None
        if after is not None:
            # The simulator writes what is new alone: that there is no row says that nothing has changed.
            wait_ms = LATE_LOOK_MS if after.extra.get("each") else LOOK_MS
            if after.complete_ms > at_ms + wait_ms:
                if after.extra.get("each"):
                    return None
                after = None
        if after is None or before is None or before.extra.get("boot") == after.extra.get("boot"):
            return max((row.offset for row in (before, after) if row is not None), default=-1)
        return after.offset


class ProgressForward:
    name = "progress-forward"
    text = "a broker that takes over knows the offsets committed a second before, a returning master those committed since"

    def applies(self, plan: Plan) -> bool:
        return plan.acting

    def check(self, history: History, plan: Plan) -> Finding:
        looks = Looks(history)
        served = heads(history)
        changes = changes_of(served)
        counts = {f"{each} at {what}": 0 for what in ("takeover", "return") for each in ("given back", "given again")}
        counts["changes"] = len(changes)
        broken: list[Broken] = []
        facts = 0
        sure: dict[Change, dict[Kept, int]] = {}
        broken_at = broken_times(history)
        for change in changes:
            sure[change] = {}
            sure_ms = change.sure_ms(broken_at)
            for kept in looks.kept(change.before.node):
                begins = looks.soon(change.after.node, kept, change.after.begin_ms)
                if begins is None:
                    continue
                facts += 1
                least = looks.at(change.before.node, kept, sure_ms)
                last = looks.at(change.before.node, kept, change.before.end_ms)
                sure[change][kept] = least
                counts[f"given back at {change.what}"] += max(0, last - begins)
                if begins < least:
                    broken.append(Broken("", _told(change, kept, least, sure_ms, begins)))
        broken += _given_again(history, changes, sure, counts)
        if served and not changes:
            facts = sum(len(looks.kept(head.node)) for found in served.values() for head in found)
            return judged(facts, (), counts, lacking="" if facts else LACKING, why="no broker took over")
        fault = fault_of(history)
        lacking = "" if facts else LACKING
        if fault is not None and fault.harm in REWINDING:
            return judged(
                facts,
                (),
                counts,
                lacking=lacking,
                why="rolled back offsets are only counted: the fault may have taken the messages too",
            )
        return judged(facts, broken, counts, lacking=lacking)


def changes_of(served: Mapping[str, Sequence[ServiceInterval]]) -> list[Change]:
    """Where another node begins to serve a group."""
    return [
        Change(broker, before, after)
        for broker, found in served.items()
        for before, after in pairwise(found)
        if before.node != after.node
    ]


def _told(change: Change, kept: Kept, least: int, sure_ms: int, begins: int) -> str:
    group, queue = kept
    return (
        f"{change.what}: {change.after.node} serves from {change.after.begin_ms} ms with offset {begins} of group {group},"
        f" {change.broker} queue {queue}; {change.before.node} held {least} at {sure_ms} ms"
    )


def _given_again(
    history: History,
    changes: Sequence[Change],
    sure: Mapping[Change, Mapping[Kept, int]],
    counts: dict[str, int],
) -> list[Broken]:
    """Counts what groups were given again after each change; those whose offsets were sure are broken."""
    by_broker: dict[str, list[Change]] = {}
    for change in sorted(changes, key=lambda change: change.after.begin_ms):
        by_broker.setdefault(change.broker, []).append(change)
    begins = {broker: [change.after.begin_ms for change in found] for broker, found in by_broker.items()}
    given: set[tuple[str, str, int, int]] = set()
    broken = []
    for row in history.deliveries:
        group = str(row.extra.get("group", ""))
        place = (group, row.broker, row.queue, row.offset)
        number = bisect_right(begins.get(row.broker, []), row.complete_ms)
        if place in given and number:
            change = by_broker[row.broker][number - 1]
            counts[f"given again at {change.what}"] += 1
            if row.offset < sure[change].get((group, row.queue), -1):
                what = (
                    f"redelivered to group {group} at {row.complete_ms} ms, although the group had committed past offset"
                    f" {row.offset} of {row.broker} queue {row.queue} more than a second before the {change.what}"
                )
                broken.append(Broken(row.key, what))
        given.add(place)
    return broken
