"""The pull consumer: polls, positions, seeks, commits, shares of a group."""

import pytest

from rmqkit.client.consumers.offset_store import RemoteOffsets
from rmqkit.client.consumers.pull_consumer import PullConsumerCore, PullConsumerSettings
from rmqkit.client.consumers.subscriptions import ConsumeFrom
from rmqkit.client.flow import Deferred, start
from rmqkit.errors import ClientClosed, ClientError, NoRoute
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.fastjson import MessageQueue
from tests.client.group import MEMBERS, PULL, READ, found, members, offsets, record
from tests.client.peers import A_SLAVE, CLIENT_ID, A, Peers, route

Q0, Q1 = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)
COMMIT = RequestCode.UPDATE_CONSUMER_OFFSET


class Reader:
    def __init__(self, *, queues=2, peers=None, **settings) -> None:
        self.peers = peers or Peers(routes={"T": route(("broker-a", {0: A}), queues=queues)})
        settings.setdefault("consume_from", ConsumeFrom.FIRST)
        self.settings = PullConsumerSettings(group="CG", **settings)
        self.peers.do(self._make)

    def _make(self) -> None:
        client = self.peers.client
        self.consumer = PullConsumerCore(client, self.settings, RemoteOffsets(client, "CG"))

    def begin(self, flow) -> Deferred:
        box = []
        self.peers.do(lambda: box.append(start(flow)))
        return box[0]

    def run(self, flow):
        promise = self.begin(flow)
        assert promise.done
        return promise.result()

    def assigned(self, *queues: MessageQueue, at: int = 0) -> "Reader":
        self.run(self.consumer.assign(queues))
        for asked in self.peers.take_all(READ):
            asked.answer(0, {"offset": str(at)})
        return self

    def pull(self, queue_id: int = 0):
        for asked in self.peers.asked:
            if asked.code == PULL and asked.ext["queueId"] == str(queue_id):
                self.peers.asked.remove(asked)
                return asked
        raise AssertionError(f"no pull of queue {queue_id}: {self.peers.waiting()}")

    def poll(self, *args):
        return [message.body for message in self.run(self.consumer.poll(*args))]


def test_a_poll_gives_what_was_pulled_ahead():
    reader = Reader().assigned(Q0)
    found(reader.pull(), record(0, b"a"), record(1, b"b"), record(2, b"c"), next_offset=3)
    assert reader.poll(2) == [b"a", b"b"]
    assert reader.poll(2) == [b"c"]
    assert reader.pull().ext["queueOffset"] == "3"


def test_a_poll_waits_for_the_first_message():
    reader = Reader().assigned(Q0)
    polled = reader.begin(reader.consumer.poll(32, 1000))
    assert not polled.done
    found(reader.pull(), record(0, b"a"), next_offset=1)
    assert [message.body for message in polled.result()] == [b"a"]


def test_a_poll_that_waited_long_enough_gives_nothing():
    reader = Reader().assigned(Q0)
    polled = reader.begin(reader.consumer.poll(32, 1000))
    reader.peers.advance(950)
    assert not polled.done
    reader.peers.advance(50)
    assert polled.result() == []


def test_polls_one_at_a_time():
    reader = Reader().assigned(Q0)
    reader.begin(reader.consumer.poll(32, 1000))
    second = reader.begin(reader.consumer.poll(32, 1000))
    with pytest.raises(ClientError, match="another thread"):
        second.result()


def test_queues_are_served_in_turn():
    reader = Reader().assigned(Q0, Q1)
    found(reader.pull(0), *(record(i, b"0") for i in range(4)), next_offset=4)
    found(reader.pull(1), *(record(i, b"1", queue_id=1) for i in range(4)), next_offset=4)
    assert reader.poll(3) == [b"0"] * 3
    assert reader.poll(3) == [b"1"] * 3
    assert reader.poll(3) == [b"0", b"1"]


def test_a_pull_sends_its_subscription_along():
    """A reader needs no group: the broker filters by the subscription in the pull."""
    reader = Reader(announce=False).assigned(Q0)
    ext = reader.pull().ext
    assert (ext["subscription"], ext["sysFlag"], ext["expressionType"]) == ("*", "6", "TAG")
    assert reader.peers.client.heartbeats.body().count(b'"CG"') == 0


def test_a_member_is_announced_as_active():
    reader = Reader().assigned(Q0)
    data = reader.peers.last_body(RequestCode.HEART_BEAT)["consumerDataSet"][0]
    assert (data["groupName"], data["consumeType"]) == ("CG", "CONSUME_ACTIVELY")


