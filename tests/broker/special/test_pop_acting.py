"""Pops and acks at an acting master, and their way back into the master that returns."""

import pytest

from rmqkit.broker.special.pop import acting_pops
from rmqkit.broker.special.pop.revive import PopRevive
from rmqkit.runtime.calls import CallFailed
from rmqkit.store.contract import PutStatus
from rmqkit.wire.codes import RequestCode, ResponseCode
from tests.broker.handlers.pop_requests import ack_fields, messages
from tests.broker.special.test_pop_takeover import A0, A1, B0, Lab

INVISIBLE_MS = 30_000
A2 = "broker-a-2"
POP = {
    "consumerGroup": "CG",
    "topic": "T",
    "queueId": "-1",
    "maxMsgNums": "32",
    "pollTime": "0",
    "bornTime": "0",
    "initMode": "0",
    "invisibleTime": str(INVISIBLE_MS),
}


class ActingLab(Lab):
    """As `Lab`, with a client that pops from any broker."""

    def __init__(self):
        super().__init__()
        self.cluster.client("asker", lambda client: None)

    def ask(self, name, code, fields):
        outcomes = []
        address = self.cluster.broker(name).context.address

        def call(client):
            client.remoting.call(address, code, fields, timeout_ms=3_000, then=outcomes.append)

        self.world.call("asker", call)
        self.until(lambda: outcomes)
        assert not isinstance(outcomes[0], CallFailed), outcomes[0]
        return outcomes[0]

    def popped(self, name, **changes):
        reply = self.ask(name, RequestCode.POP_MESSAGE, {**POP, **changes})
        assert reply.code in (0, 210), reply
        return messages(reply) if reply.code == 0 else []

    def ack(self, name, message):
        reply = self.ask(name, RequestCode.ACK_MESSAGE, ack_fields(message))
        assert reply.code == 0, reply

    def send(self, count):
        def run(broker):
            for number in range(count):
                put = self.message(number)
                assert broker.store.append(put).status is PutStatus.PUT_OK

        self.world.call(A0, run)
        self.world.run_for(2_000)

    def take_over(self):
        self.world.kill(A0)
        self.until(lambda: self.duty(A1).is_on)

    def come_back(self):
        self.world.restart(A0)
        self.until(lambda: self.duty(A0).is_on)
        assert not (self.world.is_alive(A1) and self.duty(A1).is_on)

    def everything(self, name, limit_ms=45_000):
        """Return the bodies that a group gets within a time, each acked."""
        found = []
        for _ in range(limit_ms // 1_000):
            for message in self.popped(name):
                found.append(message.body)
                self.ack(name, message)
            self.world.run_for(1_000)
        return sorted(found)


@pytest.fixture
def lab():
    return ActingLab()


def bodies(found):
    return sorted(each.body for each in found)


def test_an_ack_at_the_acting_master_counts_after_the_return(lab):
    lab.send(4)
    found = lab.popped(A0)
    assert len(found) == 4
    lab.ack(A0, found[0])
    lab.world.run_for(1_000)
    lab.take_over()
    lab.ack(A1, found[1])
    lab.ack(A1, found[3])
    lab.come_back()
    assert lab.everything(A0) == [b"m2"]
    assert lab.retried(B0) == []


def test_the_acting_master_serves_pops_and_hands_them_over(lab):
    lab.send(5)
    first = lab.popped(A0, maxMsgNums="1")
    lab.world.run_for(1_000)
    lab.take_over()
    second = lab.popped(A1, maxMsgNums="2")
    third = lab.popped(A1, maxMsgNums="1")
    assert bodies([*first, *second, *third]) == [b"m0", b"m1", b"m2", b"m3"]
    lab.ack(A1, second[1])
    lab.ack(A1, third[0])
    assert lab.cluster.broker(A1).offsets.query("CG", "T", 0) == 1, "before the first message without an ack"
    lab.come_back()
    assert bodies(lab.popped(A0)) == [b"m4"], "messages that were popped at the acting master are hidden"
    lab.ack(A0, first[0])
    assert lab.everything(A0) == [b"m1", b"m4"], "once each, after their invisible times"
    assert lab.retried(B0) == []
    assert len(lab.duty(A0).unlogged) == len(lab.duty(A1).unlogged) == 0


def test_an_answer_from_before_the_takeover_takes_nothing_from_the_acting_master(lab):
    lab.send(3)
    lab.world.run_for(1_000)
    before = lab.duty(A0).snapshot()
    lab.take_over()
    found = lab.popped(A1)
    lab.world.call(A1, lambda broker: broker.special.find(PopRevive).merge(before))
    lab.ack(A1, found[0])
    lab.world.call(A1, lambda broker: broker.special.find(PopRevive).merge(before))
    lab.come_back()
    assert lab.popped(A0) == [], "messages that were popped at the acting master are hidden"
    assert lab.everything(A0) == [b"m1", b"m2"]


@pytest.mark.long
def test_a_handle_of_the_acting_master_is_valid_at_the_master(lab):
    lab.send(2)
    lab.take_over()
    found = lab.popped(A1)
    lab.come_back()
    lab.until(lambda: not len(lab.duty(A0).unlogged))
    lab.ack(A0, found[0])
    assert lab.everything(A0) == [b"m1"]


@pytest.mark.long
def test_a_changed_invisible_time_at_the_acting_master_counts(lab):
    lab.send(2)
    found = lab.popped(A0)
    lab.world.run_for(1_000)
    lab.take_over()
    fields = {**ack_fields(found[0]), "invisibleTime": "600000"}
    assert lab.ask(A1, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields).code == 0
    lab.come_back()
    assert lab.everything(A0) == [b"m1"]


@pytest.mark.long
def test_messages_popped_at_the_acting_master_escape_once(lab):
    lab.send(3)
    lab.take_over()
    found = lab.popped(A1, invisibleTime="5000")
    lab.ack(A1, found[1])
    lab.until(lambda: len(lab.retried(B0)) == 2)
    lab.world.run_for(5_000)
    assert lab.retried(B0) == [b"m0", b"m2"]
    assert lab.popped(A1) == []
    lab.come_back()
    assert lab.everything(A0) == []
    assert lab.retried(B0) == [b"m0", b"m2"]


def test_a_topic_that_the_acting_master_does_not_know_is_not_deleted(lab):
    """The slave copies the log at once, and the tables later."""
    lab.send(1)
    assert len(lab.popped(A0, invisibleTime="5000")) == 1
    lab.world.run_for(1_000)
    lab.world.kill(A0)
    del lab.cluster.broker(A1).topics.by_name["T"]
    lab.until(lambda: lab.duty(A1).is_on)
    lab.until(lambda: lab.retried(B0) == [b"m0"])


@pytest.mark.long
def test_the_acting_master_may_be_killed(lab):
    lab.send(3)
    lab.take_over()
    found = lab.popped(A1)
    lab.ack(A1, found[0])
    lab.world.run_for(2_000)
    lab.world.kill(A1)
    lab.world.restart(A1)
    lab.until(lambda: lab.duty(A1).is_on)
    assert lab.popped(A1) == [], "the file has what is hidden"
    lab.ack(A1, found[1])
    lab.come_back()
    assert lab.everything(A0) == [b"m2"]


@pytest.mark.long
def test_the_acks_of_a_lost_acting_master_come_from_its_peer(lab):
    lab.send(3)
    lab.take_over()
    found = lab.popped(A1)
    lab.ack(A1, found[1])
    lab.world.run_for(7_000)
    lab.world.kill(A1)
    lab.world.lose_disk(A1)
    lab.come_back()
    assert lab.everything(A0) == [b"m0", b"m2"]


@pytest.mark.long
def test_without_any_member_that_knows_it_no_message_is_lost(lab):
    lab.send(3)
    lab.take_over()
    found = lab.popped(A1)
    lab.ack(A1, found[1])
    lab.world.run_for(7_000)
    for name in (A1, A2):
        lab.world.kill(name)
        lab.world.lose_disk(name)
    lab.world.restart(A0)
    lab.until(lambda: lab.duty(A0).is_on)
    assert lab.everything(A0) == [b"m0", b"m1", b"m2"]


@pytest.mark.long
def test_a_second_takeover_knows_nothing_of_the_first(lab):
    lab.send(3)
    lab.take_over()
    found = lab.popped(A1)
    lab.come_back()
    lab.world.run_for(10_000)
    for message in found:
        lab.ack(A0, message)
    lab.world.run_for(2_000)
    lab.take_over()
    lab.world.run_for(INVISIBLE_MS + 10_000)
    assert lab.retried(B0) == []


@pytest.mark.long
def test_a_slave_that_does_not_act_refuses(lab):
    lab.send(1)
    reply = lab.ask(A1, RequestCode.POP_MESSAGE, POP)
    assert (reply.code, "does not act" in reply.remark) == (ResponseCode.SERVICE_NOT_AVAILABLE, True)


@pytest.mark.long
def test_an_ordered_pop_at_the_acting_master(lab):
    lab.send(3)
    lab.take_over()
    found = lab.popped(A1, order="true", maxMsgNums="2")
    assert bodies(found) == [b"m0", b"m1"]
    assert lab.popped(A1, order="true") == []
    for message in found:
        lab.ack(A1, message)
    lab.come_back()
    assert bodies(lab.popped(A0, order="true")) == [b"m2"]


@pytest.mark.long
def test_too_many_checkpoints_at_the_acting_master_give_nothing(lab, monkeypatch):
    monkeypatch.setattr("rmqkit.broker.special.pop.revive.UNLOGGED_MAX", 1)
    assert acting_pops.CHECKPOINTS_MAX > 1
    lab.send(3)
    lab.take_over()
    (first,) = lab.popped(A1, maxMsgNums="1")
    assert lab.popped(A1) == []
    lab.ack(A1, first)
    assert bodies(lab.popped(A1)) == [b"m1", b"m2"]
