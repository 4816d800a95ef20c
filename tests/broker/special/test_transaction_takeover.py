"""Halves at a takeover: they leave as halves of another group, once, or are ended where they are.

The returning master leaves them alone.
"""

import pytest

from rmqkit.broker.special.transactions.checks import TransactionChecks
from rmqkit.broker.special.transactions.halves import Halves
from rmqkit.broker.special.transactions.progress import GROUP
from rmqkit.sim.cluster import SimCluster
from rmqkit.sim.world import World
from rmqkit.store.contract import Put, PutStatus
from rmqkit.wire import properties as props
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.record import decode_record
from rmqkit.wire.schemas.send import EndTransactionRequest
from rmqkit.wire.topic_names import HALF_TOPIC

A0, A1, B0 = "broker-a-0", "broker-a-1", "broker-b-0"
TOPIC = "Paid"


class Lab:
    def __init__(self, groups=2, timeout_ms=1_000, **settings):
        self.world = World(1)
        settings = {"transactionTimeOut": timeout_ms, "transactionCheckInterval": 2_000, **settings}
        self.cluster = SimCluster(self.world, groups=groups, replicas=2, acting=True, fast=True, settings=settings)
        self.cluster.ready()
        for name in (A0, B0)[:groups]:
            self.world.call(name, lambda broker: broker.topics.create_system(TOPIC, 1))
        self.cluster.client("client", lambda client: None)
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
        def end(broker):
            checks = self.checks(A0)
            checks.decide(Halves(broker.context, broker.store).at(number), is_commit=False)

        self.world.call(A0, end)

    def end(self, name, half, outcome, group="PG"):
        """Send END_TRANSACTION for a half to this broker; return the answer."""
        request = EndTransactionRequest(
            producer_group=group,
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=half.phy_offset,
            commit_or_rollback=outcome,
            msg_id="",
        )
        address, found = self.cluster.broker(name).context.address, []
        code = RequestCode.END_TRANSACTION
        self.world.call(
            "client", lambda client: client.remoting.call(address, code, request, timeout_ms=5_000, then=found.append)
        )
        self.until(lambda: found, 6_000)
        return found[0]

    def takeover(self):
        """Kill the master once its slave has its log; wait until the slave acts."""
        end = self.cluster.broker(A0).store.offset_written
        self.until(lambda: self.cluster.broker(A1).store.offset_written >= end, 2_000)
        self.world.kill(A0)
        self.until(lambda: self.checks(A1).is_on)

    def comes_back(self):
        self.world.restart(A0)
        self.until(lambda: self.checks(A0).is_on)

    def messages(self, name):
        """The messages of the topic in a broker's log, as bodies and properties."""
        return self._queue(name, TOPIC)

    def halves(self, name):
        """The halves in a broker's log, by body and properties."""
        return self._queue(name, HALF_TOPIC)

    def _queue(self, name, topic):
        store = self.cluster.broker(name).store
        end = store.queue_range(topic, 0).offset_max
        entries = store.entries(topic, 0, 0, end) if end else ()
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


# --- ended at the acting master

COMMIT, ROLLBACK = 8, 12
#: halves stay where they are: they are too young to escape
YOUNG_MS = 3_600_000


def quiet(lab, name=A0):
    """Let the returned master work; return how many halves it has put again."""
    before = len(lab.halves(name))
    lab.world.run_for(10_000)
    return len(lab.halves(name)) - before