def test_the_broker_s_advice_where_to_pull_is_followed():
    peers = Peers(routes={"T": route(("broker-a", {0: A, 1: A_SLAVE}), queues=1)})
    reader = Reader(peers=peers).assigned(Q0)
    found(reader.pull(), record(0), next_offset=1, suggest=1)
    assert reader.pull().address == A_SLAVE


# --- positions


def test_position_is_the_next_message_to_be_handed_out():
    reader = Reader().assigned(Q0, at=40)
    assert reader.run(reader.consumer.position(Q0)) == 40
    found(reader.pull(), record(41, b"a"), record(42, b"b"), next_offset=43)
    assert reader.run(reader.consumer.position(Q0)) == 41
    reader.poll(1)
    assert reader.run(reader.consumer.position(Q0)) == 42
    reader.poll(1)
    assert reader.run(reader.consumer.position(Q0)) == 43


def test_position_waits_until_it_is_known():
    reader = Reader()
    reader.run(reader.consumer.assign([Q0]))
    position = reader.begin(reader.consumer.position(Q0))
    assert not position.done
    reader.peers.take(READ).answer(0, {"offset": "7"})
    assert position.result() == 7


def test_a_queue_that_cannot_be_read_says_why():
    reader = Reader()
    reader.run(reader.consumer.assign([Q0]))
    position = reader.begin(reader.consumer.position(Q0))
    reader.peers.take(READ).answer(1, remark="store is away")
    with pytest.raises(ClientError, match="store is away"):
        position.result()
    assert "store is away" in str(reader.consumer.failures[Q0])
    reader.peers.advance(reader.settings.retry_after_error_ms)
    reader.peers.take(READ).answer(0, {"offset": "7"})
    assert reader.run(reader.consumer.position(Q0)) == 7
    reader.pull().answer(19, offsets(7))
    assert reader.consumer.failures == {}


def test_a_seek_drops_what_is_held_and_the_answer_that_is_under_way():
    reader = Reader().assigned(Q0)
    found(reader.pull(), record(0, b"old"), next_offset=1)
    under_way = reader.pull()
    reader.peers.do(lambda: reader.consumer.seek(Q0, 50))
    found(under_way, record(1, b"old too"), next_offset=2)
    asked = reader.pull()
    assert asked.ext["queueOffset"] == "50"
    found(asked, record(50, b"new"), next_offset=51)
    assert reader.poll(32) == [b"new"]


def test_a_seek_before_the_position_is_known():
    reader = Reader()
    reader.run(reader.consumer.assign([Q0]))
    position = reader.begin(reader.consumer.position(Q0))
    reader.peers.do(lambda: reader.consumer.seek(Q0, 5))
    assert position.result() == 5


def test_an_offset_outside_the_queue_is_corrected():
    reader = Reader().assigned(Q0, at=3)
    reader.pull().answer(21, offsets(100, low=100))
    assert reader.pull().ext["queueOffset"] == "100"
    assert reader.run(reader.consumer.position(Q0)) == 100


def test_a_paused_queue_gives_nothing():
    reader = Reader().assigned(Q0)
    reader.peers.do(lambda: reader.consumer.pause([Q0], True))
    found(reader.pull(), record(0, b"a"), next_offset=1)
    assert reader.poll(32, 0) == []
    reader.peers.do(lambda: reader.consumer.pause([Q0], False))
    assert reader.poll(32, 0) == [b"a"]


def test_messages_that_were_put_back_come_again_in_order():
    reader = Reader().assigned(Q0)
    found(reader.pull(), *(record(i, str(i).encode()) for i in range(3)), next_offset=3)
    polled = reader.run(reader.consumer.poll(32, 0))
    reader.peers.do(lambda: reader.consumer.put_back(polled[1:]))
    assert reader.poll(32, 0) == [b"1", b"2"]


def test_no_more_than_the_limit_is_pulled_ahead():
    reader = Reader(pull_threshold_for_queue=2).assigned(Q0)
    found(reader.pull(), record(0), record(1), next_offset=2)
    with pytest.raises(AssertionError, match="no pull"):
        reader.pull()
    reader.poll(1)
    reader.peers.advance(50)
    assert reader.pull().ext["queueOffset"] == "2"


def test_a_failed_pull_is_made_again_in_3_seconds():
    reader = Reader().assigned(Q0)
    reader.pull().answer(16, remark="no permission")
    reader.peers.advance(2950)
    with pytest.raises(AssertionError, match="no pull"):
        reader.pull()
    reader.peers.advance(50)
    reader.pull()


# --- commits


