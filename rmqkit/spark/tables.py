"""Options of tables created in SQL: `CREATE TABLE t USING rocketmq OPTIONS (...)`.

Spark 4.3 passes the options of a table to a Python data source only when the table is created, not
when it is queried. It does keep the table's schema. When a table is created, our schema therefore
holds the options in the comment of its first column. Queries find them there (and `DESCRIBE` shows
them), and so does `INSERT INTO`, whose rows have the schema of the table. A table with columns that
the user defined has no place for them.

A column keeps its comment when a query selects it. So rows that are written elsewhere may carry the
options of the table that they were read from. `options_to_write` therefore uses these options only
if the write has none of its own; otherwise the write must name its name servers.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rmqkit.errors import ConfigError
from rmqkit.spark.options import OPTIONS, PREFIX, READ, SPARKS_OWN

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: Spark passes this key only when a table is created. `path` comes with it, without the prefix.
PROVIDER = "provider"
MARK = "rocketmq: "


def to_make(given: Mapping[str, str]) -> dict[str, str]:
    """Return the options that apply to reads, if a table is being created; else all options.

    The options for writes are kept in the schema for later writes.
    """
    return _usable(given, "batch") if PROVIDER in given else dict(given)


def kept(ddl: str, given: Mapping[str, str]) -> str:
    """Return the schema; if a table is being created, with the options in its first column."""
    options = {key.removeprefix(PREFIX): value for key, value in given.items() if key.startswith(PREFIX) or key == "path"}
    if PROVIDER not in given or not options:
        return ddl
    text = (MARK + json.dumps(options, sort_keys=True)).replace("\\", "\\\\").replace("'", "\\'")
    first, comma, others = ddl.partition(", ")
    return f"{first} COMMENT '{text}'{comma}{others}"


def options_of(given: Mapping[str, str], schema: "StructType", where: str = "batch") -> dict[str, str]:
    """Return the given options, and those in the table's schema that apply to `where`."""
    return {**_usable(_found(schema), where), **{key.lower(): value for key, value in given.items()}}


def options_to_write(given: Mapping[str, str], schema: "StructType") -> dict[str, str] | None:
    """Return the options of the table that receives the rows, or None if the write has its own.

    Without an option `topic`, the target is the topic that the table reads. Raises ConfigError if
    the schema's options may belong either to the target or to the table that was read.
    """
    found = _found(schema)
    names = {key.lower() for key in given} - SPARKS_OWN
    if names and "namesrv" in found and "namesrv" not in names:
        raise ConfigError(
            f"option namesrv is missing: the rows carry the options of a table of name servers {found['namesrv']}, "
            "and other options are given; set namesrv to the name servers to send to"
        )
    if names or not found:
        return None
    topics = found.get("subscribe", "").strip()
    if topics and "," not in topics:
        found.setdefault("topic", topics)
    return _usable(found, "sink")


def _found(schema: "StructType") -> dict[str, str]:
    first = schema.fields[0].metadata.get("comment", "") if schema.fields else ""
    found = json.loads(first.removeprefix(MARK)) if first.startswith(MARK) else {}
    return {key.lower(): value for key, value in found.items()}


def _usable(given: Mapping[str, str], where: str) -> dict[str, str]:
    """Drop the known options that do not apply to `where`."""
    places = READ if where in READ else {where}
    others = {name.lower() for name, option in OPTIONS.items() if not option.where & places}
    return {key: value for key, value in given.items() if key.lower() not in others}
