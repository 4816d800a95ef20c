"""Checks files byte by byte, with the numbers of the format rather than the code's constants."""

import zlib
from struct import pack, unpack

import pytest

from rmqkit.store import ENGINES
from rmqkit.store.contract import PutStatus
from rmqkit.testing.store_world import BORN, HOST, StoreWorld, drain, put, store_config

V6 = bytes(range(16)) + (5).to_bytes(4, "big")


@pytest.fixture
def world() -> StoreWorld:
    world = StoreWorld(ENGINES["mapped"])
    world.start()
    return world


def content(world: StoreWorld, path: str, position: int = 0, size: int = 1 << 20) -> bytes:
    return world.folder.files[f"/store/{path}"].read(position, size)


def put_all(world: StoreWorld, *puts) -> None:
    for each in puts:
        assert world.engine.append(each).status is PutStatus.PUT_OK
    world.settle()


def test_a_record_of_version_1(world):
    """`store/.../CommitLog.java`, `MessageExtEncoder.encode`."""
    stored_ms = world.clock.wall_ms
    put_all(
        world, put("Topic", 3, b"hello", properties=b"KEYS\x01k\x02", flag=9, sys_flag=1, born_ms=77, reconsume_times=2)
    )
    expected = (
        pack(">iI", 91 + 5 + 5 + 7, 0xDAA320A7)
        + pack(">iii", zlib.crc32(b"hello") & 0x7FFFFFFF, 3, 9)
        + pack(">qqi", 0, 0, 1)
        + pack(">q", 77)
        + BORN
        + pack(">q", stored_ms)
        + HOST
        + pack(">iq", 2, 0)
        + pack(">i", 5)
        + b"hello"
        + b"\x05Topic"
        + pack(">h", 7)
        + b"KEYS\x01k\x02"
    )
    assert content(world, "commitlog/00000000000000000000", 0, 120) == expected.ljust(120, b"\0")


def test_a_long_topic_makes_a_record_of_version_2(world):
    topic = "%RETRY%" + "g" * 121
    put_all(world, put(topic, 0, b""))
    data = content(world, "commitlog/00000000000000000000", 0, 92 + 128)
    assert unpack(">iI", data[:8]) == (92 + 128, 0xDAA320AB)
    assert data[88:90] == pack(">h", 128)
    assert data[90:218] == topic.encode()
    assert data[218:] == b"\0\0"


def test_long_topics_need_their_setting():
    world = StoreWorld(ENGINES["mapped"], store_config(send={"auto_message_version_on_topic_len": False}))
    engine = world.start()
    assert engine.append(put("x" * 127)).status is PutStatus.PUT_OK
    assert engine.append(put("x" * 128)).status is PutStatus.MESSAGE_ILLEGAL


@pytest.mark.parametrize(("born", "store", "flags"), [(V6, HOST, 0x10), (BORN, V6, 0x20), (V6, V6, 0x30)])
def test_hosts_of_ipv6_set_their_flags(world, born, store, flags):
    put_all(world, put("T", 0, b"x", born_host=born, store_host=store, sys_flag=0x2))
    data = content(world, "commitlog/00000000000000000000", 0, 200)
    assert unpack(">i", data[36:40]) == (0x2 | flags,)
    assert data[48 : 48 + len(born)] == born
    assert data[56 + len(born) : 56 + len(born) + len(store)] == store
    assert unpack(">i", data[:4]) == (91 + 1 + 1 + len(born) + len(store) - 16,)
    assert len(drain(world.engine, "T", 0)) == 1


def test_a_blank_record_ends_a_file_and_eight_bytes_stay_free(world):
    """Written if the record and 8 bytes do not fit.

    Source: `CommitLog.DefaultAppendMessageCallback.doAppend`.
    """
    fits = 4096 - 8 - 92  # the body of a record that leaves exactly 8 bytes
    put_all(world, put("T", 0, bytes(fits)))
    assert world.engine.offset_max == 4088
    put_all(world, put("T", 0, b"y"))
    assert content(world, "commitlog/00000000000000000000", 4088, 8) == pack(">iI", 8, 0xCBD43194)
    assert world.engine.offset_max == 4096 + 93
    put_all(world, put("T", 0, bytes(fits - 93 + 1)))
    assert content(world, "commitlog/00000000000000004096", 93, 8) == pack(">iI", 4096 - 93, 0xCBD43194)
    assert sorted(path for path in world.folder.files if "commitlog" in path) == [
        "/store/commitlog/00000000000000000000",
        "/store/commitlog/00000000000000004096",
        "/store/commitlog/00000000000000008192",
    ]
    assert all(file.size == 4096 for path, file in world.folder.files.items() if "commitlog" in path)


def test_a_batch_moves_on_as_a_whole(world):
    put_all(world, put("T", 0, bytes(3000)))
    result = world.engine.append_batch(put("T"), [(0, bytes(500), b"", 0)] * 3)
    assert list(result.phy_offsets) == [4096, 4096 + 592, 4096 + 2 * 592]
    assert world.engine.append_batch(put("T"), [(0, bytes(500), b"", 0)] * 7).status is PutStatus.MESSAGE_ILLEGAL


