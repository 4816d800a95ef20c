"""Decoding records to columns gives the same values as reading record by record."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit.client.message import MessageExt
from rmqkit.client.producers.compression import compression
from rmqkit.errors import CorruptRecord, RemoteProtocolError
from rmqkit.spark.columns import COLUMNS, arrow_schema
from rmqkit.spark.decode import DecodedRecords, batches_of
from rmqkit.wire import properties as props
from rmqkit.wire.codes import MessageSysFlag
from rmqkit.wire.hosts import pack_host
from rmqkit.wire.record import Record, decode_record, encode_record

CONSTANTS = {"broker": "broker-a", "read_from": "slave"}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def record_batch(buffer, starts, names, constants):
    [batch] = batches_of(DecodedRecords(buffer, starts), arrow_schema(names), constants)
    return batch


hosts = st.sampled_from([("10.0.0.1", 1), ("10.0.0.2", 65_535), ("fd00::1", 10_911), ("::1", 0)])
names = st.sampled_from(["UNIQ_KEY", "KEYS", "TAGS", "WAIT", "a", "ab", "TAGX", "キー", ""]) | st.text(max_size=5)
values = st.text(max_size=8) | st.just("")
pairs = st.lists(st.tuples(names, values), max_size=6)
torn_properties = (
    pairs.flatmap(
        lambda some: st.sampled_from(
            ["".join(f"{name}\x01{value}\x02" for name, value in some), "\x02".join(f"{n}\x01{v}" for n, v in some)]
        ).map(lambda text: text.encode("utf-8", "surrogatepass"))
    )
    | st.binary(max_size=12)
    | st.lists(st.sampled_from([b"\x01", b"\x02", b"k", b"TAGS", b"\xff", b"\xc3"]), max_size=9).map(b"".join)
)
bodies = st.binary(max_size=40) | st.sampled_from([b"x" * 3000, b"[1]"])
topics = st.sampled_from(["T", "%RETRY%g", "t" * 127, "t" * 128, "ü" * 100])


@st.composite
def records(draw) -> bytes:
    body, sys_flag = draw(bodies), draw(st.sampled_from([0, 0, 0, MessageSysFlag.TRANSACTION_COMMIT]))
    packing = draw(st.sampled_from(["", "", "zlib", "lz4", "zstd", "broken"]))
    if packing == "broken":
        sys_flag |= MessageSysFlag.COMPRESSED
    elif packing:
        chosen = compression(packing)
        body, sys_flag = chosen.compress(body, 5), sys_flag | chosen.sys_flag
    return encode_record(
        topic=draw(topics),
        queue_id=draw(st.integers(0, 2**31 - 1)),
        flag=draw(st.integers(-(2**31), 2**31 - 1)),
        queue_offset=draw(st.integers(0, 2**63 - 1)),
        phy_offset=draw(st.integers(0, 2**63 - 1)),
        sys_flag=sys_flag,
        born_ms=draw(st.integers(0, 2**41)),
        born_host=pack_host(*draw(hosts)),
        store_ms=draw(st.integers(0, 2**41)),
        store_host=pack_host(*draw(hosts)),
        reconsume_times=draw(st.integers(0, 20)),
        prepared_offset=0,
        body=body,
        properties=draw(torn_properties),
        property_crc=draw(st.booleans()),
    )


def laid_out(made: list[bytes], gap: bytes = b"") -> tuple[bytearray, np.ndarray]:
    starts = np.cumsum([0] + [len(record) + len(gap) for record in made[:-1]])[: len(made)]
    return bytearray(gap.join(made)), starts.astype(np.int64)


def row_of(made: bytes) -> dict[str, object]:
    """Return the row that the readers of `rmqkit.wire` and `rmqkit.client` make of a record."""
    record = decode_record(made, check_crc=True)
    assert isinstance(record, Record)
    message = MessageExt(record, "broker-a")
    try:
        body = message.body
    except RemoteProtocolError:
        body = record.body
    return {
        "topic": record.topic,
        "broker": "broker-a",
        "queue": record.queue_id,
        "offset": record.queue_offset,
        "message_id": message.msg_id,
        "keys": message.keys,
        "tags": message.tags,
        "body": body,
        "properties": list(message.properties.items()),
        "born_time": EPOCH + timedelta(milliseconds=record.born_ms),
        "store_time": EPOCH + timedelta(milliseconds=record.store_ms),
        "born_host": message.born_host,
        "store_host": message.store_host,
        "sys_flag": record.sys_flag,
        "reconsume_times": record.reconsume_times,
        "read_from": "slave",
    }


@settings(max_examples=50, deadline=None)
@given(st.lists(records(), min_size=1, max_size=12), st.sampled_from([b"", b"gap", b"\x01\x02"]), st.randoms())
def test_columns_are_what_the_reader_of_single_records_says(made, gap, random):
    buffer, starts = laid_out(made, gap)
    order = list(range(len(made)))
    random.shuffle(order)
    batch = record_batch(buffer, starts[order], list(COLUMNS), CONSTANTS)
    batch.validate(full=True)
    assert batch.schema == arrow_schema(COLUMNS)
    expected = [row_of(made[place]) for place in order]
    for name in COLUMNS:
        assert batch.column(name).to_pylist() == [row[name] for row in expected], name


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "a", "ab", "ü", "z\0"]), max_size=5),
    st.lists(st.lists(values.filter(lambda text: "\x02" not in text), min_size=5, max_size=5), min_size=1, max_size=8),
    st.sampled_from(["\x02", ""]),
    st.sampled_from([None, 0, -1]),
)
def test_messages_of_one_producer_are_alike(some, texts, end, other):
    """Messages with equal property layouts take a fast path; one odd message must not break it."""
    made = ["\x02".join(f"{name}\x01{value}" for name, value in zip(some, each, strict=False)) + end for each in texts]
    if other is not None:
        made[other] = made[other].replace("TAGS", "TAGX").replace("ab", "a")
    encoded = [plain(properties=text.encode()) for text in made]
    batch = record_batch(*laid_out(encoded), ["properties", "keys", "tags", "message_id"], {})
    batch.validate(full=True)
    for row, record in zip(batch.to_pylist(), encoded, strict=True):
        expected = row_of(record)
        assert row == {name: expected[name] for name in row}


@settings(max_examples=30, deadline=None)
@given(st.lists(records(), min_size=1, max_size=6), st.sets(st.sampled_from(list(COLUMNS)), min_size=1))
def test_a_choice_of_columns_is_the_same_columns(made, wanted):
    buffer, starts = laid_out(made)
    every = record_batch(buffer, starts, list(COLUMNS), CONSTANTS)
    some = record_batch(buffer, starts, sorted(wanted), CONSTANTS)
    assert some.to_pydict() == {name: every.column(name).to_pylist() for name in sorted(wanted)}


def plain(body: bytes = b"body", properties: bytes = b"", **fields) -> bytes:
    usual = {
        "topic": "T",
        "queue_id": 0,
        "flag": 0,
        "queue_offset": 0,
        "phy_offset": 0,
        "sys_flag": 0,
        "born_ms": 0,
        "born_host": pack_host("10.0.0.1", 1),
        "store_ms": 0,
        "store_host": pack_host("10.0.0.1", 1),
        "reconsume_times": 0,
        "prepared_offset": 0,
    }
    return encode_record(body=body, properties=properties, **(usual | fields))


def test_many_names_and_names_that_come_twice():
    texts = [b"".join(b"n%d\x01%d\x02" % (n % 90, n) for n in range(row, row + 100)) for row in range(5)]
    made = [plain(properties=text) for text in texts]
    batch = record_batch(*laid_out(made), ["properties"], {})
    assert batch.column("properties").to_pylist() == [list(props.decode(text).items()) for text in texts]


def test_a_time_beyond_all_clocks_is_null():
    made = [plain(born_ms=2**62), plain(born_ms=-(2**62)), plain(born_ms=5)]
    batch = record_batch(*laid_out(made), ["born_time"], {})
    assert batch.column("born_time").to_pylist() == [None, None, EPOCH + timedelta(milliseconds=5)]


def test_no_records_and_no_columns():
    empty = record_batch(b"", np.empty(0, np.int64), list(COLUMNS), CONSTANTS)
    assert (empty.num_rows, empty.schema) == (0, arrow_schema(COLUMNS))
    assert record_batch(*laid_out([plain(), plain()]), [], {}).num_rows == 2


def test_body_and_properties_that_were_not_chosen_are_not_read():
    broken = bytearray(plain())
    broken[88 + 4] = 127  # the topic's length: it exceeds the record
    head_only = [name for name in COLUMNS if name not in ("topic", "message_id", "keys", "tags", "properties", "body")]
    assert record_batch(broken, np.zeros(1, np.int64), head_only, {}).num_rows == 1
    with pytest.raises(CorruptRecord, match="queue offset 0, physical offset 0"):
        record_batch(broken, np.zeros(1, np.int64), ["properties"], {})


@settings(max_examples=100, deadline=None)
@given(records(), st.integers(8, 200), st.integers(0, 255))
def test_damage_is_an_error_or_a_row_and_nothing_else(made, place, value):
    broken = bytearray(made)
    broken[min(place, len(broken) - 1)] = value
    try:
        batch = record_batch(broken, np.zeros(1, np.int64), list(COLUMNS), CONSTANTS)
    except CorruptRecord:
        return
    batch.validate(full=True)


def test_bodies_that_inflate_to_much_come_in_more_batches(caplog):
    zlib = compression("zlib")
    made = [plain(body=zlib.compress(bytes([n]) * 1000, 5), sys_flag=zlib.sys_flag, queue_offset=n) for n in range(7)]
    made.insert(3, plain(body=b"p" * 900, queue_offset=100))
    batches = list(batches_of(DecodedRecords(*laid_out(made)), arrow_schema(["offset", "body"]), {}, bytes_max=2500))
    assert [batch.num_rows for batch in batches] == [2, 2, 2, 2]
    table = pa.Table.from_batches(batches)
    assert table.column("offset").to_pylist() == [0, 1, 2, 100, 3, 4, 5, 6]
    assert [len(body) for body in table.column("body").to_pylist()] == [1000, 1000, 1000, 900, 1000, 1000, 1000, 1000]
    assert len(list(batches_of(DecodedRecords(*laid_out(made)), arrow_schema(["offset"]), {}, bytes_max=2500))) == 1


def test_a_body_that_cannot_be_inflated_comes_as_it_is(caplog):
    batch = record_batch(*laid_out([plain(body=b"no zlib", sys_flag=MessageSysFlag.COMPRESSED)]), ["body"], {})
    assert batch.column("body").to_pylist() == [b"no zlib"]
    assert "zlib" in caplog.text
