"""Histories for the audit's tests: recorded simulated drills, and copies with falsified rows.

    python -m tests.spark.histories        # record the drills of `BASES` again

The recorded drills are in `histories.jsonl.xz`. Each drill is a line with its plan, followed by its
rows. A mutation ("lie") falsifies a few rows: it drops, repeats or moves rows, or changes an
offset, a time, an outcome or a node. The result may be nonsense. The in-process checkers and the
audit must still agree on it.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

from rmqkit.drill.history import FAIL, FAULT_BEGINS, OK, UNKNOWN, History, HistoryRow
from rmqkit.drill.plan import Mode, Plan
from rmqkit.drill.promises.heads import heads
from rmqkit.drill.promises.progress import changes_of
from rmqkit.drill.promises.table import Harm
from tests.drill.promises.test_promise_contract import BREAK, KEEP, PLANS

FILE = Path(__file__).with_name("histories.jsonl.xz")

#: (family, seed, planted defect): drills that keep promises and drills that break them
BASES = (
    *(("replicas", seed, "") for seed in (1, 2, 3, 4, 7, 8, 10)),
    ("replicas", 5, "ack-before-sync"),
    ("replicas", 23, "ack-before-replication"),
    ("replicas", 10, "confirm-not-reset"),
    ("replicas", 5, "lost-queue-tail"),
    ("replicas", 1, "slave-differs"),
    ("replicas", 1, "corrupt-body"),
    ("replicas", 1, "phantom"),
    ("replicas", 1, "skip-delivery"),
    ("replicas", 2, "reorder"),
    ("replicas", 3, "offsets-backwards"),
    ("replicas", 47, "slow-ack"),
    *(("acting", seed, "") for seed in (2, 3, 16)),
    ("acting", 1, "acts-while-master"),
    ("acting", 2, "escape-to-the-dead"),
    ("acting", 2, "skips-reverse-sync"),
    ("acting", 101, "strict-lock-forgets"),
    *((family, 2, "") for family in ("timers", "transactions", "pop")),
    ("timers", 1, "timer-early"),
    ("transactions", 2, "commit-twice"),
    ("pop", 1, "invisible-time-ignored"),
)

Recorded = tuple[str, History, Plan]


def record() -> Iterator[Recorded]:
    """Run the drills of `BASES`."""
    from rmqkit.drill import simulation

    for family, seed, defect in BASES:
        plan = simulation.FAMILIES[family].plan_of_seed(seed, mode="", breaks=(defect,) if defect else ())
        run = simulation.drill(plan, family=family)
        assert run.outcome is not None, run.error
        yield f"{family}-{seed}{'-' if defect else ''}{defect}", run.driver.history, run.plan


def save(recorded: Iterator[Recorded]) -> None:
    with lzma.open(FILE, "wt", encoding="utf-8", preset=9) as out:
        for name, history, plan in recorded:
            out.write(json.dumps({"name": name, "plan": plan.as_json()}) + "\n")
            for row in history.rows:
                out.write(json.dumps([*row[:-1], dict(row.extra)], separators=(",", ":")) + "\n")


def recorded() -> list[Recorded]:
    found: list[Recorded] = []
    with lzma.open(FILE, "rt", encoding="utf-8") as lines:
        for line in lines:
            content = json.loads(line)
            if isinstance(content, dict):
                # Judge every promise, even those that the drill does not: the tests compare the
                # judgements.
                found.append((content["name"], History(), Plan.from_json({**content["plan"], "promises": ()})))
            else:
                found[-1][1].rows.append(HistoryRow(*content))
    return found


# --- lies

Rows = list[HistoryRow]
Lie = Callable[[Rows, Random], None]


def mutated(recorded: list[Recorded], count: int, seed: int) -> list[Recorded]:
    """Return `count` histories: the recorded ones unchanged, then falsified copies.

    Each copy contains 1 to 6 lies. The same seed returns the same histories.
    """
    made = recorded[:count]
    for number in range(len(made), count):
        chance = Random(f"{seed}/{number}")
        name, history, plan = chance.choice(recorded)
        rows = list(history.rows)
        for lie in chance.choices(LIES, k=chance.randint(1, 6)):
            lie(rows, chance)
        if chance.random() < 0.2:
            plan = _other_plan(plan, chance)
        made.append((f"{number} {name}", History(row._replace(op=op) for op, row in enumerate(rows)), plan))
    return made


def redelivered(recorded: list[Recorded]) -> Recorded:
    """Return a drill whose master was killed, with one redelivery after the master's return."""
    name, history, plan = next(each for each in recorded if each[0] == "acting-16")
    back_ms = max(change.after.begin_ms for change in changes_of(heads(history)))
    given = next(row for row in history.deliveries if row.complete_ms < back_ms and row.broker == "broker-a")
    again = given._replace(invoke_ms=back_ms + 100, complete_ms=back_ms + 101)
    rows = sorted((*history.rows, again), key=lambda row: row.complete_ms)
    return f"{name}-redelivered", History(row._replace(op=op) for op, row in enumerate(rows)), plan


