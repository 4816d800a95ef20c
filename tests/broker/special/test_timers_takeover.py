"""Timers of a group whose master goes away and comes back, in simulated clusters."""

from collections import Counter

import pytest

from rmqkit.broker.special.timer.duty import TAKEOVER_STEP, TimerDuty
from rmqkit.broker.special.timer.index import FOLLOWING
from rmqkit.sim.cluster import SimCluster
from rmqkit.sim.world import World
from rmqkit.store.contract import Put, PutStatus
from rmqkit.wire import properties as props
from rmqkit.wire.record import decode_record
from rmqkit.wire.topic_names import TIMER_TOPIC

A0, A1, A2, B0 = "broker-a-0", "broker-a-1", "broker-a-2", "broker-b-0"
TOPIC = "T"
HOST = bytes((127, 0, 0, 1, 0, 0, 0, 1))


class Lab:
    """Two groups of three; group b takes what group a cannot store while its master is away."""

    def __init__(self, **settings):
        self.world = World(1)
        self.cluster = SimCluster(self.world, groups=2, replicas=3, acting=True, fast=True, settings=settings)
        self.cluster.ready()
        for name in (A0, B0):
            self.world.call(name, lambda broker: broker.topics.create_system(TOPIC, 1))
        self.sent = 0

    def duty(self, name) -> TimerDuty:
        return self.cluster.broker(name).special.find(TimerDuty)

    @property
    def wall_ms(self):
        return self.world.wall_start_ms + self.world.now_ms

    def send(self, delay_ms, count=1):
        """Store timers at the master of group a."""

        def append(broker):
            for _ in range(count):
                body = b"%d" % self.sent
                properties = props.encode({"UNIQ_KEY": f"K{self.sent}"})
                put = Put(TOPIC, 0, 0, 0, 1, HOST, HOST, 0, 0, body, properties, 0)
                out_ms = (self.wall_ms + delay_ms - 1) // 1000 * 1000
                assert broker.special.find(TimerDuty).append(put, out_ms).status is PutStatus.PUT_OK
                self.sent += 1

        self.world.call(A0, append)

    def until(self, reached, limit_ms=60_000):
        assert self.world.run_until(reached, limit_ms)

    def working(self):
        return [name for name in (A0, A1, A2) if self.world.is_alive(name) and self.duty(name).is_on]

    def records(self, name, topic=TOPIC):
        store = self.cluster.broker(name).store
        end, found = store.queue_range(topic, 0).offset_max, []
        while len(found) < end:
            for each in store.entries(topic, 0, len(found), end - len(found)):
                found.append(decode_record(store.read_log(each.phy_offset, each.size), check_crc=True))
        return found

    def delivered(self):
        """How often each number was delivered, in both groups."""
        return Counter(int(record.body) for name in (A0, B0) for record in self.records(name))

    def is_replicated(self):
        ends = [self.cluster.broker(name).store.offset_written for name in (A0, A1, A2)]
        return len(set(ends)) == 1 and all(self.duty(name).index.next == self.duty(A0).index.next for name in (A1, A2))


def test_slaves_have_the_same_index_as_their_master():
    lab = Lab()
    lab.send(3_000, 20)
    lab.send(30_000, 20)
    lab.world.run_for(8_000)
    lab.until(lab.is_replicated)
    master = lab.duty(A0)
    assert lab.delivered() == dict.fromkeys(range(20), 1)
    lab.world.run_for(2_000)
    for name in (A1, A2):
        slave = lab.duty(name)
        assert slave.index.state is FOLLOWING
        assert slave.index.wheel.units == master.index.wheel.units == 20
        assert slave.index.by_topic == master.index.by_topic
        assert slave.snapshot().read_ms <= master.snapshot().read_ms
        assert slave.snapshot().offset == 40


