"""Sends: routes, retries by code, texts of failures, given queues, batches, one-way, half-open
links.
"""

import pytest

from rmqkit.client.fault_policy import FAULT_POLICIES
from rmqkit.client.flow import start
from rmqkit.client.message import Message, SendResult, SendStatus
from rmqkit.client.producers.outgoing_message import Prepare
from rmqkit.client.producers.producer import ProducerCore, ProducerSettings
from rmqkit.errors import ClientClosed, NoRoute, PeerUnreachable, SendFailed
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.uniqueids import UniqueIds
from tests.client.peers import NS_1, NS_2, ON_A, ON_A_AND_B, A, B, Peers, route

SEND = RequestCode.SEND_MESSAGE_V2
STORED = {"msgId": "0A000201000029FF0000000000000000", "queueId": "3", "queueOffset": "17"}


class Sender:
    """One producer and the outcomes of its sends."""

    def __init__(self, peers: Peers, **settings) -> None:
        self.peers = peers
        self.outcomes: list = []
        self.prepare = Prepare(UniqueIds(bytes((10, 0, 0, 9)), 7, 99))
        peers.script.turn(lambda: self._make(settings))

    def _make(self, settings) -> None:
        self.producer = ProducerCore(self.peers.client, ProducerSettings(group="PG", **settings))

    def send(self, body=b"hello", topic="T", *, timeout_ms=3000, **options) -> None:
        outgoing = self.prepare.message(Message(topic, body), self.peers.script.clock.wall_ms)
        self.peers.do(lambda: self.producer.send(outgoing, self.outcomes.append, timeout_ms=timeout_ms, **options))

    @property
    def outcome(self):
        assert len(self.outcomes) == 1, self.outcomes
        return self.outcomes[0]


@pytest.fixture
def peers():
    return Peers(routes={"T": ON_A_AND_B})


def alone():
    return Peers(routes={"T": ON_A})


def test_a_send_is_answered(peers):
    sender = Sender(peers)
    sender.send()
    asked = peers.take(SEND)
    name = "broker-a" if asked.address == A else "broker-b"
    asked.answer(0, STORED | {"MSG_REGION": "DefaultRegion"})
    result = sender.outcome
    assert result == SendResult(
        SendStatus.SEND_OK, result.msg_id, STORED["msgId"], MessageQueue("T", name, 3), 17, None, "DefaultRegion"
    )
    assert len(result.msg_id) == 32
    assert result.is_ok


def test_the_header_is_that_of_DefaultMQProducerImpl_sendKernelImpl(peers):
    sender = Sender(peers)
    sender.send(b"hello")
    ext = peers.take(SEND).ext
    properties = ext.pop("i")
    assert ext == {
        "a": "PG",
        "b": "T",
        "c": "TBW102",
        "d": "4",
        "e": ext["e"],
        "f": "0",
        "g": str(peers.script.clock.wall_ms),
        "h": "0",
        "j": "0",
        "k": "false",
        "m": "false",
        "n": ext["n"],
    }
    assert properties.startswith("UNIQ_KEY\x01")
    assert properties.endswith("\x02")


def test_sends_go_round_all_queues(peers):
    sender = Sender(peers)
    for _ in range(8):
        sender.send()
    asked = peers.take_all(SEND)
    assert len({(each.ext["n"], each.ext["e"]) for each in asked}) == 8


@pytest.mark.parametrize("code", [17, 14, 1, 2, 16, 204, 205, 1500])
def test_retriable_codes_are_tried_at_another_broker_as_DefaultMQProducer_retryResponseCodes(peers, code):
    sender = Sender(peers)
    sender.send()
    first = peers.take(SEND)
    first.answer(code, remark="not now")
    second = peers.take(SEND)
    assert second.address != first.address
    second.answer(0, STORED)
    assert sender.outcome.is_ok


