"""Reports an audit: lines, JSON, an HTML page, and an exit code.

The lines are one per run, with its promises that are not valid below.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from rmqkit.drill.arrow.rows import read_history
from rmqkit.drill.history import History
from rmqkit.drill.promises.contract import Broken, Finding, Judgement
from rmqkit.drill.verdict import EXIT_CODES, PromiseResult
from rmqkit.spark.audit.run_check import PROCESS_ROWS, PromiseAudit, installed
from rmqkit.spark.audit.runs import AuditRun

#: maximum number of violations that a line of the table shows
TOLD_LINES = 3


class AuditRow(NamedTuple):
    """A row of the table that `rmqkit pipeline audit` prints."""

    run: str
    #: "" in the line about the whole run
    promise: str
    judgement: Judgement
    facts: int
    broken: int
    #: the first violations, or why the promise is inconclusive; of a run, how many promises it kept
    what: str


def judgements(found: Iterable[PromiseAudit]) -> Mapping[str, Judgement]:
    """Return the judgement of each run: its worst one, broken before inconclusive before valid."""
    order = (Judgement.VALID, Judgement.INCONCLUSIVE, Judgement.BROKEN)
    made: dict[str, Judgement] = {}
    for each in found:
        made[each.run] = max(made.get(each.run, Judgement.VALID), each.judgement, key=order.index)
    return made


def exit_code(found: Iterable[PromiseAudit]) -> int:
    """Return 0 if all promises were kept, 1 if one is broken, else 4.

    4 means that a promise is inconclusive, or that there is no run.
    """
    codes = {EXIT_CODES[judgement] for judgement in judgements(found).values()}
    return 1 if 1 in codes else max(codes, default=4)


def lines(found: Sequence[PromiseAudit]) -> list[AuditRow]:
    """Return one line per run, followed by one for each of its promises that is not valid."""
    by_run: dict[str, list[PromiseAudit]] = {}
    for each in found:
        by_run.setdefault(each.run, []).append(each)
    made = []
    for run, judgement in judgements(found).items():
        those = by_run[run]
        kept = sum(each.judgement is Judgement.VALID for each in those)
        what = f"{kept} of {sum(bool(each.promise) for each in those)} promises kept"
        made.append(
            AuditRow(run, "", judgement, sum(each.facts for each in those), sum(each.broken for each in those), what)
        )
        for each in those:
            if each.judgement is not Judgement.VALID:
                told = "; ".join(f"{v.key}: {v.what}" if v.key else v.what for v in each.violations[:TOLD_LINES])
                made.append(AuditRow(run, each.promise, each.judgement, each.facts, each.broken, told or each.why))
    return made


def as_json(found: Sequence[PromiseAudit]) -> dict[str, Any]:
    """Return the data that `--json` prints: each run's judgement, all findings and violations."""
    runs = {run: str(judgement) for run, judgement in judgements(found).items()}
    told = [
        {**each._asdict(), "judgement": str(each.judgement), "violations": [v._asdict() for v in each.violations]}
        for each in found
    ]
    return {"runs": runs, "exit_code": exit_code(found), "findings": told}


def page(found: Sequence[PromiseAudit], runs: Sequence[AuditRun]) -> str:
    """Return an HTML page about these runs. It reads the histories of runs with details.

    Raises ImportError without jinja2 or matplotlib.
    """
    from rmqkit.drill.report import runs_page

    results: dict[str, list[PromiseResult]] = {run.name: [] for run in runs}
    texts = {name: make().text for name, make in installed().items()}
    for each in found:
        if each.promise:
            broken = [Broken(violation.key, violation.what) for violation in each.violations]
            counts = {"broken": each.broken}
            finding = Finding(each.judgement, each.facts, counts, broken, each.why)
            results[each.run].append(PromiseResult(each.promise, texts.get(each.promise, ""), finding))
    judged = judgements(found)
    return runs_page.page(
        [
            runs_page.JudgedRun(run.name, run.plan, judged[run.name], results[run.name], run.why, partial(_history, run))
            for run in runs
            if run.name in judged
        ]
    )


def _history(run: AuditRun) -> History | None:
    """Return the history of a run, None if it is too large."""
    if run.history is not None:
        return run.history
    return read_history(run.path) if run.path is not None and run.rows() <= PROCESS_ROWS else None
