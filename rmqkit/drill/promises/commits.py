"""Promise: committed offsets of consumer groups never decrease.

While a node runs, the offset that it holds for a (group, queue) only grows, whatever replicas copy
from each other. Two cases may lower it:

- A node that was killed or lost its power restarts with the offsets that it last wrote. It must
  have every offset that it held `flushConsumerOffsetInterval` (plus `MARGIN_MS`) before its end.
  Time in which the node was broken does not count, because a broken node writes nothing.
- A node that lost its disk starts from zero (`disk` in the row counts the lost disks).

At the end, once nothing changes any more, all replicas must hold the same offsets. A slave that
may be ahead of its master (`allowed_ahead`) has messages that the master has lost, so it may hold
a higher offset.

Each poll has the run of the node to which it belongs (`boot`). A group member that was isolated and
resumes at its old offset may overwrite what another member has committed meanwhile, as with
Apache's brokers. If the driver sees such a commit (`by_member`), the decrease does not count as the
broker's.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from rmqkit.drill.history import LOAD_ENDS, OK, History, HistoryRow
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises.contract import Broken, Finding, judged
from rmqkit.drill.promises.facts import allowed_ahead
from rmqkit.drill.promises.heads import broken_times

FLUSH_CONSUMER_OFFSET_MS = 5000
MARGIN_MS = 2000

#: node, number of its disk, group, broker, queue
Held = tuple[str, int, str, str, int]


class CommitsForward:
    name = "commits-forward"
    text = "committed offsets of consumer groups never decrease, and in the end all replicas hold the same"

    def applies(self, plan: Plan) -> bool:
        return True

    def check(self, history: History, plan: Plan) -> Finding:
        saved_ms = plan.setting("flushConsumerOffsetInterval", FLUSH_CONSUMER_OFFSET_MS) + MARGIN_MS
        held: dict[Held, list[HistoryRow]] = {}
        for row in sorted(history.by_kind["committed"], key=lambda row: (row.complete_ms, row.op)):
            if row.outcome == OK:
                place = (row.client, int(row.extra.get("disk", 0)), row.key, row.broker, row.queue)
                held.setdefault(place, []).append(row)
        broken: list[Broken] = []
        rolled_back = 0
        broken_at = broken_times(history)
        for (node, *_), looks in held.items():
            back, wrong = _steps(looks, saved_ms, broken_at.get(node, ()))
            rolled_back += back
            broken += wrong
        end_ms = history.event_ms(LOAD_ENDS)
        broken += _disagreeing(held, end_ms, allowed_ahead(history, plan)) if end_ms is not None else []
        facts = sum(map(len, held.values()))
        counts = {"looks": facts, "queues": len({place[2:] for place in held}), "given back by a restart": rolled_back}
        return judged(facts, broken, counts, lacking="" if facts else "no broker reported an offset of the groups")


def _steps(looks: Sequence[HistoryRow], saved_ms: int, broken_at: Sequence[tuple[int, int]]) -> tuple[int, list[Broken]]:
    """Check consecutive polls of one offset on one node.

    Return how much restarts rolled back in total, and the decreases that are not allowed.
    `broken_at` has the intervals in ms in which the node was broken.
    """
    broken = []
    given_back = 0
    for number, (before, row) in enumerate(pairwise(looks)):
        if row.offset >= before.offset or row.extra.get("by_member"):
            continue
        if row.extra.get("boot") == before.extra.get("boot"):
            broken.append(
                Broken(
                    "", f"{_where(row)}: the offset decreased from {before.offset} to {row.offset} at {row.complete_ms} ms"
                )
            )
            continue
        given_back += before.offset - row.offset
        # The previous run must have written what it held `saved_ms` before its last poll.
        run = [each for each in looks[: number + 1] if each.extra.get("boot") == before.extra.get("boot")]
        since_ms = before.complete_ms - saved_ms
        for begin_ms, end_ms in sorted(broken_at, reverse=True):
            if end_ms > since_ms and begin_ms < before.complete_ms:
                # A broken node writes nothing, so this interval does not count.
                since_ms -= min(end_ms, before.complete_ms) - begin_ms
        old = [each for each in run if each.complete_ms <= since_ms]
        least = old[-1].offset if old else -1
        if row.offset < least:
            held = f"it held {least} more than {saved_ms} ms before it ended"
            what = f"{_where(row)}: restarted with offset {row.offset}, although {held}"
            broken.append(Broken("", what))
    return given_back, broken


def _disagreeing(held: Mapping[Held, Sequence[HistoryRow]], end_ms: int, ahead: Sequence[str]) -> list[Broken]:
    """Return a violation for each queue on which replicas hold different offsets in the end.

    The slaves in `ahead` may hold more than the others.
    """
    last: dict[tuple[str, str, int], list[HistoryRow]] = {}
    for (_node, _disk, group, broker, queue), looks in held.items():
        if looks[-1].complete_ms >= end_ms and looks[-1].extra.get("final"):
            last.setdefault((group, broker, queue), []).append(looks[-1])
    broken = []
    for (group, broker, queue), rows in sorted(last.items()):
        least = min(row.offset for row in rows)
        if any(row.offset > least and row.client not in ahead for row in rows):
            told = ", ".join(f"{row.client} {row.offset}" for row in rows)
            broken.append(Broken("", f"group {group}, {broker} queue {queue}: the replicas hold different offsets: {told}"))
    return broken


def _where(row: HistoryRow) -> str:
    return f"{row.client}: group {row.key}, {row.broker} queue {row.queue}"