def elections() -> Iterator[Recorded]:
    """Return for each promise of controller mode a history that keeps it and one that breaks it.

    They are those of the promise's own test.
    """
    for name, plan in PLANS.items():
        if "all-ack" in str(plan.mode):
            yield f"{name}-kept", KEEP[name]().history, plan
            yield f"{name}-broken", BREAK[name]().history, plan


def _other_plan(plan: Plan, chance: Random) -> Plan:
    mode = Mode.parse(chance.choice(("async", "sync", "sync+sync-flush", "quorum", "quorum+sync-flush", "quorum+pool")))
    strict = {"lockMode": chance.choice(("strict", "loose"))}
    return plan.changed(mode=mode, settings={**plan.settings, **strict}, recover_max_ms=chance.choice((500, 30_000)))


def _some(rows: Rows, chance: Random) -> int:
    """Return the index of a random row; each kind of row is equally likely."""
    kind = chance.choice(sorted({row.kind for row in rows}))
    return chance.choice([number for number, row in enumerate(rows) if row.kind == kind])


def _alike(rows: Rows, row: HistoryRow, chance: Random) -> HistoryRow:
    return chance.choice([other for other in rows if other.kind == row.kind])


def drop(rows: Rows, chance: Random) -> None:
    del rows[_some(rows, chance)]


def drop_many(rows: Rows, chance: Random) -> None:
    kind = rows[_some(rows, chance)].kind
    share = chance.choice((0.1, 0.5, 1.0))
    rows[:] = [row for row in rows if row.kind != kind or chance.random() >= share]


def drop_message(rows: Rows, chance: Random) -> None:
    """Drop all rows of one kind for a message: it looks lost, or never delivered."""
    row = rows[_some(rows, chance)]
    rows[:] = [other for other in rows if other.kind != row.kind or other.key != row.key]


def repeat(rows: Rows, chance: Random) -> None:
    rows.insert(chance.randrange(len(rows)), rows[_some(rows, chance)])


def repeat_later(rows: Rows, chance: Random) -> None:
    row = rows[_some(rows, chance)]
    by_ms = chance.choice((1, 300, 2_000, 10_000))
    place = chance.choice((0, 0, 1))
    later = row._replace(invoke_ms=row.invoke_ms + by_ms, complete_ms=row.complete_ms + by_ms, offset=row.offset + place)
    rows.append(later)


def move(rows: Rows, chance: Random) -> None:
    row = rows.pop(_some(rows, chance))
    rows.insert(chance.randrange(len(rows) + 1), row)


def swap(rows: Rows, chance: Random) -> None:
    """Swap two rows of the same kind."""
    first = _some(rows, chance)
    second = rows.index(_alike(rows, rows[first], chance))
    rows[first], rows[second] = rows[second], rows[first]


def other_offset(rows: Rows, chance: Random) -> None:
    number = _some(rows, chance)
    row = rows[number]
    offset = chance.choice((row.offset - 1, row.offset + 1, 0, -1, _alike(rows, row, chance).offset))
    rows[number] = row._replace(offset=offset)


