"""Checks one run on a Spark worker: the history in, the findings out.

The worker reads the history itself (Arrow, from the run's folder or from the task) and calls the
checkers that judge a drill, those of plug-ins included. So it needs `rmqkit`, pyarrow and the
plug-ins.

A run of at most `PROCESS_ROWS` rows is read as a whole, and all its promises are checked here. Of a
larger run, the promises in `IN_PARTS` are left to `part_checks`, because they compare all messages
with each other. The other checkers get the rows of the kinds that they ask for, one checker after
the other (`StoredHistory`). A checker that needs more than `HELD_ROWS` rows at once makes its
promise inconclusive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from rmqkit import plugins
from rmqkit.drill.arrow import rows, stored_history
from rmqkit.drill.arrow.stored_history import StoredHistory, TooManyRows
from rmqkit.drill.history import OF_MESSAGES, History, HistoryRow
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises.contract import Finding, Judgement, Promise, chosen

#: the largest run, in rows, that one process reads as a whole: about 1 GB as Python objects
PROCESS_ROWS = 1_000_000
#: promises of larger runs that are checked in parts, and the kinds of rows that all parts need
IN_PARTS = ("acknowledged-survive", "nothing-unsent", "everything-delivered", "offsets-stable")
CONTEXT = ("event", "end", "node")

#: why a promise that a plan names is inconclusive, if no plug-in has it
UNKNOWN = "no plug-in of the Spark worker has this promise: install it there"


class Violation(NamedTuple):
    """One fact that breaks a promise.

    `key` is the key of the message concerned, "" if there is no single one. `ops` are rows of the
    history about that message. `what` describes the violation.
    """

    ops: tuple[int, ...]
    key: str
    what: str


class PromiseAudit(NamedTuple):
    """The finding about one promise of one run.

    `broken` is the number of violations; `violations` has the first `TOLD_MAX` of them.
    """

    run: str
    promise: str
    judgement: Judgement
    violations: tuple[Violation, ...]
    facts: int
    broken: int = 0
    #: why it is inconclusive
    why: str = ""


class RunTask(NamedTuple):
    """One run as a Spark task gets it. The promises in IN_PARTS of one that `is_large` are left."""

    name: str
    plan: Plan
    #: the history file, or its Parquet form
    source: Path | bytes
    rows: int
    is_large: bool


class RunFindings(NamedTuple):
    """What a task returns."""

    run: str
    #: the promises that the run's drill checks, in the order of reports
    promises: tuple[str, ...] = ()
    found: tuple[PromiseAudit, ...] = ()
    #: of a large run, the rows that are not about messages and that each part of it needs
    context: Sequence[HistoryRow] | None = None
    #: why the history cannot be read, "" if it can
    error: str = ""


@cache
def installed() -> Mapping[str, Any]:
    """Return the promises of the plug-ins of this Python, by name."""
    return plugins.load().promises


def unjudged(run: str, promise: str, why: str) -> PromiseAudit:
    return PromiseAudit(run, promise, Judgement.INCONCLUSIVE, (), 0, why=why)


def check(task: RunTask) -> RunFindings:
    """Check the promises of a run, of a large one without those in IN_PARTS."""
    run, plan = task.name, task.plan
    try:
        if task.is_large:
            history: History = StoredHistory(rows.dataset(task.source), stored_history.HELD_ROWS)
        else:
            history = rows.read_history(task.source)
    except (OSError, ValueError) as error:
        told, where = str(error), run if isinstance(task.source, bytes) else str(task.source)
        return RunFindings(run, error=told if where in told else f"{where} is not a history: {told}")
    made = {name: make() for name, make in installed().items()}
    wanted = chosen(made.values(), plan)
    unknown = [name for name in plan.promises if name not in made]
    in_parts = [each.name for each in wanted if task.is_large and each.name in IN_PARTS]
    found = [unjudged(run, name, UNKNOWN) for name in unknown]
    for promise in wanted:
        if promise.name not in in_parts:
            found.append(_checked(run, promise, history, plan))
        if isinstance(history, StoredHistory):
            history.release()
    known = None
    if task.is_large:
        try:
            known = [row for kind in CONTEXT for row in history.by_kind[kind]]
        except TooManyRows as error:
            found += [unjudged(run, name, str(error)) for name in in_parts]
    return RunFindings(run, (*(each.name for each in wanted), *unknown), tuple(found), known)


def _checked(run: str, promise: Promise, history: History, plan: Plan) -> PromiseAudit:
    try:
        found = promise.check(history, plan)
    except TooManyRows as error:
        return unjudged(run, promise.name, str(error))
    except Exception as error:  # a checker of a plug-in must not end the audit of the other runs
        return unjudged(run, promise.name, f"its checker failed: {type(error).__name__}: {error}")
    return audited(run, promise.name, found, history)


def audited(run: str, promise: str, found: Finding, history: History) -> PromiseAudit:
    """Return a checker's finding with the rows of the messages that it names."""
    ops: dict[str, list[int]] = {each.key: [] for each in found.broken if each.key}
    if ops:
        for kind in OF_MESSAGES:
            for row in history.by_kind.get(kind, ()):
                if row.key in ops:
                    ops[row.key].append(row.op)
    told = tuple(Violation(tuple(sorted(ops.get(each.key, ()))), each.key, each.what) for each in found.broken)
    why = found.why if found.judgement is Judgement.INCONCLUSIVE else ""
    return PromiseAudit(run, promise, found.judgement, told, found.facts, found.counts.get("broken", 0), why)
