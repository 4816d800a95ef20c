"""Halves at a takeover: they leave as halves of another group, once.

The returning master leaves them alone.
"""

import pytest

from rmqkit.broker.special.transactions.checks import TransactionChecks
from rmqkit.broker.special.transactions.progress import GROUP
from rmqkit.sim.cluster import SimCluster
from rmqkit.sim.world import World
from rmqkit.store.contract import Put, PutStatus
from rmqkit.wire import properties as props
from rmqkit.wire.record import decode_record
from rmqkit.wire.topic_names import HALF_TOPIC

A0, A1, B0 = "broker-a-0", "broker-a-1", "broker-b-0"
TOPIC = "Paid"


class Lab:
    def __init__(self):
        self.world = World(1)
        settings = {"transactionTimeOut": 1_000, "transactionCheckInterval": 2_000}
        self.cluster = SimCluster(self.world, groups=2, replicas=2, acting=True, fast=True, settings=settings)
        self.cluster.ready()
        for name in (A0, B0):
            self.world.call(name, lambda broker: broker.topics.create_system(TOPIC, 1))
        self.world.run_for(2_000)

    def checks(self, name):
        return self.cluster.broker(name).special.find(TransactionChecks)

    def until(self, reached, limit_ms=60_000):
        assert self.world.run_until(reached, limit_ms), f"not within {limit_ms} ms"

    def half(self, number):
        born_ms = self.world.wall_start_ms + self.world.now_ms
        properties = props.encode({"TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": f"{number:032X}"})
        put = Put(TOPIC, 0, 0, 0, born_ms, bytes(8), bytes(8), 0, 0, b"%d" % number, properties, 0)
        results = []
        self.world.call(A0, lambda broker: results.append(self.checks(A0).append(put)))
        self.world.run_for(1)
        assert results[0].status is PutStatus.PUT_OK
        return results[0]

    def decide(self, number):
        self.world.call(A0, lambda broker: self.checks(A0).decide(number, is_commit=False))

    def halves(self, name):
        """The halves in a broker's log, by body and properties."""
        store = self.cluster.broker(name).store
        end = store.queue_range(HALF_TOPIC, 0).offset_max
        entries = store.entries(HALF_TOPIC, 0, 0, end) if end else ()
        found = [decode_record(store.read_log(each.phy_offset, each.size), check_crc=True) for each in entries]
        return [(record.body, props.decode(record.properties)) for record in found]

    def offset(self, name):
        return self.cluster.broker(name).offsets.query(GROUP, HALF_TOPIC, 0)


@pytest.fixture
def lab():
    return Lab()


def test_halves_of_a_dead_master_are_asked_about_by_another_group(lab):
    for number in range(4):
        lab.half(number)
    lab.decide(1)
    lab.world.run_for(200)
    end = lab.cluster.broker(A0).store.offset_written
    lab.until(lambda: lab.cluster.broker(A1).store.offset_written >= end, 2_000)
    lab.world.kill(A0)
    lab.until(lambda: lab.checks(A1).is_on)
    lab.until(lambda: len({body for body, _ in lab.halves(B0)}) >= 3)
    lab.world.run_for(5_000)
    escaped = [each for each in lab.halves(B0) if each[1].get("ESCAPED_FROM")]
    firsts = {}
    for body, properties in escaped:
        firsts.setdefault(body, properties)
    # The op of number 1 was still in its batch: a rollback that a kill loses is asked again.
    assert set(firsts) <= {b"0", b"1", b"2", b"3"}
    assert {b"0", b"2", b"3"} <= set(firsts)
    one = firsts[b"0"]
    assert (one["REAL_TOPIC"], one["REAL_QID"], one["TRAN_MSG"], one["PGROUP"]) == (TOPIC, "0", "true", "PG")
    assert one["ESCAPED_FROM"].startswith("broker-a:HALF:")
    origins = [properties["ESCAPED_FROM"] for _, properties in escaped if properties["TRANSACTION_CHECK_TIMES"] == "1"]
    assert len(origins) == len(set(origins)), "each escaped once"
    finished = lab.offset(A1)
    assert finished >= 4
    lab.world.restart(A0)
    lab.until(lambda: lab.checks(A0).is_on)
    assert lab.offset(A0) >= finished, "the master takes over how far the halves have left"
    before = len(lab.halves(A0))
    lab.world.run_for(10_000)
    assert len(lab.halves(A0)) == before, "and puts none of them again"
