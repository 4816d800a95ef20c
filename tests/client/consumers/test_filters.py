"""SQL92 subscriptions: requested, checked before the start, and used in pulls.

Source: `client/.../impl/factory/MQClientInstance.java` (`checkClientInBroker`),
`client/.../impl/consumer/{DefaultMQPushConsumerImpl,PullAPIWrapper}.java`,
`client/.../consumer/MessageSelector.java`.
"""

import json

import pytest

from rmqkit.client.consumers.offset_store import RemoteOffsets
from rmqkit.client.consumers.pull_consumer import PullConsumerCore, PullConsumerSettings
from rmqkit.client.consumers.push_consumer import PushConsumerCore
from rmqkit.client.consumers.push_queue import PushConsumerSettings
from rmqkit.client.consumers.subscriptions import ConsumeFrom, sql, subscription
from rmqkit.client.flow import start
from rmqkit.errors import BrokerError, ClientError
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.fastjson import MessageQueue
from tests.client.group import READ
from tests.client.peers import CLIENT_ID, A, B, Peers, route

CHECK = RequestCode.CHECK_CLIENT_CONFIG
PULL = RequestCode.PULL_MESSAGE
BAD = "SQL92 expression 'price >': it ends too early"


@pytest.fixture
def peers():
    return Peers(routes={"T": route(("broker-a", {0: A}), queues=1)})


class Pushed:
    def __init__(self, peers, expression="*", expression_type="TAG"):
        self.peers = peers
        peers.do(lambda: self._make(expression, expression_type))

    def _make(self, expression, expression_type):
        client = self.peers.client
        self.consumer = PushConsumerCore(
            client, PushConsumerSettings(group="CG"), RemoteOffsets(client, "CG"), lambda batch: None
        )
        self.consumer.subscribe("T", expression, expression_type)
        self.started = start(self.consumer.start())


def test_sql_is_an_expression_that_knows_its_type():
    by_helper = subscription("T", sql("price > 1"), "TAG", 5)
    by_type = subscription("T", "price > 1", "SQL92", 5)
    assert by_helper == by_type
    assert (by_type.sub_string, by_type.expression_type, by_type.sub_version) == ("price > 1", "SQL92", 5)
    assert by_type.code_set == by_type.tags_set == []
    assert type(by_type.sub_string) is str
    with pytest.raises(ClientError):
        subscription("T", sql(""), "TAG", 5)


def test_a_push_consumer_asks_before_it_joins(peers):
    pushed = Pushed(peers, sql("price > 1"))
    assert not pushed.started.done
    [asked] = peers.take_all(CHECK)
    body = json.loads(asked.command.body)
    assert (body["clientId"], body["group"]) == (CLIENT_ID, "CG")
    assert body["subscriptionData"]["subString"] == "price > 1"
    assert body["subscriptionData"]["expressionType"] == "SQL92"
    asked.answer()
    heard = peers.last_body(RequestCode.HEART_BEAT, A)["consumerDataSet"][0]["subscriptionDataSet"]
    assert [(each["topic"], each["expressionType"]) for each in heard] == [("T", "SQL92"), ("%RETRY%CG", "TAG")]
    assert pushed.started.done


def test_a_bad_expression_ends_the_start_and_leaves_nothing(peers):
    pushed = Pushed(peers, sql("price >"))
    [asked] = peers.take_all(CHECK)
    asked.answer(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark=BAD)
    with pytest.raises(BrokerError, match="too early") as told:
        pushed.started.result()
    assert told.value.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "CG" not in peers.client.consumers
    # With a corrected filter, the same consumer starts.
    again = []
    peers.do(lambda: pushed.consumer.subscribe("T", sql("price > 1"), "TAG"))
    peers.do(lambda: again.append(start(pushed.consumer.start())))
    [asked] = peers.take_all(CHECK)
    asked.answer()
    assert again[0].done
    assert again[0].result() is None


def test_tags_are_not_asked_about(peers):
    assert Pushed(peers, "A || B").started.done
    assert peers.times(CHECK) == 0


def test_every_broker_of_the_topic_is_asked_once(peers):
    peers.routes["T"] = route(("broker-a", {0: A}), ("broker-b", {0: B}), queues=1)
    Pushed(peers, sql("price > 1"))
    for address in (A, B):
        [asked] = peers.take_all(CHECK)
        assert asked.address == address
        asked.answer()
    assert peers.times(CHECK) == 2


def test_a_broker_that_is_down_does_not_end_the_start(peers):
    peers.states[A] = "down"
    assert Pushed(peers, sql("price > 1")).started.done


def test_a_later_subscription_is_checked_too(peers):
    pushed = Pushed(peers, "*")
    box = []
    peers.do(lambda: box.append(start(pushed.consumer.check("T", sql("price >"), "TAG"))))
    [asked] = peers.take_all(CHECK)
    asked.answer(ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark=BAD)
    with pytest.raises(BrokerError):
        box[0].result()


class Reader:
    def __init__(self, peers):
        self.peers = peers
        peers.do(self._make)

    def _make(self):
        settings = PullConsumerSettings(group="CG", consume_from=ConsumeFrom.FIRST)
        self.consumer = PullConsumerCore(self.peers.client, settings, RemoteOffsets(self.peers.client, "CG"))

    def begin(self, flow):
        box = []
        self.peers.do(lambda: box.append(start(flow)))
        return box[0]


def test_a_pull_consumer_sends_its_expression_with_each_pull(peers):
    reader = Reader(peers)
    assigned = reader.begin(reader.consumer.assign([MessageQueue("T", "broker-a", 0)], sql("price > 1")))
    [asked] = peers.take_all(CHECK)
    asked.answer()
    assert assigned.done
    for each in peers.take_all(READ):
        each.answer(0, {"offset": "0"})
    [pulled] = peers.take_all(PULL)
    assert (pulled.ext["subscription"], pulled.ext["expressionType"]) == ("price > 1", "SQL92")
    assert int(pulled.ext["sysFlag"]) & 4


@pytest.mark.parametrize("code", [ResponseCode.SUBSCRIPTION_PARSE_FAILED, ResponseCode.SYSTEM_ERROR])
def test_a_pull_consumer_gets_a_bad_expression_as_an_error_at_once(peers, code):
    for flow in ("assign", "subscribe"):
        reader = Reader(Peers(routes={"T": route(("broker-a", {0: A}), queues=1)}))
        if flow == "assign":
            asking = reader.begin(reader.consumer.assign([MessageQueue("T", "broker-a", 0)], sql("price >")))
        else:
            asking = reader.begin(reader.consumer.subscribe("T", "price >", "SQL92"))
        [asked] = reader.peers.take_all(CHECK)
        asked.answer(code, remark=BAD)
        with pytest.raises(BrokerError, match="too early"):
            asking.result()
        assert reader.consumer.subscriptions == {}


@pytest.mark.parametrize("expression", [["created", "paid"], None, 5])
def test_a_filter_that_is_no_text_is_refused_and_not_taken_for_a_tag(expression):
    with pytest.raises(ClientError, match=r"is no text: join tags, as in 'created \|\| paid'"):
        subscription("T", expression, "TAG", 0)
