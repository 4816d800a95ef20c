"""Options of tables that SQL has made: `CREATE TABLE t USING rocketmq OPTIONS (...)`.

Spark 4.3 gives a Python data source the options of a table when the table is made, and none when it is queried; what
it keeps is the schema. So the schema that we give it then has the options in the comment of its first column, where
queries find them (and `DESCRIBE` shows them). A table with columns of the user's own has no place for them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

#: what tables put before the names of their options; when a table is made they come without it as well
PREFIX = "option."
MARK = "rocketmq: "
NOT_KEPT = (
    "Spark keeps the options of a table only if it has no columns of its own: leave them out, or make a temporary view"
)


def of_table(given: Mapping[str, str]) -> dict[str, str]:
    """The options of a table that is being made; none for any other query."""
    return {key[len(PREFIX) :]: value for key, value in given.items() if key.lower().startswith(PREFIX)}


def kept(ddl: str, given: Mapping[str, str]) -> str:
    """A schema that keeps the options of the table that is being made."""
    options = of_table(given)
    if not options:
        return ddl
    text = (MARK + json.dumps(dict(sorted(options.items())))).replace("\\", "\\\\").replace("'", "\\'")
    first, comma, others = ddl.partition(", ")
    return f"{first} COMMENT '{text}'{comma}{others}"


def options_of(given: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """What was given, over what the schema of a table has kept."""
    first = schema.fields[0].metadata.get("comment", "") if schema.fields else ""
    found = json.loads(first.removeprefix(MARK)) if first.startswith(MARK) else {}
    return {**found, **{key.lower(): value for key, value in given.items()}}
