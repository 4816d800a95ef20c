"""Queues of delayed messages hold due times, also when they are rebuilt from the log.

Source: `CommitLog.checkMessageAndReturnSize`, `DefaultMessageStore.computeDeliverTimestamp`. Every
dispatch computes due times from the property DELAY and the store time. An Apache broker that opens
the folder therefore finds the same entries.
"""

import pytest

from rmqkit.store import ENGINES
from rmqkit.testing.store_world import StoreWorld, put, store_config
from rmqkit.wire.javahash import tags_code

TOPIC = "SCHEDULE_TOPIC_XXXX"
LEVELS = (1000, 7000, 3_600_000)
DELAY = {"levels_ms": LEVELS}


def filled(**sections) -> tuple[StoreWorld, dict[int, list]]:
    """Put delayed messages of three levels over several files, as the broker does.

    Return the world and the entries of each level.
    """
    world = StoreWorld(ENGINES["mapped"], store_config(delay=DELAY, **sections))
    engine = world.start()
    for number in range(60):
        level = number % 3 + 1
        text = b"DELAY\x01%d\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02TAGS\x01A\x02" % level
        due_ms = world.clock.wall_ms + LEVELS[level - 1]
        engine.append(put(TOPIC, level - 1, b"%03d" % number * 30, properties=text, tags_code=due_ms))
        engine.append(put("T", 0, properties=text, tags_code=tags_code("A")))
        world.turn(20)
    held = entries(engine)
    assert [len(each) for each in held.values()] == [20, 20, 20, 60]
    return world, held


def entries(engine):
    found = {queue: list(engine.entries(TOPIC, queue, 0, 10)) for queue in range(3)}
    for queue in found:
        while more := engine.entries(TOPIC, queue, len(found[queue]), 10):
            found[queue] += more
    found[3] = []
    while more := engine.entries("T", 0, len(found[3]), 10):
        found[3] += more
    return found


def test_entries_made_from_the_log_alone_are_the_same():
    world, held = filled()
    world.kill()
    for path in ("consumequeue", "checkpoint", "config/consumeQueueEnds.json"):
        world.folder.remove(f"/store/{path}")
    assert entries(world.start()) == held


def test_entries_of_a_replica_are_the_same():
    world, held = filled()
    replica = StoreWorld(ENGINES["mapped"], store_config(delay=DELAY))
    engine = replica.start()
    while data := world.engine.read_log(engine.offset_max, 1000):
        assert engine.append_log(engine.offset_max, bytes(data))
        replica.turn()
    replica.run(100)
    assert entries(engine) == held


def test_entries_that_were_not_confirmed_yet_are_the_same():
    other = StoreWorld(ENGINES["mapped"], store_config(delay=DELAY))
    engine = other.start()
    engine.offset_confirmed = 0
    text = b"DELAY\x012\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02"
    engine.append(put(TOPIC, 1, properties=text, tags_code=other.clock.wall_ms + 7000))
    other.turn()
    assert not engine.entries(TOPIC, 1, 0, 9)
    engine.offset_confirmed = engine.offset_written
    other.run(20)
    (entry,) = engine.entries(TOPIC, 1, 0, 9)
    assert entry.tags_code == engine.store_time(TOPIC, 1, 0) + 7000


@pytest.mark.parametrize(
    ("level", "delay_ms"),
    [(b"1", 1000), (b"3", 3_600_000), (b"9", 3_600_000), (b"0", None), (b"-1", None), (b"soon", None)],
)
def test_a_level_above_the_highest_counts_as_the_highest(level, delay_ms):
    world = StoreWorld(ENGINES["mapped"], store_config(delay=DELAY))
    engine = world.start()
    engine.append(put(TOPIC, 0, properties=b"DELAY\x01%b\x02TAGS\x01A\x02" % level))
    world.turn()
    store_ms = engine.store_time(TOPIC, 0, 0)
    world.kill()
    world.folder.remove("/store/consumequeue")
    engine = world.start()
    (entry,) = engine.entries(TOPIC, 0, 0, 9)
    assert entry.tags_code == (tags_code("A") if delay_ms is None else store_ms + delay_ms)


def test_a_number_without_a_record_has_no_size():
    """It fills a gap in the numbers; a reader must not take it for the record before it."""
    world = StoreWorld(ENGINES["mapped"], store_config(delay=DELAY))
    engine = world.start()
    engine.append(put("T"))
    world.turn()
    queue = engine.table.by_key["T", 0]
    queue.put(3, engine.offset_max, 100, 0)
    assert [bool(each.size) for each in engine.entries("T", 0, 0, 9)] == [True, False, False, True]
