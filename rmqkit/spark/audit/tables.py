"""The tables of the audit: histories of many runs as Spark rows, keyed by `run`.

    run folders, histories in memory → rows(run, op, kind, …, extra, x) → sends, deliveries, …

Within a run, `op` gives the order: it is the order in which rows were completed. `x` has the fields
of `extra` that queries use, with their types. The text of `extra` is kept only for the kinds that a
Python step reads (`STEP_KINDS`).

A table is a view: a `SELECT` over `rows` of one or more kinds (`TABLES`). `write` stores the same
views as Parquet files, one folder per table.

A file with an invalid row ends the audit; `AuditError` names the file.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa

from rmqkit.drill import runs as folders
from rmqkit.drill.history import OK, History
from rmqkit.drill.plan import Plan, PlanError
from rmqkit.errors import RmqkitError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class AuditError(RmqkitError):
    """Raised when a run cannot be read, or two runs have the same name. The message is one line."""

    exit_code = 2


class AuditRun(NamedTuple):
    """One run to be audited: its history in memory, or in a file."""

    name: str
    plan: Plan
    history: History | None = None
    path: Path | None = None
    #: why the drill itself proved nothing, so that there is nothing to judge; "" if it proved
    #: something
    why: str = ""


#: the fields of `extra` that queries use
EXTRA = (
    "status string, error string, timeout_ms bigint, `group` string, any_order boolean, ordered boolean, boot string, "
    "disk int, by_member boolean, final boolean, `each` boolean, role string, state string, in_sync int, start string, "
    "why string, node string, granted_until bigint, offset_min bigint, size bigint, level int, delay_ms bigint, "
    "due_ms bigint, stored_ms bigint, escaped_from string, escaped_by string, members array<int>, broker_id int, "
    "since bigint, harm string"
)
COLUMNS = (
    "op bigint, client string, kind string, key string, value string, invoke_ms bigint, complete_ms bigint, "
    "outcome string, broker string, queue int, offset bigint, extra string"
)
#: kinds of rows that Python steps read (`steps.py`)
STEP_KINDS = ("event", "role", "node", "end", "lock", "unlock")

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


def found(runs: Iterable[Path | str | AuditRun | tuple[str, History] | tuple[str, History, Plan]]) -> list[AuditRun]:
    """Return the runs of folders and of histories in memory, in the given order.

    A history without a plan is judged by a plan with default values. Raises AuditError if two runs
    have the same name, and AuditError or PlanError if a folder cannot be read.
    """
    made = [_run(each) for each in runs]
    names: dict[str, AuditRun] = {}
    for run in made:
        if run.name in names:
            raise AuditError(f"two runs are called {run.name!r}; give one of them another name")
        names[run.name] = run
    return made


def _run(given: Any) -> AuditRun:
    if isinstance(given, AuditRun):
        return given
    if not isinstance(given, str | Path):
        name, history, *plan = given
        return AuditRun(name, plan[0] if plan else Plan(), history)
    folder = Path(given)
    plan = folders.load_plan(folder)
    path = next((folder / name for name in (folders.PARQUET, folders.LINES) if (folder / name).exists()), None)
    if path is None:
        raise AuditError(f"{folder} has no {folders.LINES}: the drill still runs, or was stopped early")
    why = ""
    if (folder / folders.VERDICT).exists():
        verdict = folders.load_verdict(folder)
        why = verdict.why if not verdict.promises else ""
    return AuditRun(folder.resolve().name, plan, path=path, why=why)


# --- rows

#: characters in file names that Hadoop would read as a pattern
GLOB = r"[\\\[\]{}*?]"
#: maximum characters of Spark's message about an invalid file
LINE_MAX = 400
#: approximate number of rows per task
PARTITION_ROWS = 300_000
#: file suffix -> approximate bytes per row
SIZES = {".jsonl": 250, ".parquet": 10}


def size(runs: Iterable[AuditRun]) -> int:
    """Return the approximate number of rows of these histories."""
    rows = 0
    for run in runs:
        if run.history is not None:
            rows += len(run.history)
        elif run.path is not None:
            files = [run.path] if run.path.is_file() else list(run.path.iterdir())
            rows += sum(file.stat().st_size for file in files) // SIZES[run.path.suffix]
    return rows


def rows(spark: SparkSession, runs: Sequence[AuditRun]) -> DataFrame:
    """Return all rows of all runs: `run`, the columns of a history, and `x`."""
    from pyspark.sql import functions as F

    parts = [part for part in (_in_memory(spark, runs), _of_files(spark, runs)) if part is not None]
    if not parts:
        raise AuditError("there is no run to audit")
    read = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
    # The checkers of timers, transactions and pop read all rows of their runs.
    is_of_services = F.col("run").isin([run.name for run in runs if run.plan.services or run.plan.elected])
    keeps_text = F.col("kind").isin(*STEP_KINDS) | is_of_services
    return read.withColumn("x", F.from_json("extra", EXTRA)).withColumn("extra", F.when(keeps_text, F.col("extra")))


def _in_memory(spark: SparkSession, runs: Sequence[AuditRun]) -> DataFrame | None:
    tables = [arrow(run.name, run.history) for run in runs if run.history is not None]
    if not tables:
        return None
    table = pa.concat_tables(tables).combine_chunks()
    return spark.createDataFrame(table).coalesce(1 + table.num_rows // PARTITION_ROWS)


def arrow(name: str, history: History) -> pa.Table:
    """Return a history as an Arrow table with the columns of `rows`; `extra` is JSON text."""
    rows = history.rows
    made: dict[str, Any] = {"run": pa.array([name] * len(rows), pa.string())}
    kinds = {"bigint": pa.int64(), "int": pa.int32(), "string": pa.string()}
    for column in COLUMNS.split(", "):
        field, kind = column.split()
        values = [getattr(row, field) for row in rows]
        if field == "extra":
            values = [json.dumps(dict(value), ensure_ascii=False) for value in values]
        made[field] = pa.array(values, kinds[kind])
    return pa.table(made)


def _escaped(found: re.Match[str]) -> str:
    return f"\\{found[0]}"


def _of_files(spark: SparkSession, runs: Sequence[AuditRun]) -> DataFrame | None:
    """Read all JSON lines files in one scan and all Parquet files in another.

    The path of a row's file says which run the row belongs to.
    """
    from pyspark.sql import functions as F

    names = {str(run.path.resolve()): run.name for run in runs if run.path is not None}
    if not names:
        return None
    parts = []
    for ending in SIZES:
        paths = [path for path in names if path.endswith(ending)]
        if not paths:
            continue
        # Drills write Parquet with pyarrow, which stores integers with 64 bits.
        reader = spark.read.schema(COLUMNS.replace(" int", " bigint"))
        uris = [f"file://{re.sub(GLOB, _escaped, path)}" for path in paths]
        part = reader.option("mode", "FAILFAST").json(uris) if ending == ".jsonl" else reader.parquet(*uris)
        # Spark returns paths as URIs. A history that Spark has written is a folder of files.
        file = F.expr("url_decode(replace(_metadata.file_path, '+', '%2B'))")
        part = part.withColumn("path", F.regexp_extract(file, f"^file:/*(/.*/history\\{ending})", 1))
        parts.append(part)
    read = parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])
    of_path = spark.createDataFrame(list(names.items()), "path string, run string")
    known = F.coalesce("run", F.raise_error(F.concat(F.lit("no run is known for "), "path")))
    read = read.join(F.broadcast(of_path), "path", "left").withColumn("run", known)
    defaults: dict[str, bool | float | int | str] = {"outcome": OK, "broker": "", "queue": -1, "offset": -1, "extra": "{}"}
    columns = [F.col(name).cast(kind) for name, kind in map(str.split, COLUMNS.split(", "))]
    return read.fillna(defaults).select("run", *columns)


@contextlib.contextmanager
def told_in_a_line() -> Iterator[None]:
    """Turn Spark's exception about an invalid history file into an AuditError of one line."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        read = re.search(r"(?:reading|read) file:?\s*\S*?file:/*(/\S+)", str(error))
        if read is None:
            raise
        row = re.search(r"MALFORMED_RECORD[^\n]*|Malformed records[^\n]*", str(error))
        raise AuditError(
            f"{unquote(read[1]).rstrip('.,')} is not a history: {row[0] if row else error}"[:LINE_MAX]
        ) from None


# --- tables


def make(spark: SparkSession) -> None:
    """Create each table as a temporary view over the view `rows`."""
    for name, (kinds, columns) in TABLES.items():
        wanted = ", ".join(f"'{kind}'" for kind in kinds.split())
        spark.sql(
            f"CREATE OR REPLACE TEMPORARY VIEW {name} AS SELECT run, op, {columns} FROM rows WHERE kind IN ({wanted})"
        )


def write(spark: SparkSession, path: Path | str, names: Iterable[str] = tuple(TABLES)) -> None:
    """Write tables as Parquet files, one folder per table; existing folders are overwritten."""
    for name in names:
        spark.table(name).write.mode("overwrite").parquet(f"{path}/{name}")


__all__ = ["TABLES", "AuditError", "AuditRun", "PlanError", "found", "make", "rows", "write"]
