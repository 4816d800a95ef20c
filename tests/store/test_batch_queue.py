"""Queues of BatchCQ topics: Apache's units, pulls inside a batch, recovery, retention, replicas.

Source: `store/.../queue/BatchConsumeQueue.java`, `store/.../DefaultMessageStore.java`
(`getMessage`), `store/src/test/.../queue/BatchConsumeMessageTest.java`.
"""

from random import Random
from struct import Struct

import pytest

from rmqkit.broker.handlers.messages.batch_shape import of_messages
from rmqkit.store import ENGINES
from rmqkit.store.contract import GetStatus, StoreWriteError
from rmqkit.store.queues.batch_queue import BatchQueue, message_count
from rmqkit.store.queues.consume_queue import ConsumeQueue
from rmqkit.testing import StorageEngineContract
from rmqkit.testing.store_world import StoreWorld, put, records_of, run_of, store_config
from rmqkit.wire.batch import BatchMessage, encode_batch
from rmqkit.wire.codes import MessageSysFlag
from rmqkit.wire.javahash import tags_code
from rmqkit.wire.record import decode_record
from tests.store.crash.work import MasterWork

UNIT = Struct(">qiqqqhii")
BITS = MessageSysFlag.INNER_BATCH | MessageSysFlag.NEED_UNWRAP
#: five units per file
SIZES = {"mapped_file_size_consume_queue": 200, "mapper_file_size_batch_consume_queue": 230}
FOLDER = "/store/batchconsumequeue/T/0"


def engine_of(parts):
    """Make an engine for which every topic is a BatchCQ topic."""
    return ENGINES["mapped"](parts._replace(is_batch_topic=lambda topic: True))


class TestBatchQueues(StorageEngineContract):
    """Single messages in queues of batches keep the whole contract, except one rule."""

    make = staticmethod(engine_of)

    def test_time_search_at_both_boundaries(self, world):
        """A time after all messages finds the last record, not the end of the queue."""
        engine = world.engine
        for number in range(4):
            engine.append(put(body=b"%d" % number))
            world.turn(10)
        times = [engine.store_time("T", 0, offset) for offset in range(4)]
        assert [engine.offset_by_time("T", 0, each) for each in times] == [0, 1, 2, 3]
        assert [engine.offset_by_time("T", 0, each + 1) for each in times] == [1, 2, 3, 3]
        assert [engine.offset_by_time("T", 0, each, upper=True) for each in times] == [0, 1, 2, 3]
        assert engine.offset_by_time("T", 0, 0, upper=True) == 0


def world_of(known=True, *, seed=1, **sections):
    """Return a world in which `known` is what the engine learns about each topic's queue type."""
    config = store_config(**{"consume_queue": SIZES, **sections})
    make = lambda parts: ENGINES["mapped"](parts._replace(is_batch_topic=lambda topic: known))  # noqa: E731
    return StoreWorld(make, config, seed=seed)


def batch(count, *, tag="", first=0, topic="T", size=0):
    """Return the arguments of `append_inner_batch` for a batch of `count` messages."""
    body = encode_batch(BatchMessage(0, b"%d" % (first + each) + bytes(size), b"") for each in range(count))
    properties = b"UNIQ_KEY\x01u%d\x02INNER_NUM\x01%d\x02" % (first, count)
    if tag:
        properties += f"TAGS\x01{tag}\x02".encode()
    return put(topic, 0, body, properties=properties, sys_flag=BITS, tags_code=tags_code(tag) if tag else 0), count


def fill(engine, world, counts, *, ms=10):
    first = 0
    for count in counts:
        result = engine.append_inner_batch(*batch(count, first=first))
        assert (result.queue_offset, result.inner_count) == (first, count)
        world.turn(ms)
        first += count


def pull(engine, offset, **limits):
    limits = {"count_max": 32, "size_max": 1 << 20, **limits}
    return engine.read("T", 0, offset, **limits)


def record_of(data):
    return decode_record(data, check_crc=True)


def bases(read):
    return [record_of(record).queue_offset for record in records_of(read.buffers)]


