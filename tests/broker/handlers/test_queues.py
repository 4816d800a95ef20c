"""Entries of a queue, and the removal of unused topics.

Source: `AdminBrokerProcessor.{queryConsumeQueue,cleanUnusedTopic}`.
"""

from rmqkit.wire.bodies import QueryConsumeQueueBody
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.javahash import tags_code
from tests.broker.handlers.test_stats import subscribe
from tests.broker.requests import UNIQ, pull, send, with_topic


def query(client, **changes):
    fields = {"topic": "T", "queueId": "0", "index": "0", "count": "10", **changes}
    answer = client.ask(RequestCode.QUERY_CONSUME_QUEUE, fields)
    return QueryConsumeQueueBody.decode(answer.body) if answer.code == 0 else answer


def test_entries_point_at_the_records(broker):
    client = with_topic(broker)
    for tag in ("A", "B", "A"):
        send(client, i=f"{UNIQ}TAGS\x01{tag}\x02")
    found = query(client, index="1", count="2")
    assert (found.min_queue_index, found.max_queue_index) == (0, 3)
    assert [each.tags_code for each in found.queue_data] == [tags_code("B"), tags_code("A")]
    for each in found.queue_data:
        assert len(broker.node.store.record(each.physic_offset)) == each.physic_size
    assert found.filter_data is None
    assert len(query(client, count="1000000").queue_data) == 3
    assert not query(client, count="-1").queue_data


def test_a_group_s_filter_is_described_and_tried(broker):
    client = with_topic(broker)
    send(client)
    assert query(client, consumerGroup="CG").filter_data == "CG@T is not online!"
    subscribe(broker.connect(), "T")
    found = query(client, consumerGroup="CG")
    assert found.subscription_data.sub_string == "*"
    assert '"expression":"*"' in found.filter_data
    assert [each.eval for each in found.queue_data] == [True]


def test_outside_of_a_queue(broker):
    client = with_topic(broker)
    fields = {"topic": "T", "queueId": "0", "index": "5", "count": "1"}
    answer = client.ask(RequestCode.QUERY_CONSUME_QUEUE, fields)
    assert (answer.code, answer.remark) == (0, "Index 5 of 0@T is not exist!")
    assert query(client, topic="none").remark == "0@none is not exist!"
    assert query(client, topic="none").code == ResponseCode.SYSTEM_ERROR
    assert query(client, queueId="7").remark == "7@T is not exist!"
    assert query(client, queueId="3").max_queue_index == 0, "an empty queue of the topic"


def test_queues_of_unknown_topics_go(broker):
    client = with_topic(broker)
    with_topic(broker, "U")
    send(client)
    send(client, "U")
    del broker.node.topics.by_name["U"]
    assert client.ask(RequestCode.CLEAN_UNUSED_TOPIC).code == 0
    assert {each.topic for each in broker.node.store.queues()} == {"T"}
    assert pull(client).code == 0


def test_cleaning_is_begun_and_answered(broker):
    client = with_topic(broker)
    send(client)
    for code in (RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, RequestCode.DELETE_EXPIRED_COMMITLOG):
        assert client.ask(code).code == 0
    broker.advance(10_000)
    assert pull(client).code == 0
