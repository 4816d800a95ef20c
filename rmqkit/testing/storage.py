"""The contract of a storage engine, as tests: what the broker and replication rely on.

    from rmqkit.testing import StorageEngineContract

    class TestMine(StorageEngineContract):
        make = my_engine         # the factory that the plug-in registers

The engine runs on a simulated disk in virtual time (`StoreWorld`), with small files. An engine
whose messages do not survive a restart sets `keeps = False`. An engine that does not use the disk
port sets `uses_disk = False`, and is not tested with failing disks. Everything else holds for every
engine.
"""

import errno
from typing import ClassVar

import pytest

from rmqkit.store.contract import (
    Arrival,
    GetStatus,
    PutStatus,
    QueueRange,
    StoreWriteError,
)
from rmqkit.testing.storage_batches import ManyPutsContract
from rmqkit.testing.store_world import (
    FOREVER_MS,
    START_MS,
    StoreWorld,
    body_of,
    drain,
    fill,
    keys,
    offset_of,
    phy_offset_of,
    put,
    records_of,
)

TOPICS_REFUSED = ("", ".", "..", "a/b", "../x", "nul\0", "x" * 300)
#: words in the names of tests that need `keeps` or `uses_disk`
_KEEPS_ONLY = ("restart", "kill", "power_loss")
_DISK_ONLY = ("write", "sync_that")


