"""Checkpoints that name another broker: their messages are fetched from it."""

import pytest

from rmqkit.broker.special.pop.records import ack_put, checkpoint_put
from rmqkit.wire.bodies.pop import PopAck, PopCheckpoint
from tests.broker.special.test_pop_takeover import A0, A1, B0, Lab


class ForeignLab(Lab):
    """Messages in group a's log, and a checkpoint of them in the revive topic of group b."""

    def escape(self, count, *, offsets=None, acked=()):
        self.append(A0, *(self.message(number) for number in range(count)))
        self.world.run_for(2_000)
        broker, topic = self.cluster.broker(B0), self.duty(B0).topic
        pop_ms = broker.clock.wall_ms
        checkpoint = PopCheckpoint(
            broker_name="broker-a",
            group="CG",
            differences=list(range(count)) if offsets is None else offsets,
            count=count,
            invisible_ms=5_000,
            pop_ms=pop_ms,
            revive_ms=pop_ms + 5_000,
            topic="T",
        )
        key = {"broker_name": "broker-a", "group": "CG", "pop_ms": pop_ms, "topic": "T"}
        acks = [ack_put(PopAck(offset=each, **key), pop_ms, topic, 0, pop_ms, bytes(8)) for each in acked]
        self.append(B0, checkpoint_put(checkpoint, topic, 0, pop_ms, bytes(8)), *acks)
        self.world.call(B0, lambda node: self.duty(B0).appended(0, 0))


@pytest.fixture
def lab():
    return ForeignLab()


def test_messages_of_another_broker_are_handed_out_here(lab):
    lab.escape(12, acked=(1, 4))
    lab.until(lambda: len(lab.retried(B0)) == 10, 20_000)
    lab.world.run_for(2_000)
    assert lab.retried(B0) == sorted(b"m%d" % number for number in range(12) if number not in (1, 4))
    assert len(lab.duty(B0).pending) == 0
    assert lab.retried(A0) == []


@pytest.mark.long
def test_the_acting_master_has_them_too(lab):
    lab.escape(2)
    lab.world.kill(A0)
    lab.until(lambda: lab.duty(A1).is_on)
    lab.until(lambda: len(lab.retried(B0)) == 2)


@pytest.mark.long
def test_they_wait_for_a_broker_that_is_away_and_hold_back_no_others(lab):
    lab.append(B0, lab.message(7))
    lab.escape(2)
    names = [name for name in lab.world.names if name.startswith("broker-a")]
    for name in names:
        lab.world.kill(name)
    lab.world.run_for(20_000)
    assert lab.retried(B0) == []
    assert lab.duty(B0).due_count() == 2
    for name in names:
        lab.world.restart(name)
    lab.until(lambda: len(lab.retried(B0)) == 2)


@pytest.mark.long
def test_messages_that_are_gone_are_finished(lab):
    lab.escape(2, offsets=[1, 90])
    lab.until(lambda: lab.retried(B0) == [b"m1"] and len(lab.duty(B0).pending) == 0)
