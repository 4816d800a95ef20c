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

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from rmqkit import plugins
from rmqkit.drill.arrow import stored_history
from rmqkit.drill.arrow.rows import dataset, read_history
from rmqkit.drill.arrow.stored_history import StoredHistory, TooManyRows
from rmqkit.drill.history import OF_MESSAGES, History, HistoryRow
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises.contract import Finding, Judgement, Promise, chosen
from rmqkit.errors import RmqkitError

#: the largest run, in rows, that one process reads as a whole: about 1 GB as Python objects
PROCESS_ROWS = 1_000_000
#: promises of larger runs that are checked in parts, and the kinds of rows that all parts need
IN_PARTS = ("acknowledged-survive", "nothing-unsent", "everything-delivered", "offsets-stable")
CONTEXT = ("event", "end", "node")
#: why a promise that a plan names is inconclusive, if no plug-in has it
UNKNOWN = "no plug-in of the Spark worker has this promise: install it there"
#: why a promise in IN_PARTS of a large run is inconclusive, until its parts are checked
UNCHECKED = "no part of the run was checked"
#: approximate bytes of a row of JSON lines
LINE_BYTES = 250


class AuditError(RmqkitError):
    """Raised when a run cannot be read, or two runs have the same name. The message is one line."""

    exit_code = 2


class AuditRun(NamedTuple):
    """A run to be audited. `source` is the file of its history, or the bytes of a Parquet file."""

    name: str
    plan: Plan
    source: Path | bytes
    #: why the drill itself proved nothing, so that there is nothing to judge; else ""
    why: str = ""

    def rows(self) -> int:
        """Return the number of rows; of JSON lines, about as many. Raises AuditError."""
        with self._reading():
            if isinstance(self.source, Path) and self.source.suffix != ".parquet":
                return self.source.stat().st_size // LINE_BYTES
            return int(dataset(self.source).count_rows())

    def history(self, process_rows: int) -> History:
        """Return the history; above `process_rows` the rows stay in the file. Raises AuditError."""
        is_large = self.rows() > process_rows
        with self._reading():
            return StoredHistory(dataset(self.source), stored_history.HELD_ROWS) if is_large else read_history(self.source)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (OSError, ValueError) as error:
            told, where = str(error), self.name if isinstance(self.source, bytes) else str(self.source)
            raise AuditError(told if told.startswith(where) else f"{where} is not a history: {told}") from None


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


class RunFindings(NamedTuple):
    """What a task returns."""

    run: str
    #: by name, for each promise that the run's drill checks, in the order of reports
    found: dict[str, PromiseAudit]
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


def check(run: AuditRun, process_rows: int) -> RunFindings:
    """Check the promises of a run, of one above `process_rows` without those in IN_PARTS."""
    name, plan = run.name, run.plan
    try:
        history = run.history(process_rows)
    except AuditError as error:
        return RunFindings(name, {}, error=str(error))
    is_large = isinstance(history, StoredHistory)
    made = {each: make() for each, make in installed().items()}
    found: dict[str, PromiseAudit] = {}
    for promise in chosen(made.values(), plan):
        if is_large and promise.name in IN_PARTS:
            found[promise.name] = unjudged(name, promise.name, UNCHECKED)
        else:
            found[promise.name] = _checked(name, promise, history, plan)
        if isinstance(history, StoredHistory):
            history.release()
    found |= {each: unjudged(name, each, UNKNOWN) for each in plan.promises if each not in made}
    if not is_large:
        return RunFindings(name, found)
    try:
        return RunFindings(name, found, [row for kind in CONTEXT for row in history.by_kind[kind]])
    except TooManyRows as error:
        return RunFindings(name, found | {each: unjudged(name, each, str(error)) for each in IN_PARTS if each in found})


def _checked(run: str, promise: Promise, history: History, plan: Plan) -> PromiseAudit:
    try:
        return audited(run, promise.name, promise.check(history, plan), history)
    except TooManyRows as error:
        return unjudged(run, promise.name, str(error))
    except Exception as error:  # a checker of a plug-in must not end the audit of the other runs
        return unjudged(run, promise.name, f"its checker failed: {type(error).__name__}: {error}")


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
