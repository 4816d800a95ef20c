"""Rows into a lake's files. What is written counts when an entry of the log names it, not before.

Every attempt has a folder of its own, `files/QUERY/BATCH/ATTEMPT`: two that write the same batch (one of them
believed dead) never touch each other's files, and the first entry decides. Spark's own committer makes sure that the
folder holds each task's rows once.
"""

import uuid
from typing import TYPE_CHECKING
from urllib.parse import unquote

from rmqkit.errors import ConfigError
from rmqkit.spark.pipelines.folders import Folder
from rmqkit.spark.pipelines.lake import FILES, hour_column
from rmqkit.spark.pipelines.log import DataFile, LakeError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: names in the path; the files have the column `topic` besides
TOPIC, HOUR = "lake_topic", "hour"
#: what files are ordered by within their topic and hour
ORDER = ("broker", "queue", "offset")
NEEDED = ("topic", *ORDER, "message_id", "store_time")
COMPRESSION = "zstd"


def attempt_folder(of: str, number: int) -> str:
    return f"{batch_folder(of, number)}/{uuid.uuid4().hex[:12]}"


def batch_folder(of: str, number: int) -> str:
    return f"{FILES}/{of}/{number:010}"


def check_columns(rows: "DataFrame") -> None:
    """Raises ConfigError for rows that a lake cannot have."""
    missing = [name for name in NEEDED if name not in rows.columns]
    taken = [name for name in (TOPIC, HOUR) if name in rows.columns]
    if missing:
        raise ConfigError(
            f"a lake needs the columns {', '.join(missing)} too: leave the option `columns` away, or name them"
        )
    if taken:
        raise ConfigError(f"the name {taken[0]} is the lake's own: give the column another one")


def write(rows: "DataFrame", folder: Folder, name: str) -> list[DataFile]:
    """All rows as files of one topic and hour each, in the folder `name` of the lake; safe on disk, not committed.

    Raises LakeError when the files that are found do not have the rows that the tasks wrote.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    seen = Observation()
    placed = rows.withColumns({TOPIC: F.col("topic"), HOUR: hour_column(F.col("store_time"))})
    counted = placed.observe(seen, F.count(F.lit(1)).alias("rows"))
    # Spark would sort by the first two by itself.
    ordered = counted.sortWithinPartitions(TOPIC, HOUR, *ORDER)
    writer = ordered.write.mode("error").partitionBy(TOPIC, HOUR).option("compression", COMPRESSION)
    writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(f"{folder.uri}/{name}")
    written = _written(folder, name)
    found = sum(file.rows for file in written)
    if found != seen.get["rows"]:
        raise LakeError(
            f"{seen.get['rows']} rows were written to {folder.uri}, and {found} are there: do all executors see this "
            "folder? A path of one machine is not enough for a Spark cluster"
        )
    return written


def _written(folder: Folder, name: str) -> list[DataFile]:
    written = []
    for path, found in folder.list(name).items():
        if path.endswith(".parquet") and not path.rpartition("/")[2].startswith((".", "_")):
            topic, hour = _place(path)
            written.append(DataFile(path=path, topic=topic, hour=hour, size=found.size, rows=folder.parquet_rows(path)))
    folder.sync(file.path for file in written)
    return written


def _place(path: str) -> tuple[str, str]:
    """Topic and hour of a file, from the names of its folders."""
    values = dict(part.partition("=")[::2] for part in path.split("/") if "=" in part)
    return unquote(values[TOPIC]), unquote(values[HOUR])
