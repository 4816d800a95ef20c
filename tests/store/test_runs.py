"""Runs of messages, and chains of units: by column the same as one by one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqkit.store import ENGINES
from rmqkit.store.contract import PutStatus, StoreWriteError
from rmqkit.store.timer_log import NONE, UNIT_SIZE, TimerLog
from rmqkit.testing.store_world import FOREVER_MS, StoreWorld, put, run_of, store_config
from tests.helpers.script import ScriptDisk

SIZES = st.one_of(st.just(50), st.sampled_from([0, 7, 400, 1500]), st.integers(0, 300))
MESSAGES = st.tuples(
    st.sampled_from(["A", "B", "C" * 130]), st.integers(0, 3), SIZES, st.sampled_from([0, 0, 5]), st.booleans()
)


def files_after(runs, is_run, is_failing):
    """Return all files of a store that took these runs, by column or one by one, and stopped."""
    world = StoreWorld(ENGINES["mapped"], store_config())
    engine = world.start()
    count = 0
    for run in runs:
        puts = []
        for topic, queue_id, size, code, has_key in run:
            count += 1
            properties = b"UNIQ_KEY\x01id%06d\x02KEYS\x01k\x02" % count if has_key else b""
            fields = {"tags_code": code, "born_ms": count, "flag": count % 3, "reconsume_times": size % 2}
            puts.append(put(topic, queue_id, bytes(size), properties=properties, **fields))
        if is_run:
            assert len(engine.append_run(run_of(puts))) == len(puts)
        else:
            assert all(engine.append(each).status is PutStatus.PUT_OK for each in puts)
        if is_failing and count % 2:
            world.disk.fail("write", "/store/commitlog")
            try:
                world.settle()
            except StoreWriteError:
                continue
        world.turn(1)
    world.run(700, 50)
    world.stop()
    return {path: bytes(file.read(0, 1 << 20)) for path, file in world.folder.files.items() if "checkpoint" not in path}


@given(st.lists(st.lists(MESSAGES, min_size=1, max_size=40), min_size=1, max_size=4), st.booleans())
def test_a_run_makes_the_files_of_single_puts(runs, is_failing):
    """Log, queues and index, over the ends of files and after failed writes."""
    by_column = files_after(runs, True, is_failing)
    assert any("commitlog" in path for path in by_column)
    assert by_column == files_after(runs, False, is_failing)


@pytest.mark.parametrize("bad", [None, "size", "topic", "transaction"])
@pytest.mark.parametrize("sizes", [(9, 9, 9), (0, 1500, 80)])
def test_a_run_is_stored_as_its_messages_are(sizes, bad):
    """By column or one by one: the same log, queues and keys, and log files that end alike.

    A message that `append` refuses, or that gets no entry, ends the run.
    """
    puts = []
    for number in range(120):
        key = b"UNIQ_KEY\x01id%04d\x02" % number + b"TAGS\x01a\x02" * (number > 60)
        topic, size = "TU"[number % 5 == 0], sizes[number % 3]
        fields = {"flag": number % 2, "born_ms": 7 + number, "reconsume_times": number % 3, "tags_code": number // 60}
        puts.append(put(topic, number % 3, bytes(size), properties=key, **fields))
    taken = 120
    if bad is not None:
        taken = 77
        wrong = {
            "size": {"properties": b"x" * 32768},
            "topic": {"topic": "a/b"},
            "transaction": {"sys_flag": 4},
        }[bad]
        puts[taken] = puts[taken]._replace(**wrong)
    found = []
    for is_run in (True, False):
        world = StoreWorld(ENGINES["mapped"], store_config(commit_log={"mapped_file_size_commit_log": 16_384}))
        world.start()
        if is_run:
            count = len(world.engine.append_run(run_of(puts)))
        else:
            count = sum([world.engine.append(each).status is PutStatus.PUT_OK for each in puts[:taken]])
        assert count == taken
        end = world.engine.offset_max
        arrivals = sorted(
            (arrival.topic, arrival.queue_id, arrival.queue_offset + more, arrival.tags_code)
            for arrival in world.settle()
            for more in range(arrival.record_count)
        )
        log, at = b"", 0
        while data := bytes(world.engine.read_log(at, 1 << 20)):
            log, at = log + data, at + len(data)
        entries = [list(world.engine.entries(topic, queue_id, 0, 100)) for topic in "TU" for queue_id in range(3)]
        found_by = [world.engine.query(topic, "id0005", count_max=9, begin_ms=0, end_ms=FOREVER_MS) for topic in "TU"]
        keys = [bytes(each) for hits in found_by for each in hits.buffers]
        found.append((end, arrivals, log, entries, keys))
    assert found[0] == found[1]
    assert len(found[0][1]) == taken


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 90)), min_size=1, max_size=12),
    st.integers(1, 200),
    st.integers(UNIT_SIZE * 3 + 16, UNIT_SIZE * 200),
)
def test_a_chain_of_units_has_each_unit_once(added, count_max, file_size):
    """Whatever lies between the units of a slot, and wherever a file ends."""
    log = TimerLog(ScriptDisk(), "timerlog", file_size)
    log.load()
    newest = {0: NONE, 1: NONE, 2: NONE}
    expected: dict[int, list[int]] = {0: [], 1: [], 2: []}
    offset = 0
    for slot, count in added:
        records = [(offset + number, 100) for number in range(count)]
        offset += count
        _, newest[slot] = log.add(newest[slot], 1, 1000 * slot, 0, 7, records)
        expected[slot] += [phy_offset for phy_offset, _ in records]
        log.flush()
    for slot, position in newest.items():
        found, places = [], []
        while position != NONE:
            positions, units, position = log.read_chain(position, count_max)
            assert len(positions) == len(units) <= count_max
            found += units
            places += positions
        assert [unit.phy_offset for unit in reversed(found)] == expected[slot]
        assert log.read_many(places[::-1]) == found[::-1]
        assert [log.read(each) for each in places] == found
