"""Requests and replies.

Source: `DefaultMQProducerImpl.request`, `RequestFutureHolder.java`, `MessageUtil.java`,
`ClientRemotingProcessor.receiveReplyMessage`.
"""

import pytest

from rmqkit.client import requests
from rmqkit.client.flow import start
from rmqkit.client.message import Message, MessageExt
from rmqkit.client.producers.outgoing_message import Prepare
from rmqkit.client.producers.producer import ProducerCore, ProducerSettings
from rmqkit.errors import ClientClosed, ClientError, InvalidMessage, NoRoute, RequestTimeout, SendFailed
from rmqkit.wire import properties as props
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.record import iter_records
from rmqkit.wire.uniqueids import UniqueIds
from tests.client.group import record
from tests.client.peers import CLIENT_ID, NS_1, ON_A, ON_A_AND_B, A, B, Peers
from tests.client.producers.test_producer import SEND, STORED

BEAT = RequestCode.HEART_BEAT
PUSH = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
REPLY = RequestCode.SEND_REPLY_MESSAGE_V2


class Asker:
    def __init__(self, peers, salt=99, **settings):
        self.peers = peers
        self.prepare = Prepare(UniqueIds(bytes((10, 0, 0, 9)), 7, salt))
        peers.script.turn(lambda: self._make(settings))

    def _make(self, settings):
        self.producer = ProducerCore(self.peers.client, ProducerSettings(group="PG", **settings))

    def ask(self, body=b"and?", topic="T", *, timeout_ms=3000):
        outgoing = self.prepare.request(Message(topic, body), self.peers.script.clock.wall_ms, CLIENT_ID, timeout_ms)
        promises = []
        self.peers.do(lambda: promises.append(self.producer.request(outgoing, timeout_ms=timeout_ms)))
        return promises[0]


def push(peers, correlation_id, body=b"so!", address=A, **changes):
    """Push a reply as `ReplyMessageProcessor.pushReplyMessage` does, and return the client's
    response.
    """
    text = f"CORRELATION_ID\x01{correlation_id}\x02PUSH_REPLY_TIME\x017\x02UNIQ_KEY\x01{'A' * 32}\x02"
    fields = {
        "producerGroup": "RG",
        "topic": "C_REPLY_TOPIC",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "0",
        "sysFlag": "0",
        "bornTimestamp": "1",
        "flag": "0",
        "properties": text,
        "reconsumeTimes": "0",
        "unitMode": "false",
        "bornHost": "10.0.0.7:1234",
        "storeHost": "10.0.2.1:10911",
        "storeTimestamp": "2",
    }
    peers.tell(address, PUSH, fields | changes, body, flag=0)
    return peers.answer_of_client(address)


@pytest.fixture
def peers():
    return Peers(routes={"T": ON_A, "C_REPLY_TOPIC": ON_A_AND_B})


def sent(peers):
    """Return the request in flight, and its properties."""
    asked = peers.take(SEND)
    return asked, props.decode(asked.ext["i"].encode())


def test_a_request_is_a_message_that_names_its_client(peers):
    Asker(peers).ask(timeout_ms=2500)
    asked, properties = sent(peers)
    assert asked.ext["b"] == "T"
    assert properties["REPLY_TO_CLIENT"] == CLIENT_ID
    assert properties["TTL"] == "2500"
    assert properties["CORRELATION_ID"] == properties["UNIQ_KEY"]


def test_every_broker_of_the_cluster_knows_the_client_before_it_asks(peers):
    """The reply may go to any of them. Only one has the topic of the request."""
    Asker(peers).ask()
    beats = [at for at, (address, code) in enumerate(peers.log) if code == BEAT]
    request = peers.log.index((A, SEND))
    assert {peers.log[at][0] for at in beats if at < request} == {A, B}
    before = len(beats)
    Asker(peers).ask()
    assert peers.times(BEAT) <= before + 4