@pytest.mark.parametrize("code", [3, 4, 13, 15, 18, 26, 29, 215])
def test_other_codes_fail_at_once(peers, code):
    sender = Sender(peers)
    sender.send()
    peers.take(SEND).answer(code, remark="no")
    assert not peers.waiting()
    failure = sender.outcome
    assert isinstance(failure, SendFailed)
    assert (failure.code, failure.remark, failure.tries) == (code, "no", 1)


@pytest.mark.parametrize(("code", "maybe"), [(2, False), (14, False), (16, False), (1, True), (205, False), (999, True)])
def test_a_failure_says_whether_the_message_may_have_been_stored(code, maybe):
    peers = alone()
    sender = Sender(peers)
    sender.send(retry_times=0)
    peers.take(SEND).answer(code, remark="no")
    assert sender.outcome.maybe_stored is maybe
    assert ("may have been stored" in str(sender.outcome)) is maybe


@pytest.mark.parametrize("more", [": 1 of the 2 that a put needs are in sync", ""])
def test_a_broker_of_ours_with_too_few_in_sync_has_stored_nothing(more):
    peers = alone()
    sender = Sender(peers)
    sender.send(retry_times=0)
    peers.take(SEND).answer(1, remark=f"in-sync replicas not enough{more}")
    assert sender.outcome.maybe_stored is (more == "")


def test_three_tries_and_no_more_as_DefaultMQProducerImpl_sendDefaultImpl(peers):
    sender = Sender(peers)
    sender.send()
    tried = []
    for _ in range(3):
        asked = peers.take(SEND)
        tried.append(asked.address)
        asked.answer(2, remark="busy")
    assert not peers.waiting()
    assert tried[0] == tried[2] != tried[1]
    assert sender.outcome.tries == 3
    assert sender.outcome.code == 2


def test_a_refused_connection_goes_to_another_broker(peers):
    peers.states[A] = "down"
    sender = Sender(peers)
    for _ in range(4):
        sender.send()
    for asked in peers.take_all(SEND):
        assert asked.address == B
        asked.answer(0, STORED)
    assert [outcome.is_ok for outcome in sender.outcomes] == [True] * 4


def test_a_lost_connection_goes_to_another_broker(peers):
    sender = Sender(peers)
    sender.send()
    lost = peers.asked[0].address
    peers.states[lost] = "down"
    peers.cut(lost)
    asked = peers.take(SEND)
    assert asked.address != lost
    asked.answer(0, STORED)
    assert sender.outcome.is_ok


def test_with_a_single_broker_down_the_error_says_so():
    peers = alone()
    peers.states[A] = "down"
    sender = Sender(peers)
    sender.send()
    failure = sender.outcome
    assert isinstance(failure, SendFailed)
    assert not failure.maybe_stored
    assert failure.code is None
    assert "Connection refused" in str(failure)
    assert "broker-a is the only broker of this topic" in str(failure)
    assert "\n" not in str(failure)


def test_a_lost_connection_leaves_it_open_whether_the_message_was_stored():
    peers = alone()
    sender = Sender(peers)
    sender.send()
    peers.states[A] = "down"
    peers.cut(A)
    assert sender.outcome.maybe_stored


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
    ],
)
def test_not_stored_well_is_a_result_as_MQClientAPIImpl_processSendResponse(peers, code, status):
    sender = Sender(peers)
    sender.send()
    peers.take(SEND).answer(code, STORED)
    assert sender.outcome.status is status
    assert not sender.outcome.is_ok
    assert not peers.waiting()


def test_retry_another_broker_when_not_store_ok(peers):
    sender = Sender(peers, retry_another_broker_when_not_store_ok=True)
    sender.send()
    first = peers.take(SEND)
    first.answer(12, STORED)
    second = peers.take(SEND)
    assert second.address != first.address
    second.answer(0, STORED)
    assert sender.outcome.status is SendStatus.SEND_OK


