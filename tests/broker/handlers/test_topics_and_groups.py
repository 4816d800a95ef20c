"""Topic, group, offset and configuration administration.

Source: `AdminBrokerProcessor.java`, `ConsumerManageProcessor.java`.
"""

import json

import pytest

from rmqkit.broker.handlers.admin.broker import readable
from rmqkit.config import from_values
from rmqkit.testing import SimBroker
from rmqkit.wire.bodies import TopicStatsTable
from rmqkit.wire.codes import RequestCode, ResponseCode
from tests.broker.conftest import broker_of
from tests.broker.requests import create_group, pull, records, send, send_fields, with_topic
from tests.helpers.script import Script

EXPORTED_NUMBERS = """
    msgPutTotalTodayNow msgGetTotalTodayNow msgPutTotalTodayMorning msgGetTotalTodayMorning msgPutTotalYesterdayMorning
    msgGetTotalYesterdayMorning sendThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueHeadWaitTimeMills
    pullThreadPoolQueueHeadWaitTimeMills queryThreadPoolQueueSize pullThreadPoolQueueSize sendThreadPoolQueueSize
    sendThreadPoolQueueCapacity pullThreadPoolQueueCapacity queryThreadPoolQueueCapacity commitLogMinOffset
    commitLogMaxOffset bootTimestamp brokerVersion dispatchMaxBuffer consumeQueueDiskRatio commitLogDiskRatio
    pageCacheLockTimeMills getMessageEntireTimeMax putMessageEntireTimeMax putMessageTimesTotal
    startAcceptSendRequestTimeStamp earliestMessageTimeStamp remainTransientStoreBufferNumbs putMessageAverageSize
    putMessageSizeTotal dispatchBehindBytes
"""


def offset_of(client, group="CG", topic="T", **more):
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0", **more}
    return client.ask(RequestCode.QUERY_CONSUMER_OFFSET, fields)


def commit(client, offset, group="CG", topic="T"):
    fields = {"consumerGroup": group, "topic": topic, "queueId": "0", "commitOffset": str(offset)}
    return client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)


def test_a_topic_is_created_read_back_and_deleted(broker):
    client = with_topic(broker, "T", 3)
    answer = client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"})
    assert answer.json["topicName"] == "T"
    assert answer.json["writeQueueNums"] == 3
    send(client)
    assert client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == 0
    # Admin tools ignore only this code (`MQAdminUtils.java`).
    assert client.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "T"}).code == ResponseCode.TOPIC_NOT_EXIST
    with_topic(broker)
    assert pull(client).code == ResponseCode.PULL_NOT_FOUND, "the old messages are gone with their queue"


@pytest.mark.parametrize(
    "changes",
    [
        {"topic": "a b"},
        {"topic": ""},
        {"topic": "TBW102"},
        {"readQueueNums": "-1"},
        {"writeQueueNums": "1000000"},
        {"perm": "99"},
        {"topicFilterType": "NO_TAG"},
        {"topic": "DefaultCluster"},
        {"topic": "broker-a"},
        {"topic": "DefaultCluster_REPLY_TOPIC"},
        {"topic": "CHECKPOINT_TOPIC"},
        {"topic": "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"},
    ],
)
def test_bad_topics_are_refused(broker, changes):
    client = broker.connect()
    version = broker.node.topics.version
    fields = {
        "topic": "T",
        "defaultTopic": "TBW102",
        "readQueueNums": "4",
        "writeQueueNums": "4",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
    }
    assert client.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields | changes).code == ResponseCode.INVALID_PARAMETER
    assert broker.node.topics.version == version


