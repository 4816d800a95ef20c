"""Promise: every transaction ends in exactly one way, the one that its producers decided.

The record of transactions has one decision for each half (`services/scripts.py`), and every
producer reports that one. So, for a half that was acknowledged:

- decided commit: its message is delivered, once, whether its producer reported that itself or died
  and another member was asked. The mode must promise that the master still has the half.
- decided rollback: its message is never delivered. Its end must be known: a producer reported the
  rollback, by itself or because it was asked. A half whose producer said nothing must be asked
  about.

A message that was delivered without a half, or with another body, breaks the promise as well.

A committed message may be released a second time where no broker can avoid it: its commit was
recorded in the last second before a takeover or a return, in the windows of `allowed_again`. The
successor then has the half but not its commit, asks again, and is told to commit. If the only fault
is an isolation, the last second shrinks to `COPIED_MS`: the log, unlike tables, is copied at once.

A master that returns quickly may be online before its slave hears that it was gone. Then both serve
until the slave asks again which members are alive (the promise `one-master` limits that time). If
the slave moves a half to another group meanwhile, the master does not know, and both groups ask.
So the message may be released twice if its half was undecided while both served, except if the only
fault is an isolation. Releases of these two kinds are counted.
"""

from collections.abc import Iterator, Mapping
from functools import partial

from rmqkit.drill.history import OK, UNKNOWN, History, HistoryRow
from rmqkit.drill.plan import TRANSACTIONS, Plan
from rmqkit.drill.promises.contract import Broken, Finding, judged
from rmqkit.drill.promises.delays import (
    Place,
    allowed_again,
    escaped_to,
    lost_of,
    only_isolated_ms,
    released_again,
    stored_ms,
)
from rmqkit.drill.promises.heads import RoleInterval, broken_times, overlaps, spans
from rmqkit.drill.services.scripts import ASK_LATER, COMMIT, DIES, ROLLBACK

#: how often a broker writes the progress of the half queue: `flushConsumerOffsetInterval`
FLUSH_MS = 5_000
#: a commit that is younger than this when an isolation begins may not have reached the slave
COPIED_MS = 50
#: Apache's defaults, in ms
TIMEOUT_MS, INTERVAL_MS = 6_000, 30_000
#: rounds of checks after which a half must have ended: the first one may find it too young, the
#: question of the second one may be lost
ROUNDS = 3


class TransactionAtomic:
    name = "transaction-atomic"
    text = (
        "a transaction ends once: committed messages are delivered, rolled back ones never, undecided ones are asked about"
    )

    def applies(self, plan: Plan) -> bool:
        return TRANSACTIONS in plan.services

    def check(self, history: History, plan: Plan) -> Finding:
        halves = {row.key: row for row in history.by_kind["half"]}
        seen = history.by_kind["visible"]
        decided = history.by_kind["decide"]
        broken, copies = _copies(halves, seen)
        reported = {row.key for row in decided if row.outcome in (OK, UNKNOWN)}
        checked = {row.key for row in decided if row.extra.get("by") == "check"}
        missing = ((row, _ends_ms(row, plan)) for row in _unended(halves, copies, reported))
        lost, excused = lost_of(history, plan, missing)
        lost = [each._replace(what=each.what.replace("delivered", _wanted(halves[each.key]))) for each in lost]
        save_ms = plan.setting("flushConsumerOffsetInterval", FLUSH_MS)
        allowed = allowed_again(history, plan, save_ms, copied_ms=COPIED_MS)
        again, unexplained = released_again(copies, allowed, partial(_is_moved, history, halves))
        silent = [row.key for row in halves.values() if row.extra["local"] in (ASK_LATER, DIES) and row.outcome == OK]
        counts = {
            "acknowledged": sum(row.outcome == OK for row in halves.values()),
            "unknown": sum(row.outcome == UNKNOWN for row in halves.values()),
            "committed": len(copies),
            "rolled back": sum(halves[key].extra["decision"] == ROLLBACK for key in reported if key in halves),
            "producer died": sum(row.extra["local"] == DIES for row in halves.values()),
            "asked about": len(checked),
            "never asked about": sum(key not in checked and key not in copies for key in silent),
            "released twice": sum(map(len, copies.values())) - len(copies),
            "of these unexplained": len(unexplained),
            "escaped": sum(escaped_to(seen).values()),
            "lost where nothing is promised": excused,
            **again,
        }
        lacking = "" if halves else "no half message was sent"
        return judged(len(halves) + len(seen) + len(decided), [*broken, *lost, *unexplained], counts, lacking=lacking)


def _copies(
    halves: Mapping[str, HistoryRow], seen: list[HistoryRow]
) -> tuple[list[Broken], dict[str, dict[Place, HistoryRow]]]:
    """Return the deliveries that break the promise, and of the others the first at each place."""
    broken: list[Broken] = []
    copies: dict[str, dict[Place, HistoryRow]] = {}
    for row in seen:
        half = halves.get(row.key)
        why = ""
        if half is None:
            why = "no half message was sent"
        elif half.value != row.value:
            why = f"its half has another body (checksum {half.value}, not {row.value})"
        elif half.extra["decision"] == ROLLBACK:
            why = "it was rolled back"
        if why:
            broken.append(Broken(row.key, f"delivered at {row.complete_ms} ms, but {why}"))
        else:
            copies.setdefault(row.key, {}).setdefault((row.broker, row.queue, row.offset), row)
    return broken, copies


def _is_moved(history: History, halves: Mapping[str, HistoryRow], before: HistoryRow, row: HistoryRow) -> bool:
    """Return whether an acting slave moved the half of two releases while another node served."""
    movers = {each.extra.get("escaped_by") for each in (before, row)}
    return any(
        halves[row.key].invoke_ms <= end_ms
        and later.begin_ms <= stored_ms(before)
        and any(span.acts and f"{span.broker}:{span.broker_id}" in movers for span in (earlier, later))
        for earlier, later, end_ms in history.view(_overlaps)
    )


def _overlaps(history: History) -> list[tuple[RoleInterval, RoleInterval, int]]:
    """Return the overlaps of two serving nodes (`heads.overlaps`) that no fault of either ends.

    There is none if the only fault is an isolation: the master then copies the slave's progress,
    and with it what the slave has moved, before it serves again.
    """
    if only_isolated_ms(history) is not None:
        return []
    broken = broken_times(history)
    found = []
    for earlier, later, end_ms in overlaps(spans(history)):
        times = [*broken.get(earlier.node, ()), *broken.get(later.node, ())]
        if not any(since <= end_ms <= until for since, until in times):
            found.append((earlier, later, end_ms))
    return found


def _unended(halves: Mapping[str, HistoryRow], copies: Mapping[str, object], reported: set[str]) -> Iterator[HistoryRow]:
    """Yield the halves without the end that was decided."""
    for key, row in halves.items():
        if key not in (copies if row.extra["decision"] == COMMIT else reported):
            yield row


def _ends_ms(row: HistoryRow, plan: Plan) -> int:
    """Return when the transaction must have ended."""
    timeout_ms = plan.setting("transactionTimeOut", TIMEOUT_MS)
    return row.complete_ms + timeout_ms + ROUNDS * plan.setting("transactionCheckInterval", INTERVAL_MS)


def _wanted(row: HistoryRow) -> str:
    return "delivered" if row.extra["decision"] == COMMIT else "asked about: its rollback was never reported"
