"""Registration with name servers.

Source: `BrokerOuterAPI.registerBrokerAll`, `RouteInfoManager.registerBroker`.
"""

import json

from rmqkit.wire.codes import RequestCode
from tests.broker.requests import send, with_topic
from tests.helpers.script import write_command


def answer_all(script, client, code=0):
    """Answer all requests at the name server with `code`; return the requests."""
    requests = client.take()
    for each in requests:
        if not each.flag & 2:
            client.send(write_command(code, opaque=each.opaque, flag=1, remark=None if code == 0 else "no"))
    return requests


def test_the_whole_table_goes_first_then_changed_topics(make):
    broker = make("namesrvAddr=10.9.9.1:9876;10.9.9.2:9876")
    assert [str(each.conn.peer) for each in broker.dialled] == ["10.9.9.1:9876", "10.9.9.2:9876"]
    first, second = list(broker.dialled)
    broker.accept(first)
    broker.refuse(second)
    (request,) = answer_all(broker, first)
    assert request.code == RequestCode.REGISTER_BROKER
    assert request.ext["brokerName"] == "broker-a"
    assert request.ext["brokerAddr"] == "127.0.0.1:10911"
    assert request.ext["haServerAddr"] == "127.0.0.1:10912"
    topics = json.loads(request.body)["topicConfigSerializeWrapper"]["topicConfigTable"]
    assert topics["TBW102"]["perm"] == 7
    assert len(topics) > 1
    assert {"DefaultCluster", "broker-a", "BenchmarkTest"} <= set(topics)

    client = broker.connect()
    create = {"topic": "New", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    opaque = client.tell(RequestCode.UPDATE_AND_CREATE_TOPIC, {**create, "topicFilterType": "SINGLE_TAG", "order": "false"})
    assert client.answer_to(opaque) is None, "the creator asks for the route next: the name server must know it"
    (request,) = answer_all(broker, first)
    assert client.answer_to(opaque).code == 0
    assert list(json.loads(request.body)["topicConfigSerializeWrapper"]["topicConfigTable"]) == ["New"]

    broker.advance(1_500)
    (retry,) = broker.dialled
    assert str(retry.conn.peer) == "10.9.9.2:9876", "the one that was down is tried again"


def test_registration_is_repeated_and_ends_with_a_goodbye(make):
    broker = make("namesrvAddr=10.9.9.1:9876")
    (nameserver,) = broker.dialled
    broker.accept(nameserver)
    answer_all(broker, nameserver)
    broker.advance(30_000)
    assert [each.code for each in answer_all(broker, nameserver)] == [RequestCode.REGISTER_BROKER]
    broker.turn(broker.node.stop)
    broker.finish_disk()
    assert [each.code for each in nameserver.take()] == [RequestCode.UNREGISTER_BROKER]


def test_a_broker_registers_in_full_after_it_lost_a_name_server(make):
    broker = make("namesrvAddr=10.9.9.1:9876")
    (nameserver,) = broker.dialled
    broker.accept(nameserver)
    answer_all(broker, nameserver)
    nameserver.close()
    broker.advance(1_500)
    (again,) = broker.dialled
    broker.accept(again)
    (request,) = answer_all(broker, again)
    assert len(json.loads(request.body)["topicConfigSerializeWrapper"]["topicConfigTable"]) > 1


def test_sends_are_served_without_any_name_server(make):
    broker = make("namesrvAddr=10.9.9.1:9876")
    broker.refuse(broker.dialled[0])
    assert send(with_topic(broker)).code == 0


def test_a_silent_name_server_does_not_keep_the_creator_of_a_topic(make):
    broker = make("namesrvAddr=10.9.9.1:9876")
    (nameserver,) = broker.dialled
    broker.accept(nameserver)
    answer_all(broker, nameserver)
    client = broker.connect()
    body = b'{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[]}]}'
    opaque = client.tell(RequestCode.HEART_BEAT, {}, body)
    assert client.answer_to(opaque) is None
    broker.advance(2_000)
    assert client.answer_to(opaque).code == 0


def test_a_changed_topic_is_registered_alone_if_that_is_switched_on_live(make):
    """`BrokerOuterAPI.registerSingleTopicAll` with `enableSingleTopicRegister`."""
    broker = make("namesrvAddr=10.9.9.1:9876")
    (nameserver,) = broker.dialled
    broker.accept(nameserver)
    answer_all(broker, nameserver)
    client = broker.connect()
    assert client.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, b"enableSingleTopicRegister=true").code == 0
    fields = {"defaultTopic": "TBW102", "readQueueNums": "3", "writeQueueNums": "2", "perm": "6", "order": "false"}
    opaque = client.tell(RequestCode.UPDATE_AND_CREATE_TOPIC, {**fields, "topic": "New", "topicFilterType": "SINGLE_TAG"})
    assert client.answer_to(opaque) is None
    (request,) = answer_all(broker, nameserver)
    assert (request.code, request.ext) == (RequestCode.REGISTER_TOPIC_IN_NAMESRV, {"topic": "New"})
    (queues,) = json.loads(request.body)["queueDatas"]
    assert queues == {"brokerName": "broker-a", "perm": 6, "readQueueNums": 3, "topicSysFlag": 0, "writeQueueNums": 2}
    assert client.answer_to(opaque).code == 0
    client.tell(RequestCode.UPDATE_AND_CREATE_TOPIC, {**fields, "topic": "Newer", "topicFilterType": "SINGLE_TAG"})
    answer_all(broker, nameserver, code=1)
    broker.advance(1_500)
    assert [each.code for each in answer_all(broker, nameserver)] == [RequestCode.REGISTER_BROKER], "after a refusal, all"
