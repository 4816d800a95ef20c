"""Promise: queue offsets are stable and dense.

Stable: a (broker, queue, offset) means the same message in every answer, delivery and reading, on
every replica, before and after the fault. Dense: a queue has no holes. As in Jepsen's `kafka` test,
an offset with two messages is an inconsistent offset.

Two kinds of messages are exempt, because their offsets may go to other messages. Both are counted:

- messages that the master lost in a way that its mode allows (`given_up`);
- messages that were read before their send was answered, and that a power cut then took
  (`unanswered_copies`).
"""

from collections.abc import Iterable

from rmqkit.drill.history import OK, History, HistoryRow
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises.contract import Broken, Finding, judged
from rmqkit.drill.promises.facts import Copy, copy_of, given_up, unanswered_copies

Place = tuple[str, int, int]


class OffsetsStable:
    name = "offsets-stable"
    text = "an offset of a queue always means the same message, on every replica, and no offset is missing"

    def applies(self, plan: Plan) -> bool:
        return True

    def check(self, history: History, plan: Plan) -> Finding:
        return self.judge(history, given_up(history, plan), unanswered_copies(history))

    def judge(self, history: History, gone: set[str], unanswered: set[Copy]) -> Finding:
        """Check some queues of a history, whose exempt messages are `gone` or `unanswered`."""
        claims: dict[Place, HistoryRow] = {}
        broken = []
        facts = 0
        for row in (*history.acknowledged, *history.deliveries, *history.reads):
            if row.offset < 0 or row.outcome != OK or row.key in gone or copy_of(row) in unanswered:
                continue
            facts += 1
            place = (row.broker, row.queue, row.offset)
            other = claims.setdefault(place, row)
            if other.key != row.key:
                what = f"{_where(row)} is this message ({_how(row)}) and also {other.key} ({_how(other)})"
                broken.append(Broken(row.key, what))
        holes, places = _holes(history)
        counts = {"claims": facts, "places": len(claims), "queues read": len(places)}
        counts |= {"gone with their places": len(gone)} if gone else {}
        counts |= {"gone before their answers": len(unanswered)} if unanswered else {}
        return judged(facts, broken + holes, counts, lacking="" if places else "no queue was read to its end")


def _holes(history: History) -> tuple[list[Broken], list[HistoryRow]]:
    """Find offsets inside a queue at which the last reading found no message.

    Return the violations, and the `end` rows of the queues that were read completely.
    """
    found: dict[tuple[str, str, int], set[int]] = {}
    for row in history.reads:
        if row.outcome == OK:
            found.setdefault((row.client, row.broker, row.queue), set()).add(row.offset)
    broken = []
    ends = [row for row in history.by_kind["end"] if row.outcome == OK]
    for row in ends:
        there = found.get((row.client, row.broker, row.queue), set())
        missing = [offset for offset in range(int(row.extra.get("offset_min", 0)), row.offset) if offset not in there]
        if missing:
            what = f"{row.client}: queue {row.queue} has no message at {_ranges(missing)} (its end is {row.offset})"
            broken.append(Broken("", what))
    return broken, ends


def _ranges(offsets: Iterable[int]) -> str:
    """Return offsets as text, for instance `3, 7-9`."""
    parts: list[list[int]] = []
    for offset in offsets:
        if parts and parts[-1][1] == offset - 1:
            parts[-1][1] = offset
        else:
            parts.append([offset, offset])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in parts)


def _where(row: HistoryRow) -> str:
    return f"{row.broker} queue {row.queue} offset {row.offset}"


def _how(row: HistoryRow) -> str:
    if row.kind == "send":
        return f"answered at {row.complete_ms} ms"
    if row.kind == "deliver":
        return f"delivered at {row.complete_ms} ms"
    return f"read from {row.client} at the end"
