"""Writes rows into data files of a lake. A file counts once an entry of the log names it.

Each attempt has its own folder, `files/QUERY/BATCH/ATTEMPT`. If two attempts write the same batch
because one was believed dead, they never touch each other's files, and the first entry decides.
Spark's committer ensures that the folder has each task's rows exactly once.
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

#: partition names in the path; the files also have the column `topic`
TOPIC, HOUR = "lake_topic", "hour"
#: the sort order of rows within a topic and hour
ORDER = ("broker", "queue", "offset")
NEEDED = ("topic", *ORDER, "message_id", "store_time")
COMPRESSION = "zstd"


def attempt_folder(of: str, number: int) -> str:
    return f"{batch_folder(of, number)}/{uuid.uuid4().hex[:12]}"


def batch_folder(of: str, number: int) -> str:
    return f"{FILES}/{of}/{number:010}"


def check_columns(rows: "DataFrame") -> None:
    """Raise ConfigError if the rows lack a needed column or use a name that the lake reserves."""
    missing = [name for name in NEEDED if name not in rows.columns]
    taken = [name for name in (TOPIC, HOUR) if name in rows.columns]
    if missing:
        raise ConfigError(
            f"a lake needs the columns {', '.join(missing)} too: omit the option `columns`, or add them to it"
        )
    if taken:
        raise ConfigError(f"column {taken[0]}: a lake reserves this name; rename the column")


def write(rows: "DataFrame", folder: Folder, name: str) -> list[DataFile]:
    """Write all rows into the folder `name` of the lake and return the files.

    Each file has the rows of one topic and hour. The files are durable, but not committed. Raises
    LakeError if they do not have as many rows as the tasks wrote.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    seen = Observation()
    placed = rows.withColumns({TOPIC: F.col("topic"), HOUR: hour_column(F.col("store_time"))})
    counted = placed.observe(seen, F.count(F.lit(1)).alias("rows"))
    # TOPIC and HOUR come first: Spark's partitioned writer needs that order and would sort again.
    ordered = counted.sortWithinPartitions(TOPIC, HOUR, *ORDER)
    writer = ordered.write.mode("error").partitionBy(TOPIC, HOUR).option("compression", COMPRESSION)
    writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(f"{folder.uri}/{name}")
    written = _written(folder, name)
    found = sum(file.rows for file in written)
    if found != seen.get["rows"]:
        raise LakeError(
            f"{seen.get['rows']} rows were written to {folder.uri}, and {found} are there: do all executors see this "
            "folder? A Spark cluster needs a path that all its machines share"
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
    """Return the topic and hour of a file, from the names of its folders."""
    values = dict(part.partition("=")[::2] for part in path.split("/") if "=" in part)
    return unquote(values[TOPIC]), unquote(values[HOUR])
