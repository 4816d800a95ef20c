"""Sends.

Source: `SendMessageProcessor.java`, `AbstractSendMessageProcessor.msgCheck`, `HookUtils.java`.
"""

import errno

import pytest

from rmqkit.wire import properties as props
from rmqkit.wire.batch import BatchMessage, encode_batch
from rmqkit.wire.codes import MessageSysFlag, RequestCode, ResponseCode
from tests.broker.requests import UNIQ, pull, records, send, send_fields, with_topic
from tests.helpers.script import write_command


def test_a_send_is_answered_with_its_place_and_can_be_pulled(broker):
    client = with_topic(broker)
    answer = send(client, body=b"hello", i=UNIQ + "TAGS\x01TagA\x02WAIT\x01true\x02")
    assert answer.code == ResponseCode.SUCCESS
    assert answer.ext["queueId"] == "0"
    assert answer.ext["queueOffset"] == "0"
    assert answer.ext["MSG_REGION"] == "DefaultRegion"
    assert answer.ext["TRACE_ON"] == "true"
    assert answer.ext["transactionId"] == UNIQ[9:-1]
    # The offset id is 127.0.0.1, the listen port, and the physical offset.
    assert answer.ext["msgId"] == "7F000001" + f"{10911:08X}" + f"{0:016X}"
    (record,) = records(pull(client))
    assert (record.topic, record.queue_id, record.queue_offset, record.body) == ("T", 0, 0, b"hello")
    mapping = props.decode(record.properties)
    assert mapping["TAGS"] == "TagA"
    assert mapping["CLUSTER"] == "DefaultCluster"
    assert "WAIT" not in mapping, "WAIT=true says nothing and is not stored"


def test_queue_offsets_are_dense_and_per_queue(broker):
    client = with_topic(broker)
    offsets = [send(client, e=str(queue)).ext["queueOffset"] for queue in (0, 0, 1, 0, 1)]
    assert offsets == ["0", "1", "0", "2", "1"]


def test_v1_and_v2_names_are_the_same_send(broker):
    client = with_topic(broker)
    long_names = {
        "producerGroup": "PG",
        "topic": "T",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": 4,
        "queueId": 1,
        "sysFlag": 0,
        "bornTimestamp": 1760000000000,
        "flag": 7,
        "properties": UNIQ,
        "reconsumeTimes": 0,
        "unitMode": False,
    }
    answer = client.ask(RequestCode.SEND_MESSAGE, long_names, b"v1")
    assert answer.code == 0, answer.remark
    (record,) = records(pull(client, queue_id=1))
    assert (record.flag, record.body) == (7, b"v1")


def test_a_message_without_unique_key_gets_one(broker):
    client = with_topic(broker)
    assert send(client, i=None).code == 0
    (record,) = records(pull(client))
    assert len(props.decode(record.properties)["UNIQ_KEY"]) == 32


def test_one_way_is_stored_and_not_answered(broker):
    client = with_topic(broker)
    client.tell(RequestCode.SEND_MESSAGE_V2, send_fields(), b"quiet", flag=2)
    assert client.take() == []
    assert [each.body for each in records(pull(client))] == [b"quiet"]


def test_an_unknown_topic_is_created_after_its_default_topic(broker):
    client = broker.connect()
    assert send(client, "Fresh", d="2").code == 0
    config = broker.node.topics.get("Fresh")
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (2, 2, 6)
    # A new topic never has more queues than the default topic.
    assert send(client, "Wide", d="64").code == 0
    assert broker.node.topics.get("Wide").write_queue_nums == 8


def test_without_auto_create_an_unknown_topic_is_an_error(make):
    broker = make("autoCreateTopicEnable=false")
    answer = send(broker.connect(), "Fresh")
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert "Fresh" in answer.remark
    assert broker.node.topics.get("Fresh") is None


