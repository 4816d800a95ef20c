"""Checks one run on a Spark worker: the history in, the findings out.

The worker reads the history itself (Arrow, from the run's folder or from the task) and calls the
checkers that judge a drill, those of plug-ins included. So it needs `rmqkit`, pyarrow and the
plug-ins.

A run of at most `PROCESS_ROWS` rows is read as a whole, and all its promises are checked here. Of a
larger run, the promises in `IN_SQL` are left to SQL (`message_queries`), because they compare all
messages with each other. The other checkers get the rows of the kinds that they ask for, one
checker after the other (`StoredHistory`). A checker that needs more than `HELD_ROWS` rows at once
makes its promise inconclusive.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from rmqkit import plugins
from rmqkit.drill.arrow import rows, stored_history
from rmqkit.drill.arrow.stored_history import StoredHistory, TooManyRows
from rmqkit.drill.history import OF_MESSAGES, History, HistoryRow
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises.contract import Judgement, Promise, chosen
from rmqkit.drill.promises.facts import Copies, Hit, fault_of, nodes_of, unfinished
from rmqkit.drill.promises.table import cell

#: the largest run, in rows, that one process reads as a whole: about 1 GB as Python objects
PROCESS_ROWS = 1_000_000
#: promises of larger runs that SQL checks
IN_SQL = ("acknowledged-survive", "nothing-unsent", "everything-delivered", "offsets-stable")

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


class SurvivalRule(NamedTuple):
    """Says where the mode of a run promises that a send is after the fault."""

    plan: Plan
    fault: Hit
    copies: Copies

    def where(self, send: Mapping[str, Any]) -> str:
        """Return the place of a send with `broker`, `status` and its times."""
        row = HistoryRow(0, "", "send", "", "", send["invoke_ms"], send["complete_ms"], broker=send["broker"])
        hits_master, copies = self.fault.hits(row.broker), self.copies.of(row, self.plan)
        status = send["status"] or "SEND_OK"
        return str(cell(self.plan.mode, self.fault.harm, status, copies=copies, hits_master=hits_master).where)


class RunTask(NamedTuple):
    """One run as a Spark task gets it. SQL checks the promises in IN_SQL of one that `is_large`."""

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
    #: what SQL needs to know of a large run (`views.CONTEXT`), and `rule`, its SurvivalRule
    context: Mapping[str, Any] | None = None
    #: why the history cannot be read, "" if it can
    error: str = ""


@cache
def installed() -> Mapping[str, Any]:
    """Return the promises of the plug-ins of this Python, by name."""
    return plugins.load().promises


def unjudged(run: str, promise: str, why: str) -> PromiseAudit:
    return PromiseAudit(run, promise, Judgement.INCONCLUSIVE, (), 0, why=why)


def check(task: RunTask) -> RunFindings:
    """Check the promises of a run, except those of a large run that SQL checks."""
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
    in_sql = [each.name for each in wanted if task.is_large and each.name in IN_SQL]
    found = [unjudged(run, name, UNKNOWN) for name in unknown]
    for promise in wanted:
        if promise.name not in in_sql:
            found.append(_checked(run, promise, history, plan))
        if isinstance(history, StoredHistory):
            history.release()
    known = None
    if task.is_large:
        try:
            known = context(run, history, plan)
        except TooManyRows as error:
            found += [unjudged(run, name, str(error)) for name in in_sql]
    return RunFindings(run, (*(each.name for each in wanted), *unknown), tuple(found), known)


def _checked(run: str, promise: Promise, history: History, plan: Plan) -> PromiseAudit:
    try:
        found = promise.check(history, plan)
    except TooManyRows as error:
        return unjudged(run, promise.name, str(error))
    except Exception as error:  # a checker of a plug-in must not end the audit of the other runs
        return unjudged(run, promise.name, f"its checker failed: {type(error).__name__}: {error}")
    ops: dict[str, list[int]] = {each.key: [] for each in found.broken if each.key}
    if ops:
        for kind in OF_MESSAGES:
            for row in history.by_kind.get(kind, ()):
                if row.key in ops:
                    ops[row.key].append(row.op)
    told = tuple(Violation(tuple(sorted(ops.get(each.key, ()))), each.key, each.what) for each in found.broken)
    why = found.why if found.judgement is Judgement.INCONCLUSIVE else ""
    return PromiseAudit(run, promise.name, found.judgement, told, found.facts, found.counts.get("broken", 0), why)


def context(run: str, history: History, plan: Plan) -> dict[str, Any]:
    """Return what SQL needs to know of a run: the fault, which nodes were read, and the rule.

    Raises TooManyRows if the polls of nodes, or the queues that were read, are more.
    """
    fault = fault_of(history)
    masters, slaves = nodes_of(history)
    unread = unfinished(history, masters) if masters else "no master was read"
    values = {"run": run, "has_fault": fault is not None, "masters": masters, "slaves": slaves, "unread": unread}
    if fault is not None:
        values |= {"harm": str(fault.harm), "hits_master": fault.hits_master}
        values["rule"] = SurvivalRule(plan, fault, Copies(history))
    return values