def other_place(rows: Rows, chance: Random) -> None:
    number = _some(rows, chance)
    other = _alike(rows, rows[number], chance)
    rows[number] = rows[number]._replace(broker=other.broker, queue=other.queue)


def other_outcome(rows: Rows, chance: Random) -> None:
    number = _some(rows, chance)
    rows[number] = rows[number]._replace(outcome=chance.choice((OK, FAIL, UNKNOWN)))


def other_time(rows: Rows, chance: Random) -> None:
    number = _some(rows, chance)
    row = rows[number]
    by_ms = chance.choice((-5_000, -500, -1, 1, 500, 5_000))
    which = chance.choice(("invoke_ms", "complete_ms", "both"))
    if which != "complete_ms":
        row = row._replace(invoke_ms=max(0, row.invoke_ms + by_ms))
    if which != "invoke_ms":
        row = row._replace(complete_ms=max(0, row.complete_ms + by_ms))
    rows[number] = row


def other_client(rows: Rows, chance: Random) -> None:
    number = _some(rows, chance)
    rows[number] = rows[number]._replace(client=_alike(rows, rows[number], chance).client)


def other_key(rows: Rows, chance: Random) -> None:
    number = _some(rows, chance)
    if rows[number].kind != "event":
        rows[number] = rows[number]._replace(key=_alike(rows, rows[number], chance).key)


def other_value(rows: Rows, chance: Random) -> None:
    number = _some(rows, chance)
    rows[number] = rows[number]._replace(value=_alike(rows, rows[number], chance).value)


def other_extra(rows: Rows, chance: Random) -> None:
    """Change one extra field: to the value of another row of the same kind, or by a number."""
    number = _some(rows, chance)
    row = rows[number]
    if not row.extra:
        return
    field = chance.choice(sorted(row.extra))
    rows[number] = row._replace(extra={**row.extra, field: _other(field, row.extra[field], rows, row, chance)})


def _other(field: str, value: Any, rows: Rows, row: HistoryRow, chance: Random) -> Any:
    if field == "harm":
        return str(chance.choice(list(Harm)))
    if isinstance(value, bool):
        return not value
    if isinstance(value, int) and field not in ("disk", "broker_id"):
        return value + chance.choice((-3_000, -1, 1, 3_000))
    values = [other.extra[field] for other in rows if other.kind == row.kind and other.extra.get(field) is not None]
    return chance.choice(values or [value])


def less_in_sync(rows: Rows, chance: Random) -> None:
    """Change the in-sync count in some consecutive snapshots of nodes."""
    looks = [number for number, row in enumerate(rows) if row.kind == "node" and row.extra.get("in_sync") is not None]
    if looks:
        first = chance.randrange(len(looks))
        for number in looks[first : first + chance.randint(1, 30)]:
            rows[number] = rows[number]._replace(extra={**rows[number].extra, "in_sync": chance.choice((0, 1, 2))})


def another_fault(rows: Rows, chance: Random) -> None:
    faults = [number for number, row in enumerate(rows) if row.key == FAULT_BEGINS]
    if faults:
        number = chance.choice(faults)
        harm, role = str(chance.choice(list(Harm))), chance.choice(("master", "master", "slave"))
        rows[number] = rows[number]._replace(extra={**rows[number].extra, "harm": harm, "role": role})


def slower(rows: Rows, chance: Random) -> None:
    """Make one send, lock or unlock take 2 to 9 s."""
    numbers = [number for number, row in enumerate(rows) if row.kind in ("send", "lock", "unlock")]
    if numbers:
        number = chance.choice(numbers)
        took_ms = chance.choice((1_999, 4_000, 9_000))
        rows[number] = rows[number]._replace(complete_ms=rows[number].invoke_ms + took_ms)


LIES: tuple[Lie, ...] = (
    drop,
    drop_many,
    drop_message,
    repeat,
    repeat_later,
    move,
    swap,
    other_offset,
    other_place,
    other_outcome,
    other_time,
    other_client,
    other_key,
    other_value,
    other_extra,
    less_in_sync,
    another_fault,
    slower,
)


if __name__ == "__main__":
    save(record())
    print(f"{len(BASES)} drills, {FILE.stat().st_size} bytes")
