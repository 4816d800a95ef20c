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
import json
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any, TypedDict

import msgspec
import pyarrow as pa

from rmqkit.errors import ConfigError
from rmqkit.spark.columns import COLUMNS, CORRUPT, TIME

_WHOLE_BITS = {"byte": 8, "short": 16, "integer": 32, "long": 64}
_WHOLE = {"byte": pa.int8(), "short": pa.int16(), "integer": pa.int32(), "long": pa.int64()}
_PLAIN: dict[str, tuple[Any, pa.DataType]] = {
    "string": (str, pa.string()),
    "boolean": (bool, pa.bool_()),
    "float": (float, pa.float32()),
    "double": (float, pa.float64()),
    "binary": (bytes, pa.binary()),
    "date": (dt.date, pa.date32()),
    "timestamp": (dt.datetime, TIME),
    "timestamp_ntz": (dt.datetime, pa.timestamp("us")),
} | {
    name: (Annotated[int, msgspec.Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)], _WHOLE[name])
    for name, bits in _WHOLE_BITS.items()
}


class JsonBodies:
    """Decodes bodies by a schema, which is given as Spark's JSON text.

    `schema` is the Arrow schema of the decoded columns, with `_corrupt` as the last one. The
    constructor raises ConfigError for a schema that it cannot use.
    """

    def __init__(self, schema_json: str) -> None:
        self.schema, self._decode = _made(schema_json)
        self._rows_type = pa.struct(list(self.schema)[:-1])

    def add(self, batch: pa.RecordBatch, columns: Sequence[str]) -> pa.RecordBatch:
        """Return these columns of the batch, followed by those of `schema`.

        The batch must have the column `body`, even if `columns` does not name it.
        """
        arrays = [batch.column(name) for name in columns] + self.arrays(batch.column("body"))
        fields = [batch.schema.field(name) for name in columns] + list(self.schema)
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def arrays(self, bodies: pa.Array) -> list[pa.Array]:
        """Decode bodies into one column for each field of `schema`."""
        texts = bodies.to_pylist()
        rows: list[dict[str, Any] | None] = []
        corrupt: list[bytes | None] = []
        decode = self._decode
        for text in texts:
            try:
                rows.append(decode(text))
                corrupt.append(None)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError, OverflowError):
                rows.append(None)
                corrupt.append(text)
        try:
            made = pa.array(rows, self._rows_type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            # Some value does not fit its column, for example a decimal with too many digits.
            # Convert row by row to find it.
            made = pa.concat_arrays(
                [self._one(row, text, place, corrupt) for place, (row, text) in enumerate(zip(rows, texts, strict=True))]
            )
        return [
            *made.flatten(),
            pa.array([text if text is None else text.decode("utf-8", "replace") for text in corrupt], pa.string()),
        ]

    def _one(self, row: dict[str, Any] | None, text: bytes, place: int, corrupt: list[bytes | None]) -> pa.Array:
        try:
            return pa.array([row], self._rows_type)
        except (pa.ArrowException, ValueError, TypeError, OverflowError):
            corrupt[place] = text
            return pa.nulls(1, self._rows_type)


@lru_cache(maxsize=16)
def _made(schema_json: str) -> tuple[pa.Schema, Any]:
    try:
        schema = json.loads(schema_json)
        fields = schema["fields"]
        names = [field["name"] for field in fields]
    except (ValueError, KeyError, TypeError):
        raise ConfigError("the schema of decode=json is not a struct in Spark's JSON form") from None
    if not names:
        raise ConfigError("the schema of decode=json has no columns")
    for name in names:
        if name in COLUMNS or name == CORRUPT:
            raise ConfigError(
                f"the schema of decode=json has a column {name!r}, but a message has a column of that name: rename it"
            )
    kind, arrow = _struct(fields, "")
    decoder = msgspec.json.Decoder(kind, dec_hook=None)
    return pa.schema([*arrow, pa.field(CORRUPT, pa.string())]), decoder.decode


def _struct(fields: Sequence[dict[str, Any]], path: str) -> tuple[Any, list[pa.Field]]:
    """Return a type for msgspec and the fields for Arrow.

    The type is a TypedDict, because Arrow converts dicts to structs.
    """
    kinds: dict[str, Any] = {}
    arrow: list[pa.Field] = []
    for field in fields:
        name = field["name"]
        if name in kinds:
            raise ConfigError(f"the schema of decode=json has the column {path + name} twice")
        kind, arrow_type = _type(field["type"], path + name)
        kinds[name] = kind | None
        arrow.append(pa.field(name, arrow_type))
    return TypedDict("Row", kinds, total=False), arrow  # type: ignore[operator]  # a type made at run time


def _type(given: Any, path: str) -> tuple[Any, pa.DataType]:
    if isinstance(given, str):
        if given in _PLAIN:
            return _PLAIN[given]
        if given.startswith("decimal(") and given.endswith(")"):
            precision, _, scale = given[8:-1].partition(",")
            return Decimal, pa.decimal128(int(precision), int(scale))
    elif given["type"] == "struct":
        kind, fields = _struct(given["fields"], f"{path}.")
        return kind, pa.struct(fields)
    elif given["type"] == "array":
        kind, arrow_type = _type(given["elementType"], f"{path}[]")
        return list[kind | None], pa.list_(pa.field("element", arrow_type))  # type: ignore[valid-type]  # made at run time
    elif given["type"] == "map" and given["keyType"] == "string":
        kind, arrow_type = _type(given["valueType"], f"{path}{{}}")
        return dict[str, kind | None], pa.map_(pa.string(), pa.field("value", arrow_type))  # type: ignore[valid-type]  # made at run time
    raise ConfigError(f"decode=json cannot read a column of type {given!r} ({path})")
