"""The consumer in pop mode, events in and requests out: what it asks for, and what it answers."""

import json
from base64 import b64decode

import pytest

from rmqkit.client.consumers.pop.consumer import PopConsumerCore
from rmqkit.client.consumers.pop.messages import PopConsumerSettings
from rmqkit.client.consumers.subscriptions import ConsumeFrom
from rmqkit.client.flow import start
from rmqkit.wire.codes import RequestCode
from tests.client.group import record
from tests.client.peers import CLIENT_ID, ON_A_AND_B, A, B, Peers, route

ON_A = route(("broker-a", {0: A}), queues=2)
ASSIGNMENT = RequestCode.QUERY_ASSIGNMENT
POP = RequestCode.POP_MESSAGE
ACK = RequestCode.ACK_MESSAGE
BATCH_ACK = RequestCode.BATCH_ACK_MESSAGE
CHANGE = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
NONE_ASSIGNED = b'{"messageQueueAssignments":[]}'


class Worker:
    """One consumer under test. Its listener is the test."""

    def __init__(self, peers, *, expression="*", **settings):
        self.peers = peers
        self.batches = []
        settings.setdefault("consume_from", ConsumeFrom.FIRST)
        self.settings = PopConsumerSettings(group="CG", **settings)
        self.expression = expression
        peers.always.setdefault(ASSIGNMENT, NONE_ASSIGNED)
        peers.do(self._make)

    def _make(self):
        self.consumer = PopConsumerCore(self.peers.client, self.settings, self.batches.append)
        self.consumer.subscribe("T", self.expression, "TAG")
        self.started = start(self.consumer.start())

    def found(self, *records, starts="0 0 7", **more):
        """Answer the pop in flight."""
        ext = {
            "popTime": "1700000000000",
            "invisibleTime": "60000",
            "reviveQid": "3",
            "restNum": "0",
            "startOffsetInfo": starts,
            "msgOffsetInfo": "not read",
            **more,
        }
        self.peers.take(POP).answer(0, ext, b"".join(records), "FOUND")

    def finish(self, *outcomes):
        """Report the outcomes of the oldest batches, in one turn."""
        batches = self.batches[: len(outcomes)]
        del self.batches[: len(outcomes)]

        def report():
            for batch, ok in zip(batches, outcomes, strict=True):
                self.consumer.began(batch)
                self.consumer.finished(batch, ok)

        self.peers.do(report)


@pytest.fixture
def peers():
    return Peers(routes={"T": ON_A})


# --- joining, and what is popped


def test_the_heartbeat_says_that_it_pops(peers):
    worker = Worker(peers)
    assert worker.started.done
    data = peers.last_body(RequestCode.HEART_BEAT, A)["consumerDataSet"][0]
    assert (data["consumeType"], data["messageModel"]) == ("CONSUME_POP", "CLUSTERING")
    assert [each["topic"] for each in data["subscriptionDataSet"]] == ["T", "%RETRY%CG"]
    assert peers.last_body(ASSIGNMENT) == {
        "clientId": CLIENT_ID,
        "consumerGroup": "CG",
        "messageModel": "CLUSTERING",
        "strategyName": "AVG",
        "topic": "T",
    }


def test_the_pop_is_that_of_popAsync_with_the_clock_of_the_broker(peers):
    Worker(peers)
    assert peers.take(POP).ext == {
        "consumerGroup": "CG",
        "topic": "T",
        "queueId": "-1",
        "maxMsgNums": "32",
        "invisibleTime": "60000",
        "pollTime": "15000",
        "bornTime": "0",
        "initMode": "0",
        "expType": "TAG",
        "exp": "*",
        "order": "false",
    }


def test_a_new_group_may_begin_at_the_end(peers):
    Worker(peers, consume_from=ConsumeFrom.LAST)
    assert peers.take(POP).ext["initMode"] == "1"


