"""The rows of a query, in the schema that Spark asked for.

A query has the columns of `columns`. With `decode=json` the fields of the JSON bodies and
`_corrupt` follow them. A schema that the user gives (`.schema(...)`) names message columns and JSON
fields in any order. Its types must match. A column that can be null must not be NOT NULL, because
Spark trusts that without checking.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

from rmqkit.errors import ConfigError
from rmqkit.spark.columns import COLUMNS, CORRUPT, ddl
from rmqkit.spark.options import SourceOptions
from rmqkit.spark.source.topic_reader import read_range

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import InputPartition
    from pyspark.sql.types import StructType

#: Columns that can be null: not every message has keys and tags, and a time may be beyond the range
#: of Spark's timestamps.
NULLABLE = frozenset({"keys", "tags", "born_time", "store_time"})
#: The module that Spark's workers run as `__main__`.
SPARK_DAEMON = "pyspark.daemon"
CORRUPT_DDL = f"`{CORRUPT}` string"


class PartitionReader:
    """The part of a batch's and a stream's reader that runs in the workers. Raises ConfigError."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = options
        self._schema = row_schema(options, schema)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range; none for None, which Spark passes for an empty batch."""
        if partition.value is not None:
            yield from read_range(partition.value, self._options, self._schema)
            spare_the_modules()


@cache
def spare_the_modules() -> None:
    """Exclude the objects that a Spark worker has by now from garbage collection, once per process.

    Spark's workers collect garbage after every task (`pyspark/daemon.py`), each time over all
    objects of the imported modules. That took a fifth of the time of a task that reads 50,000
    messages.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == SPARK_DAEMON:
        gc.freeze()


def schema_ddl(options: SourceOptions) -> str:
    """Return the schema (DDL) of a query without a schema of the user. Raises ConfigError."""
    parts = [ddl(options.columns)]
    if options.decode == "json":
        if not options.decode_schema:
            raise ConfigError("option decode=json needs the fields of the bodies: set decodeSchema, or use .schema(...)")
        parts += [options.decode_schema, CORRUPT_DDL]
    return ", ".join(part for part in parts if part)


def row_schema(options: SourceOptions, schema: StructType) -> pa.Schema:
    """Return the schema of the rows. Raises ConfigError for an unknown column or a wrong type."""
    from pyspark.sql.pandas.types import to_arrow_schema

    twice = [name for name, count in Counter(schema.names).items() if count > 1]
    if twice:
        raise ConfigError(f"the column {twice[0]} occurs twice: leave the message's own column out with option columns")
    wanted = to_arrow_schema(schema, timezone="UTC")
    others = []
    for field in schema.fields:
        if (field.name in NULLABLE or field.name not in COLUMNS) and _is_strict(field.jsonValue()):
            raise ConfigError(f"the column {field.name} can be null: remove NOT NULL from the schema")
        if field.name not in COLUMNS:
            others.append(field)
        elif not wanted.field(field.name).type.equals(COLUMNS[field.name].arrow_type):
            raise ConfigError(
                f"the column {field.name} is {COLUMNS[field.name].ddl}, not {field.dataType.simpleString()}: "
                "cast it in the query"
            )
    if options.decode == "none" and others:
        known = ", ".join(COLUMNS)
        raise ConfigError(f"{others[0].name} is not a column of a message; use {known}, or decode=json for fields")
    if options.decode == "json":
        if all(field.name == CORRUPT for field in others):
            raise ConfigError("option decode=json needs the fields of the bodies, in decodeSchema or in .schema(...)")
        from rmqkit.spark.decode_json import JsonBodies

        JsonBodies(wanted)
    return wanted


def _is_strict(kind: Any) -> bool:
    """Whether a type, given as Spark's JSON, or any part of it, forbids nulls."""
    if not isinstance(kind, dict):
        return False
    if not all(kind.get(mark, True) for mark in ("nullable", "containsNull", "valueContainsNull")):
        return True
    parts = [kind.get("type"), kind.get("elementType"), kind.get("valueType"), *kind.get("fields", ())]
    return any(_is_strict(part) for part in parts)
