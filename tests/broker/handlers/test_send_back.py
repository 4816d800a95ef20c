"""Messages that consumers send back.

Source: `AbstractSendMessageProcessor.consumerSendMsgBack`,
`SendMessageProcessor.handleRetryAndDLQ`.
"""

import json

import pytest

from rmqkit.wire import properties as props
from rmqkit.wire.codes import RequestCode, ResponseCode, Version
from tests.broker.requests import UNIQ, pull, records, send, with_topic
from tests.helpers.script import write_command

RETRY, DLQ = "%RETRY%CG", "%DLQ%CG"


def back_fields(offset=None, **changes):
    """Return the extFields of CONSUMER_SEND_MSG_BACK as Java 5.x sends them."""
    fields = {
        "offset": offset,
        "group": "CG",
        "delayLevel": "0",
        "originMsgId": "7F000001",
        "originTopic": "T",
        "unitMode": "false",
        "maxReconsumeTimes": "16",
        "bname": "broker-a",
    }
    return {key: value for key, value in {**fields, **changes}.items() if value is not None}


def send_back(client, record, **changes):
    head = {name: changes.pop(name) for name in ("version", "flag") if name in changes}
    changes.setdefault("offset", str(record.phy_offset))
    return client.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back_fields(**changes), **head)


def pulled(client, topic="T", offset=0, **changes):
    (record,) = records(pull(client, topic, 0, offset, **changes))
    return record


def group(client, name="CG", **changes):
    fields = {"groupName": name, "retryQueueNums": 1, "retryMaxTimes": 16, **changes}
    answer = client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(fields).encode())
    assert answer.code == 0, answer.remark


def test_a_message_comes_again_from_the_retry_topic(broker):
    client = with_topic(broker)
    send(client, body=b"work", i=f"{UNIQ}TAGS\x01A\x02KEYS\x01k\x02", h="5")
    first = pulled(client)
    answer = send_back(client, first)
    assert (answer.code, answer.ext) == (0, {})
    broker.advance(9999)
    assert records(pull(client, RETRY)) == []
    broker.advance(1)
    again = pulled(client, RETRY, subscription="A")
    assert (again.body, again.flag, again.reconsume_times) == (b"work", 5, 1)
    assert (again.born_ms, again.born_host) == (first.born_ms, first.born_host)
    mapping = props.decode(again.properties)
    assert mapping["RETRY_TOPIC"] == "T"
    assert mapping["ORIGIN_MESSAGE_ID"] == first.store_host.hex().upper() + f"{first.phy_offset:016X}"
    assert mapping["UNIQ_KEY"] == props.decode(first.properties)["UNIQ_KEY"]
    assert mapping["DELAY"] == "3"
    assert (mapping["REAL_TOPIC"], mapping["REAL_QID"]) == (RETRY, "0")


def test_the_second_time_the_first_topic_and_id_stay(broker):
    client = with_topic(broker)
    send(client)
    first = pulled(client)
    send_back(client, first)
    broker.advance(10_000)
    second = pulled(client, RETRY)
    send_back(client, second)
    broker.advance(29_999)
    assert records(pull(client, RETRY, 0, 1)) == []
    broker.advance(1)
    third = pulled(client, RETRY, 1)
    assert third.reconsume_times == 2
    mapping = props.decode(third.properties)
    assert mapping["RETRY_TOPIC"] == "T"
    assert mapping["ORIGIN_MESSAGE_ID"].endswith(f"{first.phy_offset:016X}")
    assert mapping["DELAY"] == "4"


def test_the_asked_level_is_used(broker):
    client = with_topic(broker)
    send(client)
    assert send_back(client, pulled(client), delayLevel="1").code == 0
    broker.advance(1000)
    assert pulled(client, RETRY).reconsume_times == 1


@pytest.mark.parametrize(
    ("times", "changes", "is_dead"),
    [
        ("15", {}, False),
        ("16", {}, True),
        ("0", {"delayLevel": "-1"}, True),
        ("2", {"maxReconsumeTimes": "2"}, True),
        ("16", {"maxReconsumeTimes": "17"}, False),
        ("3", {"maxReconsumeTimes": None}, True),
        # Clients before 3.4.9 cannot set the limit.
        ("3", {"version": int(Version.V3_4_9) - 1}, True),
        ("2147483647", {"maxReconsumeTimes": "2147483647"}, True),
    ],
)
def test_at_the_limit_it_is_dead(broker, times, changes, is_dead):
    client = with_topic(broker)
    limit = "3" if changes.get("maxReconsumeTimes", "") is None or "version" in changes else "16"
    group(client, retryMaxTimes=int(limit))
    send(client, j=times)
    assert send_back(client, pulled(client), **changes).code == 0
    assert (DLQ in broker.node.topics.by_name) is is_dead
    if not is_dead:
        broker.advance(2 * 3_600_000)
    topic = DLQ if is_dead else RETRY
    again = pulled(client, topic)
    assert again.reconsume_times == min(int(times) + 1, 2**31 - 1)
    assert props.decode(again.properties)["RETRY_TOPIC"] == "T"


