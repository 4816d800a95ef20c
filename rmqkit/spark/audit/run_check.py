"""Checks runs on Spark workers: a history in, findings out; or a part of a large history.

    rows of messages → parts by message key → `acknowledged-survive`, `nothing-unsent`, `PartFacts`
                     → parts by message key → `everything-delivered`
                     → parts by queue       → `offsets-stable`

The worker reads the history itself (Arrow, from the run's folder or from the task) and calls the
checkers that judge a drill, those of plug-ins included. So it needs `rmqkit`, pyarrow and the
plug-ins.

A run of at most `PROCESS_ROWS` rows is read as a whole, and `check` checks all its promises. Of a
larger run, it leaves the promises in `IN_PARTS` to `check_parts`, because they compare all messages
with each other. The other checkers get the rows of the kinds that they ask for, one checker after
the other (`StoredHistory`). A checker that needs more than `HELD_ROWS` rows at once makes its
promise inconclusive.

Each part has all events, polls of nodes and ends of queues of its run (`LargeRuns`). What a checker
needs to know of other parts besides is in `PartFacts`, which the first pass collects. A finding
about a run is the sum of those about its parts.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from rmqkit import plugins
from rmqkit.drill.arrow import stored_history
from rmqkit.drill.arrow.rows import dataset, read_history, rows_of
from rmqkit.drill.arrow.stored_history import StoredHistory, TooManyRows
from rmqkit.drill.history import OF_MESSAGES, OK, History, HistoryRow
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises.contract import TOLD_MAX, Finding, Judgement, Promise, chosen
from rmqkit.drill.promises.delivery import EverythingDelivered, NothingUnsent
from rmqkit.drill.promises.facts import Copy, copy_of, given_up, unanswered_copies
from rmqkit.drill.promises.offsets import OffsetsStable
from rmqkit.drill.promises.survival import Survival
from rmqkit.errors import RmqkitError
from rmqkit.spark.arrow_tasks import map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

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
#: approximate number of rows per part
PART_ROWS = 300_000
#: checks a part of a run: its name, rows about messages → findings, or `PartFacts`
PartCheck = Callable[[str, list[HistoryRow]], Iterable[Any]]
#: runs to check in parts, by name: their plans, and their rows that are not about messages
LargeRuns = Mapping[str, tuple[Plan, Sequence[HistoryRow]]]


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
        is_left = is_large and promise.name in IN_PARTS
        found[promise.name] = unjudged(name, promise.name, UNCHECKED) if is_left else _checked(name, promise, history, plan)
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


# --- parts of large runs


class PartFacts(NamedTuple):
    """What a part of a run has that the checks of other parts need to know."""

    run: str
    #: messages and copies that may have lost their offsets (`given_up`, `unanswered_copies`)
    gone: set[str]
    unanswered: set[Copy]
    #: deliveries of copies that are `unanswered`, and one of no message for each consumer group
    passed: list[HistoryRow]


def check_parts(rows: DataFrame, runs: LargeRuns, parts: int) -> list[PromiseAudit]:
    """Check the four promises of these runs. `rows` are those of `tables.read`."""
    from pyspark import StorageLevel

    # Stored by key, since two of the three passes want it so.
    kept = rows.where("kind IN ('send', 'deliver', 'read', 'end')").repartition(parts, "run", "key")
    kept = kept.persist(StorageLevel.DISK_ONLY)
    by_key = kept.where("kind <> 'end'")
    findings: dict[tuple[str, str], list[PromiseAudit]] = {}
    known = {run: PartFacts(run, set(), set(), []) for run in runs}

    def keep(found: Iterable[Any]) -> None:
        for each in found:
            if isinstance(each, PromiseAudit):
                findings.setdefault((each.run, each.promise), []).append(each)
            else:
                known[each.run].gone.update(each.gone)
                known[each.run].unanswered.update(each.unanswered)
                known[each.run].passed.extend(each.passed)

    try:
        keep(_in_tasks(by_key, runs, partial(_survival, runs)))
        keep(_in_tasks(by_key, runs, partial(_delivery, runs, known)))
        keep(_in_tasks(kept.repartition(parts, "run", "broker", "queue"), runs, partial(_offsets, runs, known)))
    finally:
        kept.unpersist()
    return [merged(those) for those in findings.values()]


def _in_tasks(rows: DataFrame, runs: Iterable[str], check: PartCheck) -> Iterator[Any]:
    """Yield what `check` returns for each part of each run, and for a part without rows."""

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if there := list(batches):
            table = pa.Table.from_batches(there)
            for run in table["run"].unique().to_pylist():
                found = check(run, rows_of(table.filter(pc.equal(table["run"], run))))
                yield pa.record_batch({"found": [pickle.dumps(list(found))]})

    for run in runs:
        yield from check(run, [])
    for row in map_in_arrow(rows, task, "found binary").collect():
        yield from pickle.loads(row.found)


def _survival(runs: LargeRuns, run: str, rows: list[HistoryRow]) -> Iterator[PromiseAudit | PartFacts]:
    plan, context = runs[run]
    history = History([*context, *rows])
    for promise in (Survival(), NothingUnsent()):
        yield audited(run, promise.name, promise.check(history, plan), history)
    unanswered = unanswered_copies(history)
    passed = [row for row in history.deliveries if copy_of(row) in unanswered]
    # The group is known in parts of which it received nothing.
    groups = {str(row.extra.get("group", "")) for row in history.deliveries}
    passed += [HistoryRow(-1, "", "deliver", "", "", 0, 0, extra={"group": group}) for group in groups]
    yield PartFacts(run, given_up(history, plan), unanswered, passed)


def _delivery(runs: LargeRuns, known: Mapping[str, PartFacts], run: str, rows: list[HistoryRow]) -> Iterator[PromiseAudit]:
    plan, context = runs[run]
    history = History([*context, *rows, *known[run].passed])
    yield audited(run, EverythingDelivered.name, EverythingDelivered().check(history, plan), history)


def _offsets(runs: LargeRuns, known: Mapping[str, PartFacts], run: str, rows: list[HistoryRow]) -> Iterator[PromiseAudit]:
    # The end of no queue: the last reading has ended, although the queues of this part have no end.
    ends = [row for row in runs[run][1] if row.kind == "end" and row.outcome == OK]
    history = History([*rows, *(HistoryRow(-1, "", "end", "", "", 0, 0, offset=0) for _ in ends[:1])])
    finding = OffsetsStable().judge(history, known[run].gone, known[run].unanswered)
    yield audited(run, OffsetsStable.name, finding, history)


def merged(found: Sequence[PromiseAudit]) -> PromiseAudit:
    """Return the finding about a promise of a run, from those about its parts.

    A part that is inconclusive alone has no facts, or lacks what all parts lack.
    """
    judgements = {each.judgement for each in found}
    judgement = next(each for each in (Judgement.BROKEN, Judgement.VALID, Judgement.INCONCLUSIVE) if each in judgements)
    violations = tuple(sorted(violation for each in found for violation in each.violations)[:TOLD_MAX])
    why = found[0].why if judgement is Judgement.INCONCLUSIVE else ""
    facts, broken = sum(each.facts for each in found), sum(each.broken for each in found)
    return PromiseAudit(found[0].run, found[0].promise, judgement, violations, facts, broken, why)