@pytest.mark.parametrize(
    ("attributes", "remark"),
    [
        ("message.type=FIFO", "add/alter attribute format is wrong: message.type"),
        ("+foo=bar", "unsupported key: foo"),
        ("-message.type", "only add attribute is supported while creating topic. key: message.type"),
        ("+queue.type=RocksDBCQ", "queue.type: 'RocksDBCQ' is not one of SimpleCQ, BatchCQ"),
    ],
)
def test_bad_attributes_get_the_code_of_apache(broker, attributes, remark):
    """5.5.0 answers 1: `updateAndCreateTopic` catches any exception. Only the last text is ours."""
    fields = {"topic": "T", "defaultTopic": "", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    fields |= {"topicFilterType": "SINGLE_TAG", "order": "false", "attributes": attributes}
    answer = broker.connect().ask(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, remark)
    assert broker.node.topics.get("T") is None


def test_names_are_refused_in_the_words_of_apache(broker):
    """Source: `TopicValidator.{validateTopic,validateGroup}`, as 5.5.0 answered."""
    client = broker.connect()
    allowed = "allowing only ^[%|a-zA-Z0-9_-]+$"
    for topic, remark in {
        "a b": f"The specified topic: a b, contains illegal characters, {allowed}",
        "a" * 128: f"The specified topic: {'a' * 128}, is longer than topic max length: 127",
        "%DLQ%" + "a" * 251: f"The specified topic is DLQ or Retry topic: %DLQ%{'a' * 251}, "
        "and it's longer than topic max length: 255",
    }.items():
        answer = send(client, topic)
        assert (answer.code, answer.remark) == (ResponseCode.INVALID_PARAMETER, remark)
    for group, remark in {
        "a b": f"The specified group: a b, contains illegal characters, {allowed}",
        "g" * 121: f"The specified group: {'g' * 121}, is longer than group max length: 120",
    }.items():
        answer = client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps({"groupName": group}).encode())
        assert (answer.code, answer.remark) == (ResponseCode.INVALID_PARAMETER, remark)
    create_group(client, "g" * 120)


def test_no_request_creates_a_group_with_a_name_of_121_characters(broker):
    client = with_topic(broker)
    assert pull(client, consumerGroup="g" * 120).code == ResponseCode.PULL_NOT_FOUND
    assert pull(client, consumerGroup="g" * 121).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert send(client, "%RETRY%" + "g" * 121).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_clients_in_unit_mode_mark_the_topics_that_they_create(broker):
    """Java's `setUnitMode`; codes 311 to 313 of the name server list such topics."""
    client = broker.connect()
    assert send(client, "U", k="true").code == send(client, "%RETRY%G", k="true").code == send(client, "N").code == 0
    consumer = {"groupName": "CG", "unitMode": True, "subscriptionDataSet": []}
    client.ask(RequestCode.HEART_BEAT, {}, json.dumps({"clientID": "c", "consumerDataSet": [consumer]}).encode())
    flags = {name: broker.node.topics.get(name).topic_sys_flag for name in ("U", "N", "%RETRY%G", "%RETRY%CG")}
    assert flags == {"U": 1, "N": 0, "%RETRY%G": 2, "%RETRY%CG": 2}


def test_system_topics_cannot_be_deleted(broker):
    client = broker.connect()
    for topic in ("TBW102", "DefaultCluster", "broker-a", "RMQ_SYS_TRANS_HALF_TOPIC"):
        assert client.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}).code == ResponseCode.INVALID_PARAMETER
        assert broker.node.topics.get(topic) is not None


def test_stats_have_a_row_for_every_queue_of_an_empty_topic(broker):
    client = with_topic(broker, "T", 2)
    send(client)
    rows = TopicStatsTable.decode(client.ask(RequestCode.GET_TOPIC_STATS_INFO, {"topic": "T"}).body).offset_table
    assert sorted((queue.queue_id, row.max_offset) for queue, row in rows.items()) == [(0, 1), (1, 0)]


def test_all_topics_whole_and_by_pages(broker):
    client = with_topic(broker)
    whole = client.ask(RequestCode.GET_ALL_TOPIC_CONFIG)
    names = sorted(whole.json["topicConfigTable"])
    assert "T" in names
    fields = {"topicSeq": "1", "maxTopicNum": "2", "dataVersion": json.dumps(whole.json["dataVersion"])}
    page = client.ask(RequestCode.GET_ALL_TOPIC_CONFIG, fields)
    assert sorted(page.json["topicConfigTable"]) == names[1:3]
    assert page.ext["totalTopicNum"] == str(len(names))
    # Pages of different table versions do not fit together, so the first page is sent
    # (`TopicConfigManager.subTopicConfigTable`).
    fields["dataVersion"] = '{"counter":1,"stateVersion":0,"timestamp":1}'
    assert sorted(client.ask(RequestCode.GET_ALL_TOPIC_CONFIG, fields).json["topicConfigTable"]) == names[:2]
    fields["dataVersion"] = "no version"
    assert sorted(client.ask(RequestCode.GET_ALL_TOPIC_CONFIG, fields).json["topicConfigTable"]) == names[:2]


