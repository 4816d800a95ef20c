"""Checks the promises about messages in runs that no process could hold, one part of a run a task.

    rows of messages → parts by message key → `acknowledged-survive`, `nothing-unsent`, `PartFacts`
                     → parts by message key → `everything-delivered`
                     → parts by queue       → `offsets-stable`

The checkers are those that judge a drill. Each part has all events, polls of nodes and ends of
queues of its run (`LargeRuns`). What a checker needs to know of other parts besides is in
`PartFacts`, which the first pass collects. A finding about a run is the sum of those about its
parts.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from rmqkit.drill.arrow.rows import rows_of
from rmqkit.drill.history import OK, History, HistoryRow
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises.contract import TOLD_MAX, Judgement
from rmqkit.drill.promises.delivery import EverythingDelivered, NothingUnsent
from rmqkit.drill.promises.facts import Copy, copy_of, given_up, unanswered_copies
from rmqkit.drill.promises.offsets import OffsetsStable
from rmqkit.drill.promises.survival import Survival
from rmqkit.spark.arrow_tasks import map_in_arrow
from rmqkit.spark.audit.run_check import PromiseAudit, audited

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: approximate number of rows per part
PART_ROWS = 300_000
#: checks a part of a run: its name, rows about messages → findings, or `PartFacts`
PartCheck = Callable[[str, list[HistoryRow]], Iterable[Any]]
#: runs to check in parts, by name: their plans, and their rows that are not about messages
LargeRuns = Mapping[str, tuple[Plan, Sequence[HistoryRow]]]


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
