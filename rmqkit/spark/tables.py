"""Options of tables that SQL has made: `CREATE TABLE t USING rocketmq OPTIONS (...)`.

Spark 4.3 gives a Python data source the options of a table when the table is made, and none when it is queried; what
it keeps is the schema. So the schema that we give it then has the options in the comment of its first column, where
queries find them (and `DESCRIBE` shows them), and `INSERT INTO`, whose rows have the schema of the table. A table with
columns of the user's own has no place for them.

A column keeps its comment where a query selects it, so rows that are written may bear the options of a table that they only
come from. Those count where no others are given, else the name servers have to be said.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rmqkit.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: what tables put before the names of their options; when a table is made they come without it as well
PREFIX = "option."
#: Spark says it of a table that is being made, never of a query; with it comes `path`, which has no prefix
PROVIDER = "provider"
MARK = "rocketmq: "
NOT_KEPT = (
    "Spark keeps the options of a table only if it has no columns of its own: leave them out, or make a temporary view"
)


def of_table(given: Mapping[str, str]) -> dict[str, str]:
    """The options of a table that is being made; none for any other query."""
    if not any(key.lower() == PROVIDER for key in given):
        return {}
    found = {key[len(PREFIX) :]: value for key, value in given.items() if key.lower().startswith(PREFIX)}
    path = next((value for key, value in given.items() if key.lower() == "path"), "")
    return found | ({"path": path} if path else {})


def to_make(given: Mapping[str, str]) -> dict[str, str]:
    """What a query is told of the options of a table that is being made: those of writes are kept for writes."""
    return _usable(given, "batch") if of_table(given) else dict(given)


def kept(ddl: str, given: Mapping[str, str]) -> str:
    """A schema that keeps the options of the table that is being made."""
    options = of_table(given)
    if not options:
        return ddl
    text = (MARK + json.dumps(dict(sorted(options.items())))).replace("\\", "\\\\").replace("'", "\\'")
    first, comma, others = ddl.partition(", ")
    return f"{first} COMMENT '{text}'{comma}{others}"


def options_of(given: Mapping[str, str], schema: "StructType", where: str = "batch") -> dict[str, str]:
    """What was given, over what the schema of a table has kept for queries."""
    return {**_usable(_found(schema), where), **{key.lower(): value for key, value in given.items()}}


def options_to_write(given: Mapping[str, str], schema: "StructType") -> dict[str, str] | None:
    """What the table has kept that rows are inserted into; None when they are written with options of their own.

    Its topic is the one that it reads. Raises ConfigError when it may be that, and may be where the rows come from.
    """
    from rmqkit.spark.options import SPARKS_OWN

    found = _found(schema)
    names = {key.lower() for key in given} - SPARKS_OWN
    if not found:
        return None
    if names:
        if "namesrv" in found and "namesrv" not in names:
            raise ConfigError(
                f"option namesrv is missing: the rows have a column of a table of name servers {found['namesrv']}, and "
                "other options are given; say where to send"
            )
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
    """Without the known options that are not of this place."""
    from rmqkit.spark.options import OPTIONS, READ

    places = READ if where in READ else {where}
    others = {name.lower() for name, option in OPTIONS.items() if not option.where & places}
    return {key: value for key, value in given.items() if key.lower() not in others}
