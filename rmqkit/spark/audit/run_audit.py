"""Runs the audit: one Spark task checks one run, with the checkers that judge a drill.

    run folders, histories → a task a run (`run_check`): history in, findings out → findings
    runs above PROCESS_ROWS → rows → tables → views → four promises in SQL → findings

The driver reads the plans of the runs and collects their findings. Histories stay on the workers,
so Spark decides how many runs an audit can have. SQL is for the promises that compare all messages
of a run with each other, in runs that are too large for one process. Its findings are those of the
checkers, word by word.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqkit.drill.promises.contract import TOLD_MAX, Broken, judged
from rmqkit.spark.audit import tables, views
from rmqkit.spark.audit.message_queries import QUERIES, Query
from rmqkit.spark.audit.run_check import PROCESS_ROWS, PromiseAudit, RunFindings, RunTask, Violation, check, unjudged
from rmqkit.spark.audit.runs import AuditError, Given, found
from rmqkit.spark.pipelines.progress import PipelineProgress, jobs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: number of queries that run at the same time: one is planned while another executes
AT_ONCE = 2
PARTITIONS = "spark.sql.shuffle.partitions"


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
    the table `findings` are written there as Parquet. Without it, intermediate tables go to a
    temporary folder of this machine, which works only with a local master. A run of more than
    `process_rows` rows needs such tables. `on_progress` gets the tasks that have ended, one a run.
    Raises AuditError, PlanError.
    """
    known = found(runs)
    tasks = {run.name: run.task(process_rows) for run in known if not run.why}
    if to is None and not (spark.sparkContext.master or "").startswith("local"):
        for task in tasks.values():
            if task.is_large:
                raise AuditError(
                    f"{task.name} has {task.rows:,} rows, more than one process reads ({process_rows:,}):"
                    " name a folder for its tables that the whole Spark cluster can reach (--to)"
                )
    with jobs(spark, on_progress):
        checked = _on_workers(spark, tasks.values())
    made = {(each.run, each.promise): each for those in checked for each in those.found}
    large = [each.context for each in checked if each.context is not None]
    names = tasks if to is not None else [context["run"] for context in large]
    if names:
        with prepared(spark, [tasks[name] for name in names], large, to) as session:
            if large:
                made |= {(each.run, each.promise): each for each in _in_sql(session)}
            if to is not None:
                tables.write(session, to)
    promises = {each.run: each.promises for each in checked}
    findings = []
    for run in known:
        findings += [unjudged(run.name, "", run.why)] if run.why else [made[run.name, name] for name in promises[run.name]]
    if to is not None:
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


# --- SQL


@contextlib.contextmanager
def prepared(
    spark: SparkSession, tasks: Sequence[RunTask], contexts: Sequence[Mapping[str, Any]], to: Path | str | None
) -> Iterator[SparkSession]:
    """Yield a new session of the same Spark that has the tables of these runs, and their views.

    `contexts` has the runs whose promises SQL checks; without one, there are no views. What several
    queries read is computed once and stored as Parquet files: under `to`, else in a folder that is
    removed at the end.
    """
    session = spark.newSession()
    partitions = max(int(session.conf.get(PARTITIONS) or 1), sum(task.rows for task in tasks) // tables.PARTITION_ROWS)
    session.conf.set(PARTITIONS, str(partitions))
    with tempfile.TemporaryDirectory(prefix="rmqkit-audit-") as own:
        folder = f"file://{own}" if to is None else f"{to}/kept"

        def keep(name: str, frame: DataFrame, *by: str) -> None:
            frame.write.mode("overwrite").partitionBy(*by).parquet(f"{folder}/{name}")
            session.read.schema(frame.schema).parquet(f"{folder}/{name}").createOrReplaceTempView(name)

        keep("rows", tables.rows(session, tasks), "kind")
        tables.make(session)
        if contexts:
            session.createDataFrame(contexts, views.CONTEXT).createOrReplaceTempView("contexts")
            rules = {each["run"]: each["rule"] for each in contexts if "rule" in each}
            for name, query in views.VIEWS.items():
                frame = session.sql(query)
                keep(name, views.placed(frame, rules) if name == views.LOST else frame)
        yield session


def _in_sql(session: SparkSession) -> Iterator[PromiseAudit]:
    """Check the promises of `QUERIES` for all runs of the view `runs`."""
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for rows in threads.map(lambda query: findings(session, query).collect(), QUERIES.values()):
            yield from map(_audited, rows)


def findings(session: SparkSession, query: Query) -> DataFrame:
    """Query one promise for every run, over the views of `prepared`.

    Columns: run, promise, facts, lacking, broken (number of violations), told (the first TOLD_MAX
    violations: ops, key, what).
    """
    return session.sql(f"""
        WITH facts AS ({query.facts}), broken AS ({query.broken}), ranked AS (
          SELECT *, row_number() OVER (PARTITION BY run ORDER BY ops, key, what) AS number,
            count(*) OVER (PARTITION BY run) AS all FROM broken
        ), told AS (
          SELECT run, any_value(all) AS broken,
            transform(array_sort(collect_list(struct(number, ops, key, what))), t -> struct(t.ops, t.key, t.what)) AS told
          FROM ranked WHERE number <= {TOLD_MAX} GROUP BY run
        )
        SELECT r.run, '{query.name}' AS promise, coalesce(f.facts, 0) AS facts, coalesce(f.lacking, '') AS lacking,
          coalesce(t.broken, 0) AS broken, t.told
        FROM runs r LEFT JOIN facts f ON r.run = f.run LEFT JOIN told t ON r.run = t.run
    """)


def _audited(row: Any) -> PromiseAudit:
    told = [Broken(each.key, each.what) for each in row.told or ()]
    made = judged(row.facts, told, lacking=row.lacking)
    violations = tuple(Violation(tuple(each.ops), each.key, each.what) for each in row.told or ())
    return PromiseAudit(row.run, row.promise, made.judgement, violations, made.facts, row.broken, made.why)


def _write_findings(spark: SparkSession, found: Sequence[PromiseAudit], to: Path | str) -> None:
    rows = [(*each[:2], str(each.judgement), *each[4:], [tuple(v) for v in each.violations]) for each in found]
    schema = (
        "run string, promise string, judgement string, facts bigint, broken bigint, why string, "
        "violations array<struct<ops: array<bigint>, key: string, what: string>>"
    )
    spark.createDataFrame(rows, schema).write.mode("overwrite").parquet(f"{to}/findings")
