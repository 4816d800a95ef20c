"""The columns of a message in Spark: one table for Spark's schema, Arrow's, and the documentation.

Every column is nullable for Spark, as in Kafka's source. The Arrow types are those that
`pyspark.sql.pandas.types.to_arrow_schema` makes of the same DDL (time zone UTC), because Spark
compares a batch's schema with its own field by field.

With `decode=json` the fields of the JSON bodies and `_corrupt` follow the columns of a message. A
schema that the user gives (`.schema(...)`) names message columns and JSON fields in any order. Its
types must match. A column that can be null must not be NOT NULL, because Spark trusts that without
checking.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from rmqkit.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from rmqkit.spark.options import SourceOptions

TIME = pa.timestamp("us", tz="UTC")
TEXT_MAP = pa.map_(pa.string(), pa.field("value", pa.string(), nullable=True))
#: Column with the body that `decode=json` could not decode; it follows the columns of the schema.
CORRUPT = "_corrupt"
#: Columns that can be null: not every message has keys and tags, and a time may be beyond the range
#: of Spark's timestamps.
NULLABLE = frozenset({"keys", "tags", "born_time", "store_time"})


class Column(NamedTuple):
    """One column: its type for Spark (`ddl`) and for Arrow, and its meaning for docs/spark.md."""

    name: str
    ddl: str
    arrow_type: pa.DataType
    doc: str


_TABLE = (
    Column("topic", "string", pa.string(), "the topic"),
    Column("broker", "string", pa.string(), "name of the broker group"),
    Column("queue", "int", pa.int32(), "queue id"),
    Column("offset", "bigint", pa.int64(), "number of the message in its queue"),
    Column("message_id", "string", pa.string(), "the sender's id (UNIQ_KEY), else store host and physical offset in hex"),
    Column("keys", "string", pa.string(), "the message's keys, separated by spaces; null if it has none"),
    Column("tags", "string", pa.string(), "the message's tag; null if it has none"),
    Column("body", "binary", pa.binary(), "the body, decompressed if necessary"),
    Column("properties", "map<string,string>", TEXT_MAP, "all properties, including those of RocketMQ"),
    Column("born_time", "timestamp", TIME, "when the sender created the message, by the sender's clock"),
    Column("store_time", "timestamp", TIME, "when the broker stored the message, by the broker's clock"),
    Column("born_host", "string", pa.string(), "address and port of the sender"),
    Column("store_host", "string", pa.string(), "address and port of the broker that stored the message"),
    Column("sys_flag", "int", pa.int32(), "RocketMQ's bits: compression, transaction state, IPv6 hosts"),
    Column("reconsume_times", "int", pa.int32(), "how often consumers sent the message back"),
    Column("read_from", "string", pa.string(), "`master` or `slave`: the broker that served the message to this query"),
)
COLUMNS: dict[str, Column] = {column.name: column for column in _TABLE}
"""Name -> column, in the order of a query's columns."""
#: Columns of the place of a row in the log. A row of `rocketmq-store` is a message, or bytes that
#: contain no readable message: then the message's columns are null and `damage` says why.
_STORE_TABLE = (
    Column("flag", "int", pa.int32(), "the user's flag"),
    Column("prepared_offset", "bigint", pa.int64(), "for a transaction's outcome: the physical offset of its half message"),
    Column("file", "string", pa.string(), "path of the commit-log file"),
    Column("physical_offset", "bigint", pa.int64(), "offset of the row's first byte in the whole log"),
    Column("size", "bigint", pa.int64(), "number of bytes of the row"),
    Column(
        "body_crc_ok", "boolean", pa.bool_(), "whether the body matches its stored checksum; null if no body can be read"
    ),
    Column("damage", "string", pa.string(), "what is wrong with these bytes; null for an intact message"),
)
#: Of a message, what a running broker knows is missing.
STORE_COLUMNS = {each.name: each for each in (*_TABLE, *_STORE_TABLE) if each.name not in ("broker", "read_from")}
"""Name -> column of `rocketmq-store`, in the order of a query's columns."""


def arrow_schema(names: Iterable[str], table: Mapping[str, Column] = COLUMNS) -> pa.Schema:
    """Return Arrow's schema of these columns, in the given order."""
    return pa.schema([pa.field(name, table[name].arrow_type) for name in names])


def ddl(names: Iterable[str], table: Mapping[str, Column] = COLUMNS) -> str:
    """Return Spark's schema (DDL) of these columns, in the given order."""
    return ", ".join(f"`{name}` {table[name].ddl}" for name in names)


def schema_ddl(options: SourceOptions) -> str:
    """Return the schema (DDL) of a query without a schema of the user. Raises ConfigError."""
    parts = [ddl(options.columns)]
    if options.decode == "json":
        if not options.decode_schema:
            raise ConfigError("option decode=json needs the fields of the bodies: set decodeSchema, or use .schema(...)")
        parts += [options.decode_schema, f"`{CORRUPT}` string"]
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