def test_the_dead_letter_topic_has_one_queue_to_read_and_write(broker):
    client = with_topic(broker)
    send(client)
    send_back(client, pulled(client), delayLevel="-1")
    config = broker.node.topics.get(DLQ)
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (1, 1, 6)
    mapping = props.decode(pulled(client, DLQ).properties)
    assert mapping["DELAY"] == "0"
    assert "DLQ_ORIGIN_TOPIC" not in mapping, "upstream's broker does not write it"


def test_retry_queues_are_those_of_the_group(broker):
    client = with_topic(broker)
    group(client, retryQueueNums=3)
    for _ in range(30):
        send(client)
    for record in records(pull(client)):
        assert send_back(client, record, delayLevel="1", unitMode="true").code == 0
    config = broker.node.topics.get(RETRY)
    assert (config.read_queue_nums, config.write_queue_nums, config.topic_sys_flag) == (3, 3, 2)
    broker.advance(1000)
    counts = [broker.node.store.queue_range(RETRY, queue).offset_max for queue in range(3)]
    assert sum(counts) == 30
    assert all(counts)


def test_a_group_without_retry_queues_gives_up(broker):
    client = with_topic(broker)
    group(client, retryQueueNums=0)
    send(client)
    record = pulled(client)
    end = broker.node.store.offset_max
    assert send_back(client, record).code == 0
    assert broker.node.store.offset_max == end


def test_send_backs_that_are_refused(make):
    broker = make("autoCreateSubscriptionGroup=false")
    client = with_topic(broker)
    group(client)
    send(client)
    record = pulled(client)
    end = broker.node.store.offset_max
    for changes, code in (
        ({"group": "Unknown"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"group": "../etc"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"offset": "-1"}, ResponseCode.SYSTEM_ERROR),
        ({"offset": "1"}, ResponseCode.SYSTEM_ERROR),
        ({"offset": str(2**62)}, ResponseCode.SYSTEM_ERROR),
        ({"offset": None}, ResponseCode.SYSTEM_ERROR),
    ):
        answer = send_back(client, record, **changes)
        assert (answer.code, bool(answer.remark)) == (code, True), changes
    client.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, b"brokerPermission=4\n")
    assert send_back(client, record).code == ResponseCode.NO_PERMISSION
    client.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, b"brokerPermission=6\n")
    assert broker.node.store.offset_max == end
    assert send_back(client, record).code == 0


def test_a_record_whose_body_is_damaged_is_not_sent_back(broker):
    client = with_topic(broker)
    send(client, body=b"to be damaged")
    record = pulled(client)
    log = broker.disk.files["/s/commitlog/00000000000000000000"]
    log[bytes(log).find(b"to be damaged")] ^= 1
    assert send_back(client, record).code == ResponseCode.SYSTEM_ERROR


def test_the_answer_waits_for_the_disk(make):
    broker = make("flushDiskType=SYNC_FLUSH")
    client = with_topic(broker)
    send(client)
    record = pulled(client)
    send_back(client, record)
    broker.disk.held = True
    opaque = client.tell(RequestCode.CONSUMER_SEND_MSG_BACK, back_fields(str(record.phy_offset)))
    assert client.answer_to(opaque) is None
    broker.disk.held = False
    broker.finish_disk()
    assert client.answer_to(opaque).code == 0


def test_a_new_topic_is_in_its_file_before_the_answer(broker):
    client = with_topic(broker)
    send(client)
    record = pulled(client)
    broker.disk.held = True
    opaque = client.tell(RequestCode.CONSUMER_SEND_MSG_BACK, back_fields(str(record.phy_offset), delayLevel="-1"))
    assert client.answer_to(opaque) is None
    broker.disk.held = False
    broker.finish_disk()
    assert client.answer_to(opaque).code == 0
    assert DLQ.encode() in bytes(broker.disk.files["config/topics.json"])
    assert pulled(client, DLQ).body == b"hello"


def test_one_that_left_gets_no_answer(make):
    broker = make("flushDiskType=SYNC_FLUSH")
    client = with_topic(broker)
    send(client)
    record = pulled(client)
    broker.disk.held = True
    client.tell(RequestCode.CONSUMER_SEND_MSG_BACK, back_fields(str(record.phy_offset), delayLevel="-1"))
    client.close()
    broker.disk.held = False
    broker.finish_disk()
    assert send(broker.connect()).code == 0


