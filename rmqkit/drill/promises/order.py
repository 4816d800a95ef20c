"""Promise: queues keep the order of each writer's sends, and groups receive them in that order.

A writer waits for each answer before its next send. So of two acknowledged sends of one writer to
one queue, the later one has the higher offset.

A group receives the messages of a queue in the order of offsets the *first* time. A redelivery
(after a crash or a rebalance) is allowed. A message that arrives for the first time after one with
a higher offset breaks the promise.

Two cases are left out:

- messages that the master lost in a way that its mode allows: later messages get their offsets;
- the group whose listener fails now and then (`any_order`): failed messages are redelivered later.
"""

from rmqkit.drill.history import History
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises.contract import Broken, Finding, judged
from rmqkit.drill.promises.facts import given_up


class QueueOrder:
    name = "queue-order"
    text = "a queue keeps the order of each writer's sends, and first deliveries to a group follow that order"

    def applies(self, plan: Plan) -> bool:
        return True

    def check(self, history: History, plan: Plan) -> Finding:
        broken: list[Broken] = []
        gone = given_up(history, plan)
        sends = 0
        last_sent: dict[tuple[str, str, int], tuple[int, str]] = {}
        for row in sorted(history.acknowledged, key=lambda row: (row.invoke_ms, row.op)):
            if row.offset < 0 or row.key in gone:
                continue
            sends += 1
            place = (row.client, row.broker, row.queue)
            offset, before = last_sent.get(place, (-1, ""))
            if row.offset <= offset:
                what = f"{row.client} sent it after {before} at offset {offset}, but it has offset {row.offset}"
                broken.append(Broken(row.key, what))
            last_sent[place] = (row.offset, row.key)
        first = 0
        highest: dict[tuple[str, str, int], int] = {}
        seen: set[tuple[str, str, int, int]] = set()
        for row in history.deliveries:
            place = (str(row.extra.get("group", "")), row.broker, row.queue)
            if (*place, row.offset) in seen or row.key in gone or row.extra.get("any_order"):
                continue
            seen.add((*place, row.offset))
            first += 1
            if row.offset < highest.get(place, -1):
                what = (
                    f"offset {row.offset} of queue {row.queue} first came to group {place[0]} after offset {highest[place]}"
                )
                broken.append(Broken(row.key, what))
            highest[place] = max(highest.get(place, -1), row.offset)
        return judged(sends + first, broken, {"sends": sends, "first deliveries": first})