def test_an_offset_nobody_committed_is_not_found_or_zero(broker):
    """The offset is 0 while the queue is empty or its message 0 is in memory.

    Otherwise the answer is QUERY_NOT_FOUND. Source: `ConsumerManageProcessor.queryConsumerOffset`;
    for an empty queue rmqkit deviates.
    """
    client = with_topic(broker)
    assert offset_of(client).ext["offset"] == "0"
    assert offset_of(client, setZeroIfNotFound="false").code == ResponseCode.QUERY_NOT_FOUND
    send(client)
    assert offset_of(client).ext["offset"] == "0"
    create_group(client)
    assert commit(client, 1).code == 0
    assert offset_of(client).ext["offset"] == "1"


def test_commits_need_a_topic_and_a_group(broker):
    """The order of the checks is Apache's; a commit creates no group.

    Source: `ConsumerManageProcessor.updateConsumerOffset`.
    """
    client = with_topic(broker)
    for group in ("CG", "a/b", "", "CID_RMQ_SYS_x"):
        answer = commit(client, 1, group=group, topic="Nowhere")
        assert (answer.code, answer.remark) == (
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
            f"Group {group} not exist!",
        )
    create_group(client)
    assert commit(client, 1, topic="Nowhere").code == ResponseCode.TOPIC_NOT_EXIST
    for missing in ("queueId", "commitOffset"):
        fields = {"consumerGroup": "CG", "topic": "T", "queueId": "0", "commitOffset": "1"}
        del fields[missing]
        answer = client.ask(RequestCode.UPDATE_CONSUMER_OFFSET, fields)
        assert answer.code == ResponseCode.INVALID_PARAMETER
    assert broker.node.offsets.table == {}
    assert commit(client, 1).code == 0
    assert commit(client, 1, group="TOOLS_CONSUMER").code == 0, "system groups exist"


def test_a_slave_takes_commits_of_groups_that_its_master_does_not_know(broker):
    """A slave accepts commits of a group that is in no table.

    Members of a new group may consume at a slave, whose table is a copy of the master's.
    """
    client = with_topic(broker)
    groups = broker.node.groups
    groups.is_copy = True
    assert commit(client, 1).code == 0
    assert "CG" not in groups.by_name
    assert commit(client, 1, group="a/b").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    groups.configure(from_values("broker", {"autoCreateSubscriptionGroup": "false"}))
    assert commit(client, 1).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST


def test_a_reset_is_given_to_the_next_pull_and_shields_the_queue(broker):
    """Source: `ConsumerOffsetManager.{assignResetOffset,queryThenEraseResetOffset}`."""
    client = with_topic(broker, "T", 1)
    for _ in range(5):
        send(client)
    create_group(client)
    commit(client, 5)
    fields = {"topic": "T", "group": "CG", "timestamp": "0", "isForce": "true", "queueId": "0", "offset": "2"}
    assert client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields).code == 0
    commit(client, 5)
    assert offset_of(client).ext["offset"] == "2", "a late commit does not undo the reset"
    answer = pull(client, offset=5)
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "2")
    commit(client, 3)
    assert offset_of(client).ext["offset"] == "3"


def test_a_reset_creates_no_group_and_is_answered_in_one_form(broker):
    """`resetOffsetInner` asks `containsSubscriptionGroup`, and encodes a map for any language."""
    client = with_topic(broker, "T", 1)
    fields = {"topic": "T", "group": "CG", "timestamp": "0", "isForce": "true"}
    answer = client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields)
    assert (answer.code, answer.remark) == (ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "Group CG does not exist")
    create_group(client)
    for language in ("JAVA", "CPP"):
        answer = client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields, language=language)
        assert answer.body == b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:0}}'


