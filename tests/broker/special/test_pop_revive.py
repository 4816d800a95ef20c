"""Revive: progress, restarts in the middle of it, limits, and records of other members."""

import pytest

from rmqkit.broker.special.pop import revive as revive_module
from rmqkit.broker.special.pop.records import ack_put, checkpoint_put
from rmqkit.broker.special.pop.revive import PopRevive
from rmqkit.broker.special.timer import rewrite
from rmqkit.store.contract import Put, PutStatus
from rmqkit.testing import SimBroker
from rmqkit.testing.brokers import ADDRESS, CLIENT
from rmqkit.wire import properties as props
from rmqkit.wire.bodies.pop import REVIVE_GROUP, PopAck, PopCheckpoint
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.record import iter_records
from tests.broker.handlers.pop_requests import INVISIBLE_MS, ack, changed, fill, popped
from tests.broker.requests import create_group, pull, records, send, with_topic

AGAIN_MS = INVISIBLE_MS + 1_001
RETRY = "%RETRY%CG_T"
OTHER = {props.PROPERTY_REAL_TOPIC: "T", props.PROPERTY_REAL_QUEUE_ID: "0"}


def duty(script):
    return script.node.special.find(PopRevive)


def progress(script):
    """Return the committed records of all revive queues together."""
    return sum(offset + 1 for offset in script.node.offsets.of(REVIVE_GROUP, duty(script).topic).values())


def test_progress_stops_at_the_first_checkpoint_with_open_messages(make):
    broker = make("reviveQueueNum=1")
    client = with_topic(broker)
    fill(client, 3)
    first, second, third = (popped(broker, client, maxMsgNums=1)[0] for _ in range(3))
    ack(client, third)
    broker.advance(2_000)
    assert progress(broker) == 0
    ack(client, first)
    broker.advance(2_000)
    assert progress(broker) == 1
    ack(client, second)
    broker.advance(2_000)
    assert progress(broker) == 6, "three checkpoints and three acks"


def test_progress_waits_for_the_disk(make):
    broker = make("reviveQueueNum=1")
    client = with_topic(broker)
    fill(client, 1)
    (message,) = popped(broker, client)
    ack(client, message)
    broker.disk.held = True
    broker.advance(5_000)
    assert progress(broker) == 0
    broker.disk.held = False
    broker.advance(5_000)
    assert progress(broker) == 2


def test_progress_beyond_the_log_skips_no_new_record():
    life = Life()
    life.fill(1)
    life.broker.advance(1_000)
    node = life.broker.node
    life.broker.world.call("broker", lambda broker: node.offsets.commit(REVIVE_GROUP, node.view.revive.topic, 0, 50))
    life.broker.stop()
    life.broker.start()
    life.pop()
    life.broker.advance(11_000)
    assert life.retried() == [b"m0"]


def test_a_deleted_message_topic_or_group_ends_its_checkpoints(broker):
    client = with_topic(broker)
    fill(client, 1)
    popped(broker, client)
    client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    broker.advance(AGAIN_MS)
    assert len(duty(broker).pending) == 0
    assert RETRY not in broker.node.topics.by_name


def test_a_deleted_group_gets_nothing_again(make):
    broker = make("autoCreateSubscriptionGroup=false")
    client = with_topic(broker)
    client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"CG"}')
    fill(client, 1)
    popped(broker, client)
    client.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "CG", "cleanOffset": "true"})
    broker.advance(AGAIN_MS)
    assert RETRY not in broker.node.topics.by_name
    assert broker.node.offsets.query("CG", "T", 0) < 0


def test_a_popped_delayed_message_is_not_delayed_again(broker):
    client = with_topic(broker)
    send(client, i="UNIQ_KEY\x01k\x02DELAY\x015\x02")
    broker.advance(60_000)
    (message,) = popped(broker, client, invisibleTime=1_000)
    assert message.properties["DELAY"] == "5"
    broker.advance(2_001)
    assert len(popped(broker, client)) == 1


