"""The tables of the audit: histories of many runs as Spark rows, keyed by `run`.

    run folders, histories in memory → rows(run, op, kind, …, extra) → sends, deliveries, …

A task reads each run, with the code that reads it for the checkers (`run_check`). Within a run,
`op` gives the order: it is the order in which rows were completed. A table is a `SELECT` over rows
of one or more kinds (`TABLES`), where `x` has the fields of `extra` with their types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from rmqkit.drill.arrow.rows import SCHEMA, dataset
from rmqkit.spark.arrow_tasks import read_in_tasks
from rmqkit.spark.audit.run_check import AuditRun, PromiseAudit

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: the fields of `extra` that tables have
EXTRA = (
    "status string, error string, timeout_ms bigint, `group` string, any_order boolean, ordered boolean, boot string, "
    "disk int, by_member boolean, final boolean, `each` boolean, role string, state string, in_sync int, start string, "
    "why string, node string, granted_until bigint, offset_min bigint, size bigint, level int, delay_ms bigint, "
    "due_ms bigint, stored_ms bigint, escaped_from string, escaped_by string, members array<int>, broker_id int, "
    "since bigint, harm string"
)

_PLACE = "broker, queue, offset"
_TIMES = "invoke_ms, complete_ms"

#: table name -> (kind or kinds of its rows, columns after `run, op`)
TABLES: Mapping[str, tuple[str, str]] = {
    "sends": (
        "send",
        f"client, key, value, {_TIMES}, outcome, {_PLACE}, coalesce(x.status, '') AS status, x.timeout_ms, x.error",
    ),
    "deliveries": (
        "deliver",
        f"client, key, value, {_TIMES}, outcome, {_PLACE}, coalesce(x.`group`, '') AS group_name,"
        " coalesce(x.any_order, false) AS any_order, coalesce(x.ordered, false) AS ordered",
    ),
    "reads": ("read", f"client, key, value, complete_ms, outcome, {_PLACE}"),
    "ends": (
        "end",
        f"client, outcome, {_PLACE}, coalesce(x.offset_min, 0) AS offset_min, coalesce(x.role, 'master') AS role, x.error",
    ),
    "committed": (
        "committed",
        f"client, key AS group_name, complete_ms, outcome, {_PLACE}, x.boot, coalesce(x.disk, 0) AS disk,"
        " coalesce(x.by_member, false) AS by_member, coalesce(x.final, false) AS final,"
        " coalesce(x.`each`, false) AS each_look",
    ),
    "looks": (
        "node",
        "client, complete_ms, outcome, broker, x.role, x.state, x.in_sync, coalesce(x.final, false) AS final, x.start,"
        " x.why",
    ),
    "logs": ("log", "client, value, outcome, broker, offset, x.size, coalesce(x.role, 'master') AS role, x.error"),
    "delays": (
        "delay",
        f"client, key, value, {_TIMES}, outcome, broker, coalesce(x.status, '') AS status, x.level, x.delay_ms, x.due_ms",
    ),
    "dues": (
        "due",
        f"client, key, value, complete_ms, {_PLACE}, x.`group` AS group_name,"
        " coalesce(x.stored_ms, complete_ms) AS stored_ms, x.escaped_from, x.escaped_by",
    ),
    "locks": (
        "lock unlock",
        f"kind, client, key AS group_name, {_TIMES}, outcome, broker, queue, x.node, x.granted_until",
    ),
    "roles": (
        "role",
        f"client, value, {_TIMES}, outcome, broker, x.members, coalesce(x.broker_id, 0) AS broker_id, x.boot, x.since",
    ),
    "routes": ("route", "client, key, value, complete_ms, broker"),
    "probes": ("probe", f"client, key, {_TIMES}, outcome, broker, queue, x.node, x.broker_id"),
    "events": ("event", "key, value, invoke_ms, broker, x.harm, x.node, x.role"),
}
FINDINGS = (
    "run string, promise string, judgement string, facts bigint, broken bigint, why string, "
    "violations array<struct<ops: array<bigint>, key: string, what: string>>"
)


def read(spark: SparkSession, runs: Sequence[AuditRun]) -> DataFrame:
    """Return all rows of all runs: `run`, and the columns of a history with `extra` as JSON."""
    from pyspark.sql.pandas.types import from_arrow_schema

    def read_run(run: AuditRun) -> Iterator[pa.RecordBatch]:
        for batch in dataset(run.source).to_batches(columns=SCHEMA.names):
            yield batch.cast(SCHEMA).add_column(0, "run", pa.array([run.name] * len(batch), pa.string()))

    return read_in_tasks(spark, runs, read_run, from_arrow_schema(pa.schema([("run", pa.string()), *SCHEMA])))


def write(spark: SparkSession, runs: Sequence[AuditRun], found: Iterable[PromiseAudit], path: Path | str) -> None:
    """Write tables and findings as Parquet, one folder each; existing folders are overwritten.

    All tables are made from the rows by kind, which are written first, under `kept/rows`.
    """
    from pyspark.sql import functions as F

    findings = [(*each[:2], str(each.judgement), *each[4:], [tuple(v) for v in each.violations]) for each in found]
    spark.createDataFrame(findings, FINDINGS).write.mode("overwrite").parquet(f"{path}/findings")
    if not runs:
        return
    session = spark.newSession()
    rows = read(session, runs).withColumn("queue", F.col("queue").cast("int"))
    rows = rows.withColumn("x", F.from_json("extra", EXTRA)).drop("extra")
    rows.write.mode("overwrite").partitionBy("kind").parquet(f"{path}/kept/rows")
    session.read.schema(rows.schema).parquet(f"{path}/kept/rows").createOrReplaceTempView("rows")
    for name, (kinds, columns) in TABLES.items():
        wanted = ", ".join(f"'{kind}'" for kind in kinds.split())
        table = session.sql(f"SELECT run, op, {columns} FROM rows WHERE kind IN ({wanted})")
        table.write.mode("overwrite").parquet(f"{path}/{name}")
