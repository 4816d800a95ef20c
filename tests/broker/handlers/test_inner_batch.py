"""Batches to topics with `queue.type=BatchCQ`: one record each, as Apache's `BatchSendIT` has it.

Source: `SendMessageProcessor.sendBatchMessage`, `HookUtils.checkInnerBatch`,
`TopicAttributes.QUEUE_TYPE_ATTRIBUTE`.
"""

import pytest

from rmqkit.wire import properties as props
from rmqkit.wire.batch import BatchMessage, decode_batch, encode_batch
from rmqkit.wire.bodies import QueryConsumeQueueBody
from rmqkit.wire.codes import MessageSysFlag, RequestCode, ResponseCode
from rmqkit.wire.javahash import tags_code
from tests.broker.handlers.pop_requests import pop_fields
from tests.broker.handlers.test_send_back import group, send_back
from tests.broker.requests import UNIQ, pull, records, send, send_fields, with_topic
from tests.broker.special.test_delay import opened_again, stop

BATCH_CQ = "+queue.type=BatchCQ"
BITS = MessageSysFlag.INNER_BATCH | MessageSysFlag.NEED_UNWRAP


def batch_topic(script, topic="T", **changes):
    return with_topic(script, topic, attributes=BATCH_CQ, **changes)


def messages_of(count, first=0):
    return [BatchMessage(0, b"%d" % each, b"UNIQ_KEY\x01%032d\x02" % each) for each in range(first, first + count)]


def send_batch(client, messages, **changes):
    return client.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields(m="true", **changes), encode_batch(messages))


def test_a_batch_is_one_record_with_one_id(broker):
    client = batch_topic(broker)
    for number in range(10):
        answer = send_batch(client, messages_of(10, 10 * number))
        assert answer.code == 0, answer.remark
        assert answer.ext["queueOffset"] == str(10 * number)
        assert answer.ext["batchUniqId"] == answer.ext["transactionId"] == UNIQ[9:-1]
        assert answer.ext["msgId"].count(",") == 0
        assert (answer.ext["MSG_REGION"], answer.ext["TRACE_ON"]) == ("DefaultRegion", "true")
    answer = pull(client, offset=5, maxMsgNums="100")
    found = records(answer)
    assert [each.queue_offset for each in found] == [0, 10, 20, 30]
    assert (answer.ext["minOffset"], answer.ext["maxOffset"], answer.ext["nextBeginOffset"]) == ("0", "100", "40")
    assert found[1].sys_flag & BITS == BITS
    assert [message.body for message in decode_batch(found[1].body)] == [b"%d" % each for each in range(10, 20)]
    mapping = props.decode(found[1].properties)
    assert mapping == {
        "UNIQ_KEY": UNIQ[9:-1],
        "WAIT": "true",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "CLUSTER": "DefaultCluster",
        "INNER_NUM": "10",
        "INNER_BASE": "10",
    }


def test_binary_headers_have_the_id_of_the_batch(broker):
    client = batch_topic(broker)
    answer = client.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields(m="true"), encode_batch(messages_of(3)), codec=1)
    assert (answer.code, answer.ext["batchUniqId"]) == (0, UNIQ[9:-1])


def test_a_batch_without_an_id_becomes_records_of_their_own(broker):
    """Clients before 5.0 cannot unwrap."""
    client = batch_topic(broker)
    answer = send_batch(client, messages_of(3), i=None)
    assert (answer.code, answer.ext["msgId"].count(",")) == (0, 2)
    assert send(client, body=b"single").ext["queueOffset"] == "3"
    found = records(pull(client))
    assert [(each.queue_offset, each.body, each.sys_flag & BITS) for each in found] == [
        (0, b"0", 0),
        (1, b"1", 0),
        (2, b"2", 0),
        (3, b"single", 0),
    ]


def test_a_batch_to_a_plain_topic_stays_many_records(broker):
    client = with_topic(broker)
    answer = send_batch(client, messages_of(3))
    assert (answer.code, answer.ext["msgId"].count(","), "batchUniqId" in answer.ext) == (0, 2, False)
    assert len(records(pull(client))) == 3


def test_offsets_and_times_count_messages(broker):
    client = batch_topic(broker)
    queue = {"topic": "T", "queueId": "0"}
    assert client.ask(RequestCode.GET_MIN_OFFSET, queue).ext["offset"] == "-1", "like Apache's, while it is empty"
    assert client.ask(RequestCode.GET_MAX_OFFSET, queue).ext["offset"] == "0"
    send_batch(client, messages_of(7))
    broker.advance(50)
    send_batch(client, messages_of(5))
    assert client.ask(RequestCode.GET_MIN_OFFSET, queue).ext["offset"] == "0"
    assert client.ask(RequestCode.GET_MAX_OFFSET, queue).ext["offset"] == "12"
    later = {**queue, "timestamp": str(broker.clock.wall_ms)}
    assert client.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, later).ext["offset"] == "7"