def test_a_record_that_fits_into_no_file_is_refused(world):
    assert world.engine.append(put("T", 0, bytes(4096 - 92 - 7))).status is PutStatus.MESSAGE_ILLEGAL


def test_units_of_a_consume_queue(world):
    """i64 offset, i32 size, i64 tags code; files of the configured size (`ConsumeQueue`)."""
    put_all(world, put("T", 5, b"a", tags_code=-7), put("U", 0, b"b"), put("T", 5, b"c", tags_code=2598919))
    world.run(1200)
    data = content(world, "consumequeue/T/5/00000000000000000000")
    assert len(data) == 200
    assert data[:40] == pack(">qiq", 0, 93, -7) + pack(">qiq", 186, 93, 2598919)
    assert not any(data[40:])


def test_queue_files_roll(world):
    for _ in range(25):
        put_all(world, put("T", 0, b"a"))
    world.run(1200)
    paths = [path for path in sorted(world.folder.files) if "consumequeue/T/0" in path]
    assert [path.rpartition("/")[2] for path in paths] == [f"{offset:020d}" for offset in (0, 200, 400)]
    assert len(drain(world.engine, "T", 0)) == 25


def test_a_queue_that_begins_later_is_filled_up_with_pre_blank_units(world):
    """(0, 0x7FFFFFFF, 0) up to the first unit (`ConsumeQueue.fillPreBlank`)."""
    other = StoreWorld(ENGINES["mapped"])
    other.start()
    for number in range(13):
        put_all(world, put("T", 0, bytes(1000 if number < 12 else 10)))
    start = 3 * 4096
    data = bytes(world.engine.read_log(start, 4096))
    assert other.engine.append_log(start, data)
    other.run(1200)
    assert tuple(other.engine.queue_range("T", 0)) == ("T", 0, 9, 13)
    data = content(other, "consumequeue/T/0/00000000000000000000")
    assert data[:180] == pack(">qiq", 0, 0x7FFFFFFF, 0) * 9
    assert data[180:] == pack(">qiq", 12288, 1092, 0)


def test_transactions_that_are_not_committed_have_no_unit(world):
    """Prepared and rolled back records hold queue offset 0 and are not dispatched (`CommitLog`)."""
    put_all(world, put("T", 0, b"1"))
    result = world.engine.append(put("T", 0, b"prepared", sys_flag=0x4))
    assert (result.status, result.queue_offset) == (PutStatus.PUT_OK, 0)
    put_all(world, put("T", 0, b"rolled back", sys_flag=0xC), put("T", 0, b"committed", sys_flag=0x8))
    assert world.engine.queue_range("T", 0).offset_max == 2
    assert [record[88] for record in drain(world.engine, "T", 0)] == [ord("1"), ord("c")]


def test_the_checkpoint_has_six_numbers_on_a_page(world):
    """`StoreCheckpoint`; 5.5.0's sixth is logicsPhysicalOffset."""
    put_all(world, put("T", 0, b"1"))
    world.clock.wall_ms += 1000
    put_all(world, put("T", 0, b"2"))
    stored_ms = world.clock.wall_ms
    world.stop()
    data = content(world, "checkpoint")
    assert len(data) == 4096
    assert unpack(">6q", data[:48]) == (stored_ms, stored_ms, 0, 0, 186, 93)
    assert not any(data[48:])


def test_abort_is_there_while_the_store_is_open(world):
    assert content(world, "abort").isdigit()
    assert content(world, "lock") == b"lock"
    world.stop()
    assert "/store/abort" not in world.folder.files
    world.begin()
    world.start()
    assert "/store/abort" in world.folder.files


def test_the_crc_property_ends_the_properties():
    """`__CRC32#` and ten digits, lowest first, over all bytes before it (`createCrc32`)."""
    world = StoreWorld(ENGINES["mapped"], store_config(commit_log={"enabled_append_prop_crc": True}))
    world.start()
    put_all(
        world, put("T", 0, b"body", properties=b"KEYS\x01k"), put("T", 0, b"b", properties=b"__CRC32#\x011\x02A\x01b\x02")
    )
    for record in map(bytes, drain(world.engine, "T", 0)):
        crc = zlib.crc32(record[:-20]) & 0x7FFFFFFF
        assert record[-20:] == b"__CRC32#\x01" + f"{crc:010d}"[::-1].encode() + b"\x02"
        assert record.count(b"__CRC32#") == 1
    assert bytes(drain(world.engine, "T", 0)[0])[:-20].endswith(b"KEYS\x01k\x02")


def test_index_files_have_upstreams_sizes_and_names():
    """40 + slots × 4 + entries × 20; yyyyMMddHHmmssSSS (`IndexFile`, `IndexService`)."""
    world = StoreWorld(ENGINES["mapped"], store_config(index={"max_hash_slot_num": 5_000_000, "max_index_num": 20_000_000}))
    world.start()
    put_all(world, put("T", 0, b"1", properties=b"UNIQ_KEY\x01abc\x02"))
    world.run(1200)
    ((path, file),) = [(path, file) for path, file in world.folder.files.items() if "/index/" in path]
    assert file.size == 420_000_040
    name = path.rpartition("/")[2]
    assert len(name) == 17
    assert name.isdigit()
    assert name.startswith("20250615")