def units_of(world, count):
    """Return the first units in the queue's first file."""
    data = world.folder.files[f"{FOLDER}/{0:020d}"].read(0, count * UNIT.size)
    return list(UNIT.iter_unpack(data))


# --- bytes


def test_a_unit_has_apaches_fields():
    world = world_of()
    engine = world.start()
    result = engine.append_inner_batch(*batch(3, tag="TagA"))
    engine.append(put("T", 0, b"single"))
    world.turn()
    engine.write_queues()
    record = engine.record(result.phy_offset)
    ms = engine.store_time("T", 0, 2)
    single = engine.entries("T", 0, 3, 1)[0]
    assert units_of(world, 2) == [
        (0, len(record), tags_code("TagA"), ms, 0, 3, -1, 0),
        (result.phy_offset_next, single.size, 0, ms, 3, 1, -1, 0),
    ]
    assert f"{FOLDER}/{0:020d}" in world.folder.files
    assert not [path for path in world.folder.files if "/consumequeue/" in path]


def test_the_record_has_the_base_offset_in_its_properties():
    world = world_of()
    engine = world.start()
    fill(engine, world, [3, 4])
    record = record_of(engine.record(engine.entries("T", 0, 4, 1)[0].phy_offset))
    assert b"INNER_BASE\x013\x02" in record.properties
    assert (record.queue_offset, record.sys_flag) == (3, BITS)


@pytest.mark.parametrize(
    ("properties", "count"),
    [
        (b"INNER_NUM\x0112\x02", 12),
        (b"INNER_NUM\x0132767\x02", 32767),
        (b"", 1),
        (b"INNER_NUM\x0132768\x02", 1),
        (b"INNER_NUM\x010\x02", 1),
        (b"INNER_NUM\x01-2\x02", 1),
        (b"INNER_NUM\x01many\x02", 1),
    ],
)
def test_a_record_without_a_valid_number_is_one_message(properties, count):
    assert message_count(properties) == count


# --- reading


def test_a_pull_inside_a_batch_gets_the_whole_batch():
    world = world_of()
    engine = world.start()
    fill(engine, world, [10] * 10)
    for offset in range(100):
        read = pull(engine, offset, count_max=1)
        assert (read.status, bases(read), read.message_count) == (GetStatus.FOUND, [offset - offset % 10], 10)
        assert (read.offset_next, read.offset_min, read.offset_max) == (offset - offset % 10 + 10, 0, 100)


@pytest.mark.parametrize(("count_max", "expected"), [(1, [0]), (39, [0]), (40, [0, 20]), (41, [0, 20]), (60, [0, 20, 40])])
def test_every_message_of_a_batch_counts_towards_the_limit(count_max, expected):
    """`BatchConsumeMessageTest.testGetBatchMessageWithinNumber`."""
    world = world_of(pull={"max_transfer_count_on_message_in_memory": 1000})
    engine = world.start()
    fill(engine, world, [20] * 5)
    read = pull(engine, 5, count_max=count_max)
    assert (bases(read), read.offset_next) == (expected, 20 * len(expected))


def test_bytes_limit_a_pull_of_batches():
    world = world_of()
    engine = world.start()
    fill(engine, world, [5] * 4)
    size = engine.entries("T", 0, 0, 1)[0].size
    assert bases(pull(engine, 0, size_max=2 * size)) == [0, 5]
    assert bases(pull(engine, 0, size_max=size - 1)) == [0]


def test_a_pull_in_the_middle_of_a_batch_with_a_tag_filter():
    """The batch's own tag decides; a batch that does not match is skipped as a whole."""
    world = world_of()
    engine = world.start()
    for number, tag in enumerate(["a", "b", "", "a"]):
        engine.append_inner_batch(*batch(10, tag=tag, first=10 * number))
        world.turn()
    match = frozenset([tags_code("a")]).__contains__
    assert bases(pull(engine, 4, tag_match=match, count_max=100)) == [0, 30]
    read = pull(engine, 14, tag_match=frozenset([tags_code("c")]).__contains__, count_max=100)
    assert (read.status, read.offset_next, read.buffers) == (GetStatus.NO_MATCHED_MESSAGE, 40, [])
    read = pull(engine, 14, tag_match=match, count_max=1)
    assert (bases(read), read.offset_next) == ([30], 40)