def test_of_two_resets_before_a_pull_the_second_counts(broker):
    client = with_topic(broker, "T", 1)
    create_group(client)
    for _ in range(5):
        send(client)
    for offset in (2, 4):
        fields = {"topic": "T", "group": "CG", "timestamp": "0", "isForce": "true", "queueId": "0", "offset": str(offset)}
        assert client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, fields).code == 0
    assert offset_of(client).ext["offset"] == "4"
    assert pull(client, offset=0).ext["nextBeginOffset"] == "4"


def test_min_max_and_by_time(broker):
    client = with_topic(broker)
    stamps = []
    for _ in range(4):
        stamps.append(broker.clock.wall_ms)
        send(client)
        broker.advance(1000)
    place = {"topic": "T", "queueId": "0"}
    assert client.ask(RequestCode.GET_MAX_OFFSET, place).ext["offset"] == "4"
    assert client.ask(RequestCode.GET_MIN_OFFSET, place).ext["offset"] == "0"
    assert client.ask(RequestCode.GET_EARLIEST_MSG_STORETIME, place).ext["timestamp"] == str(stamps[0])
    for stamp, offset in ((0, 0), (stamps[2], 2), (stamps[2] - 1, 2), (stamps[3] + 10_000, 4)):
        answer = client.ask(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {**place, "timestamp": str(stamp)})
        assert answer.ext["offset"] == str(offset)


def test_configuration_is_read_and_changed_live(broker):
    client = with_topic(broker)
    answer = client.ask(RequestCode.GET_BROKER_CONFIG)
    assert "brokerName=broker-a" in answer.body.decode().splitlines()
    before = json.loads(answer.ext["version"])["counter"]
    assert client.ask(RequestCode.UPDATE_BROKER_CONFIG, {}, b"longPollingEnable=false\n").code == 0
    answer = client.ask(RequestCode.GET_BROKER_CONFIG)
    assert json.loads(answer.ext["version"])["counter"] == before + 1
    assert "longPollingEnable=false" in answer.body.decode().splitlines()
    assert broker.node.config.pull.long_polling_enable is False


@pytest.mark.parametrize(
    "body",
    [b"storePathRootDir=/tmp/x", b"longPollingEnable=perhaps", b"noSuchKey=1", b"longPollingEnable=false\nbrokerName=z"],
)
def test_a_bad_change_changes_nothing(broker, body):
    before = broker.node.config
    answer = broker.connect().ask(RequestCode.UPDATE_BROKER_CONFIG, {}, body)
    assert answer.code != 0
    assert answer.remark
    assert broker.node.config is before


def test_runtime_info_has_what_cluster_list_reads(broker):
    client = with_topic(broker)
    send(client)
    table = client.ask(RequestCode.GET_BROKER_RUNTIME_INFO).json["table"]
    assert all(isinstance(value, str) for value in table.values())
    assert len(table["putTps"].split()) == 3
    for name in ("brokerVersionDesc", "getTransferredTps", "commitLogDiskRatio", "dispatchBehindBytes", "brokerActive"):
        assert name in table
    assert table["putMessageTimesTotal"] == "1"
    assert table["remainHowManyDataToFlush"].split()[1] == "B"


def test_runtime_info_reads_as_apaches_exporter_reads_it(broker):
    """Every field that rocketmq-exporter reads is there in its format (`BrokerRuntimeStats`).

    Otherwise the exporter shows nothing.
    """
    client = with_topic(broker)
    send(client)
    table = client.ask(RequestCode.GET_BROKER_RUNTIME_INFO).json["table"]
    for name in EXPORTED_NUMBERS.split():
        float(table[name])
    for name in ("putTps", "getMissTps", "getTransferedTps", "getTotalTps", "getFoundTps"):
        assert len([float(word) for word in table[name].split()]) == 3
    for word in table["putMessageDistributeTime"].split():
        assert int(word.split(":")[1]) == 0
    amount, unit = table["remainHowManyDataToFlush"].split(" ")
    assert float(amount) >= 0
    assert unit[0] in "BKMGTPE"
    words = table["commitLogDirCapacity"].split(" ")
    assert (words[3], words[7]) == ("GiB,", "GiB.")


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"), (5 << 30, "5.0 GiB")]
)
def test_sizes_have_upstreams_text_form(size, text):
    assert readable(size) == text


