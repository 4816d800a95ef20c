"""Runs the audit: checks every promise of every run with Spark queries that are keyed by run.

    run folders, histories → rows → tables → contexts, leases (Python, a run or a queue at a time)
        → 13 promises, each a query for its facts and one for what breaks it → findings

The result equals that of the in-process checkers (`rmqkit.drill.promises`): the same judgement of
each promise, the same number of facts, and the same violations in the same words, with the history
rows that prove them.

The driver loops over runs only to read their plans, and collects only findings. Therefore Spark
decides how many runs and rows an audit can have.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqkit.drill.history import History
from rmqkit.drill.plan import Plan, ReplicationMode
from rmqkit.drill.promises import PROMISES, Judgement, commits, roles, waits
from rmqkit.drill.promises.contract import TOLD_MAX
from rmqkit.spark.audit import message_queries, node_queries, service_queries, steps, tables, takeover_queries, views
from rmqkit.spark.audit.tables import AuditError, AuditRun

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: promise name -> query, in the order of reports
_AREAS = (message_queries, node_queries, takeover_queries, service_queries)
QUERIES = {query.name: query for area in _AREAS for query in area.QUERIES}
#: why a plug-in's promise is inconclusive: it is a Python function over a history, without a query
NOT_A_QUERY = "this promise has no query: only `rmqkit drill` checks it"
#: number of queries that run at the same time: one is planned while another executes
AT_ONCE = 2
#: up to this number of rows each query is one task: shuffles and code generation would cost more
#: than processing the rows
SMALL_ROWS = 200_000
PARTITIONS = "spark.sql.shuffle.partitions"
SMALL = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    PARTITIONS: "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

Given = Path | str | AuditRun | tuple[str, History] | tuple[str, History, Plan]


class Violation(NamedTuple):
    """One fact that breaks a promise.

    `ops` are the history rows that prove it. `key` is the key of the message concerned, "" if there
    is no single one. `what` describes the violation.
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


def audit(spark: SparkSession, runs: Iterable[Given], *, to: Path | str | None = None) -> list[PromiseAudit]:
    """Check every promise of these runs: drill folders, or (name, history, plan) in memory.

    The findings are in the order of the runs, then of the promises in reports. A run whose drill
    itself proved nothing has one finding without a promise.

    `to` is a folder on any file system that Spark can write to. The tables (`tables.TABLES`) and
    the table `findings` are written there as Parquet. Without it, intermediate tables go to a
    temporary folder of this machine, which works only with a local master. Raises AuditError,
    PlanError.
    """
    known = tables.found(runs)
    to_judge = [run for run in known if not run.why]
    found: dict[str, list[PromiseAudit]] = {run.name: [] for run in known}
    for run in known:
        if run.why:
            found[run.name].append(PromiseAudit(run.name, "", Judgement.INCONCLUSIVE, (), 0, why=run.why))
    wanted = asked(to_judge)
    for of_run, name in wanted:
        if name not in QUERIES:
            found[of_run].append(PromiseAudit(of_run, name, Judgement.INCONCLUSIVE, (), 0, why=NOT_A_QUERY))
    if to_judge:
        names = [name for name in QUERIES if any(name == each for _run, each in wanted)]
        with prepared(spark, to_judge, to) as session, ThreadPoolExecutor(AT_ONCE) as threads:
            for rows in threads.map(lambda name: findings(session, name).collect(), names):
                for row in rows:
                    found[row.run].append(_audited(row))
            if to is not None:
                tables.write(session, to)
    made = [each for name in found for each in sorted(found[name], key=_place)]
    if to is not None:
        _write_findings(spark, made, to)
    return made


def _place(found: PromiseAudit) -> int:
    names = list(PROMISES)
    return names.index(found.promise) if found.promise in names else len(names)


def _audited(row: Any) -> PromiseAudit:
    told = tuple(Violation(tuple(each.ops), each.key, each.what) for each in row.told or ())
    if row.broken:
        return PromiseAudit(row.run, row.promise, Judgement.BROKEN, told, row.facts, row.broken)
    if row.lacking or not row.facts:
        why = row.lacking or "the history has no facts about it"
        return PromiseAudit(row.run, row.promise, Judgement.INCONCLUSIVE, (), row.facts, why=why)
    return PromiseAudit(row.run, row.promise, Judgement.VALID, (), row.facts)