@pytest.mark.parametrize(
    "answer",
    [
        NONE_ASSIGNED,
        b"{}",
        b"no json",
        json.dumps(
            {
                "messageQueueAssignments": [
                    {"messageQueue": {"topic": "T", "brokerName": "broker-a", "queueId": 1}, "mode": "PULL"}
                ]
            }
        ).encode(),
    ],
)
def test_unless_the_broker_assigns_pops_it_pops_all_queues_of_each_broker(answer):
    peers = Peers(routes={"T": ON_A_AND_B})
    peers.always[ASSIGNMENT] = answer
    worker = Worker(peers)
    assert [tuple(queue) for queue in worker.consumer.works] == [("T", "broker-a", -1), ("T", "broker-b", -1)]
    assert sorted(asked.address for asked in peers.take_all(POP)) == [A, B]


def test_the_share_that_a_broker_assigns_is_popped(peers):
    assigned = [{"messageQueue": {"topic": "T", "brokerName": "broker-a", "queueId": 1}, "mode": "POP"}]
    peers.always[ASSIGNMENT] = json.dumps({"messageQueueAssignments": assigned}).encode()
    worker = Worker(peers)
    assert peers.take(POP).ext["queueId"] == "1"
    peers.always[ASSIGNMENT] = NONE_ASSIGNED
    peers.advance(20_050, step_ms=500)
    assert [tuple(queue) for queue in worker.consumer.works] == [("T", "broker-a", -1)]


def test_a_broker_that_does_not_know_assignments_is_popped(peers):
    peers.always[ASSIGNMENT] = NONE_ASSIGNED
    worker = Worker(peers)
    del peers.always[ASSIGNMENT]
    peers.advance(20_050, step_ms=500)
    peers.take(ASSIGNMENT).answer(3, remark="request type 400 not supported")
    assert [tuple(queue) for queue in worker.consumer.works] == [("T", "broker-a", -1)]


# --- handles


def test_the_handle_of_a_message_is_built_as_buildExtraInfo(peers):
    worker = Worker(peers)
    worker.found(record(7), record(9), record(4, queue_id=1), starts="0 0 7;0 1 2")
    worker.finish(True)
    ack = peers.take(ACK)
    assert ack.ext == {
        "consumerGroup": "CG",
        "topic": "T",
        "queueId": "0",
        "extraInfo": "7 1700000000000 60000 3 0 broker-a 0 7",
        "offset": "7",
    }
    receipts = [batch.popped[0].receipt for batch in worker.batches]
    assert receipts == ["7 1700000000000 60000 3 0 broker-a 0 9", "2 1700000000000 60000 3 0 broker-a 1 4"]


def test_brokers_without_start_offsets_began_at_the_first_message(peers):
    worker = Worker(peers)
    worker.found(record(7), record(9), starts="")
    assert [batch.popped[0].handle.start_offset for batch in worker.batches] == [7, 7]


def test_a_redelivered_message_has_its_handle_from_the_broker(peers):
    worker = Worker(peers)
    given = "5 1700000000001 60000 2 1 broker-a 0 5"
    worker.found(record(5, properties=f"POP_CK\x01{given}\x02".encode(), reconsume_times=1), starts="")
    message = worker.batches[0].messages[0]
    assert (message.topic, tuple(message.queue)) == ("T", ("%RETRY%CG_T", "broker-a", 0))
    worker.finish(True)
    ack = peers.take(ACK)
    assert (ack.ext["topic"], ack.ext["extraInfo"], ack.ext["offset"]) == ("%RETRY%CG_T", given, "5")


@pytest.mark.parametrize("handle", ["nonsense", "5 1700000000001 60000 2 7 broker-a 0 5", "5 -1 60000 2 1 broker-a 0 5"])
def test_an_answer_with_a_handle_that_is_none_is_an_error_and_asked_again(peers, handle):
    worker = Worker(peers)
    worker.found(record(5, properties=f"POP_CK\x01{handle}\x02".encode()), starts="")
    assert not worker.batches
    peers.advance(3050)
    worker.found(record(7))
    assert len(worker.batches) == 1


@pytest.mark.parametrize("starts", ["0 0", "0 x 1", "0 0 1 2"])
def test_start_offsets_that_cannot_be_read_are_an_error(peers, starts):
    worker = Worker(peers)
    worker.found(record(5), starts=starts)
    assert not worker.batches