def test_entries_of_a_queue_are_listed_once(broker):
    client = batch_topic(broker)
    for count in (3, 1, 4):
        send_batch(client, messages_of(count))
    fields = {"topic": "T", "queueId": "0", "index": "1", "count": "10"}
    body = QueryConsumeQueueBody.decode(client.ask(RequestCode.QUERY_CONSUME_QUEUE, fields).body)
    assert (len(body.queue_data), body.max_queue_index) == (3, 8)


def test_the_tags_of_the_batch_decide_not_those_of_its_messages(broker):
    client = batch_topic(broker)
    send_batch(client, [BatchMessage(0, b"x", b"TAGS\x01A\x02")])
    send_batch(client, messages_of(4), i=f"{UNIQ}TAGS\x01A\x02")
    answer = pull(client, subscription="A")
    assert [each.queue_offset for each in records(answer)] == [1]
    assert broker.node.store.entries("T", 0, 1, 1)[0].tags_code == tags_code("A")
    answer = pull(client, offset=2, subscription="B")
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "5")


def test_a_parked_pull_gets_the_batch(broker):
    client = batch_topic(broker)
    opaque = client.tell(
        RequestCode.PULL_MESSAGE,
        {
            "consumerGroup": "CG",
            "topic": "T",
            "queueId": "0",
            "queueOffset": "0",
            "maxMsgNums": "32",
            "sysFlag": "6",
            "commitOffset": "0",
            "suspendTimeoutMillis": "15000",
            "subscription": "*",
            "subVersion": "1",
            "expressionType": "TAG",
        },
    )
    assert client.answer_to(opaque) is None
    send_batch(broker.connect(), messages_of(4))
    answer = client.answer_to(opaque)
    assert [each.queue_offset for each in records(answer)] == [0]
    assert answer.ext["nextBeginOffset"] == "4"


@pytest.mark.parametrize(
    ("topic", "fields"),
    [
        ("T", {"f": str(int(BITS))}),
        ("T", {"i": f"{UNIQ}INNER_NUM\x013\x02"}),
        ("T", {"f": str(int(BITS)), "m": "true"}),
        ("B", {"f": str(int(BITS))}),
        ("B", {"i": f"{UNIQ}INNER_NUM\x013\x02"}),
        ("B", {"m": "true", "i": f"{UNIQ}DELAY\x013\x02"}),
    ],
)
def test_messages_that_pose_as_inner_batches_are_refused(broker, topic, fields):
    client = with_topic(broker)
    batch_topic(broker, "B")
    answer = client.ask(RequestCode.SEND_MESSAGE_V2, send_fields(topic, **fields), encode_batch(messages_of(2)))
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL


@pytest.mark.parametrize(
    ("own", "told"),
    [
        (b"DELAY\x013\x02", "a batch cannot be delayed"),
        (b"a\x01b\x02TIMER_DELAY_SEC\x0130\x02", "a batch cannot be delayed"),
        (b"TIMER_DELIVER_MS\x011760000900000\x02", "a batch cannot be delayed"),
        (b"TRAN_MSG\x01true\x02", "a batch cannot be a transaction"),
    ],
)
def test_a_message_of_a_batch_cannot_be_delayed_on_either_kind_of_topic(broker, own, told):
    """As in records of their own: consumers would get it at once."""
    client = with_topic(broker)
    batch_topic(broker, "B")
    messages = [*messages_of(3), BatchMessage(0, b"later", own)]
    for topic in ("T", "B"):
        answer = client.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields(topic, m="true"), encode_batch(messages))
        assert (answer.code, answer.remark[: len(told)]) == (ResponseCode.MESSAGE_ILLEGAL, told)


def test_a_batch_may_mention_delays(broker):
    client = batch_topic(broker)
    texts = [b"DELAY\x013\x02", b"TIMER_DELAY_MS\x015\x02", b"TRAN_MSG\x01true\x02"]
    messages = [BatchMessage(0, text, b"xDELAY\x013\x02n\x01DELAY\x010\x02TIMER_DELAY_MS\x02") for text in texts]
    assert send_batch(client, messages).code == 0