# --- the views that the queries read


@contextlib.contextmanager
def prepared(spark: SparkSession, runs: Sequence[AuditRun], to: Path | str | None = None) -> Iterator[SparkSession]:
    """Yield a new session of the same Spark that has all tables and views of these runs.

    Views that several queries read are computed once. Above SMALL_ROWS rows they are stored as
    Parquet files: under `to`, else in a folder that is removed at the end.
    """
    session = spark.newSession()
    rows = tables.size(runs)
    is_small = rows <= SMALL_ROWS
    partitions = max(int(session.conf.get(PARTITIONS) or 1), rows // tables.PARTITION_ROWS)
    for key, value in (SMALL if is_small else {PARTITIONS: str(partitions)}).items():
        session.conf.set(key, value)

    with _scratch(spark, to) as folder:

        def keep(name: str, frame: DataFrame, *by: str) -> None:
            """Compute a frame now and register it as a view, in memory if small, else as a file."""
            if is_small:
                kept = frame.coalesce(1).localCheckpoint().coalesce(1)
            else:
                frame.write.mode("overwrite").partitionBy(*by).parquet(f"{folder}/{name}")
                kept = session.read.schema(frame.schema).parquet(f"{folder}/{name}")
            kept.createOrReplaceTempView(name)

        with tables.told_in_a_line():
            keep("rows", tables.rows(session, runs), "kind")
        tables.make(session)
        keep("plans", session.createDataFrame([_plan_row(run) for run in runs], _PLAN))
        keep("asked", session.createDataFrame(asked(runs), "run string, promise string"))
        keep("totals", session.sql(views.TOTALS))
        # One row is a whole group with all history rows that the step reads, so batches stay small.
        session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")
        for name, kinds, keys, which, step, schema in _STEPS:
            keep(name, _stepped(session, kinds, keys, which, step, schema))
        keep("runs", session.sql(views.RUNS))
        for name, query in views.VIEWS.items():
            if name in views.KEPT:
                keep(name, session.sql(query))
            else:
                session.sql(query).createOrReplaceTempView(name)
        yield session


@contextlib.contextmanager
def _scratch(spark: SparkSession, to: Path | str | None) -> Iterator[str]:
    if to is not None:
        yield f"{to}/kept"
    elif not (spark.sparkContext.master or "").startswith("local"):
        raise AuditError("name a folder for the tables that the whole Spark cluster can reach (--to)")
    else:
        with tempfile.TemporaryDirectory(prefix="rmqkit-audit-") as folder:
            yield f"file://{folder}"


_OF_CONTEXT = ("event", "role", "node", "end", steps.LAST)
#: name of the view, kinds of the rows, their groups, which runs, the step and its schema
_STEPS: Sequence[tuple[str, Sequence[str], Sequence[str], str, Any, str]] = (
    ("contexts", _OF_CONTEXT, ("run",), "true", steps.context, steps.CONTEXT),
    ("leases", ("lock", "unlock"), ("run", "key", "broker", "queue"), "true", steps.leases, steps.LEASES),
    ("services", (*_OF_CONTEXT, *steps.SERVICE_ROWS), ("run",), "p.has_services", steps.services, steps.SERVICES),
)


def _stepped(
    session: SparkSession, kinds: Sequence[str], keys: Sequence[str], which: str, step: Any, schema: str
) -> DataFrame:
    """Return the output of a Python step for the rows of these kinds, grouped by `keys`.

    `which` is a condition on the plan `p` of a run.
    """
    from pyspark.sql.pandas import functions

    # PySpark's grouped calls (applyInArrow) would need pandas, although the data is Arrow.
    arrow_udf: Any = functions.arrow_udf
    session.udf.register("step", arrow_udf(step, f"array<struct<{schema}>>"))
    names = [column.split()[0] for column in tables.COLUMNS.split(", ")]
    wanted = ", ".join(f"'{kind}'" for kind in kinds)
    return session.sql(f"""
        SELECT inline(step(run, plan, last_ms, rows)) FROM (
          SELECT r.run, any_value(p.plan) AS plan, any_value(coalesce(t.last_ms, 0L)) AS last_ms,
            collect_list(struct({", ".join(f"r.{name}" for name in names)})) AS rows
          FROM (SELECT run, {", ".join(names)} FROM rows UNION ALL {_LAST_ROWS}) r
          JOIN plans p ON r.run = p.run LEFT JOIN totals t ON r.run = t.run
          WHERE r.kind IN ({wanted}) AND {which} GROUP BY {", ".join(f"r.{key}" for key in keys)})
    """)


#: one row per run, so that a run without any other row also has a context
_LAST_ROWS = f"SELECT run, -1L, '', '{steps.LAST}', '', '', 0L, 0L, 'ok', '', -1, -1L, '{{}}' FROM plans"

_PLAN = (
    "run string, plan string, has_services boolean, replicas int, is_quorum boolean, is_strict boolean, "
    "saved_ms bigint, send_timeout_ms bigint, "
    "recover_max_ms bigint, slave_timeout_ms bigint, flush_timeout_ms bigint, at_once_max_ms bigint"
)


def _plan_row(run: AuditRun) -> tuple[Any, ...]:
    plan = run.plan
    return (
        run.name,
        plan.dumps(),
        bool(plan.services) or plan.elected,
        plan.replicas,
        plan.mode.replication is ReplicationMode.QUORUM,
        plan.strict_locks,
        plan.setting("flushConsumerOffsetInterval", commits.FLUSH_CONSUMER_OFFSET_MS) + commits.MARGIN_MS,
        plan.send_timeout_ms,
        plan.recover_max_ms,
        plan.setting("slaveTimeout", waits.SLAVE_TIMEOUT_MS),
        plan.setting("syncFlushTimeout", waits.SYNC_FLUSH_TIMEOUT_MS),
        2 * plan.member_sync_ms + roles.MARGIN_MS,
    )


def asked(runs: Sequence[AuditRun]) -> list[tuple[str, str]]:
    """Return (run, promise) for the promises that each run's plan names or that apply to it.

    The drill engine selects them in the same way.
    """
    made = {name: make() for name, make in PROMISES.items()}
    found = []
    for run in runs:
        names = run.plan.promises or tuple(made)
        found += [(run.name, name) for name in names if name not in made or made[name].applies(run.plan)]
    return found


# --- findings


def findings(session: SparkSession, name: str) -> DataFrame:
    """Query one promise for every run that makes it, over the views of `prepared`.

    Columns: run, promise, facts, lacking, broken (number of violations), told (the first TOLD_MAX
    violations: ops, key, what).
    """
    query = QUERIES[name]
    return session.sql(f"""
        WITH facts AS ({query.facts}), broken AS ({query.broken}), ranked AS (
          SELECT *, row_number() OVER (PARTITION BY run ORDER BY ops, key, what) AS number,
            count(*) OVER (PARTITION BY run) AS all FROM broken
        ), told AS (
          SELECT run, any_value(all) AS broken,
            transform(array_sort(collect_list(struct(number, ops, key, what))), t -> struct(t.ops, t.key, t.what)) AS told
          FROM ranked WHERE number <= {TOLD_MAX} GROUP BY run
        )
        SELECT a.run, a.promise, coalesce(f.facts, 0) AS facts, coalesce(f.lacking, '') AS lacking,
          coalesce(t.broken, 0) AS broken, t.told
        FROM asked a LEFT JOIN facts f ON a.run = f.run LEFT JOIN told t ON a.run = t.run
        WHERE a.promise = '{name}'
    """)


def _write_findings(spark: SparkSession, found: Sequence[PromiseAudit], to: Path | str) -> None:
    rows = [(*each[:2], str(each.judgement), *each[4:], [tuple(v) for v in each.violations]) for each in found]
    schema = (
        "run string, promise string, judgement string, facts bigint, broken bigint, why string, "
        "violations array<struct<ops: array<bigint>, key: string, what: string>>"
    )
    spark.createDataFrame(rows, schema).write.mode("overwrite").parquet(f"{to}/findings")
