"""Promises: only sent messages are delivered, and every stored message is delivered to each group.

A message is identified by its key and the checksum of its body. A body that differs from the sent
one counts as a message that nobody sent.

Repetitions are allowed, because delivery is at least once. They are counted: "stored twice" means
two offsets (a send was retried), "delivered twice" means one offset that was redelivered.

One exception: a message may be read before its send is answered. If a power cut then takes that
message, another message gets its offset. A group that had read the first one may skip the second.
The number of such messages is counted.
"""

from rmqkit.drill.history import OK, History, HistoryRow
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises.contract import Broken, Finding, judged
from rmqkit.drill.promises.facts import copy_of, nodes_of, unanswered_copies, unfinished


class NothingUnsent:
    name = "nothing-unsent"
    text = "only messages that were sent are delivered, with the body that was sent"

    def applies(self, plan: Plan) -> bool:
        return True

    def check(self, history: History, plan: Plan) -> Finding:
        sent = {row.key: row.value for row in history.sends}
        broken = []
        facts = 0
        for row in (*history.deliveries, *history.reads):
            facts += 1
            if row.key not in sent:
                broken.append(Broken(row.key, f"{_seen(row)}, but was never sent"))
            elif row.value != sent[row.key]:
                broken.append(
                    Broken(row.key, f"{_seen(row)} with another body (checksum {row.value}, not {sent[row.key]})")
                )
        counts = {"deliveries": len(history.deliveries), "readings": len(history.reads)}
        return judged(facts, broken, counts)


class EverythingDelivered:
    name = "everything-delivered"
    text = "every acknowledged message that the master stores is delivered to each group"

    def applies(self, plan: Plan) -> bool:
        return True

    def check(self, history: History, plan: Plan) -> Finding:
        masters, _slaves = nodes_of(history)
        there: dict[str, set[tuple[str, int, int]]] = {}
        for row in history.reads:
            if row.outcome == OK and row.client in masters:
                there.setdefault(row.key, set()).add((row.broker, row.queue, row.offset))
        wanted = {row.key for row in history.acknowledged} & there.keys()
        delivered: dict[str, set[str]] = {}
        times: dict[tuple[object, ...], int] = {}
        for row in history.deliveries:
            group = str(row.extra.get("group", ""))
            delivered.setdefault(group, set()).add(row.key)
            place = (group, row.broker, row.queue, row.offset)
            times[place] = times.get(place, 0) + 1
        unanswered = unanswered_copies(history)
        # A group that read an offset before the power cut does not read that offset again.
        passed = {
            (str(row.extra.get("group", "")), row.broker, row.queue, row.offset)
            for row in history.deliveries
            if copy_of(row) in unanswered
        }
        missing = [(group, key) for group, keys in sorted(delivered.items()) for key in sorted(wanted - keys)]
        excused = {(group, key) for group, key in missing if all((group, *place) in passed for place in there[key])}
        broken = [
            Broken(key, f"was not delivered to group {group}") for group, key in missing if (group, key) not in excused
        ]
        counts = {
            "groups": len(delivered),
            "deliveries": len(history.deliveries),
            "delivered twice": sum(count - 1 for count in times.values()),
            "stored twice": sum(len(places) - 1 for places in there.values()),
        }
        counts |= {"place read before the power cut": len(excused)} if excused else {}
        lacking = unfinished(history, masters) if masters else "no master was read"
        if not lacking and not delivered:
            lacking = "no consumer received a message"
        return judged(len(wanted) * len(delivered), broken if not lacking else (), counts, lacking=lacking)


def _seen(row: HistoryRow) -> str:
    how = "delivered" if row.kind == "deliver" else f"read from {row.client}"
    return f"{how} at {row.complete_ms} ms ({row.broker} queue {row.queue} offset {row.offset})"
