"""Extensions of consume queues: Apache's bytes, whole lives, missing and damaged files.

Source: `store/.../ConsumeQueueExt.java`, `store/.../ConsumeQueue.java`.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit.store import ENGINES
from rmqkit.store.contract import GetStatus, StoreWriteError
from rmqkit.store.log.files import LogFiles
from rmqkit.store.mapped import MappedEngine
from rmqkit.store.queues.consume_queue import ConsumeQueue
from rmqkit.store.queues.extension import ADDRESS_MAX, ExtUnit, QueueExt
from rmqkit.testing import StorageEngineContract
from rmqkit.testing.store_world import StoreWorld, body_of, put, records_of, store_config
from rmqkit.wire.javahash import tags_code

#: written by 5.5.0's `ConsumeQueueExt` in files of 256 bytes: 14 units, every third without bit map
APACHE_FILES = (
    "0014fffffffffffff44800000199c82cc00000000022fffffffffffff83000000199c82cc001000e00020000000000000000000000000022ffff"
    "fffffffffc1800000199c82cc002000e00000400000000000000000000000014000000000000000000000199c82cc00300000022000000000000"
    "03e800000199c82cc004000e0000000010000000000000000000002200000000000007d000000199c82cc005000e000000000020000000000000"
    "000000140000000000000bb800000199c82cc006000000220000000000000fa000000199c82cc007000e0000000000000080000000000000ffff"
    "000000000000000000000000000000000000000000000000",
    "0022000000000000138800000199c82cc008000e00000000000000000100000000000014000000000000177000000199c82cc009000000220000"
    "000000001b5800000199c82cc00a000e000000000000000000000400000000220000000000001f4000000199c82cc00b000e0000000000000000"
    "0000000800000014000000000000232800000199c82cc00c00000022000000000000271000000199c82cc00d000e000000000000000000000000"
    "0020",
)
APACHE_ADDRESSES = [0, 20, 54, 88, 108, 142, 176, 196, 256, 290, 310, 344, 378, 398]
BASE = -(1 << 63)

EXT = {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 256}
SIZES = {"mapped_file_size_consume_queue": 200}
TAGS = ("a", "b", "c", "")


def with_ext(parts):
    return MappedEngine(parts, adapt=lambda config: replace(config, consume_queue=replace(config.consume_queue, **EXT)))


class TestMappedWithExt(StorageEngineContract):
    make = with_ext


def world_of(*, bit_map=None, seed=1, **consume_queue):
    config = store_config(consume_queue={**SIZES, **EXT, **consume_queue})
    return StoreWorld(lambda parts: ENGINES["mapped"](parts._replace(bit_map=bit_map)), config, seed=seed)


def tagged(tag, number, *, topic="T", queue_id=0):
    properties = f"TAGS\x01{tag}\x02".encode() if tag else b""
    code = tags_code(tag) if tag else 0
    return put(topic, queue_id, b"%03d %s" % (number, tag.encode()), properties=properties, tags_code=code)


def fill(engine, world, count, *, first=0, topic="T"):
    for number in range(first, first + count):
        engine.append(tagged(TAGS[number % len(TAGS)], number, topic=topic))
        world.turn(7)


def all_of(engine, *, topic="T", queue_id=0, match=None):
    """Return the bodies of a whole queue."""
    bodies, offset = [], engine.queue_range(topic, queue_id).offset_min
    while True:
        read = engine.read(topic, queue_id, offset, count_max=32, size_max=1 << 20, tag_match=match)
        bodies += [body_of(record) for record in records_of(read.buffers)]
        if read.status not in (GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE, GetStatus.MESSAGE_WAS_REMOVING):
            return bodies
        offset = read.offset_next


def by_tag(engine, tag, **where):
    return all_of(engine, match=frozenset([tags_code(tag)]).__contains__, **where)


def of_tag(bodies, tag):
    return [body for body in bodies if body.split(b" ")[1] == tag.encode()]


def entries(engine, topic="T", queue_id=0):
    """Return the raw tags codes of the entries."""
    queue = engine.table.by_key[topic, queue_id]
    return [queue.unit(offset)[2] for offset in range(queue.offset_min, queue.offset_max)]


def units(engine, topic="T", queue_id=0):
    ext = engine.table.by_key[topic, queue_id].ext
    return [ext.get(address) for address in entries(engine, topic, queue_id)]


# --- bytes


def test_units_are_apaches():
    world = world_of()
    queue = ConsumeQueue("T", 0, LogFiles(world.disk, "/cq/T/0", 200))
    ext = QueueExt("T", 0, LogFiles(world.disk, "/ext/T/0", 256))
    wanted = []
    for i in range(14):
        bits = bytearray(14)
        if i % 3:
            bits[i] = 1 << i % 8
        unit = ExtUnit(i * 1000 - 3000, 1_760_000_000_000 + i, bytes(bits) if i % 3 else b"")
        wanted.append(unit)
        assert ext.put(queue, *unit) == BASE + APACHE_ADDRESSES[i]
    assert [ext.get(BASE + at) for at in APACHE_ADDRESSES] == wanted, "from the tail"
    ext.write_tail()
    for start, text in zip((0, 256), APACHE_FILES, strict=True):
        assert world.disk.read(f"/ext/T/0/{start:020d}", 0, 256) == bytes.fromhex(text).ljust(256, b"\0")
    again = QueueExt("T", 0, LogFiles(world.disk, "/ext/T/0", 256))
    assert [again.get(BASE + at) for at in APACHE_ADDRESSES] == wanted, "from the files"
    for at in (1, 230, 432, 511, 512, 1 << 40):
        assert again.get(BASE + at) is None
    assert ADDRESS_MAX == -2147483649


def test_a_unit_that_fits_no_file_is_left_out():
    world = world_of()
    queue = ConsumeQueue("T", 0, LogFiles(world.disk, "/cq/T/0", 200))
    ext = QueueExt("T", 0, LogFiles(world.disk, "/ext/T/0", 256))
    assert ext.put(queue, 77, 1, bytes(240)) == 77


# --- lives


def test_entries_point_to_units_that_have_their_tags_and_times():
    world = world_of(bit_map=lambda topic, properties: properties[-2:] if properties else b"")
    engine = world.start()
    fill(engine, world, 40)
    assert all(address <= ADDRESS_MAX for address in entries(engine))
    assert [unit.tags_code for unit in units(engine)] == [tags_code(TAGS[i % 4]) if TAGS[i % 4] else 0 for i in range(40)]
    assert [unit.bits for unit in units(engine)][:4] == [b"a\x02", b"b\x02", b"c\x02", b""]
    times = [engine.store_time("T", 0, offset) for offset in range(40)]
    assert [unit.store_ms for unit in units(engine)] == times
    assert [arrival.tags_code for arrival in world.arrivals[:3]] == [tags_code(tag) for tag in "abc"], "no addresses"
    assert [entry.tags_code for entry in engine.entries("T", 0, 0, 3)] == [tags_code(tag) for tag in "abc"]
    bodies = all_of(engine)
    assert len(bodies) == 40
    for tag in "abc":
        assert by_tag(engine, tag) == of_tag(bodies, tag)


@pytest.mark.parametrize("how", ["stop", "kill", "crash"])
def test_a_restart_keeps_or_makes_the_units(how):
    world = world_of()
    engine = world.start()
    fill(engine, world, 30)
    world.run(3000, 50)
    if how == "stop":
        world.stop()
        world.begin()
    else:
        getattr(world, how)()
    engine = world.start()
    before = len(all_of(engine))
    fill(engine, world, 20, first=before)
    bodies = all_of(engine)
    for tag in "abc":
        assert by_tag(engine, tag) == of_tag(bodies, tag)
    addresses = entries(engine)
    assert addresses == sorted(set(addresses)), "each has its own"


@pytest.mark.parametrize("gone", ["consumequeue_ext", "consumequeue_ext/T/0/00000000000000000000", "consumequeue"])
def test_without_its_units_a_queue_hides_nothing(gone):
    world = world_of()
    engine = world.start()
    fill(engine, world, 40)
    world.stop()
    world.folder.remove(f"/store/{gone}")
    world.begin()
    engine = world.start()
    fill(engine, world, 8, first=40)
    bodies = all_of(engine)
    for tag in "abc":
        assert set(of_tag(bodies, tag)) <= set(by_tag(engine, tag))
        assert of_tag(by_tag(engine, tag)[-8:], tag)[-1:] == of_tag(bodies, tag)[-1:]
    addresses = entries(engine)
    assert addresses == sorted(set(addresses)), "an address never means two things"


def test_units_of_files_of_another_size_are_left_alone():
    world = world_of()
    engine = world.start()
    fill(engine, world, 40)
    world.stop()
    world.config = store_config(consume_queue={**SIZES, **EXT, "mapped_file_size_consume_queue_ext": 512})
    world.begin()
    engine = world.start()
    fill(engine, world, 40, first=40)
    bodies = all_of(engine)
    assert len(bodies) == 80
    for tag in "abc":
        assert set(of_tag(bodies, tag)) <= set(by_tag(engine, tag))


def test_switched_off_again_the_entries_are_still_understood():
    """`CqUnit.getValidTagsCodeAsLong`: an address that cannot be looked up matches."""
    world = world_of()
    engine = world.start()
    fill(engine, world, 20)
    world.stop()
    world.config = store_config(consume_queue=SIZES)
    world.begin()
    engine = world.start()
    fill(engine, world, 20, first=20)
    bodies = all_of(engine)
    assert by_tag(engine, "a") == bodies[:20] + of_tag(bodies[20:], "a")
    world.stop()
    world.config = store_config(consume_queue={**SIZES, **EXT})
    world.begin()
    engine = world.start()
    fill(engine, world, 20, first=40)
    bodies = all_of(engine)
    assert by_tag(engine, "a") == of_tag(bodies, "a"), "and again with the units"


def test_a_cut_takes_the_units_along():
    world = world_of()
    engine = world.start()
    fill(engine, world, 20)
    world.run(2000, 50)
    cut_at = engine.entries("T", 0, 10, 1)[0].phy_offset
    done = []
    engine.truncate(cut_at, done.append)
    world.until(lambda: done)
    assert done == [None]
    fill(engine, world, 20, first=10)
    bodies = all_of(engine)
    assert len(bodies) == 30
    for tag in "abc":
        assert by_tag(engine, tag) == of_tag(bodies, tag)
    world.kill()
    engine = world.start()
    assert all_of(engine) == bodies
    assert by_tag(engine, "b") == of_tag(bodies, "b")


def test_a_deleted_topic_takes_its_folder_along():
    world = world_of()
    engine = world.start()
    fill(engine, world, 20)
    fill(engine, world, 4, topic="U")
    world.run(1000, 50)
    engine.delete_topics(["T"])
    fill(engine, world, 8)
    world.run(3000, 50)
    assert by_tag(engine, "a") == of_tag(all_of(engine), "a") != []
    engine.delete_topics(["T"])
    world.run(2000, 50)
    paths = {path for path in world.folder.files if "_ext/" in path}
    assert {path.split("/")[3] for path in paths} == {"U"}


def test_files_whose_messages_have_gone_are_removed():
    world = world_of(bit_map=lambda topic, properties: bytes(14))
    world.config = replace(
        world.config,
        retention=replace(
            world.config.retention,
            file_reserved_time_hours=0,
            delete_when="0;1;2;3;4;5;6;7;8;9;10;11;12;13;14;15;16;17;18;19;20;21;22;23",
            clean_resource_interval_ms=1000,
            delete_commit_log_files_interval_ms=1,
        ),
    )
    world.begin()
    engine = world.start()
    fill(engine, world, 200)
    world.run(120_000, 500)
    assert engine.queue_range("T", 0).offset_min > 50
    firsts = sorted(int(path.rpartition("/")[2]) for path in world.folder.files if "_ext/" in path)
    assert firsts[0] > 0
    assert all(units(engine)), "what is left has its units"


def test_the_schedule_topic_keeps_its_due_times():
    world = world_of()
    engine = world.start()
    engine.append(put("SCHEDULE_TOPIC_XXXX", 0, tags_code=1_760_000_000_000))
    world.turn()
    assert entries(engine, "SCHEDULE_TOPIC_XXXX") == [1_760_000_000_000]


def test_a_match_that_knows_of_bits_is_asked_about_them():
    world = world_of(bit_map=lambda topic, properties: b"\x01" if b"TAGS\x01a" in properties else b"\x02")
    engine = world.start()
    fill(engine, world, 12)

    class Bits:
        def __call__(self, tags_code):
            return tags_code > ADDRESS_MAX

        def match_unit(self, unit):
            return unit.bits == b"\x01"

    assert all_of(engine, match=Bits()) == of_tag(all_of(engine), "a")


def test_the_memory_engine_has_none():
    config = store_config(consume_queue=EXT)
    world = StoreWorld(ENGINES["memory"], config)
    engine = world.start()
    fill(engine, world, 4)
    assert by_tag(engine, "a") == [b"000 a"]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(1, 12)),
        st.tuples(
            st.sampled_from(["kill", "crash", "stop", "delete", "cut", "fail", "off", "on", "lose"]), st.integers(1, 5)
        ),
    ),
    min_size=2,
    max_size=14,
)


@settings(deadline=None)
@given(steps=steps, seed=st.integers(0, 1000))
def test_no_life_hides_a_message_from_its_tag(steps, seed):
    world = world_of(seed=seed)
    engine = world.start()
    number = 0
    is_exact = True
    for step, size in steps:
        if step == "put":
            for _ in range(size):
                engine.append(tagged(TAGS[number % 4], number))
                number += 1
            try:
                world.turn(20)
            except StoreWriteError:
                pass
        elif step == "fail":
            world.disk.fail("write", "/store/consumequeue", times=size)
            is_exact = False
        elif step == "delete":
            engine.delete_topics(["T"])
            world.run(50 * size, 25)
        elif step == "cut":
            found = engine.entries("T", 0, engine.queue_range("T", 0).offset_min + size, 1)
            if found:
                done = []
                engine.truncate(found[0].phy_offset, done.append)
                world.until(lambda done=done: done)
        else:
            if step == "stop":
                world.stop()
                world.begin()
            else:
                getattr(world, step if step in ("kill", "crash") else "kill")()
            if step in ("off", "on"):
                world.config = store_config(consume_queue={**SIZES, **EXT, "enable_consume_queue_ext": step == "on"})
                world.begin()
                is_exact = False
            if step == "lose" and any("_ext/" in path for path in world.folder.files):
                world.folder.remove("/store/consumequeue_ext")
                is_exact = False
            engine = world.start()
        bodies = all_of(engine)
        for tag in "abc":
            matched = by_tag(engine, tag)
            assert set(of_tag(bodies, tag)) <= set(matched), (tag, step)
            if is_exact:
                assert of_tag(bodies, tag) == matched, (tag, step)