def test_a_batch_keeps_nothing_of_an_earlier_record(broker):
    """A copied message may have a checksum, another cluster and another number of messages."""
    client = batch_topic(broker)
    copied = "__CRC32#\x010123456789\x02CLUSTER\x01other\x02INNER_NUM\x019\x02INNER_BASE\x017\x02MSG_REGION\x01r\x02"
    send_batch(client, messages_of(2), i=f"{copied}TRACE_ON\x01false\x02{UNIQ}TAGS\x01A")
    (record,) = records(pull(client))
    assert props.decode(record.properties) == {
        "UNIQ_KEY": UNIQ[9:-1],
        "TAGS": "A",
        "MSG_REGION": "DefaultRegion",
        "TRACE_ON": "true",
        "CLUSTER": "DefaultCluster",
        "INNER_NUM": "2",
        "INNER_BASE": "0",
    }
    assert all(record.properties.count(name) == 1 for name in (b"CLUSTER", b"INNER_NUM", b"INNER_BASE", b"TRACE_ON"))


def test_a_batch_has_at_most_as_many_messages_as_an_entry_can_count(broker):
    client = batch_topic(broker)
    most = encode_batch([BatchMessage(0, b"", b"")] * 32_767)
    fields = send_fields(m="true")
    assert client.ask(RequestCode.SEND_BATCH_MESSAGE, fields, most).code == 0
    answer = client.ask(RequestCode.SEND_BATCH_MESSAGE, fields, most + encode_batch(messages_of(1)))
    assert (answer.code, "32767" in answer.remark) == (ResponseCode.MESSAGE_ILLEGAL, True)
    assert client.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": "0"}).ext["offset"] == "32767"


def test_a_batched_message_keeps_that_it_did_not_wait(broker):
    """`BatchSendIT.testBatchSend_CheckProperties`."""
    client = with_topic(broker)
    sent = props.encode({"UNIQ_KEY": "1" * 32, "WAIT": "false", "KEYS": "k", "TAGS": "A"})
    send_batch(client, [BatchMessage(123, b"body", sent)], i=None)
    (record,) = records(pull(client))
    assert props.decode(record.properties) == props.decode(sent)
    assert record.flag == 123


def test_the_type_of_the_queues_cannot_be_changed(broker):
    client = with_topic(broker)
    fields = {
        "topic": "T",
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
        "attributes": BATCH_CQ,
    }
    answer = client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    assert (answer.code, answer.remark) == (
        ResponseCode.SYSTEM_ERROR,
        "attempt to update an unchangeable attribute. key: queue.type",
    )
    batch_topic(broker, "B")
    fields |= {"topic": "B", "attributes": "+queue.type=SimpleCQ"}
    assert client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields).code == ResponseCode.SYSTEM_ERROR


def test_a_message_of_a_batch_is_not_sent_back_by_its_offset(broker):
    """The client then sends it to the retry topic (`DefaultMQPushConsumerImpl.sendMessageBack`)."""
    client = batch_topic(broker)
    group(client)
    send_batch(client, messages_of(3))
    (record,) = records(pull(client))
    answer = send_back(client, record)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    again = send_fields("%RETRY%CG", i=f"{UNIQ}DELAY\x013\x02RETRY_TOPIC\x01T\x02")
    assert client.ask(RequestCode.SEND_MESSAGE_V2, again, b"1").code == 0


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_batches_survive_a_restart(make, end):
    first = make()
    client = batch_topic(first)
    for number in range(3):
        send_batch(client, messages_of(4, 4 * number))
    first.advance(2000)
    if end == "stop":
        stop(first)
    client = opened_again(first).connect()
    assert [each.queue_offset for each in records(pull(client, offset=6))] == [4, 8]
    assert send_batch(client, messages_of(2, 12)).ext["queueOffset"] == "12"


def test_a_pop_gets_the_record_and_its_redelivery_is_one_plain_message(broker):
    """Java's pop consumers do not unwrap. A copy with the bits would take many queue offsets."""
    client = batch_topic(broker, queues=1)
    group(client)
    send_batch(client, messages_of(3))
    broker.node.offsets.commit("CG", "T", 0, 1)
    answer = client.ask(RequestCode.POP_MESSAGE, pop_fields(broker, queueId="0", invisibleTime="10000"))
    (record,) = records(answer)
    assert (record.queue_offset, len(decode_batch(record.body))) == (0, 3)
    assert answer.ext["restNum"] == "0"
    broker.advance(20_000)
    retry = next(each for each in broker.node.topics.by_name if each.startswith("%RETRY%CG") and each.endswith("T"))
    (copy,) = records(pull(client, retry))
    assert (copy.body, copy.sys_flag & BITS, b"INNER_" in copy.properties) == (record.body, 0, False)