def test_when_the_other_broker_fails_too_the_first_result_counts(peers):
    sender = Sender(peers, retry_another_broker_when_not_store_ok=True)
    sender.send(retry_times=1)
    peers.take(SEND).answer(12, STORED)
    peers.take(SEND).answer(13, remark="no")
    assert sender.outcome.status is SendStatus.FLUSH_SLAVE_TIMEOUT


def test_the_timeout_is_that_of_the_whole_send(peers):
    # The brokers respond to the sends too late, but they do respond to the probes.
    sender = Sender(peers)
    sender.send()
    peers.advance(1400)
    first = peers.take(SEND)
    first.answer(2, remark="busy")
    peers.advance(1550)
    assert not sender.outcomes
    peers.advance(100)
    assert isinstance(sender.outcome, SendFailed)
    assert sender.outcome.tries == 2
    assert sender.outcome.maybe_stored


def test_a_try_may_be_given_less_time_than_the_send(peers):
    sender = Sender(peers, send_msg_max_timeout_per_request_ms=300)
    sender.send()
    first = peers.asked[0].address
    peers.advance(350)
    assert [each.address for each in peers.take_all(SEND)] == [first, A if first == B else B]


def test_a_late_answer_is_nobody_s(peers):
    sender = Sender(peers, send_msg_max_timeout_per_request_ms=300)
    sender.send()
    late = peers.take(SEND)
    peers.tell(late.address, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "other"})
    peers.advance(350)
    peers.take(SEND).answer(0, STORED)
    late.answer(0, STORED)
    assert sender.outcome.is_ok


def test_half_open_the_send_goes_elsewhere_in_time(peers):
    sender = Sender(peers)
    sender.send()
    silent = peers.take(SEND).address
    peers.states[silent] = "silent"
    peers.advance(2000)
    assert peers.times(RequestCode.HEART_BEAT, silent) >= 2
    elsewhere = peers.take(SEND)
    assert elsewhere.address != silent
    elsewhere.answer(0, STORED)
    assert sender.outcome.is_ok


def test_packets_go_nowhere_the_send_goes_elsewhere_in_time(peers):
    peers.states[A] = "unreachable"
    sender = Sender(peers)
    for _ in range(5):
        sender.send()
    waiting = len(peers.take_all(SEND))
    assert waiting < 5
    peers.advance(2000)
    moved = peers.take_all(SEND)
    assert [each.address for each in moved] == [B] * (5 - waiting)
    for asked in moved:
        asked.answer(0, STORED)
    assert all(outcome.is_ok for outcome in sender.outcomes)


def test_a_client_that_stood_still_itself_suspects_nobody(peers):
    sender = Sender(peers)
    sender.send(timeout_ms=60_000)
    asked = peers.take(SEND)
    beats = peers.times(RequestCode.HEART_BEAT)
    # One turn takes two seconds, in which the client could not read.
    peers.script._move(peers.script.clock.mono_ms + 2000)
    peers.script.turn()
    assert peers.times(RequestCode.HEART_BEAT) == beats
    asked.answer(0, STORED)
    assert sender.outcome.is_ok


def test_a_broker_that_only_waits_for_its_slaves_keeps_its_sends(peers):
    sender = Sender(peers)
    sender.send()
    asked = peers.take(SEND)
    peers.advance(2800)
    assert not peers.waiting()
    asked.answer(12, STORED)
    assert sender.outcome.status is SendStatus.FLUSH_SLAVE_TIMEOUT


def test_after_go_away_a_new_connection_is_made():
    """NettyRemotingClient: after GO_AWAY, open a new connection to the same address."""
    peers = alone()
    sender = Sender(peers)
    sender.send()
    first = peers.take(SEND)
    first.answer(1500, remark="please go away")
    second = peers.take(SEND)
    assert second.address == A
    assert second.far_end is not first.far_end
    second.answer(0, STORED)
    assert sender.outcome.is_ok


# --- given queues