@pytest.mark.parametrize(
    ("changes", "body", "code"),
    [
        ({"e": "99"}, b"x", ResponseCode.INVALID_PARAMETER),
        ({"b": "../../etc"}, b"x", ResponseCode.INVALID_PARAMETER),
        ({"b": "a/b"}, b"x", ResponseCode.INVALID_PARAMETER),
        ({"b": "x" * 128}, b"x", ResponseCode.INVALID_PARAMETER),
        ({"b": "SCHEDULE_TOPIC_XXXX"}, b"x", ResponseCode.NO_PERMISSION),
        ({"b": "RMQ_SYS_TRANS_HALF_TOPIC"}, b"x", ResponseCode.NO_PERMISSION),
        ({}, b"", ResponseCode.MESSAGE_ILLEGAL),
        ({}, b"x" * (4 * 1024 * 1024 + 1), ResponseCode.MESSAGE_ILLEGAL),
        ({"i": "K\x01" + "v" * 40_000 + "\x02"}, b"x", ResponseCode.MESSAGE_ILLEGAL),
        ({"i": UNIQ + "DELAY\x01soon\x02"}, b"x", ResponseCode.MESSAGE_ILLEGAL),
        ({"i": UNIQ + "TIMER_DELAY_SEC\x01soon\x02"}, b"x", ResponseCode.MESSAGE_ILLEGAL),
        ({"i": UNIQ + "TIMER_DELIVER_MS\x012760000000000\x02"}, b"x", ResponseCode.MESSAGE_ILLEGAL),
        ({"i": UNIQ + "TRAN_MSG\x01true\x02DELAY\x011\x02", "f": "4"}, b"x", ResponseCode.MESSAGE_ILLEGAL),
        ({"i": UNIQ + "TRAN_MSG\x01true\x02TIMER_DELAY_SEC\x0110\x02"}, b"x", ResponseCode.MESSAGE_ILLEGAL),
        ({"f": "4"}, b"x", ResponseCode.MESSAGE_ILLEGAL),
        ({"e": "zero"}, b"x", ResponseCode.SYSTEM_ERROR),
        ({"e": str(2**40)}, b"x", ResponseCode.SYSTEM_ERROR),
        ({"b": None}, b"x", ResponseCode.SYSTEM_ERROR),
        ({"m": "true"}, b"no batch at all", ResponseCode.MESSAGE_ILLEGAL),
    ],
)
def test_bad_sends_are_refused_and_nothing_is_stored(broker, changes, body, code):
    client = with_topic(broker)
    end = broker.node.store.offset_max
    answer = send(client, body=body, **changes)
    assert answer.code == code, answer
    assert answer.remark
    assert broker.node.store.offset_max == end
    assert send(client).code == 0, "the connection and the broker live on"


def test_a_read_only_topic_takes_what_producers_send_by_an_older_route(broker):
    """Apache's 5.5.0 answered 0 to a send to a topic with perm 4 (`msgCheck` has no such check)."""
    client = with_topic(broker, perm="4")
    assert send(client).code == 0
    assert send(client, m="true", body=encode_batch([BatchMessage(0, b"x", UNIQ.encode())])).code == 0
    assert len(records(pull(client))) == 2


def test_a_topic_without_write_queues_takes_no_send_without_a_queue(broker):
    """Nobody could read it from a queue 0 that the topic lacks. Apache's answers 1, `/ by zero`."""
    client = with_topic(broker, queues=0)
    assert send(client, e="-1").code == ResponseCode.INVALID_PARAMETER
    assert broker.node.store.offset_max == 0


def test_a_read_only_broker_refuses_order_topics_only(make):
    """`brokerPermission=4` drains a broker: producers learn it from the route, within 30 s."""
    broker = make("brokerPermission=4")
    client = with_topic(broker)
    assert send(client).code == 0
    answer = send(with_topic(broker, "O", order="true"), "O")
    assert (answer.code, answer.remark) == (
        ResponseCode.NO_PERMISSION,
        "the broker[127.0.0.1] sending message is forbidden (brokerPermission)",
    )


def test_a_batch_becomes_records_with_consecutive_offsets(broker):
    client = with_topic(broker)
    send(client)
    messages = [BatchMessage(0, f"m{i}".encode(), props.encode({"UNIQ_KEY": f"{i:032X}", "TAGS": "B"})) for i in range(3)]
    answer = client.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields(m="true"), encode_batch(messages))
    assert answer.code == 0, answer.remark
    assert answer.ext["queueOffset"] == "1"
    assert len(answer.ext["msgId"].split(",")) == 3
    found = records(pull(client, offset=1))
    assert [(each.queue_offset, each.body) for each in found] == [(1, b"m0"), (2, b"m1"), (3, b"m2")]


def test_batches_of_a_topic_with_many_tags_are_marked_as_single_messages_are(broker):
    client = with_topic(broker, topicFilterType="MULTI_TAG")
    send(client)
    assert (
        client.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields(m="true"), encode_batch([BatchMessage(0, b"x", b"")])).code
        == 0
    )
    found = records(pull(client))
    assert [bool(each.sys_flag & MessageSysFlag.MULTI_TAGS) for each in found] == [True, True]


def test_a_batch_to_dead_letters_is_a_batch_and_one_to_a_retry_topic_is_refused(broker):
    """`SendMessageProcessor.sendBatchMessage`."""
    body = encode_batch([BatchMessage(0, b"%d" % number, b"") for number in range(2)])
    for topic, code in (("%DLQ%CG", 0), ("%RETRY%CG", ResponseCode.MESSAGE_ILLEGAL)):
        client = with_topic(broker, topic)
        answer = client.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields(topic, m="true"), body)
        assert (topic, answer.code) == (topic, code)