def test_redelivery_keeps_the_message_and_says_when_it_was_first_popped(broker):
    client = with_topic(broker)
    send(client, body=b"work", i="UNIQ_KEY\x01k\x02KEYS\x01order\x02TAGS\x01A\x02", h="7")
    (first,) = popped(broker, client)
    broker.advance(AGAIN_MS)
    (retry,) = records(pull(client, RETRY))
    assert (retry.body, retry.flag, retry.reconsume_times) == (b"work", 7, 1)
    mapping = props.decode(retry.properties)
    assert mapping["1ST_POP_TIME"] == first.handle.split(" ")[1]
    assert (mapping["KEYS"], mapping["TAGS"], mapping["UNIQ_KEY"]) == ("order", "A", "k")
    popped(broker, client)
    broker.advance(AGAIN_MS)
    (_, third) = records(pull(client, RETRY))
    assert third.reconsume_times == 2
    assert props.decode(third.properties)["1ST_POP_TIME"] == mapping["1ST_POP_TIME"]


def test_the_broker_moves_nothing_to_the_dead_letter_topic(broker):
    client = with_topic(broker)
    fill(client, 1)
    for _ in range(20):
        assert len(popped(broker, client, invisibleTime=1_000)) == 1
        broker.advance(2_001)
    assert "%DLQ%CG" not in broker.node.topics.by_name


def test_turns_are_bounded(broker, monkeypatch):
    monkeypatch.setattr(revive_module, "DUE_PER_TURN", 2)
    client = with_topic(broker)
    fill(client, 12)
    for _ in range(12):
        popped(broker, client, maxMsgNums=1, queueId=0)
    broker.advance(AGAIN_MS + 1_000)
    assert len(records(pull(client, RETRY))) == 12


def test_a_checkpoint_that_waits_long_moves_to_the_end(make, monkeypatch):
    monkeypatch.setattr(revive_module, "SPAN_MAX", 10)
    broker = make("reviveQueueNum=1")
    client = with_topic(broker)
    fill(client, 20)
    held = popped(broker, client, maxMsgNums=2, invisibleTime=3_600_000, queueId=0)
    ack(client, held[0])
    for _ in range(18):
        for message in popped(broker, client, maxMsgNums=1, queueId=0):
            ack(client, message)
    broker.advance(5_000)
    assert progress(broker) >= 30
    assert len(duty(broker).pending) == 1
    broker.advance(3_600_000)
    assert [each.body for each in popped(broker, client)] == [held[1].body]


def test_a_checkpoint_of_the_timer_waits_for_its_acks(broker):
    """Apache's checkpoints arrive 1 s before they are due, their acks when they are due."""
    client = with_topic(broker)
    fill(client, 1)
    popped(broker, client, queueId=1)  # the group is there
    now_ms = broker.clock.wall_ms
    checkpoint = PopCheckpoint(
        broker_name="broker-a", group="CG", differences=[0], count=1, pop_ms=now_ms, invisible_ms=1_000, topic="T"
    )
    put = checkpoint_put(checkpoint, duty(broker).topic, 3, now_ms, bytes(8))
    put = put._replace(properties=put.properties + b"TIMER_OUT_MS\x01%d\x02" % now_ms)
    broker.turn(lambda: broker.node.store.append(put))
    duty(broker).appended(3, 0)
    broker.advance(3_900)
    assert len(duty(broker).pending) == 1
    broker.advance(1_200)
    assert len(records(pull(client, RETRY))) == 1


@pytest.mark.parametrize("body", [b"", b"{", b'{"so":"x"}', b"[]"])
def test_a_record_that_cannot_be_read_is_passed(broker, body):
    client = with_topic(broker)
    fill(client, 1)
    put = Put(duty(broker).topic, 0, 0, 0, 1, bytes(8), bytes(8), 0, 0, body or b" ", b"TAGS\x01ck\x02", 0)
    broker.turn(lambda: broker.node.store.append(put))
    broker.advance(60_000)
    assert "revive-record-unreadable" in broker.log.events("error")
    assert len(popped(broker, client)) == 1
    broker.advance(AGAIN_MS)
    assert len(popped(broker, client)) == 1