def test_the_retry_topic_of_pulls_is_popped_too_and_acked_by_its_own_name(peers):
    peers.routes["%RETRY%CG"] = ON_A
    worker = Worker(peers)
    assert peers.times(ASSIGNMENT) == 1
    (pop,) = [asked for asked in peers.asked if asked.code == POP and asked.ext["topic"] == "%RETRY%CG"]
    peers.asked.remove(pop)
    peers.asked.insert(0, pop)
    failed = [record(n, topic="%RETRY%CG", properties=b"RETRY_TOPIC\x01T\x02", reconsume_times=1) for n in (3, 4)]
    worker.found(*failed, starts="1 0 3")
    assert [message.topic for batch in worker.batches for message in batch.messages] == ["T", "T"]
    worker.finish(True, True)
    acks = peers.take_all(ACK)
    assert [(each.ext["topic"], each.ext["offset"]) for each in acks] == [("%RETRY%CG", "3"), ("%RETRY%CG", "4")]
    assert acks[0].ext["extraInfo"] == "3 1700000000000 60000 3 1 broker-a 0 3"


# --- outcomes


def test_acks_of_one_turn_go_in_one_request(peers):
    worker = Worker(peers)
    again = b"POP_CK\x015 1700000000001 60000 2 1 broker-a 0 5\x02"
    worker.found(record(7), record(9), record(18), record(5, properties=again))
    worker.finish(True, True, True, True)
    peers.take(BATCH_ACK).answer()
    assert not peers.take_all(ACK)
    body = peers.last_body(BATCH_ACK)
    assert body["brokerName"] == "broker-a"
    bits = [b64decode(each.pop("b")) for each in body["acks"]]
    assert bits == [bytes([0b101, 0b1000]), bytes([1])]
    assert body["acks"] == [
        {"c": "CG", "it": 60000, "pt": 1700000000000, "q": 0, "r": "0", "rq": 3, "so": 7, "t": "T"},
        {"c": "CG", "it": 60000, "pt": 1700000000001, "q": 0, "r": "1", "rq": 2, "so": 5, "t": "T"},
    ]
    assert not next(iter(worker.consumer.works.values())).held


def test_a_broker_without_batch_acks_gets_them_one_by_one(peers):
    worker = Worker(peers)
    worker.found(record(7), record(8))
    worker.finish(True, True)
    peers.take(BATCH_ACK).answer(3, remark="request type 200151 not supported")
    for asked in peers.take_all(ACK):
        asked.answer()
    worker.found(record(9), record(10))
    worker.finish(True, True)
    assert [asked.ext["offset"] for asked in peers.take_all(ACK)] == ["9", "10"]


def test_an_ack_far_behind_the_start_of_its_pop_goes_alone(peers):
    worker = Worker(peers)
    worker.found(record(7), record(8), record(7 + 4097))
    worker.finish(True, True, True)
    assert peers.take(ACK).ext["offset"] == str(7 + 4097)
    assert len(peers.last_body(BATCH_ACK)["acks"]) == 1


@pytest.mark.parametrize(("code", "is_repeated"), [(1, True), (14, True), (208, False), (13, False)])
def test_an_ack_is_repeated_after_an_error_that_passes(peers, code, is_repeated):
    worker = Worker(peers)
    worker.found(record(7))
    worker.finish(True)
    peers.take(ACK).answer(code, remark="no")
    peers.advance(1050)
    assert len(peers.take_all(ACK)) == is_repeated
    assert next(iter(worker.consumer.works.values())).held == is_repeated


def test_an_ack_is_repeated_only_while_its_handle_is_valid(peers):
    worker = Worker(peers)
    worker.found(record(7), invisibleTime="5000")
    worker.finish(True)
    for _ in range(5):
        peers.take(ACK).answer(14, remark="this is a slave")
        peers.advance(1000)
    assert not peers.take_all(ACK)
    assert not next(iter(worker.consumer.works.values())).held


@pytest.mark.parametrize(
    ("times", "delay_ms"), [(0, 10_000), (1, 30_000), (2, 60_000), (3, 120_000), (11, 600_000), (15, 7_200_000)]
)
def test_a_failed_message_is_hidden_by_the_table_of_popDelayLevel(peers, times, delay_ms):
    worker = Worker(peers)
    worker.found(record(7, reconsume_times=times))
    worker.finish(False)
    assert peers.take(CHANGE).ext == {
        "consumerGroup": "CG",
        "topic": "T",
        "queueId": "0",
        "extraInfo": "7 1700000000000 60000 3 0 broker-a 0 7",
        "offset": "7",
        "invisibleTime": str(delay_ms),
        "suspend": "false",
    }