def test_the_reply_ends_it(peers):
    promise = Asker(peers).ask()
    asked, properties = sent(peers)
    asked.answer(0, STORED)
    assert not promise.done, "stored is not answered"
    assert push(peers, properties["CORRELATION_ID"]).code == 0
    reply = promise.result()
    assert (reply.body, reply.topic, reply.msg_id) == (b"so!", "C_REPLY_TOPIC", "A" * 32)
    assert (reply.born_host, reply.store_host) == ("10.0.0.7:1234", "10.0.2.1:10911")
    assert reply.properties["ARRIVE_TIME"] == str(peers.script.clock.wall_ms)
    assert len(peers.client.requests) == 0
    peers.advance(5_000)


def test_a_reply_may_come_before_the_acknowledgement(peers):
    promise = Asker(peers).ask()
    asked, properties = sent(peers)
    push(peers, properties["CORRELATION_ID"], address=A)
    assert promise.result().body == b"so!"
    asked.answer(0, STORED)
    peers.advance(5_000)


def test_replies_find_their_requests(peers):
    asker = Asker(peers)
    first, second = asker.ask(b"1"), asker.ask(b"2")
    ids = [sent(peers)[1]["CORRELATION_ID"] for _ in range(2)]
    push(peers, ids[1], b"two")
    push(peers, ids[0], b"one")
    assert [each.result().body for each in (first, second)] == [b"one", b"two"]


def test_a_compressed_reply_is_inflated(peers):
    from rmqkit.client.producers.compression import COMPRESSIONS

    promise = Asker(peers).ask()
    _, properties = sent(peers)
    zlib = COMPRESSIONS["zlib"]
    push(peers, properties["CORRELATION_ID"], zlib.compress(b"x" * 5000, 5), sysFlag=str(zlib.sys_flag))
    assert promise.result().body == b"x" * 5000


def test_a_request_without_a_reply_fails_and_a_late_reply_is_dropped(peers):
    promise = Asker(peers).ask(timeout_ms=1000)
    asked, properties = sent(peers)
    asked.answer(0, STORED)
    peers.advance(950)
    assert not promise.done
    peers.advance(50)
    with pytest.raises(RequestTimeout, match="request to T was stored, but no reply came within 1000 ms") as caught:
        promise.result()
    assert caught.value.sent
    assert push(peers, properties["CORRELATION_ID"]).code == 0, "a late reply is taken and dropped"
    assert "reply-to-nobody" in peers.script.log.events()


def test_a_request_that_is_not_acknowledged(peers):
    promise = Asker(peers, retry_times_when_send_failed=0).ask(timeout_ms=1000)
    peers.advance(1000)
    with pytest.raises(ClientError) as caught:
        promise.result()
    assert isinstance(caught.value, RequestTimeout | SendFailed)
    assert caught.value.maybe_stored


def test_the_error_of_the_send_is_the_requests(peers):
    promise = Asker(peers).ask()
    sent(peers)[0].answer(13, remark="the message is illegal")
    with pytest.raises(SendFailed, match="illegal"):
        promise.result()
    assert len(peers.client.requests) == 0


def test_a_topic_that_is_nowhere(peers):
    promise = Asker(peers).ask(topic="Unknown")
    with pytest.raises(NoRoute, match="topic Unknown does not exist"):
        promise.result()


def test_name_servers_that_are_silent(peers):
    peers.states[NS_1] = "silent"
    promise = Asker(peers).ask(timeout_ms=1000)
    peers.advance(1000)
    with pytest.raises(RequestTimeout, match="was not acknowledged within 1000 ms") as caught:
        promise.result()
    assert not caught.value.sent
    peers.advance(10_000)
    assert peers.take_all(SEND) == [], "it was given up before it was sent"


def test_a_cluster_without_a_reply_topic_is_asked_all_the_same():
    peers = Peers(routes={"T": ON_A})
    promise = Asker(peers).ask()
    _, properties = sent(peers)
    assert "no-reply-topic" in peers.script.log.events()
    push(peers, properties["CORRELATION_ID"])
    assert promise.result().body == b"so!"