def test_offsets_outside_the_queue():
    world = world_of()
    engine = world.start()
    assert pull(engine, 0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    fill(engine, world, [10, 10])
    assert (pull(engine, 20).status, pull(engine, 20).offset_next) == (GetStatus.OFFSET_OVERFLOW_ONE, 20)
    assert (pull(engine, 21).status, pull(engine, 21).offset_next) == (GetStatus.OFFSET_OVERFLOW_BADLY, 20)


def test_a_time_finds_the_first_message_of_a_batch():
    """`BatchConsumeMessageTest.testGetOffsetInQueueByTime`."""
    world = world_of()
    engine = world.start()
    fill(engine, world, [10] * 19)
    between_ms = engine.store_time("T", 0, 79) + 1
    assert engine.store_time("T", 0, 70) == engine.store_time("T", 0, 79)
    assert engine.offset_by_time("T", 0, between_ms) == 80
    assert engine.offset_by_time("T", 0, between_ms, upper=True) == 70
    assert engine.offset_by_time("T", 0, 0) == 0
    assert engine.offset_by_time("T", 0, between_ms + 10**9) == 180
    assert engine.queue_range("T", 0)[2:] == (0, 190)


def test_entries_have_the_number_of_their_messages():
    world = world_of()
    engine = world.start()
    fill(engine, world, [3, 1, 4])
    assert [(each.queue_offset, each.message_count) for each in engine.entries("T", 0, 1, 10)] == [(0, 3), (3, 1), (4, 4)]
    assert engine.entries("T", 0, 8, 10) == []


def test_the_confirmed_offset_hides_whole_batches():
    world = world_of()
    engine = world.start()
    fill(engine, world, [5, 5, 5])
    ends = [each.phy_offset + each.size for each in engine.entries("T", 0, 0, 3)]
    for confirmed, visible in ((0, 0), (ends[0] - 1, 0), (ends[0], 5), (ends[1] + 1, 10), (ends[2], 15)):
        engine.offset_confirmed = confirmed
        assert engine.queue_range("T", 0).offset_max == visible
        assert sum(5 for _ in bases(pull(engine, 0, count_max=100))) == visible


def test_reads_at_random_offsets_find_the_right_batch():
    """The search starts at the last read's end; any other offset must be found as well."""
    world = world_of(commit_log={"mapped_file_size_commit_log": 65_536})
    engine = world.start()
    random = Random(3)
    counts = [random.randrange(1, 9) for _ in range(60)]
    fill(engine, world, counts, ms=1)
    owner = [
        base for base, count in zip([sum(counts[:each]) for each in range(60)], counts, strict=True) for _ in range(count)
    ]
    for _ in range(300):
        offset = random.randrange(len(owner))
        assert bases(pull(engine, offset, count_max=1)) == [owner[offset]]


# --- failures and recovery


def test_a_failed_write_gives_the_offsets_back():
    world = world_of()
    engine = world.start()
    fill(engine, world, [4])
    world.disk.fail("write")
    engine.append_inner_batch(*batch(7, first=4))
    with pytest.raises(StoreWriteError):
        world.settle()
    assert engine.append_inner_batch(*batch(2, first=4)).queue_offset == 4
    world.turn()
    assert engine.queue_range("T", 0).offset_max == 6


def test_a_torn_last_batch_is_gone_as_a_whole():
    world = world_of(commit_log={"mapped_file_size_commit_log": 65_536})
    engine = world.start()
    fill(engine, world, [10, 10, 10])
    last = engine.entries("T", 0, 20, 1)[0]
    engine.write_queues()
    world.kill()
    log = world.folder.files[f"/store/commitlog/{0:020d}"]
    log.write(last.phy_offset + last.size // 2, bytes(last.size - last.size // 2))
    engine = world.start()
    assert engine.queue_range("T", 0).offset_max == 20
    assert bases(pull(engine, 0, count_max=100)) == [0, 10]
    assert units_of(world, 3)[2] == (0,) * 8
    assert engine.append_inner_batch(*batch(3, first=20)).queue_offset == 20
    world.turn()
    assert bases(pull(engine, 22)) == [20]


@pytest.mark.parametrize("end", ["stop", "kill", "power loss"])
@pytest.mark.parametrize("lost", ["", "folder", "last file", "last unit"])
def test_a_start_finds_or_rebuilds_every_batch(end, lost):
    pulls = {"max_transfer_count_on_message_in_memory": 1000}
    world = world_of(commit_log={"mapped_file_size_commit_log": 65_536}, pull=pulls)
    engine = world.start()
    counts = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
    fill(engine, world, counts)
    world.until(lambda: engine.offset_synced == engine.offset_written)
    engine.write_queues()
    {"stop": world.stop, "kill": world.kill, "power loss": world.crash}[end]()
    files = sorted(path for path in world.folder.files if path.startswith(FOLDER))
    if lost and files:
        for path in {"folder": files, "last file": files[-1:], "last unit": ()}[lost]:
            world.folder.remove(path)
        if lost == "last unit":
            world.folder.files[files[-1]].write(46, bytes(46))
    if end == "stop":
        world.begin()
    engine = world.start()
    whole = pull(engine, 0, count_max=1000)
    assert bases(whole) == [sum(counts[:each]) for each in range(len(counts))]
    assert engine.queue_range("T", 0)[2:] == (0, sum(counts))
    assert engine.append_inner_batch(*batch(2, first=sum(counts))).queue_offset == sum(counts)


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
def test_every_crash_of_a_life_with_queues_of_batches(part):
    """As in `tests/store/crash`: single messages and inner batches of topics of type BatchCQ."""
    work = MasterWork(engine_of, store_config(consume_queue=SIZES))
    for number in range(12):
        if number % 3 == 2:
            work.put("AB"[number % 2], 0, 150 + 40 * number)
        else:
            work.put_inner_batch("AB"[number % 2], 0, [40 * number] * (number % 4 + 1))
        work.turn()
        if number % 4 == 3:
            work.sync()
    work.run(700)
    work.cut(2)
    work.put_inner_batch("A", 0, [60, 70, 80])
    work.restart()
    work.put_inner_batch("B", 0, [90, 10])
    work.turn()
    check = work.enumerate(share=40, part=part)
    assert check.counts
    assert not check.broken


def test_a_cut_drops_whole_batches():
    world = world_of(commit_log={"mapped_file_size_commit_log": 65_536})
    engine = world.start()
    fill(engine, world, [5] * 8)
    at = engine.entries("T", 0, 22, 1)[0].phy_offset
    done = []
    engine.truncate(at, done.append)
    world.until(lambda: done)
    assert done == [None]
    assert engine.queue_range("T", 0).offset_max == 20
    assert bases(pull(engine, 0, count_max=100)) == [0, 5, 10, 15]
    assert engine.append_inner_batch(*batch(3, first=20)).queue_offset == 20


def test_retention_removes_queue_files_and_moves_the_first_offset():
    world = world_of(retention={"file_reserved_time_hours": 0, "clean_resource_interval_ms": 1000, "delete_when": "99"})
    engine = world.start()
    fill(engine, world, [5] * 80)
    world.until(lambda: engine.offset_synced == engine.offset_written)
    assert engine.offset_min == 0
    engine.clean_log()
    world.run(30_000, step_ms=50)
    known = engine.queue_range("T", 0)
    first = engine.entries("T", 0, known.offset_min, 1)[0]
    assert known.offset_min > 0
    assert (first.queue_offset, known.offset_max) == (known.offset_min, 400)
    assert first.phy_offset >= engine.offset_min
    assert f"{FOLDER}/{0:020d}" not in world.folder.files
    assert pull(engine, 0).status is GetStatus.OFFSET_TOO_SMALL
    engine = world.restart()
    assert engine.queue_range("T", 0) == known
    assert bases(pull(engine, known.offset_min + 2, count_max=1)) == [known.offset_min]


def test_a_deleted_topic_leaves_no_files_and_begins_anew():
    world = world_of()
    engine = world.start()
    fill(engine, world, [5] * 8)
    engine.write_queues()
    assert engine.delete_topics(["T"]) == 1
    world.run(200)
    assert not [path for path in world.folder.files if path.startswith(FOLDER)]
    fill(engine, world, [2, 2])
    engine.write_queues()
    assert [unit[4:6] for unit in units_of(world, 2)] == [(0, 2), (2, 2)]


# --- replicas, and queues of the other kind


def copy_log(master, slave):
    """Give the slave's engine all bytes of the master's log."""
    position = slave.engine.offset_max
    while position < master.offset_written:
        data = bytes(master.read_log(position, 1000))
        assert slave.engine.append_log(position, data)
        position += len(data)
        slave.turn()
    slave.run(200)


@pytest.mark.parametrize("known", [True, None])
def test_a_replica_builds_the_same_units(known):
    """Also if it does not know the topic yet, and the first records are single messages."""
    master = world_of(commit_log={"mapped_file_size_commit_log": 65_536})
    engine = master.start()
    for number in range(3):
        engine.append(put("T", 0, b"%d" % number, properties=b"TAGS\x01a\x02", tags_code=tags_code("a")))
        master.turn()
    slave = world_of(known, commit_log={"mapped_file_size_commit_log": 65_536})
    slave.start()
    copy_log(engine, slave)
    assert isinstance(slave.engine.table.by_key["T", 0], BatchQueue if known else ConsumeQueue)
    for count in (4, 5, 6):
        engine.append_inner_batch(*batch(count, first=engine.queue_range("T", 0).offset_max))
        master.turn()
    copy_log(engine, slave)
    for each in (engine, slave.engine):
        each.write_queues()
    slave.run(200)
    assert units_of(slave, 5) == units_of(master, 5)
    assert not [path for path in slave.folder.files if "/consumequeue/" in path]
    assert slave.engine.queue_range("T", 0) == engine.queue_range("T", 0)


def test_a_replica_that_knew_a_plain_topic_of_that_name_builds_the_same_units():
    """The topic was deleted and created again as a BatchCQ topic, and the records come first."""
    master = world_of(commit_log={"mapped_file_size_commit_log": 65_536})
    engine = master.start()
    fill(engine, master, [4, 5, 6])
    known = [False]
    make = lambda parts: ENGINES["mapped"](parts._replace(is_batch_topic=lambda topic: known[0]))  # noqa: E731
    config = store_config(consume_queue=SIZES, commit_log={"mapped_file_size_commit_log": 65_536})
    slave = StoreWorld(make, config)
    slave.start()
    copy_log(engine, slave)
    assert isinstance(slave.engine.table.by_key["T", 0], ConsumeQueue)
    known[0] = True
    engine.append_inner_batch(*batch(2, first=15))
    master.turn()
    copy_log(engine, slave)
    for each in (engine, slave.engine):
        each.write_queues()
    assert units_of(slave, 4) == units_of(master, 4)
    assert slave.engine.queue_range("T", 0) == engine.queue_range("T", 0)


def test_a_batch_of_a_plain_topic_has_one_arrival_beside_queues_of_batches():
    make = lambda parts: ENGINES["mapped"](parts._replace(is_batch_topic=lambda topic: topic == "T"))  # noqa: E731
    world = StoreWorld(make, store_config(consume_queue=SIZES))
    engine = world.start()
    texts = [(0, b"%d" % number, b"UNIQ_KEY\x01id%04d\x02" % number) for number in range(8)]
    uniform = of_messages(texts)
    engine.append_inner_batch(*batch(3))
    for topic in ("P", "T", "P"):
        engine.append_batch(put(topic, 0), uniform)
    arrivals = world.turn()
    assert sorted((arrival.topic, arrival.queue_offset, arrival.record_count) for arrival in arrivals) == [
        ("P", 0, 8),
        ("P", 8, 8),
        ("T", 0, 1),
        *(("T", 3 + number, 1) for number in range(8)),
    ]
    assert bases(pull(engine, 0, count_max=20)) == [0, *range(3, 11)]


def test_a_run_for_queues_of_both_kinds():
    make = lambda parts: ENGINES["mapped"](parts._replace(is_batch_topic=lambda topic: topic == "T"))  # noqa: E731
    world = StoreWorld(make, store_config(consume_queue=SIZES))
    engine = world.start()
    engine.append_inner_batch(*batch(3))
    assert len(engine.append_run(run_of([put("PT"[number % 2], 0, b"%d" % number) for number in range(6)]))) == 6
    world.turn()
    assert bases(pull(engine, 0)) == [0, 3, 4, 5]
    assert engine.queue_range("P", 0)[2:] == (0, 3)


def test_a_slave_that_became_the_master_replaces_its_plain_queue():
    known = [None]
    make = lambda parts: ENGINES["mapped"](parts._replace(is_batch_topic=lambda topic: known[0]))  # noqa: E731
    world = StoreWorld(make, store_config(consume_queue=SIZES))
    engine = world.start()
    engine.append(put("T", 0, b"before"))
    world.turn()
    known[0] = True
    engine.append(put("T", 0, b"in the same turn"))
    assert engine.append_inner_batch(*batch(3)).queue_offset == 2
    world.turn()
    assert isinstance(engine.table.by_key["T", 0], BatchQueue)
    assert bases(pull(engine, 0)) == [0, 1, 2]
    assert engine.queue_range("T", 0).offset_max == 5


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_a_queue_of_the_wrong_kind_is_rebuilt(end):
    """Apache's broker does not start with such a folder (`ConsumeQueueStore.queueTypeShouldBe`)."""
    known = [None]
    make = lambda parts: ENGINES["mapped"](parts._replace(is_batch_topic=lambda topic: known[0]))  # noqa: E731
    world = StoreWorld(make, store_config(consume_queue=SIZES))
    engine = world.start()
    for number in range(5):
        engine.append(put("T", 0, b"%d" % number))
        world.turn()
    engine.write_queues()
    world.run(500)
    world.stop() if end == "stop" else None
    world.kill() if end == "kill" else world.begin()
    known[0] = True
    engine = world.start()
    engine.write_queues()
    assert isinstance(engine.table.by_key["T", 0], BatchQueue)
    assert bases(pull(engine, 0)) == [0, 1, 2, 3, 4]
    assert not [path for path in world.folder.files if "/consumequeue/" in path]


def test_a_plain_topic_keeps_plain_entries_for_a_record_with_the_bits():
    """A record that the broker would refuse today, in a log from elsewhere."""
    master = world_of(commit_log={"mapped_file_size_commit_log": 65_536})
    engine = master.start()
    engine.append_inner_batch(*batch(3))
    engine.append_inner_batch(*batch(3, first=3))
    master.turn()
    slave = world_of(False, commit_log={"mapped_file_size_commit_log": 65_536})
    slave.start()
    copy_log(engine, slave)
    assert bases(pull(slave.engine, 0)) == [0]
    assert bases(pull(slave.engine, 1)) == [3]


def test_plain_and_batch_topics_with_an_extension_side_by_side():
    """Arrivals carry the tags codes of the messages, whichever queue they are in."""
    config = store_config(consume_queue={**SIZES, "enable_consume_queue_ext": True})
    make = lambda parts: ENGINES["mapped"](parts._replace(is_batch_topic=lambda topic: topic == "T"))  # noqa: E731
    world = StoreWorld(make, config)
    engine = world.start()
    engine.append(put("P", 0, b"1", properties=b"TAGS\x01a\x02", tags_code=97))
    engine.append_inner_batch(*batch(3, tag="b"))
    engine.append(put("P", 0, b"2", properties=b"TAGS\x01b\x02", tags_code=98))
    arrivals = world.turn()
    assert sorted(each[:4] for each in arrivals) == [("P", 0, 0, 97), ("P", 0, 1, 98), ("T", 0, 0, tags_code("b"))]
    world.kill()
    engine = world.start()
    assert [entry.tags_code for entry in engine.entries("P", 0, 0, 2)] == [97, 98]
    assert bases(pull(engine, 1)) == [0]