def test_a_message_by_its_offset_and_by_its_key(broker):
    client = with_topic(broker)
    uniq = "7F000001000118B4AAC200000000ABCD"
    send(client, i=f"UNIQ_KEY\x01{uniq}\x02KEYS\x01order-7 order-8\x02")
    view = client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "0"})
    assert view.code == 0
    assert len(view.body) == int.from_bytes(view.body[:4], "big")
    assert client.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": "13"}).code == ResponseCode.SYSTEM_ERROR
    window = {"topic": "T", "maxNum": "10", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    for key in (uniq, "order-7", "order-8"):
        assert client.ask(RequestCode.QUERY_MESSAGE, {**window, "key": key}).body == view.body
    assert client.ask(RequestCode.QUERY_MESSAGE, {**window, "key": "no"}).code == ResponseCode.QUERY_NOT_FOUND


def test_tables_survive_a_restart():
    script = Script(broker_of())
    script.turn()
    client = with_topic(script, "Kept", 3)
    send(client, "Kept")
    create_group(client)
    commit(client, 1, topic="Kept")
    client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"G2","retryMaxTimes":3}')
    script.node.stop()
    for _ in range(10):
        script.turn()
        script.finish_disk()
    assert script.node.stopped
    script.disk.close()
    again = Script(broker_of(), disk=script.disk)
    again.turn()
    assert again.node.topics.get("Kept").read_queue_nums == 3
    assert again.node.offsets.query("CG", "Kept", 0) == 1
    assert again.node.groups.by_name["G2"].retry_max_times == 3


def test_nothing_is_acknowledged_before_its_topic_is_kept(broker):
    """Otherwise a kill would leave acknowledged messages in a topic that nobody can pull."""
    client = broker.connect()
    broker.disk.held = True
    first = client.tell(RequestCode.SEND_MESSAGE_V2, send_fields("Fresh"), b"one")
    second = client.tell(RequestCode.SEND_MESSAGE_V2, send_fields("Fresh"), b"two")
    assert client.answer_to(first) is None
    assert client.answer_to(second) is None
    broker.disk.held = False
    broker.finish_disk()
    assert [client.answer_to(each).code for each in (first, second)] == [0, 0]
    assert [each.body for each in records(pull(client, "Fresh"))] == [b"one", b"two"]
    assert send(client, "Fresh").code == 0


def test_a_topic_that_cannot_be_kept_takes_no_messages_until_it_can(broker):
    client = broker.connect()
    broker.disk.error = OSError(28, "No space left on device")
    answer = send(client, "Fresh")
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "No space left" in answer.remark
    broker.disk.error = None
    assert send(client, "Fresh").code == 0


def test_topics_groups_and_their_messages_survive_a_kill():
    broker = SimBroker()
    broker.create_topic("T")
    broker.send("Fresh", b"x")
    broker.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"G9","retryMaxTimes":2}')
    broker.kill()
    broker.start()
    assert broker.node.topics.get("T") is not None
    assert broker.node.topics.get("Fresh") is not None
    assert broker.node.groups.by_name["G9"].retry_max_times == 2


def test_a_table_that_is_read_from_its_older_copy_is_named_in_the_log():
    broker = SimBroker()
    broker.create_topic("T")
    broker.create_topic("Later")
    broker.world.disk("broker").write("config/topics.json", 0, [b"\xff"])
    broker.kill()
    broker.start()
    (line,) = broker.log_lines("older-table-read")
    assert line["reason"].startswith("config/topics.json cannot be read (")
    assert line["reason"].endswith("; its .bak lacks the last changes")
    assert broker.node.topics.get("T") is not None


def test_topics_that_the_table_has_lost_are_named_and_come_back():
    broker = SimBroker()
    broker.create_topic("T")
    broker.send("T", b"kept")
    broker.advance(10_000)
    disk = broker.world.disk("broker")
    for path in ("config/topics.json", "config/topics.json.bak"):
        disk.remove(path, lambda error: None)
    broker.advance(10)
    broker.kill()
    broker.start()
    (line,) = broker.log_lines("topics-unknown")
    assert (line["count"], line["topics"]) == (1, ["T"])
    broker.create_topic("T")
    assert sum(broker.node.store.queue_range("T", queue_id).offset_max for queue_id in range(4)) == 1
    broker.stop()
    broker.start()
    assert len(broker.log_lines("topics-unknown")) == 1
