from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.errors import CorruptRecord
from rmqkit.wire import properties as props
from rmqkit.wire import record as rec
from rmqkit.wire.hosts import pack_host
from rmqkit.wire.record import Blank, Record, decode_record, encode_copy, encode_record, iter_records
from tests.wire.apache_bytes import LOG, LOG_WITH_PROPERTY_CRC, RECORD_V4, RECORD_V6

V4, V6 = bytes.fromhex(RECORD_V4), bytes.fromhex(RECORD_V6)
LOG_BYTES = [bytes.fromhex(text) for text in LOG]
CRC_BYTES = [bytes.fromhex(text) for text in LOG_WITH_PROPERTY_CRC]
GOLDEN = [V4, V6, *LOG_BYTES, *CRC_BYTES]


def decoded(data: bytes, **options: Any) -> Record:
    record = decode_record(data, check_crc=True, **options)
    assert isinstance(record, Record)
    return record


def test_fields_are_those_of_message_decoder_decode() -> None:
    assert decoded(V4) == Record(
        size=126,
        magic=rec.MAGIC_V1,
        body_crc=907060870,
        queue_id=3,
        flag=7,
        queue_offset=42,
        phy_offset=1234567890123,
        sys_flag=0,
        born_ms=1700000000001,
        born_host=pack_host("127.0.0.1", 50000),
        store_ms=1700000000002,
        store_host=pack_host("192.168.1.2", 10911),
        reconsume_times=2,
        prepared_offset=99,
        body=b"hello",
        topic="TopicTest",
        properties=b"KEYS\x01k1 k2\x02TAGS\x01TagA\x02",
    )
    six = decoded(V6)
    assert (six.sys_flag, six.born_host, six.store_host) == (
        0x30,
        pack_host("2001:db8::1", 50000),
        pack_host("::1", 10911),
    )
    assert six[14:] == decoded(V4)[14:]


@pytest.mark.parametrize("data", GOLDEN, ids=range(len(GOLDEN)))
def test_golden_records_read_back_byte_for_byte(data: bytes) -> None:
    assert encode_copy(decoded(data)) == data


@pytest.mark.parametrize("data", GOLDEN, ids=range(len(GOLDEN)))
def test_a_record_cut_anywhere_needs_more_bytes(data: bytes) -> None:
    for size in range(len(data)):
        assert decode_record(data[:size], check_crc=True) is None
    assert decode_record(b"xx" + data, 2, check_crc=True) == decoded(data) == decoded(data + b"yy")


def test_a_record_reads_the_same_from_any_buffer_and_without_its_body() -> None:
    for data in GOLDEN:
        record = decoded(data)
        assert decoded(memoryview(data)) == decoded(bytearray(data)) == record
        assert decoded(data, read_body=False) == record._replace(body=b"")


def test_store_writes_consecutive_queue_offsets_and_physical_offsets() -> None:
    """CommitLog and MessageExtEncoder of 5.5.0: three messages, then a split batch of two."""
    records = list(iter_records(b"".join(LOG_BYTES), check_crc=True))
    assert [r.phy_offset for r in records] == [0, 124, 372, 508, 631]
    assert [(r.queue_id, r.queue_offset) for r in records] == [(0, 0), (1, 0), (2, 0), (0, 1), (0, 2)]
    assert [r.body for r in records] == [b"body-0", b"body-1", b"body-2", b"one", b"two"]
    assert records[2].sys_flag == 0x10


def test_version_two_is_taken_for_topics_longer_than_127() -> None:
    record = decoded(LOG_BYTES[1])
    assert (record.magic, len(record.topic)) == (rec.MAGIC_V2, 132)
    assert decoded(encode_copy(record, topic="t" * 127)).magic == rec.MAGIC_V1
    assert decoded(encode_copy(record, topic="t" * 128)).magic == rec.MAGIC_V2
    assert decoded(encode_copy(record, topic="é" * 64)).magic == rec.MAGIC_V2


@pytest.mark.parametrize("data", CRC_BYTES, ids=range(len(CRC_BYTES)))
def test_property_crc_is_that_of_message_decoder_create_crc32(data: bytes) -> None:
    assert rec.property_crc_is_right(data)
    record = decoded(data)
    plain = props.remove(record.properties, b"__CRC32#")
    assert encode_copy(record, properties=plain, property_crc=True) == data
    assert encode_copy(record, properties=plain[:-1], property_crc=True) == data
    assert encode_copy(record, property_crc=True) == data
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        assert not rec.property_crc_is_right(damaged)


def test_records_without_a_property_crc_do_not_pass_as_having_one() -> None:
    assert not any(rec.property_crc_is_right(data) for data in LOG_BYTES)


def test_positions_of_fields() -> None:
    record = decoded(V4)
    for position, size, value in [
        (rec.POSITION_SIZE, 4, record.size),
        (rec.POSITION_MAGIC, 4, record.magic),
        (rec.POSITION_BODY_CRC, 4, record.body_crc),
        (rec.POSITION_QUEUE_ID, 4, record.queue_id),
        (rec.POSITION_FLAG, 4, record.flag),
        (rec.POSITION_QUEUE_OFFSET, 8, record.queue_offset),
        (rec.POSITION_PHY_OFFSET, 8, record.phy_offset),
        (rec.POSITION_SYS_FLAG, 4, record.sys_flag),
        (rec.POSITION_BORN_MS, 8, record.born_ms),
    ]:
        assert int.from_bytes(V4[position : position + size], signed=True) == value
    assert V4[rec.POSITION_BORN_HOST :].startswith(record.born_host)