@pytest.mark.parametrize(("times", "has_listener"), [(16, True), (17, False)])
def test_a_message_that_failed_too_often_goes_to_the_dead_letters_and_is_acked(peers, times, has_listener):
    worker = Worker(peers)
    peers.routes["%RETRY%CG"] = ON_A
    worker.found(record(7, reconsume_times=times))
    assert len(worker.batches) == has_listener
    if has_listener:
        worker.finish(False)
    copy = peers.take(RequestCode.SEND_MESSAGE_V2)
    assert not peers.take_all(ACK), "not before a broker has the copy"
    assert copy.ext["b"] == "%RETRY%CG"
    assert (copy.ext["j"], copy.ext["l"]) == (str(times + 1), "0")
    assert "RETRY_TOPIC\x01T\x02" in copy.ext["i"]
    copy.answer(0, {"msgId": "1", "queueId": "0", "queueOffset": "0"})
    assert peers.take(ACK).ext["offset"] == "7"


def test_a_message_that_no_broker_buries_comes_again(peers):
    worker = Worker(peers)
    peers.routes["%RETRY%CG"] = ON_A
    worker.found(record(7, reconsume_times=16))
    worker.finish(False)
    for _ in range(3):
        for asked in peers.take_all(RequestCode.SEND_MESSAGE_V2):
            asked.answer(13, remark="no")
    assert peers.take(CHANGE).ext["invisibleTime"] == "10000"
    assert not peers.take_all(ACK)


def test_messages_whose_tag_only_has_the_same_hash_are_acked_unseen(peers):
    worker = Worker(peers, expression="AaAa")
    worker.found(record(7, tag="BBBB"), record(8, tag="AaAa"))
    assert [each.queue_offset for batch in worker.batches for each in batch.messages] == [8]
    assert peers.take(ACK).ext["offset"] == "7"


# --- time


def test_an_expired_handle_reaches_no_listener(peers):
    worker = Worker(peers)
    worker.found(record(7), invisibleTime="5000")
    now_ms = peers.client.clock.mono_ms
    batch = worker.batches[0]
    assert batch.may_begin(now_ms + 4999)
    assert not batch.may_begin(now_ms + 5000)
    peers.advance(5000, step_ms=500)
    peers.do(lambda: worker.consumer.undelivered(batch))
    assert not peers.take_all(CHANGE)
    assert worker.consumer.expired_count == 1
    assert not next(iter(worker.consumer.works.values())).held


def test_a_late_outcome_acks_what_is_consumed_and_nothing_else(peers):
    worker = Worker(peers)
    worker.found(record(7), record(8), record(9, reconsume_times=16), invisibleTime="5000")
    peers.advance(5000, step_ms=500)
    worker.finish(True, False, False)
    assert peers.take(ACK).ext["offset"] == "7"
    assert not peers.take_all(CHANGE)
    assert not peers.take_all(RequestCode.SEND_MESSAGE_V2)


def test_an_answer_that_was_held_up_on_its_way_is_older_than_its_arrival(peers):
    worker = Worker(peers, suspend_ms=5000)
    peers.advance(9000, step_ms=500)
    worker.found(record(7), invisibleTime="5000")
    now_ms = peers.client.clock.mono_ms
    assert worker.batches[0].popped[0].deadline_ms == now_ms + 1000


def test_pops_pause_while_too_many_messages_are_not_acked(peers):
    worker = Worker(peers, pop_threshold_for_queue=2)
    worker.found(record(7), record(8), record(9))
    peers.advance(1000)
    assert not peers.take_all(POP)
    worker.finish(True)
    peers.take(ACK).answer()
    peers.advance(50)
    assert len(peers.take_all(POP)) == 1


