"""Traces of real producers and consumers, found by the id of the message."""

import pytest

from rmqkit import Message, TransactionProducer, TransactionState
from rmqkit.errors import InvalidMessage
from rmqkit.wire.trace import TRACE_TOPIC, ConsumeCode, TraceMessageType, TraceType, decode
from tests.api.until import until

COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


def records_of(own, msg_id, topic=TRACE_TOPIC):
    found = []
    for message in own.admin.query_messages(topic, msg_id):
        found += [record for record in decode(message.body) if record.msg_id == msg_id]
    return found


def test_a_message_is_followed_from_its_send_to_its_listener(own):
    topic, group = own.topic(), own.group()
    producer = own.producer(trace=True)
    result = producer.send(Message(topic, b"hello", keys="k1", tags="TagA"))
    failures = [True]
    consumer = own.push_consumer(group, consume_from="first", trace=True, retry_delay_ms=100)
    consumer.subscribe(topic)

    def listen(message):
        if failures and message.msg_id == result.msg_id:
            failures.pop()
            raise ValueError("not yet")

    consumer.start(listen)
    until(lambda: not failures)
    producer.close()
    consumer.close()
    assert producer.traces_dropped == consumer.traces_dropped == 0
    records = until(lambda: found if len(found := records_of(own, result.msg_id)) >= 3 else None)
    by_type = {record.type: record for record in records}
    sent = by_type[TraceType.PUB]
    assert (sent.topic, sent.keys, sent.tags, sent.group) == (topic, "k1", "TagA", producer.group)
    assert sent.offset_msg_id == result.offset_msg_id
    began = by_type[TraceType.SUB_BEFORE]
    (ended,) = [each for each in records if each.request_id == began.request_id and each.type is TraceType.SUB_AFTER]
    assert ended.group == group
    assert ConsumeCode.EXCEPTION in [each.code for each in records if each.type is TraceType.SUB_AFTER]


def test_the_outcome_of_a_transaction_is_traced(own):
    topic, asked = own.topic(), []

    def check(message):
        asked.append(message.msg_id)
        return COMMIT

    producer = own.closes(TransactionProducer(own.name("group"), check=check, namesrv=own.namesrv, trace=True))
    message = Message(topic, b"pay", keys="k1", tags="TagA")
    results = [producer.send_in_transaction(message, lambda sent, state: state, state) for state in (ROLLBACK, UNKNOWN)]
    until(lambda: asked)
    until(lambda: sum(each.max_offset for each in own.admin.topic_stats(topic).values()) == 1)
    producer.close()
    rolled_back = until(lambda: found if len(found := records_of(own, results[0].send.msg_id)) >= 2 else None)
    by_type = {record.type: record for record in rolled_back}
    assert by_type[TraceType.PUB].message_type == TraceMessageType.TRANSACTION_HALF
    ended = by_type[TraceType.END_TRANSACTION]
    assert (ended.topic, ended.tags, ended.keys, ended.group) == (topic, "TagA", "k1", producer.group)
    assert (ended.transaction_state, ended.from_check, ended.message_type) == (
        "ROLLBACK_MESSAGE",
        False,
        TraceMessageType.TRANSACTION_COMMIT,
    )
    assert ended.transaction_id == results[0].send.transaction_id
    assert ended.store_host
    found = until(lambda: found if len(found := records_of(own, results[1].send.msg_id)) >= 3 else None)
    ends = [(each.transaction_state, each.from_check) for each in found if each.type is TraceType.END_TRANSACTION]
    assert ends[:2] == [("UNKNOW", False), ("COMMIT_MESSAGE", True)]
    assert found[-1].tags == "TagA"


def test_traces_go_where_they_are_wanted(own):
    topic, mine = own.topic(), own.topic(name="traces")
    producer = own.producer(trace=True, trace_topic=mine)
    result = producer.send(Message(topic, b"hello"))
    producer.close()
    (record,) = until(lambda: records_of(own, result.msg_id, mine))
    assert record.type is TraceType.PUB


def test_without_the_wish_nothing_is_written(own):
    topic = own.topic()
    producer = own.producer()
    result = producer.send(Message(topic, b"hello"))
    producer.close()
    assert producer.traces_dropped == 0
    traced = own.producer(trace=True)
    other = traced.send(Message(topic, b"hello"))
    traced.close()
    until(lambda: records_of(own, other.msg_id))
    assert records_of(own, result.msg_id) == []


@pytest.mark.parametrize("topic", ["", "no topic!", "SCHEDULE_TOPIC_XXXX"])
def test_a_trace_topic_that_takes_nothing_is_refused_at_once(own, topic):
    with pytest.raises(InvalidMessage):
        own.producer(trace=True, trace_topic=topic)
    with pytest.raises(InvalidMessage):
        own.push_consumer(trace=True, trace_topic=topic)
    assert own.producer(trace_topic=topic).send(Message(own.topic(), b"x")).is_ok
