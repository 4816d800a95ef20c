"""Dispatch on a slave: how far queues fall behind during a copy, and how they catch up."""

import pytest

from rmqkit.store import ENGINES
from rmqkit.store.dispatch_limit import IN_A_GAP, LARGE_TURN_SIZE, PAUSE_MS, PER_TURN, WHILE_COPYING, DispatchLimit
from rmqkit.testing.store_world import StoreWorld, put, store_config

COUNT = 400
BODY = bytes(1000)
CONFIG = store_config(
    commit_log={"mapped_file_size_commit_log": 1 << 20}, consume_queue={"mapped_file_size_consume_queue": 20_000}
)


@pytest.fixture
def master() -> StoreWorld:
    world = StoreWorld(ENGINES["mapped"], CONFIG)
    engine = world.start()
    for _ in range(COUNT):
        engine.append(put("T", 0, BODY))
    world.settle()
    return world


class Copy:
    """A slave's store that receives the master's log in pieces of 64 KiB, one per turn."""

    def __init__(self, master: StoreWorld) -> None:
        self.master = master.engine
        self.world = StoreWorld(ENGINES["mapped"], CONFIG)
        self.engine = self.world.start()

    def turn(self, turn_ms: int = 1) -> bool:
        """Copy a piece. Return whether there was one."""
        data = self.master.read_log(self.engine.offset_max, 65_536)
        if data:
            assert self.engine.append_log(self.engine.offset_max, data)
        self.world.turn(turn_ms)
        return bool(data)

    @property
    def readable(self) -> int:
        return self.engine.queue_range("T", 0).offset_max


def test_the_queues_wait_while_an_expected_copy_runs(master: StoreWorld):
    copy = Copy(master)
    copy.engine.expect_copy(master.engine.offset_written)
    for number in range(1, 6):
        copy.turn()
        assert copy.readable == number * WHILE_COPYING
    assert int(copy.engine.facts()["dispatchBehindBytes"]) > 0


def test_slow_turns_do_not_end_the_wait(master: StoreWorld):
    """A turn longer than the pause is no pause: it has brought bytes."""
    copy = Copy(master)
    copy.engine.expect_copy(master.engine.offset_written)
    for number in range(1, 6):
        copy.turn(5 * PAUSE_MS)
        assert copy.readable == number * WHILE_COPYING


def test_at_its_end_everything_is_dispatched(master: StoreWorld):
    copy = Copy(master)
    copy.engine.expect_copy(master.engine.offset_written)
    while copy.turn():
        pass
    copy.turn()
    assert copy.readable == COUNT
    assert copy.engine.facts()["dispatchBehindBytes"] == "0"


def test_a_gap_in_the_copy_is_used(master: StoreWorld):
    copy = Copy(master)
    copy.engine.expect_copy(master.engine.offset_written)
    for _ in range(5):
        copy.turn()
    before = copy.readable
    copy.world.turn(1)
    assert copy.readable > before


def test_without_a_copy_the_queues_are_a_turn_behind(master: StoreWorld):
    """A master under load sends as much per turn as in a copy, but without an end."""
    copy = Copy(master)
    behind: list[int] = []
    while copy.turn():
        behind.append(int(copy.engine.facts()["dispatchBehindBytes"]))
    assert max(behind) <= 2 * 65_536
    copy.turn()
    assert copy.readable == COUNT


def test_limits():
    limit = DispatchLimit()
    assert limit.at_write(100, 0) == PER_TURN, "nothing was copied in this turn"
    limit.copied_size = LARGE_TURN_SIZE - 1
    assert limit.at_write(100, 0) == PER_TURN
    limit.copied_size = LARGE_TURN_SIZE
    assert limit.at_write(100, 0) == WHILE_COPYING
    assert limit.at_duty(100, 0) == PER_TURN
    limit.copy_end = 200
    limit.copied_size = 1
    assert limit.at_duty(100, 10) == 0
    assert limit.at_write(101, 10) == WHILE_COPYING
    assert limit.at_duty(101, 10 + PAUSE_MS - 1) == IN_A_GAP
    assert limit.at_duty(101, 10 + PAUSE_MS) == PER_TURN