class StorageEngineContract(ManyPutsContract):
    """Tests for a storage engine. Subclass it and set `make`.

    Attributes:
        make: The factory under test.
        keeps: Whether messages survive the end of the process.
        uses_disk: Whether the engine does its I/O through the disk port that it gets.

    Example:
        Test an engine that keeps messages in memory only:

            from rmqkit.testing import StorageEngineContract

            class TestMine(StorageEngineContract):
                make = my_engine
                keeps = False
                uses_disk = False
    """

    keeps: ClassVar[bool] = True
    uses_disk: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        """Remove the tests of properties that the engine does not have."""
        super().__init_subclass__()
        left_out = (() if cls.keeps else _KEEPS_ONLY) + (() if cls.uses_disk else _DISK_ONLY)
        for name in dir(StorageEngineContract):
            if name.startswith("test_") and any(word in name for word in left_out):
                setattr(cls, name, None)

    @pytest.fixture
    def world(self) -> StoreWorld:
        """A new `StoreWorld` for each test. Its engine is ready.

        Example:
            Add a test of your own to the suite:

                class TestMine(StorageEngineContract):
                    make = my_engine

                    def test_it_has_a_fact_of_its_own(self, world):
                        assert "segments" in world.engine.facts()
        """
        world = StoreWorld(type(self).make)
        world.start()
        return world

    # --- putting ----------------------------------------------------------------------------------

    def test_a_put_is_readable_after_settle_and_not_before(self, world: StoreWorld) -> None:
        engine = world.engine
        result = engine.append(put("T", 3, b"hello", tags_code=77))
        assert result.status is PutStatus.PUT_OK
        assert (result.queue_offset, result.phy_offset_next) == (0, engine.offset_max)
        assert engine.queue_range("T", 3) == QueueRange("T", 3, 0, 0)
        assert engine.record(result.phy_offset) is None
        assert engine.read("T", 3, 0, count_max=1, size_max=1).status is not GetStatus.FOUND
        arrivals = world.settle()
        assert list(arrivals) == [Arrival("T", 3, 0, 77)]
        assert engine.offset_written == engine.offset_max == result.phy_offset_next
        read = engine.read("T", 3, 0, count_max=32, size_max=1000)
        assert (read.status, read.offset_next, read.message_count) == (GetStatus.FOUND, 1, 1)
        (record,) = records_of(read.buffers)
        assert body_of(record) == b"hello"
        assert engine.record(result.phy_offset) == record

    def test_queue_offsets_are_dense_and_log_offsets_follow_each_other(self, world: StoreWorld) -> None:
        offsets: dict[int, list[int]] = {0: [], 1: [], 2: []}
        last = 0
        for number in range(90):
            result = world.engine.append(put("T", number % 3, b"x" * number))
            assert result.phy_offset >= last
            last = result.phy_offset_next
            offsets[number % 3].append(result.queue_offset)
            if number % 7 == 0:
                world.turn()
        world.turn()
        assert offsets == {queue_id: list(range(30)) for queue_id in offsets}
        for queue_id in offsets:
            records = drain(world.engine, "T", queue_id)
            assert [offset_of(record) for record in records] == list(range(30))
            assert [len(body_of(record)) for record in records] == list(range(queue_id, 90, 3))

    def test_a_record_says_where_it_stands_and_when_it_was_stored(self, world: StoreWorld) -> None:
        world.turn(5000)
        result = world.engine.append(put("T", 0, b"x", flag=9, born_ms=123))
        world.settle()
        (record,) = drain(world.engine, "T", 0)
        assert phy_offset_of(record) == result.phy_offset
        assert int.from_bytes(record[40:48], "big") == 123
        assert world.engine.store_time("T", 0, 0) == world.clock.wall_ms
        assert world.engine.store_time("T", 0, 1) == -1

    @pytest.mark.parametrize("topic", TOPICS_REFUSED)
    def test_a_topic_that_cannot_be_a_folder_is_refused(self, world: StoreWorld, topic: str) -> None:
        before = world.engine.offset_max
        assert world.engine.append(put(topic)).status is PutStatus.MESSAGE_ILLEGAL
        assert world.engine.append_batch(put(topic), [(0, b"x", b"", 0)]).status is PutStatus.MESSAGE_ILLEGAL
        assert world.engine.offset_max == before

    @pytest.mark.parametrize("topic", ["%RETRY%group", "%DLQ%group", "RMQ_SYS_TRACE_TOPIC", "a.b", "主题"])
    def test_a_topic_may_be_any_other_name(self, world: StoreWorld, topic: str) -> None:
        assert world.engine.append(put(topic, body=b"x")).status is PutStatus.PUT_OK
        world.settle()
        assert len(drain(world.engine, topic, 0)) == 1

    def test_what_is_too_big_is_refused(self, world: StoreWorld) -> None:
        engine = world.engine
        body_max = world.config.send.max_message_size
        assert engine.append(put(body=bytes(body_max + 1))).status is PutStatus.MESSAGE_ILLEGAL
        assert engine.append(put(properties=b"x" * 32768)).status is PutStatus.PROPERTIES_SIZE_EXCEEDED
        assert engine.append_batch(put(), []).status is PutStatus.MESSAGE_ILLEGAL
        assert engine.offset_max == engine.offset_written

    # --- reading ----------------------------------------------------------------------------------

    def test_reading_says_where_to_go_on(self, world: StoreWorld) -> None:
        engine = world.engine
        read = engine.read("none", 0, 5, count_max=1, size_max=1000)
        assert (read.status, read.offset_next) == (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0)
        fill(world, 4)
        for offset, status, offset_next in [
            (-1, GetStatus.OFFSET_TOO_SMALL, 0),
            (4, GetStatus.OFFSET_OVERFLOW_ONE, 4),
            (5, GetStatus.OFFSET_OVERFLOW_BADLY, 4),
            (3, GetStatus.FOUND, 4),
        ]:
            read = engine.read("T", 0, offset, count_max=32, size_max=10_000)
            assert (read.status, read.offset_next) == (status, offset_next)
            assert (read.offset_min, read.offset_max) == (0, 4)

    def test_reading_is_bounded_by_count_and_size_but_the_first_message_always_comes(self, world: StoreWorld) -> None:
        fill(world, 10, size=200)
        engine = world.engine
        assert engine.read("T", 0, 0, count_max=3, size_max=100_000).message_count == 3
        first = engine.read("T", 0, 0, count_max=32, size_max=1)
        assert (first.message_count, first.offset_next) == (1, 1)
        size = first.size
        assert engine.read("T", 0, 0, count_max=32, size_max=2 * size).message_count == 2
        assert engine.read("T", 0, 0, count_max=32, size_max=2 * size - 1).message_count == 1

    def test_filters_pass_over_messages(self, world: StoreWorld) -> None:
        for number in range(10):
            world.engine.append(put("T", 0, b"%d" % number, tags_code=number % 3))
        world.turn()
        read = world.engine.read("T", 0, 0, count_max=32, size_max=100_000, tag_match=lambda code: code == 1)
        assert [body_of(record) for record in records_of(read.buffers)] == [b"1", b"4", b"7"]
        assert read.offset_next == 10
        read = world.engine.read("T", 0, 0, count_max=32, size_max=100_000, tag_match=lambda code: code == 9)
        assert (read.status, read.offset_next) == (GetStatus.NO_MATCHED_MESSAGE, 10)
        read = world.engine.read(
            "T", 0, 0, count_max=32, size_max=100_000, record_match=lambda record: body_of(record) > b"6"
        )
        assert [body_of(record) for record in records_of(read.buffers)] == [b"7", b"8", b"9"]

    def test_entries_have_the_tags_codes(self, world: StoreWorld) -> None:
        engine = world.engine
        for tags_code in (5, -7, 1 << 40):
            engine.append(put(tags_code=tags_code))
        assert not engine.entries("T", 0, 0, 32), "before settle"
        world.turn()
        entries = engine.entries("T", 0, 0, 32)
        assert [(each.queue_offset, each.tags_code) for each in entries] == [(0, 5), (1, -7), (2, 1 << 40)]
        for each in entries:
            record = engine.record(each.phy_offset)
            assert record is not None
            assert (len(record), offset_of(record)) == (each.size, each.queue_offset)
        assert engine.entries("T", 0, 1, 1) == [entries[1]]
        assert not engine.entries("T", 0, 3, 32)
        assert not engine.entries("T", 0, -1, 32)
        assert not engine.entries("T", 9, 0, 32)
        engine.offset_confirmed = entries[1].phy_offset
        assert list(engine.entries("T", 0, 0, 32)) == [entries[0]], "entries beyond the confirmed offset must stay hidden"
        engine.offset_confirmed = None

    def test_time_search_at_both_boundaries(self, world: StoreWorld) -> None:
        engine = world.engine
        assert engine.offset_by_time("T", 0, START_MS) == 0
        start_ms = world.clock.wall_ms
        for wait_ms in (10, 10, 0, 0, 10):  # stored at +10, +20, +20, +20, +30
            world.clock.wall_ms += wait_ms
            engine.append(put())
            world.settle()
        for ms, lower, upper in [(5, 0, 0), (10, 0, 0), (15, 1, 0), (20, 1, 3), (25, 4, 3), (30, 4, 4), (35, 5, 4)]:
            assert engine.offset_by_time("T", 0, start_ms + ms) == lower, ms
            assert engine.offset_by_time("T", 0, start_ms + ms, upper=True) == upper, ms

    def test_the_confirmed_offset_bounds_what_readers_see(self, world: StoreWorld) -> None:
        engine = world.engine
        fill(world, 3)
        world.engine.offset_confirmed = engine.offset_written
        result = engine.append(put(body=b"later"))
        assert not world.settle()
        assert engine.queue_range("T", 0).offset_max == 3
        assert engine.read("T", 0, 3, count_max=1, size_max=100).status is GetStatus.OFFSET_OVERFLOW_ONE
        engine.offset_confirmed = result.phy_offset_next
        arrivals = world.turn()
        assert [arrival.queue_offset for arrival in arrivals] == [3]
        assert len(drain(engine, "T", 0)) == 4
        engine.offset_confirmed = result.phy_offset
        assert engine.queue_range("T", 0).offset_max == 3

    def test_a_truncation_takes_back_the_queue_offsets_of_unconfirmed_records(self, world: StoreWorld) -> None:
        engine = world.engine
        fill(world, 3)
        end = engine.offset_confirmed = engine.offset_written
        engine.append(put(body=b"never confirmed"))
        world.settle()
        ended: list[OSError | None] = []
        engine.truncate(end, ended.append)
        world.until(lambda: ended)
        assert ended == [None]
        engine.offset_confirmed = None
        assert engine.append(put(body=b"instead")).queue_offset == 3

    def test_queues_are_listed_with_their_ranges(self, world: StoreWorld) -> None:
        fill(world, 2, topic="B")
        fill(world, 3, topic="A", queue_id=1)
        assert list(world.engine.queues()) == [QueueRange("A", 1, 0, 3), QueueRange("B", 0, 0, 2)]

    def test_recent_messages_count_as_in_memory(self, world: StoreWorld) -> None:
        fill(world, 1)
        assert world.engine.queue_is_in_memory("T", 0, 0)
        assert not world.engine.queue_is_in_memory("T", 0, 1)
        assert not world.engine.queue_is_in_memory("none", 0, 0)

    # --- index ------------------------------------------------------------------------------------

    def test_a_query_finds_what_was_just_settled(self, world: StoreWorld) -> None:
        engine = world.engine
        for number in range(6):
            engine.append(put("T", 0, b"%d" % number, properties=keys(f"id{number}", "shared", f"k{number % 2}")))
            engine.append(put("U", 0, b"u", properties=keys(f"id{number}", "shared")))
        world.settle()

        def bodies(topic: str, key: str, count_max: int = 32, begin_ms: int = 0, end_ms: int = FOREVER_MS) -> list[bytes]:
            hits = engine.query(topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms)
            return [body_of(record) for record in hits.buffers]

        assert bodies("T", "id4") == [b"4"]
        assert bodies("T", "k1") == [b"1", b"3", b"5"]
        assert bodies("T", "shared") == [b"0", b"1", b"2", b"3", b"4", b"5"]
        assert bodies("T", "shared", count_max=2) == [b"4", b"5"]
        assert bodies("T", "none") == []
        assert bodies("none", "id4") == []
        now_ms = world.clock.wall_ms
        assert bodies("T", "id4", begin_ms=now_ms, end_ms=now_ms) == [b"4"]
        assert bodies("T", "id4", begin_ms=now_ms + 1) == []
        assert bodies("T", "id4", end_ms=now_ms - 1) == []

    # --- deleting ---------------------------------------------------------------------------------

    def test_deleted_topics_are_gone_and_begin_anew(self, world: StoreWorld) -> None:
        engine = world.engine
        fill(world, 5, topic="A")
        fill(world, 2, topic="A", queue_id=1)
        fill(world, 3, topic="B")
        assert engine.delete_topics(["A", "none"]) == 2
        assert engine.delete_topics(["A"]) == 0
        assert list(engine.queues()) == [QueueRange("B", 0, 0, 3)]
        assert engine.append(put("A", 0, b"new")).queue_offset == 0
        world.run(3000)
        assert [body_of(record) for record in drain(engine, "A", 0)] == [b"new"]
        assert len(drain(engine, "B", 0)) == 3

    # --- the log ----------------------------------------------------------------------------------

    def test_cleaning_takes_nothing_that_is_fresh(self, world: StoreWorld) -> None:
        engine = world.engine
        engine.append(put())
        world.turn()
        before = engine.queue_range("T", 0), engine.offset_min
        engine.clean_log()
        engine.clean_queues()
        world.run(1_000, 100)
        assert (engine.queue_range("T", 0), engine.offset_min) == before

    def test_syncs_cover_what_was_written(self, world: StoreWorld) -> None:
        engine = world.engine
        outcomes: list[tuple[str, bool]] = []
        first = engine.append(put(body=b"1")).phy_offset_next
        world.settle()
        engine.sync(first, lambda durable: outcomes.append(("first", durable)))
        second = engine.append(put(body=b"2")).phy_offset_next
        world.settle()
        engine.sync(second, lambda durable: outcomes.append(("second", durable)))
        world.until(lambda: len(outcomes) == 2)
        assert outcomes == [("first", True), ("second", True)]
        assert engine.offset_synced >= second
        engine.sync(second, lambda durable: outcomes.append(("again", durable)))
        world.until(lambda: len(outcomes) == 3)
        assert outcomes[-1] == ("again", True)

    def test_the_log_reaches_the_disk_without_being_asked(self, world: StoreWorld) -> None:
        fill(world, 3)
        world.until(lambda: world.engine.offset_synced == world.engine.offset_written)

    def test_bytes_of_one_log_make_the_same_log(self, world: StoreWorld) -> None:
        engine = world.engine
        fill(world, 30, size=500)
        fill(world, 5, topic="U", queue_id=2)
        other = self.other()
        position, size = engine.offset_min, 1
        while position < engine.offset_written:
            data = engine.read_log(position, size)
            assert 0 < len(data) <= size
            assert not other.engine.append_log(position + 1, data)
            assert other.engine.append_log(position, data)
            other.turn()
            position += len(data)
            size = size * 3 % 1777 + 1
        assert len(engine.read_log(position, 100)) == 0
        other.run(100)
        assert other.engine.offset_written == engine.offset_written
        assert list(other.engine.queues()) == list(engine.queues())
        for topic, queue_id in (("T", 0), ("U", 2)):
            assert drain(other.engine, topic, queue_id) == drain(engine, topic, queue_id)
        assert other.engine.append(put()).queue_offset == 30

    def test_a_copy_is_readable_at_its_end(self, world: StoreWorld) -> None:
        """Queues may fall behind during an expected copy, and the copy may be interrupted."""
        engine = world.engine
        fill(world, 60, size=500)
        other = self.other()
        other.engine.expect_copy(engine.offset_written)
        offset = engine.offset_min
        while offset < engine.offset_written:
            data = engine.read_log(offset, 9000)
            assert other.engine.append_log(offset, data)
            other.turn()
            offset += len(data)
            behind = other.engine.queue_range("T", 0).offset_max
            assert len(drain(other.engine, "T", 0)) == behind, "what the queue names is readable"
        other.run(100)
        assert drain(other.engine, "T", 0) == drain(engine, "T", 0)

    def test_a_cut_log_goes_on_from_there(self, world: StoreWorld) -> None:
        engine = world.engine
        fill(world, 5)
        at = engine.append(put("T", 0, b"cut me", properties=keys("gone"))).phy_offset
        fill(world, 40, topic="U", size=300)
        world.turn()
        ended: list[OSError | None] = []
        engine.truncate(at, ended.append)
        assert engine.append(put()).status is PutStatus.SERVICE_NOT_AVAILABLE
        world.until(lambda: ended)
        assert ended == [None]
        assert engine.offset_max == engine.offset_written == at
        assert engine.record(at) is None
        assert engine.queue_range("T", 0).offset_max == 5
        assert engine.queue_range("U", 0).offset_max == 0
        assert not engine.query("T", "gone", count_max=1, begin_ms=0, end_ms=FOREVER_MS).buffers
        result = engine.append(put("T", 0, b"instead", properties=keys("new")))
        assert (result.phy_offset, result.queue_offset) == (at, 5)
        world.run(3000)
        assert body_of(drain(engine, "T", 0)[-1]) == b"instead"
        assert len(engine.query("T", "new", count_max=1, begin_ms=0, end_ms=FOREVER_MS).buffers) == 1

    def test_a_cut_in_the_middle_of_a_record_is_refused(self, world: StoreWorld) -> None:
        fill(world, 3)
        end = world.engine.offset_max
        ended: list[OSError | None] = []
        world.engine.truncate(7, ended.append)
        world.until(lambda: ended)
        assert isinstance(ended[0], OSError)
        assert world.engine.offset_max == end
        assert world.engine.append(put()).status is PutStatus.PUT_OK

    def test_facts_have_upstreams_names(self, world: StoreWorld) -> None:
        fill(world, 3)
        facts = world.engine.facts()
        assert facts["commitLogMinOffset"] == "0"
        assert facts["commitLogMaxOffset"] == str(world.engine.offset_max)
        assert facts["dispatchBehindBytes"] == "0"
        assert world.engine.offset_dispatched == world.engine.offset_max
        assert all(isinstance(value, str) for value in facts.values())

    # --- lives ------------------------------------------------------------------------------------

    def test_nothing_is_lost_in_a_clean_restart(self, world: StoreWorld) -> None:
        fill(world, 40, size=300)
        fill(world, 3, topic="U", queue_id=7)
        world.engine.append(put("U", 7, b"last", properties=keys("last")))
        before = None
        world.settle()
        before = drain(world.engine, "T", 0), drain(world.engine, "U", 7), list(world.engine.queues())
        engine = world.restart()
        assert (drain(engine, "T", 0), drain(engine, "U", 7), list(engine.queues())) == before
        assert engine.append(put("T", 0)).queue_offset == 40
        world.settle()
        world.run(1000)
        assert len(engine.query("U", "last", count_max=1, begin_ms=0, end_ms=FOREVER_MS).buffers) == 1

    def test_nothing_that_was_settled_is_lost_by_a_kill(self, world: StoreWorld) -> None:
        fill(world, 40, size=300)
        world.engine.append(put("U", 7, b"last", properties=keys("last")))
        world.settle()
        before = drain(world.engine, "T", 0), list(world.engine.queues())
        world.kill()
        engine = world.start()
        assert (drain(engine, "T", 0), list(engine.queues())) == before
        world.run(1000)
        assert len(engine.query("U", "last", count_max=1, begin_ms=0, end_ms=FOREVER_MS).buffers) == 1

    @pytest.mark.parametrize("seed", range(20))
    def test_nothing_that_was_synced_is_lost_by_a_power_loss(self, seed: int) -> None:
        world = StoreWorld(type(self).make, seed=seed)
        engine = world.start()
        fill(world, 10 + seed, size=300)
        world.run(seed * 500)
        fill(world, seed)
        outcomes: list[bool] = []
        engine.sync(engine.offset_written, outcomes.append)
        world.until(lambda: outcomes)
        before = drain(engine, "T", 0)
        for number in range(seed):
            engine.append(put("T", number % 2, b"unsynced" * number))
            world.turn()
        world.crash()
        engine = world.start()
        after = drain(engine, "T", 0)
        assert after[: len(before)] == before
        assert [offset_of(record) for record in after] == list(range(len(after)))
        assert engine.append(put("T", 0)).queue_offset == len(after)

    def test_deleted_topics_stay_gone_after_a_kill(self, world: StoreWorld) -> None:
        fill(world, 5, topic="A")
        fill(world, 5, topic="B")
        world.engine.delete_topics(["A"])
        world.run(100)
        world.engine.append(put("A", 0, b"new"))
        world.settle()
        world.kill()
        engine = world.start()
        assert [body_of(record) for record in drain(engine, "A", 0)] == [b"new"]
        assert len(drain(engine, "B", 0)) == 5

    # --- failing disks ----------------------------------------------------------------------------

    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
    def test_a_failed_write_stores_nothing_and_is_not_the_end(self, world: StoreWorld, code: int) -> None:
        engine = world.engine
        fill(world, 5)
        before = engine.offset_max, engine.queue_range("T", 0), list(engine.queues())
        world.disk.fail("write", code=code)
        results = [engine.append(put("T", 0, b"refused" * number)) for number in range(3)]
        engine.append(put("new", 0, b"refused"))
        assert [result.queue_offset for result in results] == [5, 6, 7]
        with pytest.raises(StoreWriteError) as raised:
            engine.settle()
        assert raised.value.error.errno == code
        assert (engine.offset_max, engine.queue_range("T", 0), list(engine.queues())) == before
        assert engine.offset_written == engine.offset_max
        assert not world.settle()
        result = engine.append(put("T", 0, b"stored"))
        assert (result.phy_offset, result.queue_offset) == (before[0], 5)
        world.settle()
        assert body_of(drain(engine, "T", 0)[-1]) == b"stored"

    def test_a_sync_that_failed_is_the_end_of_promises(self, world: StoreWorld) -> None:
        engine = world.engine
        fill(world, 5)
        world.until(lambda: engine.offset_synced == engine.offset_written)
        synced = engine.offset_synced
        engine.append(put(body=b"unsure"))
        world.settle()
        world.disk.fail("sync")
        outcomes: list[bool] = []
        engine.sync(engine.offset_written, outcomes.append)
        engine.sync(engine.offset_written, outcomes.append)
        world.until(lambda: len(outcomes) == 2)
        assert outcomes == [False, False]
        assert engine.failed
        assert engine.offset_synced == synced
        assert engine.append(put()).status is PutStatus.SERVICE_NOT_AVAILABLE
        engine.sync(engine.offset_written, outcomes.append)
        world.until(lambda: len(outcomes) == 3)
        assert outcomes[-1] is False
        world.run(20_000)
        assert engine.offset_synced == synced
        assert len(drain(engine, "T", 0)) == 6