def test_batch_is_decided_by_the_flag_not_the_code(broker):
    """The C++ client sends batches as 310 (SEND_MESSAGE_V2) with m=true."""
    client = with_topic(broker)
    messages = [BatchMessage(0, b"one", b""), BatchMessage(0, b"two", b"")]
    assert client.ask(RequestCode.SEND_MESSAGE_V2, send_fields(m="true"), encode_batch(messages)).code == 0
    assert [each.body for each in records(pull(client))] == [b"one", b"two"]


def test_sends_of_one_read_are_answered_in_one_turn(broker):
    client = with_topic(broker)
    frames = b"".join(
        write_command(RequestCode.SEND_MESSAGE_V2, send_fields(), b"%d" % i, opaque=100 + i) for i in range(50)
    )
    client.send(frames)
    assert [each.opaque for each in client.take()] == list(range(100, 150))


def test_born_and_store_host_are_in_the_record(broker):
    client = with_topic(broker)
    other = broker.connect(peer="[2001:db8::1]:5000")
    send(client)
    assert send(other).code == 0
    first, second = records(pull(client))
    assert first.sys_flag & 0x30 == 0
    assert second.sys_flag & 0x10, "the sender's host is IPv6 and the flag says so"


def test_sync_flush_answers_after_the_disk(make):
    broker = make("flushDiskType=SYNC_FLUSH", engine="mapped")
    client = with_topic(broker)
    broker.disk.held = True
    opaque = client.tell(RequestCode.SEND_MESSAGE_V2, send_fields(), b"x")
    assert client.answer_to(opaque) is None
    no_wait = client.tell(RequestCode.SEND_MESSAGE_V2, send_fields(i=UNIQ + "WAIT\x01false\x02"), b"x")
    assert client.answer_to(no_wait).code == 0
    broker.disk.held = False
    broker.finish_disk()
    assert client.answer_to(opaque).code == 0


def test_a_sync_that_takes_too_long_is_a_flush_disk_timeout(make):
    """The message is stored, but not known to be durable (`CommitLog.handleDiskFlush`)."""
    broker = make("flushDiskType=SYNC_FLUSH", "syncFlushTimeout=2500", engine="mapped")
    client = with_topic(broker)
    broker.disk.held = True
    opaque = client.tell(RequestCode.SEND_MESSAGE_V2, send_fields(), b"x")
    broker.advance(2500)
    answer = client.answer_to(opaque)
    assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
    assert answer.ext["queueOffset"] == "0", "the client needs the place of what was stored"
    broker.disk.held = False
    broker.finish_disk()
    assert client.take() == [], "never a second answer"


def test_a_failed_sync_acknowledges_nothing_any_more(make):
    broker = make("flushDiskType=SYNC_FLUSH", engine="mapped")
    client = with_topic(broker)
    broker.disk.error = OSError(errno.EIO, "Input/output error")
    answer = send(client)
    assert answer.code == ResponseCode.FLUSH_DISK_TIMEOUT
    broker.disk.error = None
    answer = send(client)
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "Input/output error" in answer.remark


def test_a_full_disk_is_an_answer_and_passes(make):
    broker = make(engine="mapped")
    client = with_topic(broker)
    assert send(client).code == 0
    broker.disk.write_error = OSError(errno.ENOSPC, "No space left on device")
    answer = send(client)
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "No space left on device" in answer.remark
    assert send(client).code == ResponseCode.SERVICE_NOT_AVAILABLE
    broker.disk.write_error = None
    assert send(client).ext["queueOffset"] == "1", "the failed put left no hole"
    told = [event for event in broker.log.events() if event.startswith("write-")]
    assert told == ["write-failed", "write-works-again"], "once each, however many puts were refused"
    assert len(records(pull(client))) == 2


def test_batches_too_are_refused_while_too_many_wait_for_the_disk(make):
    broker = make("flushDiskType=SYNC_FLUSH", "waitersMax=2")
    client = with_topic(broker)
    broker.disk.held = True
    batch = encode_batch([BatchMessage(0, b"one", b"")])
    for _ in range(2):
        client.tell(RequestCode.SEND_BATCH_MESSAGE, send_fields(m="true"), batch)
    assert client.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields(m="true"), batch).code == ResponseCode.SYSTEM_BUSY
    broker.disk.held = False
    broker.finish_disk()
    assert client.ask(RequestCode.SEND_BATCH_MESSAGE, send_fields(m="true"), batch).code == 0