def test_closing_ends_what_waits(peers):
    one, two = Asker(peers), Asker(peers, salt=100)
    first, second = one.ask(), two.ask()
    peers.do(lambda: start(one.producer.close()))
    with pytest.raises(ClientClosed, match="producer PG is closed"):
        first.result()
    assert not second.done
    with pytest.raises(ClientClosed):
        one.ask().result()
    peers.do(peers.client.stop)
    with pytest.raises(ClientClosed):
        second.result()


def test_too_many_at_a_time_are_refused(peers, monkeypatch):
    monkeypatch.setattr(requests, "WAITING_MAX", 1)
    asker = Asker(peers)
    first = asker.ask()
    with pytest.raises(ClientError, match="1 requests of this client already wait"):
        asker.ask().result()
    assert not first.done


@pytest.mark.parametrize("changes", [{"properties": None}, {"bornHost": "nonsense"}, {"properties": "CORRELATION_ID\x01x"}])
def test_a_push_that_means_nothing_is_taken(peers, changes):
    promise = Asker(peers).ask()
    sent(peers)
    fields = {key: value for key, value in changes.items() if value is not None}
    assert push(peers, "unknown", **fields).code == 0
    assert not promise.done


# --- the consumer's side


def received(properties):
    """Return a message as a consumer gets it."""
    (each,) = iter_records(record(5, b"and?", properties=properties))
    return MessageExt(each, "broker-a")


REQUEST = b"CORRELATION_ID\x01abc\x02REPLY_TO_CLIENT\x01asker\x02TTL\x013000\x02CLUSTER\x01C\x02"


def test_a_reply_carries_what_leads_it_back(peers):
    """MessageUtil.createReplyMessage; MQClientAPIImpl.sendMessage sends it with 325."""
    request = received(REQUEST)
    assert request.wants_reply
    message = request.reply("so!", keys="k", properties={"mine": "1"})
    asker, outcomes = Asker(peers), []
    outgoing = asker.prepare.message(message, 0)
    peers.do(lambda: asker.producer.send(outgoing, outcomes.append, timeout_ms=3000))
    asked = peers.take(REPLY)
    assert asked.ext["b"] == "C_REPLY_TOPIC"
    assert asked.command.body == b"so!"
    properties = props.decode(asked.ext["i"].encode())
    assert properties.pop("UNIQ_KEY") == outgoing.msg_id
    assert properties == {
        "mine": "1",
        "KEYS": "k",
        "MSG_TYPE": "reply",
        "CORRELATION_ID": "abc",
        "REPLY_TO_CLIENT": "asker",
        "TTL": "3000",
    }
    asked.answer(0, {"msgId": "0", "queueId": "0", "queueOffset": "0"})
    assert outcomes[0].is_ok


@pytest.mark.parametrize("lacks", [b"CORRELATION_ID\x01abc\x02", b"REPLY_TO_CLIENT\x01asker\x02", b"CLUSTER\x01C\x02"])
def test_a_message_that_is_no_request_has_no_reply(lacks):
    with pytest.raises(InvalidMessage, match="is not a request"):
        received(REQUEST.replace(lacks, b"")).reply(b"x")


def test_a_reply_is_neither_a_request_nor_part_of_a_batch():
    prepare = Prepare(UniqueIds(bytes(4), 7, 99))
    reply = received(REQUEST).reply(b"x")
    with pytest.raises(InvalidMessage, match="a reply is not a request"):
        prepare.request(reply, 0, "me", 1000)
    with pytest.raises(InvalidMessage, match="one by one"):
        prepare.batch([reply], 0)


def test_a_request_whose_properties_are_too_long_is_refused():
    prepare = Prepare(UniqueIds(bytes(4), 7, 99))
    message = Message("T", b"x", properties={"p": "x" * 32_680})
    assert prepare.message(message, 0)
    with pytest.raises(InvalidMessage, match="more than the limit of 32767"):
        prepare.request(message, 0, CLIENT_ID, 1000)
