"""A new special duty needs only a package and a table row.

The toy duty passes the contract, and a takeover in a simulated cluster.
"""

import pytest

from rmqkit.broker.special import table
from rmqkit.sim.cluster import SimCluster
from rmqkit.sim.world import World
from rmqkit.testing import SpecialDutyContract
from tests.broker.special.counter import EVERY_MS, ROW, TOPIC, Counter

A0, A1, A2, B0 = "broker-a-0", "broker-a-1", "broker-a-2", "broker-b-0"


class TestContract(SpecialDutyContract):
    row = ROW

    def give_work(self, broker, count):
        """Do nothing: the counter finds its own work."""


class Lab:
    """Two groups of three brokers. Group b takes group a's numbers while a's master is away."""

    def __init__(self):
        self.world = World(1)
        self.cluster = SimCluster(self.world, groups=2, replicas=3, acting=True, fast=True)
        self.cluster.ready()
        for name in (A0, B0):
            self.world.call(name, lambda broker: broker.topics.create_system(TOPIC, 1))

    def counter(self, name):
        return self.cluster.broker(name).special.find(Counter)

    def working(self):
        """Return the members of group a that count now."""
        return [name for name in (A0, A1, A2) if self.world.is_alive(name) and self.counter(name).is_on]

    def until(self, reached, limit_ms=60_000):
        """Run until `reached`; at every moment at most one member may count."""
        for _ in range(limit_ms // 20):
            if reached():
                return
            self.world.run_for(20)
            assert len(self.working()) <= 1, "two members do what one must do"
        raise AssertionError(f"not within {limit_ms} ms: {self.working()}")

    def numbers(self, name):
        """Return the numbers of group a in that broker's log."""
        store = self.cluster.broker(name).store
        end = store.queue_range(TOPIC, 0).offset_max
        entries = store.entries(TOPIC, 0, 0, end) if end else ()
        bodies = [bytes(store.read_log(each.phy_offset, each.size)) for each in entries]
        found = [body.partition(b"broker-a:")[2] for body in bodies]
        return [int(body[: len(body) - len(body.lstrip(b"0123456789"))]) for body in found if body]


@pytest.fixture
def lab(monkeypatch):
    monkeypatch.setattr(table, "SPECIAL_DUTIES", (*table.SPECIAL_DUTIES, ROW))
    return Lab()


def test_one_member_counts_and_the_count_survives_takeover_and_return(lab):
    lab.until(lambda: lab.counter(A0).count >= 20)
    assert lab.working() == [A0]
    before = lab.counter(A0).count
    lab.world.kill(A0)
    lab.until(lambda: lab.working() == [A1])
    lab.until(lambda: lab.counter(A1).count >= before + 20)
    escaped = lab.numbers(B0)
    assert before - 2 * 1_000 // EVERY_MS <= escaped[0] <= before, "it continues where the copy of the progress ends"
    assert escaped == list(range(escaped[0], escaped[-1] + 1))
    assert lab.counter(A2).count > before, "the other slave copies the progress of the one that acts"
    lab.world.restart(A0)
    lab.until(lambda: lab.working() == [A0])
    taken = lab.counter(A0).count
    assert taken >= lab.numbers(B0)[-1]
    lab.until(lambda: lab.counter(A0).count >= taken + 10)
    counted = sorted({*lab.numbers(A0), *lab.numbers(B0)})
    assert counted == list(range(counted[-1] + 1)), "no number is missing"
    assert not {number for number in lab.numbers(A0) if number >= taken} & set(lab.numbers(B0)), "nor put by both"
