"""JSON bodies as columns: one row per message, whatever the body contains."""

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import types as spark
from pyspark.sql.pandas.types import to_arrow_schema

from rmqkit.errors import ConfigError
from rmqkit.spark.decode_json import JsonBodies

SCHEMA = spark.StructType(
    [
        spark.StructField("a", spark.ArrayType(spark.IntegerType())),
        spark.StructField("m", spark.MapType(spark.StringType(), spark.LongType())),
        spark.StructField(
            "s",
            spark.StructType(
                [
                    spark.StructField("x", spark.DateType()),
                    spark.StructField(
                        "n",
                        spark.StructType(
                            [spark.StructField("t", spark.TimestampNTZType()), spark.StructField("f", spark.FloatType())]
                        ),
                    ),
                ]
            ),
        ),
        spark.StructField("d", spark.DecimalType(10, 2)),
        spark.StructField("y", spark.ByteType()),
        spark.StructField("t", spark.TimestampType()),
        spark.StructField("b", spark.BinaryType()),
        spark.StructField("o", spark.BooleanType()),
        spark.StructField("g", spark.DoubleType()),
        spark.StructField("w", spark.StringType()),
        spark.StructField("h", spark.ShortType()),
    ]
)


def arrow(schema: spark.StructType) -> pa.Schema:
    return to_arrow_schema(schema, timezone="UTC")


def rows(*bodies: bytes) -> list[dict]:
    decoder = JsonBodies(arrow(SCHEMA).append(pa.field("_corrupt", pa.string())))
    batch = decoder.add(pa.record_batch([pa.array(bodies, pa.binary())], names=["body"]))
    batch.validate(full=True)
    return batch.to_pylist()


def test_nested_values():
    body = {
        "a": [1, None],
        "m": {"k": 3},
        "s": {"x": "2024-01-02", "n": {"t": "2024-01-02T03:04:05", "f": 1.5}},
        "d": "7.5",
        "y": -128,
        "t": "2024-01-02T03:04:05+02:00",
        "b": "AQI=",
        "o": True,
        "g": 1,
        "w": "text",
        "not in the schema": [{}],
    }
    (row,) = rows(json.dumps(body).encode())
    assert row == {
        "a": [1, None],
        "m": [("k", 3)],
        "s": {"x": date(2024, 1, 2), "n": {"t": datetime(2024, 1, 2, 3, 4, 5), "f": 1.5}},
        "d": Decimal("7.50"),
        "y": -128,
        "t": datetime(2024, 1, 2, 1, 4, 5, tzinfo=UTC),
        "b": b"\x01\x02",
        "o": True,
        "g": 1.0,
        "w": "text",
        "h": None,
        "_corrupt": None,
    }


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"no json",
        b"null",
        b"[1]",
        b"1",
        b'{"y": 128}',
        b'{"y": "1"}',
        b'{"y": 1.5}',
        b'{"d": 1.234}',
        b'{"d": 123456789.5}',
        b'{"t": "yesterday"}',
        b'{"w": 1}',
        b'{"w": "\xff"}',
        b'{"s": {"x": 1}}',
        b'{"a": [99999999999]}',
        b'{"y": 1} {"y": 2}',
        b"[" * 5000,
    ],
)
def test_what_does_not_decode_is_corrupt_and_its_neighbours_are_not(body):
    good = b'{\n"y": 1,\n"d": 1.25}'
    before, row, after = rows(good, body, good)
    assert (before["y"], before["d"], before["_corrupt"]) == (1, Decimal("1.25"), None)
    assert after == before
    assert row.pop("_corrupt") == body.decode("utf-8", "replace")
    assert set(row.values()) == {None}


values = st.fixed_dictionaries(
    {},
    optional={
        "w": st.none() | st.text(st.characters(codec="utf-8"), max_size=5),
        "y": st.none() | st.integers(-128, 127),
        "a": st.none() | st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), max_size=3),
        "m": st.dictionaries(
            st.text(st.characters(codec="utf-8"), max_size=3), st.integers(-(2**63), 2**63 - 1), max_size=3
        ),
        "g": st.floats(allow_nan=False, allow_infinity=False),
    },
)


@settings(deadline=None)
@given(st.lists(values | st.binary(max_size=5), max_size=8))
def test_every_message_has_its_row(bodies):
    texts = [body if isinstance(body, bytes) else json.dumps(body).encode() for body in bodies]
    got = rows(*texts)
    assert len(got) == len(bodies)
    for body, text, row in zip(bodies, texts, got, strict=True):
        if isinstance(body, dict):
            assert row["_corrupt"] is None
            assert {name: row[name] for name in ("w", "y", "a", "g")} == {
                name: body.get(name) for name in ("w", "y", "a", "g")
            }
            assert row["m"] == (None if "m" not in body else list(body["m"].items()))
        else:
            assert row["_corrupt"] in (None, text.decode("utf-8", "replace"))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (spark.StructType([spark.StructField("i", spark.DayTimeIntervalType())]), r"interval day.*\(a\.i\)"),
        (spark.MapType(spark.LongType(), spark.LongType()), r"of type map<bigint,bigint> \(a\)"),
        (spark.ArrayType(spark.VariantType()), r"of type variant \(a\[\]\)"),
        (spark.StructType([spark.StructField("b", spark.LongType())] * 2), "a field twice in column a"),
    ],
)
def test_a_type_that_cannot_be_decoded(kind, words):
    with pytest.raises(ConfigError, match=words):
        JsonBodies(arrow(spark.StructType([spark.StructField("a", kind)])))