def test_commit_stores_positions_less_what_is_held():
    reader = Reader(auto_commit=False).assigned(Q0)
    found(reader.pull(), *(record(i) for i in range(5)), next_offset=5)
    polled = reader.run(reader.consumer.poll(4, 0))
    committed = reader.begin(reader.consumer.commit(polled[2:]))
    asked = reader.peers.take(COMMIT)
    assert asked.ext["commitOffset"] == "2"
    asked.answer()
    assert committed.done
    reader.begin(reader.consumer.commit())
    assert reader.peers.take(COMMIT).ext["commitOffset"] == "4"


def test_a_commit_the_broker_refuses_is_an_error():
    reader = Reader(auto_commit=False).assigned(Q0)
    committed = reader.begin(reader.consumer.commit_offsets({Q0: 9}))
    reader.peers.take(COMMIT).answer(26, remark="no such group")
    with pytest.raises(ClientError, match="no such group"):
        committed.result()


def test_auto_commit_counts_a_message_as_done_with_the_next_poll():
    reader = Reader().assigned(Q0)
    found(reader.pull(), record(0), record(1), next_offset=2)
    reader.poll(1, 0)
    reader.peers.advance(5000)
    assert reader.peers.take(COMMIT).ext["commitOffset"] == "0"
    reader.poll(1, 0)
    reader.peers.advance(5000)
    assert reader.peers.take(COMMIT).ext["commitOffset"] == "1"


@pytest.mark.parametrize(("all_done", "offset"), [(True, "2"), (False, "1")])
def test_closing_commits_what_is_done(all_done, offset):
    reader = Reader().assigned(Q0)
    found(reader.pull(), record(0), record(1), next_offset=2)
    reader.poll(1, 0)
    reader.poll(1, 0)
    reader.begin(reader.consumer.close(commit_positions=all_done))
    assert reader.peers.take(COMMIT).ext["commitOffset"] == offset


def test_a_closed_consumer_ends_its_poll_and_refuses_calls():
    reader = Reader(auto_commit=False).assigned(Q0)
    polled = reader.begin(reader.consumer.poll(32, 60_000))
    reader.begin(reader.consumer.close())
    assert polled.result() == []
    with pytest.raises(ClientClosed):
        reader.consumer.seek(Q0, 1)


# --- shares


def test_subscribing_shares_the_queues():
    reader = Reader(queues=4)
    reader.run(reader.consumer.subscribe("T", "A || B", "TAG"))
    reader.peers.take(MEMBERS).answer(0, body=members(CLIENT_ID, "zz@1"))
    assert [queue.queue_id for queue in reader.consumer.assignment] == [0, 1]
    for asked in reader.peers.take_all(READ):
        asked.answer(22)
    asked = reader.pull(0)
    assert asked.ext["subscription"] == "A || B"
    found(asked, record(0, b"a", tag="A"), record(1, b"c", tag="C"), next_offset=2)
    assert reader.poll(32, 0) == [b"a"]
    reader.peers.tell(A, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "CG"})
    reader.peers.take(MEMBERS).answer(0, body=members(CLIENT_ID))
    assert len(reader.consumer.assignment) == 4


def test_a_queue_that_goes_to_another_member_is_committed():
    reader = Reader(queues=1)
    reader.run(reader.consumer.subscribe("T", "*", "TAG"))
    reader.peers.take(MEMBERS).answer(0, body=members(CLIENT_ID))
    reader.peers.take(READ).answer(22)
    found(reader.pull(), record(0), next_offset=1)
    reader.poll(32, 0)
    reader.begin(reader.consumer.poll(32, 100))
    reader.peers.tell(A, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "CG"})
    reader.peers.take(MEMBERS).answer(0, body=members("00@1", CLIENT_ID))
    assert reader.consumer.assignment == []
    assert reader.peers.take(COMMIT).ext["commitOffset"] == "1"


def test_assigning_and_subscribing_exclude_each_other():
    reader = Reader().assigned(Q0)
    with pytest.raises(ClientError, match="exclude"):
        reader.run(reader.consumer.subscribe("T", "*", "TAG"))
    other = Reader()
    other.run(other.consumer.subscribe("T", "*", "TAG"))
    with pytest.raises(ClientError, match="exclude"):
        other.run(other.consumer.assign([Q0]))


def test_a_topic_that_is_not_there_cannot_be_assigned():
    reader = Reader()
    with pytest.raises(NoRoute):
        reader.run(reader.consumer.assign([MessageQueue("Nope", "broker-a", 0)]))


def test_assigning_again_lets_the_other_queues_go():
    reader = Reader().assigned(Q0)
    reader.assigned(Q1)
    assert reader.consumer.assignment == [Q1]
    with pytest.raises(ClientError, match="not assigned"):
        reader.consumer.seek(Q0, 1)