# --- by an ordinary send ----------------------------------------------------------


def fallback(client, times, **changes):
    """Send to the retry topic, as Java's client does when code 36 has failed.

    Source: `DefaultMQPushConsumerImpl.sendMessageBackAsNormalMessage`.
    """
    fields = {"i": f"{UNIQ}RETRY_TOPIC\x01T\x02DELAY\x01{3 + times}\x02", "j": str(times), "l": "2", **changes}
    return send(client, RETRY, b"work", **fields)


def test_a_send_to_the_retry_topic_is_delayed(broker):
    client = with_topic(broker)
    answer = fallback(client, 2)
    assert answer.code == 0, answer.remark
    broker.advance(59_999)
    assert records(pull(client, RETRY)) == []
    broker.advance(1)
    assert pulled(client, RETRY).reconsume_times == 2


def test_past_the_limit_such_a_send_is_dead(broker):
    """Such a send is dead only past the limit. A message sent back by 36 is dead at the limit."""
    client = with_topic(broker)
    assert fallback(client, 3).code == 0
    dead = pulled(client, DLQ)
    assert (dead.body, dead.reconsume_times) == (b"work", 3)
    assert props.decode(dead.properties)["DELAY"] == "-1"
    assert DLQ.encode() in bytes(broker.disk.files["config/topics.json"])


def test_while_the_group_holds_a_lock_such_a_send_is_dead(broker):
    client = with_topic(broker)
    body = {"consumerGroup": "CG", "clientId": "c", "mqSet": [{"topic": "T", "brokerName": "broker-a", "queueId": 0}]}
    assert client.ask(RequestCode.LOCK_BATCH_MQ, {}, json.dumps(body).encode()).code == 0
    assert fallback(client, 1).code == 0
    assert pulled(client, DLQ).body == b"work"
    broker.advance(60_001)
    assert fallback(client, 1).code == 0
    broker.advance(30_000)
    assert pulled(client, RETRY).body == b"work"


def test_what_old_clients_send_back_is_no_half_message(broker):
    """Clients before 4.6.1 leave TRAN_MSG on the message (`SendMessageProcessor.sendMessage`)."""
    client = with_topic(broker)
    assert fallback(client, 1, i=f"{UNIQ}TRAN_MSG\x01true\x02DELAY\x014\x02").code == 0
    assert send(client, i=f"{UNIQ}TRAN_MSG\x01true\x02DELAY\x014\x02").code == ResponseCode.MESSAGE_ILLEGAL


def test_a_thousand_at_once_are_answered_each(broker):
    client = with_topic(broker)
    send(client)
    record = pulled(client)
    send_back(client, record)
    code, fields = RequestCode.CONSUMER_SEND_MSG_BACK, back_fields(str(record.phy_offset), delayLevel="1")
    client.send(b"".join([write_command(code, fields, opaque=5000 + number) for number in range(1000)]))
    assert [each.opaque for each in client.take()] == list(range(5000, 6000))
    broker.advance(2000)
    assert broker.node.store.queue_range(RETRY, 0).offset_max == 1000
    assert broker.node.puts.own_count == 0


# --- statistics -------------------------------------------------------------------


def counted(broker):
    return {topic: count.messages for topic, count in broker.node.statistics.puts.table.items() if count.messages}


def test_a_send_that_is_dead_is_counted_as_a_dead_letter(broker):
    client = with_topic(broker)
    assert fallback(client, 3).code == 0
    assert counted(broker) == {DLQ: 1}


def test_what_is_sent_back_is_counted_once_in_the_retry_topic(broker):
    client = with_topic(broker)
    send(client)
    assert send_back(client, pulled(client)).code == 0
    assert counted(broker) == {"T": 1, "SCHEDULE_TOPIC_XXXX": 1}
    broker.advance(10_000)
    assert counted(broker) == {"T": 1, "SCHEDULE_TOPIC_XXXX": 1, RETRY: 1}


def test_what_was_sent_back_is_counted_by_where_it_was_first(broker):
    """The record names the original topic; the topic in the request may be anything.

    Source: `consumerSendMsgBack`, `incSendBackNums`.
    """
    client = with_topic(broker)
    send(client)
    assert send_back(client, pulled(client), originTopic="made up").code == 0
    broker.advance(10_000)
    assert send_back(client, pulled(client, RETRY), originTopic="made up too").code == 0
    assert {key: count.messages for key, count in broker.node.statistics.sent_back.table.items()} == {("T", "CG"): 2}
