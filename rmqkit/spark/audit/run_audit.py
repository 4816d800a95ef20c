"""Runs the audit: one Spark task checks one run, with the checkers that judge a drill.

    run folders, histories → a task a run (`run_check`): history in, findings out → findings
    runs above PROCESS_ROWS → their rows → a task a part of a run (`part_checks`) → findings

The driver reads the plans of the runs and collects their findings. Histories stay on the workers,
so Spark decides how many runs an audit can have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rmqkit.spark.audit import tables
from rmqkit.spark.audit.part_checks import PART_ROWS, LargeRun, check_parts
from rmqkit.spark.audit.run_check import PROCESS_ROWS, PromiseAudit, RunFindings, RunTask, check, unjudged
from rmqkit.spark.audit.runs import AuditError, Given, found
from rmqkit.spark.pipelines.progress import PipelineProgress, jobs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    tasks = {run.name: run.task(process_rows) for run in known if not run.why}
    with jobs(spark, on_progress):
        checked = _on_workers(spark, tasks.values())
    made = {(each.run, each.promise): each for those in checked for each in those.found}
    large = {each.run: LargeRun(tasks[each.run].plan, each.context) for each in checked if each.context is not None}
    if large:
        parts = max(spark.sparkContext.defaultParallelism, sum(tasks[run].rows for run in large) // PART_ROWS)
        rows = tables.read(spark, [tasks[run] for run in large])
        made |= {(each.run, each.promise): each for each in check_parts(rows, large, parts)}
    promises = {each.run: each.promises for each in checked}
    findings = []
    for run in known:
        findings += [unjudged(run.name, "", run.why)] if run.why else [made[run.name, name] for name in promises[run.name]]
    if to is not None:
        if tasks:
            tables.write(spark, list(tasks.values()), to)
        _write_findings(spark, findings, to)
    return findings


def _on_workers(spark: SparkSession, tasks: Iterable[RunTask]) -> list[RunFindings]:
    """Check each run in a task of its own, the largest first.

    Raises AuditError if a history cannot be read.
    """
    # An RDD, since DataFrame.mapInArrow and applyInArrow need pandas on the driver.
    ordered = sorted(tasks, key=lambda task: -task.rows)
    checked = spark.sparkContext.parallelize(ordered, len(ordered)).map(check).collect() if ordered else []
    for each in checked:
        if each.error:
            raise AuditError(each.error)
    return checked


def _write_findings(spark: SparkSession, found: Sequence[PromiseAudit], to: Path | str) -> None:
    rows = [(*each[:2], str(each.judgement), *each[4:], [tuple(v) for v in each.violations]) for each in found]
    schema = (
        "run string, promise string, judgement string, facts bigint, broken bigint, why string, "
        "violations array<struct<ops: array<bigint>, key: string, what: string>>"
    )
    spark.createDataFrame(rows, schema).write.mode("overwrite").parquet(f"{to}/findings")