def test_a_consumer_that_cannot_begin_in_time_takes_less_and_then_more_again(peers):
    worker = Worker(peers, pop_threshold_for_queue=4)
    worker.found(*(record(n) for n in range(7, 12)), invisibleTime="5000")
    peers.advance(5000, step_ms=500)
    for batch in [worker.batches.pop() for _ in range(5)]:
        peers.do(lambda batch=batch: worker.consumer.undelivered(batch))
    peers.advance(50)
    (work,) = worker.consumer.works.values()
    assert (work.room, work.held) == (2, 0), "one half for all that expire together"
    (pop,) = [asked for asked in peers.asked if asked.code == POP]
    assert pop.ext["maxMsgNums"] == "2"
    worker.found(record(12), record(13))
    worker.finish(True, False)
    assert work.room == 3
    for number in range(14, 21):
        worker.found(record(number))
        worker.finish(True)
        peers.take(ACK).answer()
    assert work.room == 4, "not more than pop_threshold_for_queue"


@pytest.mark.parametrize(("code", "pause_ms"), [(210, 100), (19, 100), (209, 3000), (16, 3000), (215, 20)])
def test_an_answer_without_messages_is_followed_by_a_pause(peers, code, pause_ms):
    Worker(peers)
    ext = {"popTime": "1", "invisibleTime": "1", "reviveQid": "0", "restNum": "0"}
    peers.take(POP).answer(code, ext, remark="NO_MESSAGE_IN_QUEUE")
    peers.advance(pause_ms - 10, step_ms=10)
    assert not peers.take_all(POP)
    peers.advance(20, step_ms=10)
    assert len(peers.take_all(POP)) == 1


def test_a_pop_that_waited_is_repeated_at_once(peers):
    Worker(peers)
    peers.advance(15_000, step_ms=500)
    peers.take(POP).answer(210)
    assert len(peers.take_all(POP)) == 1


# --- the end


def test_messages_of_a_topic_that_is_not_wanted_any_more_are_released(peers):
    worker = Worker(peers)
    peers.do(lambda: worker.consumer.unsubscribe("T"))
    worker.found(record(7))
    assert not worker.batches
    released = peers.take(CHANGE)
    assert (released.ext["invisibleTime"], released.ext["suspend"]) == ("1000", "true")


def test_close_waits_for_acks_and_then_leaves(peers):
    worker = Worker(peers)
    worker.found(record(7))
    peers.do(worker.consumer.quiesce)
    worker.finish(True)
    closed = []
    peers.do(lambda: start(worker.consumer.close()).when_done(lambda: closed.append(True)))
    assert not closed
    peers.take(ACK).answer()
    assert closed
    assert peers.times(RequestCode.UNREGISTER_CLIENT, A) == 1


def test_a_listener_that_ends_after_close_still_acks(peers):
    worker = Worker(peers)
    worker.found(record(7))
    batch = worker.batches[0]
    peers.do(lambda: worker.consumer.began(batch))
    peers.do(lambda: start(worker.consumer.close()))
    assert peers.times(RequestCode.UNREGISTER_CLIENT, A) == 1
    peers.do(lambda: worker.consumer.finished(batch, True))
    assert peers.take(ACK).ext["offset"] == "7"


def test_close_waits_for_a_dead_letter_and_its_ack(peers):
    worker = Worker(peers)
    peers.routes["%RETRY%CG"] = ON_A
    worker.found(record(7, reconsume_times=16))
    worker.finish(False)
    closed = []
    peers.do(lambda: start(worker.consumer.close()).when_done(lambda: closed.append(True)))
    peers.take(RequestCode.SEND_MESSAGE_V2).answer(0, {"msgId": "1", "queueId": "0", "queueOffset": "0"})
    assert not closed
    peers.take(ACK).answer()
    assert closed


def test_close_does_not_wait_for_ever(peers):
    worker = Worker(peers)
    worker.found(record(7))
    worker.finish(True)
    closed = []
    peers.states[A] = "silent"
    peers.do(lambda: start(worker.consumer.close()).when_done(lambda: closed.append(True)))
    peers.advance(7000, step_ms=500)
    assert closed


def test_the_running_info_shows_what_is_not_acked(peers):
    worker = Worker(peers)
    worker.found(record(7), record(8))
    info = worker.consumer.running_info()
    assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_POP"
    (row,) = info.mq_pop_table.values()
    assert row.wait_ack_count == 2
    assert b'"waitAckCount":2' in info.encode()
