"""`decode=json`: decodes JSON bodies into the columns of the user's schema, one row per message.

Each body is decoded on its own, by a decoder built for the schema. If all bodies were one text, a
body with a line break, an empty body, or a body with two values would shift all rows behind it.

A body either is the JSON object of its row, or it does not decode. In the second case all columns
of the schema are null, and `_corrupt` has the body as text (`body` has its bytes). This happens for
text that is not JSON, for anything but an object, and for a value that does not fit its column.
Fields that the schema does not have are ignored. Fields that a body does not have are null.

    string                       a JSON string
    byte, short, int, long       a number without fraction, in range
    float, double, decimal       a number; a decimal also as a string; digits fit the column
    date, timestamp              ISO 8601; a timestamp without a zone is UTC
    binary                       a string in base64
    array, map<string, …>, struct

Every column is nullable, whatever the schema says, as with Spark's `from_json`.
"""

import datetime as dt
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any, TypedDict

import msgspec
import pyarrow as pa

from rmqkit.errors import ConfigError
from rmqkit.spark.columns import COLUMNS, CORRUPT, TIME

#: Arrow type -> type for msgspec.
_PLAIN: dict[pa.DataType, Any] = {
    pa.string(): str,
    pa.bool_(): bool,
    pa.float32(): float,
    pa.float64(): float,
    pa.binary(): bytes,
    pa.date32(): dt.date,
    TIME: dt.datetime,
    pa.timestamp("us"): dt.datetime,
} | {
    kind: Annotated[int, msgspec.Meta(ge=-(2 ** (kind.bit_width - 1)), le=2 ** (kind.bit_width - 1) - 1)]
    for kind in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
}
_MISFITS = (pa.ArrowException, ValueError, TypeError, OverflowError)


class JsonBodies:
    """Decodes the bodies of a query with this schema.

    Its columns that are neither a message's nor `_corrupt` are the fields of the bodies. Raises
    ConfigError if one has a type that cannot be decoded.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._rows_type = pa.struct([field for field in schema if field.name not in COLUMNS and field.name != CORRUPT])
        self._decode = _decoder(self._rows_type)

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch of the schema. The given one has its columns of a message, and `body`."""
        arrays = dict(zip(batch.schema.names, batch.columns, strict=True)) | self.columns(batch.column("body"))
        return pa.RecordBatch.from_arrays([arrays[name] for name in self.schema.names], schema=self.schema)

    def columns(self, bodies: pa.Array) -> dict[str, pa.Array]:
        """Decode bodies into the columns of their fields, and `_corrupt`."""
        texts = bodies.to_pylist()
        rows: list[dict[str, Any] | None] = []
        for text in texts:
            try:
                rows.append(self._decode(text))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError):
                rows.append(None)
        try:
            made = pa.array(rows, self._rows_type)
        except _MISFITS:
            # Some value does not fit its column, for example a decimal with too many digits.
            # Convert row by row to find it.
            rows = [row if self._fits(row) else None for row in rows]
            made = pa.array(rows, self._rows_type)
        corrupt = [text.decode("utf-8", "replace") if row is None else None for text, row in zip(texts, rows, strict=True)]
        fields = [field.name for field in self._rows_type]
        return dict(zip(fields, made.flatten(), strict=True)) | {CORRUPT: pa.array(corrupt, pa.string())}

    def _fits(self, row: dict[str, Any] | None) -> bool:
        try:
            pa.array([row], self._rows_type)
        except _MISFITS:
            return False
        return True


@lru_cache(maxsize=16)
def _decoder(rows_type: pa.StructType) -> Any:
    return msgspec.json.Decoder(_type(rows_type, "")).decode


def _type(kind: pa.DataType, path: str) -> Any:
    """Return the type for msgspec: for a struct a TypedDict, because Arrow takes dicts."""
    if kind in _PLAIN:
        return _PLAIN[kind]
    if pa.types.is_decimal(kind):
        return Decimal
    # A struct with a field that cannot be null is one of Spark's own types, such as variant.
    if pa.types.is_struct(kind) and all(field.nullable for field in kind):
        fields = {field.name: _type(field.type, f"{path}.{field.name}".lstrip(".")) | None for field in kind}
        if len(fields) < len(kind):
            raise ConfigError(f"the schema of decode=json has a field twice in column {path}")
        return TypedDict("Row", fields, total=False)  # type: ignore[operator]  # a type made at run time
    if pa.types.is_list(kind):
        return list[_type(kind.value_type, f"{path}[]") | None]  # type: ignore[misc]  # made at run time
    if pa.types.is_map(kind) and kind.key_type == pa.string():
        return dict[str, _type(kind.item_type, f"{path}{{}}") | None]  # type: ignore[misc]  # made at run time
    from pyspark.sql.pandas.types import from_arrow_type

    raise ConfigError(f"decode=json cannot read a column of type {from_arrow_type(kind).simpleString()} ({path})")