@pytest.mark.parametrize(
    ("key", "broker", "queue_id"),
    [
        ("order-1", "broker-b", 6),
        ("order-2", "broker-b", 5),
        ("user:42", "broker-a", 3),
        ("polygenelubricants", "broker-a", 0),
    ],
)
def test_an_ordering_key_picks_as_SelectMessageQueueByHash(key, broker, queue_id):
    peers = Peers(routes={"T": route(("broker-a", {0: A}), ("broker-b", {0: B}), queues=8)})
    sender = Sender(peers)
    sender.send(ordering_key=key)
    asked = peers.take(SEND)
    assert (asked.ext["n"], asked.ext["e"]) == (broker, str(queue_id))


@pytest.mark.parametrize("option", [{"queue": MessageQueue("T", "broker-b", 2)}, {"ordering_key": "order-1"}])
def test_a_chosen_queue_is_tried_once(peers, option):
    sender = Sender(peers)
    sender.send(**option)
    asked = peers.take(SEND)
    asked.answer(2, remark="busy")
    assert not peers.waiting()
    assert sender.outcome.tries == 1


def test_oneway_is_over_when_it_is_sent(peers):
    sender = Sender(peers)
    sender.send(oneway=True)
    assert sender.outcomes == [None]
    assert peers.take(SEND).command.flag == 2


def test_a_batch_goes_out_as_one(peers):
    sender = Sender(peers)
    batch = sender.prepare.batch([Message("T", b"1"), Message("T", b"2")], peers.script.clock.wall_ms)
    peers.do(lambda: sender.producer.send(batch, sender.outcomes.append, timeout_ms=3000))
    asked = peers.take(RequestCode.SEND_BATCH_MESSAGE)
    assert asked.ext["m"] == "true"
    name, _, batch_id = asked.ext["i"].strip("\x02").partition("\x01")
    assert (name, len(batch_id)) == ("UNIQ_KEY", 32)
    assert batch_id not in batch.msg_id
    asked.answer(0, STORED)
    assert sender.outcome.msg_id.count(",") == 1


def test_a_batch_that_is_stored_as_one_record_has_one_id(peers):
    """Source: `MQClientAPIImpl.processSendResponse`."""
    sender = Sender(peers)
    batch = sender.prepare.batch([Message("T", b"1"), Message("T", b"2")], peers.script.clock.wall_ms)
    peers.do(lambda: sender.producer.send(batch, sender.outcomes.append, timeout_ms=3000))
    asked = peers.take(RequestCode.SEND_BATCH_MESSAGE)
    asked.answer(0, {**STORED, "batchUniqId": "A" * 32})
    assert sender.outcome.msg_id == "A" * 32


# --- routes


def test_an_unknown_topic_is_sent_by_the_default_topic_s_route():
    peers = Peers(routes={"TBW102": route(("broker-a", {0: A}), queues=8, perm=7)})
    sender = Sender(peers)
    for _ in range(8):
        sender.send(topic="New")
    asked = peers.take_all(SEND)
    assert {each.ext["b"] for each in asked} == {"New"}
    assert {each.ext["e"] for each in asked} == {"0", "1", "2", "3"}


def test_a_topic_nobody_knows_and_nobody_may_create():
    peers = Peers()
    sender = Sender(peers)
    sender.send(topic="New")
    assert isinstance(sender.outcome, NoRoute)
    assert sender.outcome.code == 17
    assert "create it" in str(sender.outcome)


def test_a_topic_without_a_master_cannot_be_sent_to():
    """topicRouteData2TopicPublishInfo omits brokers without id 0."""
    peers = Peers(routes={"T": route(("broker-a", {1: A}))})
    sender = Sender(peers)
    sender.send()
    assert isinstance(sender.outcome, NoRoute)
    assert "no queue to write to" in str(sender.outcome)


def test_a_topic_without_write_permission_cannot_be_sent_to():
    peers = Peers(routes={"T": route(("broker-a", {0: A}), perm=4)})
    sender = Sender(peers)
    sender.send()
    assert isinstance(sender.outcome, NoRoute)


