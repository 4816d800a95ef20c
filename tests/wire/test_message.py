import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.client.message import MessageExt
from rmqkit.errors import CorruptRecord, RemoteProtocolError
from rmqkit.wire import inflate
from rmqkit.wire.codes import MessageSysFlag
from rmqkit.wire.hosts import pack_host
from rmqkit.wire.inflate import CompressionMissing, inflate_body
from rmqkit.wire.record import encode_record, iter_records
from tests.wire.apache_bytes import LOG, RECORD_V4

V4 = bytes.fromhex(RECORD_V4)
# "hello" as compressed by Lz4Compressor, ZstdCompressor and ZlibCompressor of Apache 5.5.0
LZ4_HELLO = bytes.fromhex("04224d186070730500008068656c6c6f00000000")
ZSTD_HELLO = bytes.fromhex("28b52ffd005828000068656c6c6f010000")
ZLIB_HELLO = bytes.fromhex("785ecb48cdc9c90700062c0215")


def record(**changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "topic": "T",
        "queue_id": 1,
        "flag": 0,
        "queue_offset": 5,
        "phy_offset": 1000,
        "sys_flag": 0,
        "born_ms": 1,
        "born_host": pack_host("10.0.0.1", 1),
        "store_ms": 2,
        "store_host": pack_host("10.0.0.2", 2),
        "reconsume_times": 0,
        "prepared_offset": 0,
        "body": b"hello",
        "properties": b"",
    }
    return encode_record(**fields | changes)


def messages(data: bytes, *, check_crc: bool = True) -> list[MessageExt]:
    return [MessageExt(each, "broker-a") for each in iter_records(data, check_crc=check_crc)]


def test_messages_of_a_pull_answer() -> None:
    first, second = messages(V4 + record(properties=b"UNIQ_KEY\x01U1\x02"))
    assert first.topic == "TopicTest"
    assert (first.queue_id, first.queue_offset, first.flag, first.reconsume_times) == (3, 42, 7, 2)
    assert (first.body, first.properties) == (b"hello", {"KEYS": "k1 k2", "TAGS": "TagA"})
    assert (first.tags, first.keys) == ("TagA", "k1 k2")
    assert first.offset_msg_id == first.msg_id == "C0A8010200002A9F0000011F71FB04CB"
    assert first.born_host == "127.0.0.1:50000"
    assert first.store_host == "192.168.1.2:10911"
    assert (first.born_timestamp_ms, first.store_timestamp_ms) == (1700000000001, 1700000000002)
    assert (second.msg_id, second.tags, second.keys) == ("U1", None, None)
    assert second.offset_msg_id == "0A0000020000000200000000000003E8"
    assert "id U1" in repr(second)
    assert [m.body for m in messages(b"".join(map(bytes.fromhex, LOG)))] == [
        b"body-0",
        b"body-1",
        b"body-2",
        b"one",
        b"two",
    ]
    assert messages(b"") == []


@pytest.mark.parametrize("kind", [0, MessageSysFlag.COMPRESSION_ZLIB])
def test_zlib_bodies_are_inflated(kind: int) -> None:
    """CompressionType.findByValue: 0 is the older value for zlib."""
    stored = record(body=zlib.compress(b"x" * 5000), sys_flag=MessageSysFlag.COMPRESSED | kind)
    assert messages(stored)[0].body == b"x" * 5000


def test_what_java_has_compressed_is_inflated() -> None:
    assert inflate_body(ZLIB_HELLO, MessageSysFlag.COMPRESSION_ZLIB) == b"hello"


@pytest.mark.parametrize("data", [V4[:-1], V4 + b"x", V4[:90] + b"x" + V4[91:]])
def test_a_damaged_record_is_reported(data: bytes) -> None:
    with pytest.raises(CorruptRecord):
        messages(data)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"not zlib", 0),
        (zlib.compress(b"x" * 100)[:-1], 0),
        (b"x", 0x400),
        (zlib.compress(bytes(1_000_001)), 0),
    ],
)
def test_a_body_that_cannot_be_inflated_is_the_remote_error(body: bytes, kind: int) -> None:
    with pytest.raises(RemoteProtocolError):
        inflate_body(body, MessageSysFlag.COMPRESSED | kind, 1_000_000)


def test_limit_is_the_last_size_that_passes() -> None:
    stored = zlib.compress(bytes(1000))
    assert len(inflate_body(stored, MessageSysFlag.COMPRESSED, 1000)) == 1000
    with pytest.raises(RemoteProtocolError, match="more than 999 bytes"):
        inflate_body(stored, MessageSysFlag.COMPRESSED, 999)


@pytest.mark.parametrize("kind", [MessageSysFlag.COMPRESSION_LZ4, MessageSysFlag.COMPRESSION_ZSTD])
def test_a_missing_package_is_named_with_the_extra_that_brings_it(kind: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(inflate, "import_module", absent)
    with pytest.raises(CompressionMissing, match=r"rmqkit\[compression\]"):
        inflate_body(b"x", kind)


@pytest.mark.parametrize(
    ("package", "kind", "data"),
    [
        ("lz4.frame", MessageSysFlag.COMPRESSION_LZ4, LZ4_HELLO),
        ("zstandard", MessageSysFlag.COMPRESSION_ZSTD, ZSTD_HELLO),
    ],
)
def test_lz4_and_zstd_bodies_are_inflated_within_the_limit(package: str, kind: int, data: bytes) -> None:
    pytest.importorskip(package)
    assert inflate_body(data, kind) == b"hello"
    with pytest.raises(RemoteProtocolError, match="more than 4 bytes"):
        inflate_body(data, kind, 4)
    for bad in (b"", b"garbage", data[:-6]):
        with pytest.raises(RemoteProtocolError):
            inflate_body(bad, kind)


@given(st.binary(max_size=100), st.integers(0, 130))
def test_random_bytes_give_messages_or_an_error_that_is_meant(noise: bytes, start: int) -> None:
    for data in (noise, V4[:start] + noise + V4[start + len(noise) :], record(body=noise, sys_flag=0xC1)):
        try:
            for message in messages(data, check_crc=False):
                assert isinstance(message.body, bytes)
        except (CorruptRecord, RemoteProtocolError, CompressionMissing):
            pass