@pytest.mark.long
def test_timers_are_delivered_once_over_takeover_and_return():
    lab = Lab()
    for number in range(60):
        lab.send(2_000 + 1_000 * number, 3)
    lab.world.run_for(10_000)
    lab.until(lab.is_replicated)
    lab.world.kill(A0)
    lab.until(lambda: lab.working() == [A1])
    lab.world.run_for(15_000)
    escaped = lab.records(B0)
    assert len(escaped) > 10
    marks = props.decode(escaped[0].properties)
    assert marks["ESCAPED_FROM"].startswith("broker-a:TIMER:")
    assert marks["TIMER_OUT_MS"]
    lab.world.restart(A0)
    lab.until(lambda: lab.working() == [A0])
    lab.world.run_for(50_000)
    assert lab.delivered() == dict.fromkeys(range(180), 1), "none is lost, none twice"


def test_what_the_copy_of_the_progress_lacks_is_found_in_the_log():
    """The master dies right after a delivery: only the slave's copy of the progress is older."""
    lab = Lab()
    lab.send(2_000, 30)
    lab.until(lambda: len(lab.records(A0)) == 30)
    lab.until(lambda: len(lab.records(A1)) == 30, 2_000)
    lab.world.kill(A0)
    lab.until(lambda: lab.working() == [A1])
    lab.world.run_for(5_000)
    assert lab.records(B0) == []


@pytest.mark.long
def test_a_burst_is_taken_over_in_its_middle():
    lab = Lab()
    lab.send(2_000, 3_000)
    lab.until(lambda: len(lab.records(A0)) > 500)
    lab.world.run_for(5)
    lab.world.kill(A0)
    lab.until(lambda: lab.working() == [A1])
    lab.until(lambda: lab.duty(A1).due_count() == 0)
    lab.world.restart(A0)
    lab.until(lambda: lab.working() == [A0])
    lab.world.run_for(3_000)
    counts = lab.delivered()
    assert len(counts) == 3_000
    assert sum(counts.values()) - 3_000 <= 600, "twice is only what the dead master had stored and not replicated"


def test_a_recall_that_was_replicated_counts_after_the_takeover():
    lab = Lab()
    lab.send(15_000, 3)
    lab.world.run_for(100)
    out_ms = int(props.decode(lab.records(A0, TIMER_TOPIC)[0].properties)["TIMER_OUT_MS"])
    marker = Put(TOPIC, 0, 0, 0, 1, HOST, HOST, 0, 0, b"0", props.encode({"TIMER_DEL_UNIQKEY": "K1", "UNIQ_KEY": "K1"}), 0)
    lab.world.call(A0, lambda broker: broker.special.find(TimerDuty).append(marker, out_ms))
    lab.until(lambda: lab.duty(A1).index.next == 4)
    lab.world.kill(A0)
    lab.until(lambda: lab.working() == [A1])
    lab.world.run_for(15_000)
    assert sorted(int(record.body) for record in lab.records(B0)) == [0, 2]


@pytest.mark.long
@pytest.mark.parametrize("roll", ["master", "acting"])
def test_a_timer_that_is_rolled_around_a_takeover_is_delivered_once(roll):
    lab = Lab(timerRollWindowSlot=12)
    lab.send(40_000, 5)
    lab.until(lab.is_replicated)
    lab.world.run_for(10_000 if roll == "acting" else 13_500)
    lab.world.kill(A0)
    lab.until(lambda: lab.working() == [A1])
    lab.world.run_for(8_000)
    lab.world.restart(A0)
    lab.until(lambda: lab.working() == [A0])
    lab.world.run_for(40_000)
    assert lab.delivered() == dict.fromkeys(range(5), 1)


def test_the_version_is_newer_than_the_masters_after_a_takeover():
    """A returning Apache master takes the progress only if its own data version is not greater."""
    lab = Lab()
    lab.send(20_000)
    lab.world.run_for(2_000)
    before = lab.duty(A0).snapshot().version
    lab.world.kill(A0)
    lab.until(lambda: lab.duty(A1).is_on)
    assert lab.duty(A1).snapshot().version.counter >= before.counter + TAKEOVER_STEP - 10