def test_old_checkpoints_have_a_count_only(broker):
    client = with_topic(broker)
    fill(client, 3)
    create_group(client)
    checkpoint = PopCheckpoint(group="CG", count=3, pop_ms=broker.clock.wall_ms, topic="T")
    put = checkpoint_put(checkpoint, duty(broker).topic, 0, broker.clock.wall_ms, bytes(8))
    broker.turn(lambda: broker.node.store.append(put))
    broker.advance(60_000)
    assert len(records(pull(client, RETRY))) == 3


# --- kills


class Life:
    """A simulated broker with one popped topic."""

    def __init__(self, *settings):
        self.broker = SimBroker("reviveQueueNum=1", *settings)
        self.broker.create_topic("T", 1)

    def fill(self, count):
        for number in range(count):
            self.broker.send("T", b"m%d" % number, properties={"UNIQ_KEY": f"k{number}"})

    def pop(self, **changes):
        fields = {
            "consumerGroup": "CG",
            "topic": "T",
            "queueId": "-1",
            "maxMsgNums": "32",
            "invisibleTime": "10000",
            "pollTime": "0",
            "bornTime": "0",
            "initMode": "0",
        }
        reply = self.broker.ask(RequestCode.POP_MESSAGE, {**fields, **changes})
        assert reply.code in (0, 210), reply
        return reply

    def bodies(self, reply):
        return sorted(record.body for record in iter_records(reply.body))

    def retried(self):
        store = self.broker.node.store
        end = store.queue_range(RETRY, 0).offset_max
        entries = store.entries(RETRY, 0, 0, end) if end else ()
        return sorted(next(iter_records(store.read_log(each.phy_offset, each.size))).body for each in entries)

    def ack(self, reply, *offsets):
        """Ack messages with one request each, all in one turn."""
        ext, answers = reply.ext, []

        def run(client):
            for offset in offsets:
                handle = f"0 {ext['popTime']} {ext['invisibleTime']} {ext['reviveQid']} 0 broker-a 0 {offset}"
                fields = {"consumerGroup": "CG", "topic": "T", "queueId": "0", "extraInfo": handle, "offset": str(offset)}
                client.remoting.call(ADDRESS, RequestCode.ACK_MESSAGE, fields, timeout_ms=10_000, then=answers.append)

        self.broker.world.call(CLIENT, run)
        assert self.broker.world.run_until(lambda: len(answers) == len(offsets), 10_000)
        assert [answer.code for answer in answers] == [0] * len(offsets)


@pytest.mark.parametrize("wait_ms", [0, 700, 20_000])
@pytest.mark.parametrize("end", ["kill", "stop", "crash"])
def test_popped_messages_survive_any_end_of_the_broker(end, wait_ms):
    life = Life("flushDiskType=SYNC_FLUSH")
    life.fill(4)
    reply = life.pop()
    life.ack(reply, 1)
    life.broker.advance(wait_ms)
    getattr(life.broker, end)()
    life.broker.start()
    life.broker.advance(15_000)
    found = set(life.bodies(life.pop()))
    assert found >= {b"m0", b"m2", b"m3"}, "at least once"
    assert b"m1" not in life.retried()


@pytest.mark.parametrize("end", ["kill", "crash"])
def test_acks_that_share_a_record_survive_any_end_of_the_broker(end):
    life = Life("flushDiskType=SYNC_FLUSH")
    life.fill(5)
    life.ack(life.pop(), 0, 2, 4)
    store = life.broker.node.store
    assert store.queue_range(life.broker.node.view.revive.topic, 0).offset_max == 2, "the checkpoint and one ack"
    getattr(life.broker, end)()
    life.broker.start()
    life.broker.advance(15_000)
    life.pop()
    assert life.retried() == [b"m1", b"m3"]