def test_an_acting_master_commits_through_another_group():
    lab = Lab(timeout_ms=YOUNG_MS)
    halves = [lab.half(number) for number in range(3)]
    lab.takeover()
    assert lab.end(A1, halves[1], COMMIT).code == ResponseCode.SUCCESS
    lab.until(lambda: lab.messages(B0))
    ((body, properties),) = lab.messages(B0)
    assert body == b"1"
    assert (properties["ESCAPED_FROM"], properties["ESCAPED_BY"]) == ("broker-a:HALF:1", "broker-a:1")
    assert "TRAN_MSG" not in properties
    assert lab.end(A1, halves[1], COMMIT).code == ResponseCode.SYSTEM_ERROR, "it is decided"
    assert lab.end(A1, halves[1], ROLLBACK).code == ResponseCode.SYSTEM_ERROR
    assert lab.end(A1, halves[2], ROLLBACK).code == ResponseCode.SUCCESS
    lab.world.run_for(3_000)
    assert lab.offset(A1) <= 0, "the first half is undecided"
    lab.comes_back()
    assert lab.end(A0, halves[1], COMMIT).code == lab.end(A0, halves[2], COMMIT).code == ResponseCode.SYSTEM_ERROR
    assert lab.end(A0, halves[0], COMMIT).code == ResponseCode.SUCCESS
    lab.until(lambda: lab.offset(A0) == 3)
    assert [body for body, _ in lab.messages(A0)] == [b"0"]
    assert [body for body, _ in lab.messages(B0)] == [b"1"]
    lab.world.run_for(5_000)
    assert lab.world.disk(A1).size("config/transactionDecisions.json")
    assert not lab.checks(A0).snapshot().commits
    assert not lab.checks(A0).snapshot().finished, "the ops say the same now"


def test_a_decided_half_is_neither_escaped_nor_checked_later():
    lab = Lab(timeout_ms=5_000)
    committed, rolled_back = lab.half(0), lab.half(1)
    lab.takeover()
    assert lab.end(A1, committed, COMMIT).code == lab.end(A1, rolled_back, ROLLBACK).code == ResponseCode.SUCCESS
    lab.world.run_for(15_000)
    assert lab.halves(B0) == []
    assert [body for body, _ in lab.messages(B0)] == [b"0"]
    assert lab.offset(A1) == 2
    lab.comes_back()
    assert lab.offset(A0) == 2
    assert quiet(lab) == 0
    assert lab.messages(A0) == []


@pytest.mark.parametrize("settings", [{}, {"escapeStrategy": "none"}])
def test_without_another_group_the_returning_master_commits(settings):
    lab = Lab(groups=1, timeout_ms=4_000, **settings)
    halves = [lab.half(number) for number in range(3)]
    lab.takeover()
    assert lab.end(A1, halves[0], COMMIT).code == ResponseCode.SUCCESS
    assert lab.end(A1, halves[2], ROLLBACK).code == ResponseCode.SUCCESS
    lab.world.run_for(2_000)
    lab.comes_back()
    lab.until(lambda: lab.messages(A0), 3_000)
    lab.until(lambda: lab.offset(A0) >= 3 and lab.halves(A0)[3:])
    assert [body for body, _ in lab.messages(A0)] == [b"0"]
    again = {body for body, _ in lab.halves(A0)[3:]}
    assert again == {b"1"}, "only the undecided one is checked"


def test_decisions_outlive_a_kill_of_the_acting_master():
    lab = Lab(groups=1, timeout_ms=YOUNG_MS)
    committed, rolled_back = lab.half(0), lab.half(1)
    lab.takeover()
    assert lab.end(A1, committed, COMMIT).code == lab.end(A1, rolled_back, ROLLBACK).code == ResponseCode.SUCCESS
    lab.world.kill(A1)
    lab.world.restart(A1)
    lab.until(lambda: lab.checks(A1).is_on)
    assert lab.checks(A1).snapshot()[2:] == ((0,), (1,))
    assert lab.end(A1, rolled_back, COMMIT).code == ResponseCode.SYSTEM_ERROR
    lab.comes_back()
    lab.until(lambda: lab.offset(A0) == 2)
    assert [body for body, _ in lab.messages(A0)] == [b"0"]


def test_a_half_that_has_left_is_ended_where_it_is_now():
    lab = Lab(timeout_ms=4_000)
    half = lab.half(0)
    lab.takeover()
    lab.until(lambda: lab.halves(B0))
    assert lab.end(A1, half, COMMIT).code == ResponseCode.SYSTEM_ERROR
    store = lab.cluster.broker(B0).store
    (entry,) = store.entries(HALF_TOPIC, 0, 0, 1)
    there = decode_record(store.read_log(entry.phy_offset, entry.size), check_crc=True)
    assert lab.end(B0, there, COMMIT).code == ResponseCode.SUCCESS
    lab.world.run_for(5_000)
    assert [body for body, _ in lab.messages(B0)] == [b"0"]


def test_a_slave_that_does_not_act_ends_nothing(lab):
    assert lab.end(A1, lab.half(0), COMMIT).code == ResponseCode.SLAVE_NOT_AVAILABLE