def test_sends_that_wait_for_one_route_ask_once(peers):
    peers.states[NS_1] = "unreachable"
    sender = Sender(peers)
    for _ in range(3):
        sender.send()
    peers.states[NS_1] = "up"
    peers.settle()
    assert peers.times(RequestCode.GET_ROUTEINFO_BY_TOPIC) == 1
    assert len(peers.take_all(SEND)) == 3


def test_one_name_server_down_is_no_matter():
    peers = Peers(namesrv=(NS_1, NS_2), routes={"T": ON_A})
    for down, up in ((NS_1, NS_2), (NS_2, NS_1)):
        peers.states = {down: "down", up: "up"}
        sender = Sender(peers)
        peers.client.routes.routes.clear()
        sender.send()
        peers.take(SEND).answer(0, STORED)
        assert sender.outcome.is_ok


def test_all_name_servers_down_cached_routes_stay(peers):
    sender = Sender(peers)
    sender.send()
    peers.take(SEND).answer(0, STORED)
    peers.states[NS_1] = "down"
    peers.cut(NS_1)
    peers.advance(65_000, step_ms=5000)
    sender.send()
    peers.take(SEND).answer(0, STORED)
    assert [outcome.is_ok for outcome in sender.outcomes] == [True, True]
    assert peers.script.log.events().count("route-kept") == 1


def test_no_name_server_answers_and_nothing_is_cached():
    peers = Peers(namesrv=(NS_1, NS_2))
    peers.states = {NS_1: "down", NS_2: "down"}
    sender = Sender(peers)
    sender.send()
    assert isinstance(sender.outcome, PeerUnreachable)
    assert NS_1 in str(sender.outcome)
    assert NS_2 in str(sender.outcome)
    assert not sender.outcome.maybe_stored


def test_a_failed_send_asks_for_a_new_route_at_once():
    peers = alone()
    sender = Sender(peers)
    sender.send()
    peers.take(SEND).answer(0, STORED)
    peers.advance(2000)
    # The master has moved. The producer learns that before the 30 s of the next refresh.
    peers.routes["T"] = route(("broker-a", {0: B}))
    peers.states[A] = "down"
    peers.cut(A)
    sender.send()
    sender.send()
    peers.take(SEND, B).answer(0, STORED)
    assert sender.outcomes[-1].is_ok


@pytest.mark.parametrize("code", [14, 16])
def test_a_broker_that_is_no_master_any_more_has_a_new_route_looked_for(code):
    peers = alone()
    sender = Sender(peers)
    sender.send()
    peers.take(SEND).answer(0, STORED)
    peers.advance(2000)
    peers.routes["T"] = route(("broker-a", {0: B}))
    sender.send(retry_times=0)
    peers.take(SEND, A).answer(code, remark="a slave takes no messages")
    sender.send()
    peers.take(SEND, B).answer(0, STORED)
    assert sender.outcomes[-1].is_ok


# --- policies, closing


def test_a_latency_policy_leaves_a_failed_broker_alone(peers):
    sender = Sender(peers, fault_policy=FAULT_POLICIES["latency"]())
    peers.states[A] = "down"
    for _ in range(4):
        sender.send()
    for asked in peers.take_all(SEND):
        asked.answer(0, STORED)
    peers.states[A] = "up"
    tries = peers.times(SEND, A)
    for _ in range(4):
        sender.send()
    assert peers.times(SEND, A) == tries
    for asked in peers.take_all(SEND):
        asked.answer(0, STORED)
    peers.advance(10_000, step_ms=1000)
    for _ in range(8):
        sender.send()
    assert peers.times(SEND, A) > tries


def test_a_closed_producer_refuses_and_says_goodbye(peers):
    sender = Sender(peers)
    sender.send()
    peers.take(SEND).answer(0, STORED)
    peers.do(lambda: start(sender.producer.close()))
    assert peers.times(RequestCode.UNREGISTER_CLIENT) >= 1
    sender.send()
    assert isinstance(sender.outcomes[-1], ClientClosed)