def test_acks_that_the_timer_still_holds_at_a_start_count():
    """An Apache broker ended after its timer had released the checkpoint, and before the acks.

    Other timers are due before the acks, so their release takes more than a turn.
    """
    life = Life()
    life.pop()  # makes the group
    life.fill(3)
    node = life.broker.node
    topic, now_ms = node.view.revive.topic, node.clock.wall_ms
    due_ms = (now_ms // 1000 + 5) * 1000
    ck = PopCheckpoint(
        broker_name="broker-a",
        group="CG",
        differences=[0, 1, 2],
        count=3,
        invisible_ms=due_ms - now_ms,
        pop_ms=now_ms,
        revive_ms=due_ms,
        topic="T",
    )
    acked = PopAck(broker_name="broker-a", group="CG", pop_ms=now_ms, topic="T", offset=1)
    out = props.encode({props.PROPERTY_TIMER_OUT_MS: str(due_ms - 1000)})
    checkpoint = checkpoint_put(ck, topic, 0, now_ms, bytes(8))
    checkpoint = checkpoint._replace(properties=checkpoint.properties + out)
    ack = rewrite.waiting(ack_put(acked, due_ms, topic, 0, now_ms, bytes(8)), due_ms)

    def put(broker):
        other = ack._replace(
            body=b"other", properties=props.encode(OTHER | {props.PROPERTY_TIMER_OUT_MS: str(due_ms - 2000)})
        )
        for each in (checkpoint, *[other] * 3000, ack):
            assert broker.store.append(each).status is PutStatus.PUT_OK

    life.broker.world.call("broker", put)
    life.broker.stop()
    life.broker.advance(60_000)
    life.broker.start()
    life.broker.advance(15_000)
    assert life.retried() == [b"m0", b"m2"]


def test_a_kill_after_the_put_and_before_the_progress_gives_nothing_twice():
    life = Life()
    life.fill(3)
    life.pop()
    life.broker.advance(1_000)  # the offset is committed
    life.broker.world.run_until(lambda: life.retried(), 30_000)
    assert life.retried() == [b"m0", b"m1", b"m2"]
    assert not life.broker.node.offsets.of(REVIVE_GROUP, life.broker.node.special.find(PopRevive).topic)
    life.broker.kill()
    life.broker.start()
    life.broker.advance(5_000)
    assert life.retried() == [b"m0", b"m1", b"m2"]


def test_a_crash_loses_no_popped_message_without_sync():
    """The offset of the group may not be ahead of the checkpoint on the disk."""
    for wait_ms in range(0, 12_000, 900):
        life = Life()
        life.fill(2)
        life.broker.advance(12_000)  # flushed
        life.pop()
        life.broker.advance(wait_ms)
        life.broker.crash()
        life.broker.start()
        life.broker.advance(15_000)
        assert life.bodies(life.pop()) == [b"m0", b"m1"], wait_ms


def test_acks_count_while_the_broker_still_reads_its_checkpoints(monkeypatch):
    life = Life()
    life.fill(2)
    reply = life.pop()
    life.broker.advance(1_000)
    life.broker.kill()
    monkeypatch.setattr(revive_module, "RECORDS_PER_TURN", 0)
    life.broker.start()
    assert life.broker.node.view.revive.is_reading
    life.ack(reply, 0)
    monkeypatch.setattr(revive_module, "RECORDS_PER_TURN", 100)
    life.broker.advance(15_000)
    assert life.retried() == [b"m1"]


def test_a_changed_message_survives_a_kill(broker):
    client = with_topic(broker)
    fill(client, 1)
    (message,) = popped(broker, client)
    new = changed(client, message, 30_000)
    broker.advance(AGAIN_MS)
    assert ack(client, new).code == 0
    assert len(popped(broker, client)) == 1
