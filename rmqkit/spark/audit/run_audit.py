"""Runs the audit, a Spark task a run, and reports it: as lines, JSON, a page, and an exit code.

    run folders, histories → a task a run (`run_check`): history in, findings out → findings
    runs above PROCESS_ROWS → their rows → a task a part of a run (`check_parts`) → findings

The driver reads the plans of the runs and collects their findings. Histories stay on the workers,
so Spark decides how many runs an audit can have.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqkit.drill import runs as folders
from rmqkit.drill.arrow.rows import write_parquet
from rmqkit.drill.history import History
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises.contract import Broken, Finding, Judgement
from rmqkit.drill.verdict import EXIT_CODES, PromiseResult
from rmqkit.spark.audit import run_check, tables
from rmqkit.spark.audit.run_check import PROCESS_ROWS, AuditError, AuditRun, PromiseAudit, installed, unjudged
from rmqkit.spark.pipelines.progress import PipelineProgress, jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: maximum number of violations that a line of the table shows
TOLD_LINES = 3
#: what the table of `rmqkit pipeline audit` shows of a run or of one of its promises
COLUMNS = ("run", "promise", "judgement", "facts", "broken", "what")
Given = Path | str | AuditRun | tuple[str, History] | tuple[str, History, Plan]


def audit(
    spark: SparkSession,
    runs: Iterable[Given],
    *,
    to: Path | str | None = None,
    process_rows: int = PROCESS_ROWS,
    on_progress: Callable[[PipelineProgress], None] | None = None,
) -> list[PromiseAudit]:
    """Check every promise of these runs: drill folders, or (name, history, plan) in memory.

    The findings are in the order of the runs, then of the promises in reports. A run whose drill
    itself proved nothing has one finding without a promise.

    `to` is a folder on any file system that Spark can write to. The tables (`tables.TABLES`) and
    the table `findings` are written there as Parquet. A run of more than `process_rows` rows is
    checked in parts. `on_progress` gets the tasks that have ended, one a run.
    Raises AuditError, PlanError.
    """
    known = found(runs)
    judged = {run.name: run for run in known if not run.why}
    with jobs(spark, on_progress):
        # An RDD: its tasks take and return objects, not rows.
        largest_first = sorted(judged.values(), key=lambda run: -run.rows())
        tasks = spark.sparkContext.parallelize(largest_first, max(1, len(judged)))
        checked = {each.run: each for each in tasks.map(partial(run_check.check, process_rows=process_rows)).collect()}
    if errors := [each.error for each in checked.values() if each.error]:
        raise AuditError(errors[0])
    large = {name: (judged[name].plan, each.context) for name, each in checked.items() if each.context is not None}
    if large:
        rows = sum(judged[name].rows() for name in large)
        parts = max(spark.sparkContext.defaultParallelism, rows // run_check.PART_ROWS)
        for finding in run_check.check_parts(tables.read(spark, [judged[name] for name in large]), large, parts):
            of_run = checked[finding.run].found
            if finding.promise in of_run:
                of_run[finding.promise] = finding
    findings: list[PromiseAudit] = []
    for run in known:
        findings += [unjudged(run.name, "", run.why)] if run.why else checked[run.name].found.values()
    if to is not None:
        tables.write(spark, list(judged.values()), findings, to)
    return findings


def found(runs: Iterable[Given]) -> list[AuditRun]:
    """Return the runs of folders and of histories in memory, in the given order.

    A history without a plan is judged by a plan with default values. Raises AuditError if two runs
    have the same name, and AuditError or PlanError if a folder cannot be read.
    """
    made = [_run(each) for each in runs]
    for name, number in Counter(run.name for run in made).items():
        if number > 1:
            raise AuditError(f"two runs are called {name!r}; give one of them another name")
    return made


def _run(given: Given) -> AuditRun:
    if isinstance(given, AuditRun):
        return given
    if not isinstance(given, str | Path):
        stored = io.BytesIO()
        write_parquet(given[1], stored)
        return AuditRun(given[0], given[2] if len(given) == 3 else Plan(), stored.getvalue())
    folder = Path(given).resolve()
    plan = folders.load_plan(folder)
    path = next((folder / name for name in (folders.PARQUET, folders.LINES) if (folder / name).exists()), None)
    if path is None:
        raise AuditError(f"{folder} has no {folders.LINES}: the drill still runs, or was stopped early")
    verdict = folders.load_verdict(folder) if (folder / folders.VERDICT).exists() else None
    return AuditRun(folder.name, plan, path, verdict.why if verdict and not verdict.promises else "")


# --- reports


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
    codes = {EXIT_CODES[each.judgement] for each in found}
    return 1 if 1 in codes else max(codes, default=4)


def lines(found: Sequence[PromiseAudit]) -> list[tuple[str, str, str, int, int, str]]:
    """Return the rows of COLUMNS: one per run, then one for each of its promises that is not valid.

    `what` has the first violations, or why a promise is inconclusive; of a run, how many it kept.
    """
    made = []
    for run, group in groupby(found, key=lambda each: each.run):
        those = list(group)
        kept = sum(each.judgement is Judgement.VALID for each in those)
        what = f"{kept} of {sum(bool(each.promise) for each in those)} promises kept"
        facts, broken = sum(each.facts for each in those), sum(each.broken for each in those)
        made.append((run, "", str(judgements(those)[run]), facts, broken, what))
        for each in those:
            if each.judgement is not Judgement.VALID:
                told = "; ".join(f"{v.key}: {v.what}" if v.key else v.what for v in each.violations[:TOLD_LINES])
                made.append((run, each.promise, str(each.judgement), each.facts, each.broken, told or each.why))
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
            finding = Finding(each.judgement, each.facts, {"broken": each.broken}, broken, each.why)
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
    """Return the history of a run, None if it is too large. Raises AuditError."""
    return run.history(PROCESS_ROWS) if run.rows() <= PROCESS_ROWS else None
