"""The columns of `rocketmq-store`.

They are the columns of a message, except those that only a running broker knows, and columns for
the place of a row in the log. A row is a message, or bytes that contain no readable message: then
the message's columns are null and `damage` says why.
"""

import pyarrow as pa

from rmqkit.spark.columns import COLUMNS, Column

_ONLY_OF_BROKERS = ("broker", "read_from")
_TABLE = (
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
STORE_COLUMNS: dict[str, Column] = {
    **{name: column for name, column in COLUMNS.items() if name not in _ONLY_OF_BROKERS},
    **{column.name: column for column in _TABLE},
}
"""Name -> column, in the order of a query's columns."""