def test_blank_record_needs_only_its_first_eight_bytes() -> None:
    blank = rec.encode_blank(1000)
    assert blank == bytes.fromhex("000003e8cbd43194")
    assert decode_record(blank, check_crc=True) == Blank(1000)
    assert decode_record(blank[:7], check_crc=True) is None
    with pytest.raises(CorruptRecord, match="blank"):
        decode_record(rec.encode_blank(7), check_crc=True)


def spoil(position: int, value: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data[:position] + value + data[position + len(value) :]


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda data: bytes(200), "magic"),
        (spoil(4, b"\xff"), "magic"),
        (spoil(0, b"\0\0\0\x50"), "80 bytes"),
        (spoil(0, b"\xff\xff\xff\xff"), "-1 bytes"),
        (spoil(0, b"\0\0\0\x7d"), "add up"),
        (spoil(84, b"\xff\xff\xff\xff"), "past its end"),
        (spoil(84, b"\x7f\xff\xff\xff"), "past its end"),
        (spoil(84, b"\0\0\0\x04"), "past its end|add up"),
        (spoil(93, b"\x80"), "past its end"),
        (spoil(93, b"\x7f"), "past its end"),
        (spoil(103, b"\x00\x14"), "add up"),
        (spoil(103, b"\xff\xff"), "add up"),
        (spoil(90, b"x"), "CRC"),
        (spoil(8, b"\0\0\0\0"), "CRC"),
        (spoil(39, b"\x30"), "past its end|add up"),
    ],
)
def test_damage_is_a_corrupt_record(damage: Callable[[bytes], bytes], text: str) -> None:
    with pytest.raises(CorruptRecord, match=text):
        decode_record(damage(V4), check_crc=True)


def test_crc_is_checked_only_when_asked_for_and_never_of_an_empty_body() -> None:
    damaged = spoil(90, b"x")(V4)
    assert isinstance(decode_record(damaged, check_crc=False), Record)
    with pytest.raises(CorruptRecord, match="CRC"):
        decode_record(damaged, check_crc=True, read_body=False)
    empty = encode_copy(decoded(V4), body=b"")
    assert isinstance(decode_record(spoil(8, b"\x01")(empty), check_crc=True), Record)


def test_a_pull_answer_that_is_cut_short_is_corrupt() -> None:
    with pytest.raises(CorruptRecord, match="cut short"):
        list(iter_records(V4 + V4[:50]))
    with pytest.raises(CorruptRecord, match="blank"):
        list(iter_records(V4 + rec.encode_blank(100)))
    assert list(iter_records(b"")) == []


def test_what_does_not_fit_its_field_is_refused() -> None:
    record = decoded(V4)
    with pytest.raises(ValueError, match="32768"):
        encode_copy(record, properties=b"x" * 32768)
    with pytest.raises(ValueError, match="32767"):
        encode_copy(record, properties=b"x" * 32767, property_crc=True)
    assert len(decoded(encode_copy(record, properties=b"x" * 32767)).properties) == 32767
    with pytest.raises(ValueError, match="topic"):
        encode_copy(record, topic="t" * 32768)


int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
hosts = st.binary(min_size=8, max_size=8) | st.binary(min_size=20, max_size=20)
records = st.fixed_dictionaries(
    {
        "topic": st.text(st.characters(exclude_categories=["Cs"]), max_size=140),
        "queue_id": int32,
        "flag": int32,
        "queue_offset": int64,
        "phy_offset": int64,
        "sys_flag": int32,
        "born_ms": int64,
        "born_host": hosts,
        "store_ms": int64,
        "store_host": hosts,
        "reconsume_times": int32,
        "prepared_offset": int64,
        "body": st.binary(max_size=300),
        "properties": st.binary(max_size=300),
        "property_crc": st.booleans(),
    }
)


@given(records, st.integers(0, 3))
def test_what_is_written_reads_back(fields: dict[str, Any], before: int) -> None:
    data = encode_record(**fields)
    record = decode_record(b"x" * before + data + b"y", before, check_crc=True)
    assert isinstance(record, Record)
    assert record.size == len(data)
    assert record.sys_flag & ~0x30 == fields["sys_flag"] & ~0x30
    if fields.pop("property_crc"):
        assert rec.property_crc_is_right(data)
        assert record.properties[-20:-12] == b"__CRC32#"[:8]
        del fields["properties"]
    for name, value in fields.items():
        if name != "sys_flag":
            assert getattr(record, name) == value
    for size in range(0, len(data), 7):
        assert decode_record(data[:size], check_crc=True) is None


@given(st.binary(max_size=300), st.sampled_from([V4, V6, LOG_BYTES[1]]), st.data())
def test_random_bytes_give_a_record_none_or_corrupt(noise: bytes, golden: bytes, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(golden)))
    for candidate in (noise, golden[:start] + noise, golden[:start] + noise + golden[start + len(noise) :]):
        for check_crc in (False, True):
            try:
                record = decode_record(candidate, check_crc=check_crc)
            except CorruptRecord:
                continue
            if isinstance(record, Record):
                assert record.size <= len(candidate)
