"""The push consumer, events in and requests out: start, pulls, flow control, redelivery."""

import zlib

import pytest

from rmqkit.client.consumers.subscriptions import ConsumeFrom
from rmqkit.errors import ClientError
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.fastjson import MessageQueue
from tests.client.group import COMMIT, MAX, MEMBERS, PULL, READ, SEND_BACK, Group, found, members, offsets, record
from tests.client.peers import A_SLAVE, CLIENT_ID, NS_1, ON_A_AND_B, A, B, Peers, route

ONE_QUEUE = route(("broker-a", {0: A}), queues=1)
OTHER = "10.0.1.9@7#78"


@pytest.fixture
def peers():
    return Peers(routes={"T": ONE_QUEUE})


def running(peers, **settings) -> Group:
    """Alone in the group; the first pull is in flight."""
    group = Group(peers, **settings)
    group.join()
    return group


# --- start


def test_it_sends_a_heartbeat_before_it_asks_for_the_members(peers):
    group = Group(peers)
    codes = [code for address, code in peers.log if address == A]
    assert codes.index(RequestCode.HEART_BEAT) < codes.index(MEMBERS)
    data = peers.last_body(RequestCode.HEART_BEAT, A)
    consumer = data["consumerDataSet"][0]
    assert data["clientID"] == CLIENT_ID
    assert consumer["groupName"] == "CG"
    assert (consumer["consumeType"], consumer["messageModel"]) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert consumer["consumeFromWhere"] == "CONSUME_FROM_FIRST_OFFSET"
    assert [each["topic"] for each in consumer["subscriptionDataSet"]] == ["T", "%RETRY%CG"]
    assert group.started.done


def test_the_first_pull_is_that_of_pullKernelImpl(peers):
    group = running(peers)
    ext = group.pull().ext
    assert ext == {
        "consumerGroup": "CG",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "2",
        "commitOffset": "0",
        "suspendTimeoutMillis": "15000",
        "subVersion": ext["subVersion"],
        "expressionType": "TAG",
        "maxMsgBytes": "262144",
    }


def test_a_stored_offset_is_where_it_goes_on(peers):
    group = Group(peers)
    peers.take(MEMBERS).answer(0, body=members(CLIENT_ID))
    peers.take(READ).answer(0, {"offset": "41"})
    assert group.pull().ext["queueOffset"] == "41"


@pytest.mark.parametrize(
    ("consume_from", "code", "answer", "begin"),
    [
        (ConsumeFrom.LAST, MAX, {"offset": "70"}, "70"),
        (ConsumeFrom.TIMESTAMP, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"offset": "33"}, "33"),
    ],
)
def test_a_new_group_begins_as_computePullFromWhere(peers, consume_from, code, answer, begin):
    group = Group(peers, consume_from=consume_from, consume_timestamp_ms=123_456)
    group.join()
    asked = peers.take(code)
    if consume_from is ConsumeFrom.TIMESTAMP:
        assert asked.ext["timestamp"] == "123456"
    asked.answer(0, answer)
    assert group.pull().ext["queueOffset"] == begin


def test_a_retry_topic_begins_at_its_start_also_for_last(peers):
    peers.routes["%RETRY%CG"] = ONE_QUEUE
    group = Group(peers, consume_from=ConsumeFrom.LAST)
    for asked in peers.take_all(MEMBERS):
        asked.answer(0, body=members(CLIENT_ID))
    peers.settle()
    for asked in [*peers.take_all(MEMBERS)]:
        asked.answer(0, body=members(CLIENT_ID))
    for asked in peers.take_all(READ):
        asked.answer(22)
    assert group.pull(topic="%RETRY%CG").ext["queueOffset"] == "0"
    assert peers.take(MAX).ext["topic"] == "T"


def test_an_unknown_offset_starts_no_pull_and_is_asked_for_again(peers):
    """RemoteBrokerOffsetStore.readOffset: -2, the queue does not start."""
    group = Group(peers)
    peers.take(MEMBERS).answer(0, body=members(CLIENT_ID))
    peers.take(READ).answer(1, remark="broker is busy")
    assert not group.pulls()
    peers.advance(1050)
    peers.take(MEMBERS).answer(0, body=members(CLIENT_ID))
    peers.take(READ).answer(0, {"offset": "5"})
    assert group.pull().ext["queueOffset"] == "5"


def test_without_a_subscription_it_does_not_start(peers):
    group = Group(peers, topics=())
    with pytest.raises(ClientError, match="subscribes to nothing"):
        group.started.result()


def test_a_topic_that_does_not_exist_yet_is_found_later(peers):
    del peers.routes["T"]
    group = Group(peers)
    assert group.started.done
    peers.advance(3000)
    assert not group.pulls()
    peers.routes["T"] = ONE_QUEUE
    peers.advance(1050)
    group.join()
    assert group.pull().ext["queueOffset"] == "0"


def test_a_client_is_in_a_group_once(peers):
    running(peers)
    second = Group(peers)
    with pytest.raises(ClientError, match="already"):
        second.started.result()


# --- pulls by response code


def test_found_goes_to_the_listener_and_the_next_pull_follows(peers):
    group = running(peers)
    found(group.pull(), record(0, b"a"), record(1, b"b"), next_offset=2)
    assert group.bodies() == [b"a", b"b"]
    assert group.pull().ext["queueOffset"] == "2"


def test_batches_hold_as_many_as_was_asked_for(peers):
    group = running(peers, consume_message_batch_max_size=2)
    found(group.pull(), *(record(i) for i in range(5)), next_offset=5)
    assert [len(batch.messages) for batch in group.batches] == [2, 2, 1]


@pytest.mark.parametrize(("code", "next_offset"), [(19, 0), (20, 7)])
def test_nothing_there_and_nothing_wanted_go_on_at_once(peers, code, next_offset):
    group = running(peers)
    group.pull().answer(code, offsets(next_offset), remark="none")
    assert group.pull().ext["queueOffset"] == str(next_offset)


def test_with_nothing_held_back_the_offset_moves_on_as_correctTagsOffset(peers):
    group = running(peers)
    group.pull().answer(20, offsets(7))
    peers.advance(5000)
    assert group.commits() == {"0": "7"}


def test_an_illegal_offset_with_nothing_held_is_corrected_in_place(peers):
    group = running(peers)
    group.pull().answer(21, offsets(100, low=100))
    assert group.pull().ext["queueOffset"] == "100"
    peers.advance(5000)
    assert group.commits() == {"0": "100"}


def test_an_illegal_offset_with_messages_out_begins_the_queue_anew(peers):
    """DefaultMQPushConsumerImpl: OFFSET_ILLEGAL drops the process queue, stores the offset,
    rebalances.
    """
    group = running(peers)
    found(group.pull(), record(0), next_offset=1)
    group.pull().answer(21, offsets(500, low=500))
    assert group.commits() == {"0": "500"}
    # Outcomes of batches that were delivered before are ignored.
    group.finish()
    peers.take(MEMBERS).answer(0, body=members(CLIENT_ID))
    peers.take(READ).answer(0, {"offset": "500"})
    assert group.pull().ext["queueOffset"] == "500"
    peers.advance(5000)
    assert group.commits() == {}


@pytest.mark.parametrize("code", [16, 24, 25, 26, 1, 2])
def test_other_answers_are_tried_again_in_3_seconds(peers, code):
    group = running(peers)
    group.pull().answer(code, remark="no")
    peers.advance(2950)
    assert not group.pulls()
    peers.advance(100)
    assert group.pull().ext["queueOffset"] == "0"


def test_flow_control_of_the_broker_is_tried_again_in_20_ms(peers):
    group = running(peers)
    group.pull().answer(215, remark="too many")
    assert not group.pulls()
    peers.advance(20, step_ms=10)
    assert group.pulls()


def test_a_lost_connection_is_pulled_again(peers):
    group = running(peers)
    peers.cut(A)
    peers.advance(3000)
    assert group.pull().ext["queueOffset"] == "0"


def test_the_broker_s_advice_where_to_pull_is_followed(peers):
    peers.routes["T"] = route(("broker-a", {0: A, 1: A_SLAVE}), queues=1)
    group = running(peers)
    found(group.pull(), record(0), next_offset=1, suggest=1)
    asked = group.pull()
    assert asked.address == A_SLAVE
    asked.answer(20, offsets(1, suggest=0))
    assert group.pull().address == A


def test_a_slave_that_fails_is_left_for_the_master(peers):
    peers.routes["T"] = route(("broker-a", {0: A, 1: A_SLAVE}), queues=1)
    group = running(peers)
    found(group.pull(), record(0), next_offset=1, suggest=1)
    group.pull().answer(2, remark="slaveReadEnable is false")
    peers.advance(3000)
    assert group.pull().address == A


def test_an_offset_that_a_slave_lacks_is_not_asked_for_without_end(peers):
    peers.routes["T"] = route(("broker-a", {1: A_SLAVE}), queues=1)
    group = running(peers)
    group.pull().answer(20, offsets(0))
    assert not group.pulls()
    peers.advance(100)
    assert group.pull().address == A_SLAVE


def test_only_subscribed_tags_get_through_whatever_their_hash(peers):
    """PullAPIWrapper.processPullResult compares tags again; "Aa" and "BB" have one hash code."""
    group = running(peers, expression="Aa || C")
    found(
        group.pull(),
        record(0, b"1", tag="Aa"),
        record(1, b"2", tag="BB"),
        record(2, b"3", tag="C"),
        record(3, b"4"),
        next_offset=4,
    )
    assert group.bodies() == [b"1", b"3"]


def test_bytes_that_are_no_messages_are_an_error_like_any_other(peers):
    group = running(peers)
    group.pull().answer(0, offsets(2), b"garbage that is no record", "FOUND")
    assert not group.batches
    peers.advance(3000)
    assert group.pull().ext["queueOffset"] == "0"
    assert "pull-failed" in peers.script.log.events("warning")


# --- committing


def test_offsets_are_stored_every_5_seconds_and_only_when_they_changed(peers):
    group = running(peers)
    found(group.pull(), record(0), record(1), next_offset=2)
    group.finish(at=1)
    peers.advance(5000)
    assert group.commits() == {"0": "0"}
    group.finish()
    peers.advance(5000)
    assert group.commits() == {"0": "2"}
    peers.advance(10_000)
    assert group.commits() == {}


def test_a_pull_takes_the_offset_with_it_to_the_master_only(peers):
    peers.routes["T"] = route(("broker-a", {0: A, 1: A_SLAVE}), queues=1)
    group = running(peers)
    found(group.pull(), record(0), next_offset=1)
    asked = group.pull()
    group.finish()
    asked.answer(20, offsets(1, suggest=1))
    asked = group.pull()
    assert (asked.address, asked.ext["sysFlag"]) == (A_SLAVE, "2")
    asked.answer(20, offsets(1))
    asked = group.pull()
    assert (asked.address, asked.ext["sysFlag"], asked.ext["commitOffset"]) == (A, "3", "1")


def test_a_slave_is_read_while_the_master_is_gone_and_the_master_once_it_is_back(peers):
    """MQClientInstance.findBrokerAddressInSubscribe, RemoteBrokerOffsetStore's
    updateConsumeOffsetToBroker.
    """
    peers.routes["T"] = route(("broker-a", {0: A, 1: A_SLAVE}), queues=1)
    group = running(peers)
    found(group.pull(), record(0), next_offset=1)
    group.finish()
    peers.advance(5000)
    assert group.commits() == {"0": "1"}
    peers.routes["T"] = route(("broker-a", {1: A_SLAVE}), queues=1)
    peers.states[A] = "down"
    peers.cut(A)
    peers.advance(3000)
    asked = group.pull()
    assert (asked.address, asked.ext["queueOffset"]) == (A_SLAVE, "1")
    peers.advance(3000)
    commit = peers.take(COMMIT)
    assert (commit.address, commit.ext["commitOffset"]) == (A_SLAVE, "1"), "the slave may not have it"
    commit.answer()
    del peers.states[A]
    peers.routes["T"] = route(("broker-a", {0: A, 1: A_SLAVE}), queues=1)
    peers.advance(3000)
    found(asked, record(1), next_offset=2)
    group.finish()
    assert group.pull().address == A
    peers.advance(5000)
    commit = peers.take(COMMIT)
    assert (commit.address, commit.ext["commitOffset"]) == (A, "2")


def test_a_commit_that_failed_is_made_again(peers):
    group = running(peers)
    group.pull().answer(20, offsets(7))
    peers.advance(5000)
    peers.take(COMMIT).answer(2, remark="busy")
    peers.advance(5000)
    assert group.commits() == {"0": "7"}


# --- flow control


def test_no_more_than_1000_messages_are_held(peers):
    group = running(peers)
    for begin in range(0, 1001, 77):
        found(group.pull(), *(record(i) for i in range(begin, begin + 77)), next_offset=begin + 77)
    assert group.consumer.works[MessageQueue("T", "broker-a", 0)].cached.count > 1000
    assert not group.pulls()
    peers.advance(1000)
    assert not group.pulls()
    for _ in range(100):
        group.finish()
    peers.advance(50)
    assert group.pulls()
    assert peers.script.log.events().count("flow-control") == 1


def test_no_more_than_the_size_limit_is_held(peers):
    group = running(peers, pull_threshold_size_for_queue=1000)
    found(group.pull(), record(0, b"a" * 1001), next_offset=1)
    assert not group.pulls()
    group.finish()
    peers.advance(50)
    assert group.pulls()


def test_a_span_of_more_than_2000_waits_for_the_first_message(peers):
    group = running(peers)
    found(group.pull(), record(0), next_offset=2001)
    found(group.pull(), record(2001), next_offset=2002)
    assert not group.pulls()
    group.finish()
    peers.advance(50)
    assert group.pulls()


# --- failures of the listener


def test_a_failed_message_is_sent_back_and_done_with(peers):
    group = running(peers)
    found(group.pull(), record(0, b"bad"), record(1), next_offset=2)
    group.finish(False)
    asked = peers.take(SEND_BACK)
    assert asked.address == A
    assert asked.ext == {
        "offset": "1000",
        "group": "CG",
        "delayLevel": "0",
        "originMsgId": asked.ext["originMsgId"],
        "originTopic": "T",
        "unitMode": "false",
        "maxReconsumeTimes": "16",
        "bname": "broker-a",
    }
    peers.advance(4000)
    asked.answer()
    peers.advance(1000)
    assert group.commits() == {"0": "1"}
    group.finish()
    peers.advance(5000)
    assert group.commits() == {"0": "2"}


@pytest.mark.parametrize("code", [3, 26, 16, 1])
def test_a_message_that_cannot_be_sent_back_is_kept_and_comes_again(peers, code):
    group = running(peers)
    found(group.pull(), record(0, b"bad"), record(1, b"good"), next_offset=2)
    group.finish(False)
    group.finish()
    peers.take(SEND_BACK).answer(code, remark="no")
    peers.advance(4900)
    assert not group.batches
    peers.advance(200)
    assert group.commits() == {"0": "0"}
    assert group.bodies() == [b"bad"]
    assert group.batches[0].messages[0].reconsume_times == 1
    # The message fails repeatedly and is never lost; the offset does not pass it.
    group.finish(False)
    for asked in peers.take_all(SEND_BACK):
        asked.answer(code, remark="no")
    peers.advance(5050)
    assert group.commits() == {}
    assert group.batches[0].messages[0].reconsume_times == 2
    group.finish()
    peers.advance(5000)
    assert group.commits() == {"0": "2"}


def test_a_broker_without_send_back_is_asked_once_and_logged_once(peers):
    group = running(peers)
    found(group.pull(), record(0), record(1), next_offset=2)
    group.finish(False)
    peers.take(SEND_BACK).answer(3, remark=" request type 36 not supported")
    group.finish(False)
    assert SEND_BACK not in [code for _, code in peers.waiting()]
    peers.advance(5050)
    assert len(group.batches) == 2
    assert peers.script.log.events().count("no-send-back") == 1


def test_a_message_is_kept_when_its_broker_is_gone(peers):
    group = running(peers)
    found(group.pull(), record(0), next_offset=1)
    peers.states[A] = "down"
    peers.cut(A)
    group.finish(False)
    peers.advance(5100)
    assert len(group.batches) == 1


def test_a_redelivered_message_is_shown_under_its_first_topic(peers):
    """resetRetryAndNamespace."""
    peers.routes["%RETRY%CG"] = ONE_QUEUE
    group = Group(peers)
    for _ in range(3):
        group.join()
    body = record(4, topic="%RETRY%CG", reconsume_times=2, properties=b"RETRY_TOPIC\x01T\x02")
    found(group.pull(topic="%RETRY%CG"), body, next_offset=5)
    message = group.batches[0].messages[0]
    assert (message.topic, message.queue.topic, message.reconsume_times) == ("T", "%RETRY%CG", 2)


# --- members join and leave


def test_a_queue_that_goes_to_another_member_is_stored_and_let_go(peers):
    group = Group(Peers(routes={"T": route(("broker-a", {0: A}), queues=2)}))
    peers = group.peers
    group.join()
    found(group.pull(1), record(0, queue_id=1), next_offset=1)
    asked = group.pull(1)
    group.finish()
    peers.tell(A, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "CG"})
    # The other id sorts after ours and gets the second half.
    peers.take(MEMBERS).answer(0, body=members(CLIENT_ID, OTHER))
    assert list(group.consumer.works) == [MessageQueue("T", "broker-a", 0)]
    assert group.commits() == {"1": "1"}
    asked.answer(0, offsets(2), record(1, queue_id=1), "FOUND")
    assert not group.batches


def test_results_for_a_queue_that_was_let_go_do_not_count(peers):
    group = running(peers)
    found(group.pull(), record(0), next_offset=1)
    peers.tell(A, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "CG"})
    # "10.0.0.1..." sorts before our id and gets the only queue.
    peers.take(MEMBERS).answer(0, body=members("10.0.0.1@1", CLIENT_ID))
    assert not group.consumer.works
    group.finish()
    peers.advance(10_000)
    assert group.commits() == {}


def test_a_queue_taken_over_from_another_member_is_read_half_a_second_later(peers):
    group = Group(peers)
    peers.take(MEMBERS).answer(0, body=members(CLIENT_ID, OTHER))
    peers.advance(450)
    assert READ not in [code for _, code in peers.waiting()]
    peers.advance(50)
    peers.take(READ).answer(0, {"offset": "9"})
    assert group.pull().ext["queueOffset"] == "9"


def test_a_member_its_broker_does_not_list_yet_asks_again_in_a_second(peers):
    group = Group(peers)
    peers.take(MEMBERS).answer(0, body=members(OTHER))
    assert not group.consumer.works
    peers.advance(1050)
    group.join()
    assert group.pulls()


@pytest.mark.parametrize("answer", [(1, b""), (0, b'{"consumerIdList":[]}')])
def test_a_round_that_cannot_see_the_group_changes_nothing(peers, answer):
    group = running(peers)
    peers.tell(A, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "CG"})
    code, body = answer
    peers.take(MEMBERS).answer(code, body=body)
    assert group.consumer.works
    assert group.pulls()


def test_an_allocator_that_fails_changes_nothing(peers):
    class Broken:
        name = "BROKEN"

        def allocate(self, group, client_id, queues, client_ids):
            raise KeyError("a plug-in's bug")

    group = Group(peers, allocator=Broken())
    group.join()
    assert not group.consumer.works
    failed = [fields for _, event, fields in peers.script.log.lines if event == "rebalance-failed"]
    assert failed[0]["error"] == 'allocator BROKEN: KeyError: "a plug-in\'s bug"'


def test_rebalance_runs_every_20_seconds(peers):
    running(peers)
    before = peers.times(MEMBERS)
    peers.advance(19_900, step_ms=100)
    assert peers.times(MEMBERS) == before
    peers.advance(200)
    assert peers.times(MEMBERS) == before + 1


def test_the_members_are_asked_of_another_broker_if_the_first_does_not_answer():
    peers = Peers(routes={"T": ON_A_AND_B})
    peers.states[A] = "down"
    group = Group(peers)
    assert peers.take(MEMBERS).address == B
    del group


def test_a_member_that_comes_with_an_old_route_finds_the_slave_within_seconds():
    """The master has just died. The name server noticed after this member fetched the route."""
    peers = Peers(routes={"T": route(("broker-a", {0: A, 1: A_SLAVE}), queues=1)})
    peers.states[A] = "down"
    peers.always[MEMBERS] = members(CLIENT_ID)
    group = Group(peers)
    peers.routes["T"] = route(("broker-a", {1: A_SLAVE}), queues=1)
    peers.advance(3_000)
    assert peers.times(MEMBERS, A_SLAVE) >= 1
    assert group.consumer.works


def test_a_new_broker_is_noticed_with_its_route():
    peers = Peers(routes={"T": ONE_QUEUE})
    group = running(peers)
    peers.always[MEMBERS] = members(CLIENT_ID)
    peers.routes["T"] = route(("broker-a", {0: A}), ("broker-b", {0: B}), queues=1)
    peers.advance(30_000, step_ms=1000)
    assert peers.times(RequestCode.HEART_BEAT, B) >= 1
    assert {queue.broker_name for queue in group.consumer.works} == {"broker-a", "broker-b"}


def test_it_goes_on_with_all_name_servers_down(peers):
    group = running(peers)
    peers.always[MEMBERS] = members(CLIENT_ID)
    peers.easy.add(COMMIT)
    peers.states[NS_1] = "down"
    peers.cut(NS_1)
    for _ in range(6):
        peers.advance(10_000, step_ms=1000)
        group.pull().answer(19, offsets(0))
    found(group.pull(), record(0), next_offset=1)
    assert group.bodies() == [b"hello"]


# --- broadcasting


def test_broadcasting_reads_every_queue_and_keeps_its_own_offsets():
    peers = Peers(routes={"T": route(("broker-a", {0: A}), queues=2)})
    group = Group(peers, broadcasting=True)
    assert peers.times(MEMBERS) == 0
    assert peers.last_body(RequestCode.HEART_BEAT, A)["consumerDataSet"][0]["messageModel"] == "BROADCASTING"
    assert "%RETRY%CG" not in group.consumer.subscriptions
    found(group.pull(0), record(0), next_offset=1)
    group.finish()
    peers.advance(5000)
    text = bytes(peers.script.disk.files[f"/offsets/{CLIENT_ID}/CG/offsets.json"]).decode()
    assert "".join(text.split()) == '{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:1}}'
    assert COMMIT not in [code for _, code in peers.log]


def test_broadcasting_begins_where_the_file_says_java_s_or_ours():
    peers = Peers(routes={"T": ONE_QUEUE})
    # As LocalFileOffsetStore of 4.x writes it (fastjson 1.2, pretty).
    text = '{\n\t"offsetTable":{{\n\t\t\t"brokerName":"broker-a",\n\t\t\t"queueId":0,\n\t\t\t"topic":"T"\n\t\t}:12\n\t}\n}'
    peers.script.disk.files[f"/offsets/{CLIENT_ID}/CG/offsets.json"] = bytearray(text.encode())
    group = Group(peers, broadcasting=True)
    assert group.pull().ext["queueOffset"] == "12"


def test_a_failure_in_broadcasting_is_logged_and_done_with():
    peers = Peers(routes={"T": ONE_QUEUE})
    group = Group(peers, broadcasting=True)
    found(group.pull(), record(0), next_offset=1)
    group.finish(False)
    assert "message-failed-and-dropped" in peers.script.log.events("warning")
    assert group.consumer.offsets.get(MessageQueue("T", "broker-a", 0)) == 1


# --- the end


def test_closing_stores_offsets_and_says_goodbye(peers):
    group = running(peers)
    found(group.pull(), record(0), next_offset=1)
    group.finish()
    group.close()
    assert group.commits() == {"0": "1"}
    goodbye = next(i for i, (_, code) in enumerate(peers.log) if code == RequestCode.UNREGISTER_CLIENT)
    commit = next(i for i, (_, code) in enumerate(peers.log) if code == COMMIT)
    assert commit < goodbye
    peers.advance(30_000, step_ms=1000)
    assert peers.times(PULL) == 2


def test_nothing_is_pulled_while_suspended(peers):
    group = running(peers)
    group.consumer.suspended = True
    group.pull().answer(19, offsets(0))
    peers.advance(500)
    assert not group.pulls()
    group.consumer.suspended = False
    peers.advance(50)
    assert group.pulls()


def test_unsubscribing_lets_the_queues_go(peers):
    group = running(peers)
    peers.do(lambda: group.consumer.unsubscribe("T"))
    assert not group.consumer.works
    assert [s["topic"] for s in peers.last_body(RequestCode.HEART_BEAT)["consumerDataSet"][0]["subscriptionDataSet"]] == [
        "%RETRY%CG"
    ]


# --- requests from brokers


def test_a_reset_by_the_broker_begins_the_queue_anew(peers):
    """220, in the raw form with object keys that Java's brokers send."""
    group = running(peers)
    found(group.pull(), record(0), next_offset=1)
    body = b'{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:6}}'
    ext = {"topic": "T", "group": "CG", "timestamp": "1", "isForce": "true"}
    peers.tell(A, RequestCode.RESET_CONSUMER_CLIENT_OFFSET, ext, body)
    assert group.commits() == {"0": "6"}
    peers.take(MEMBERS).answer(0, body=members(CLIENT_ID))
    peers.take(READ).answer(0, {"offset": "6"})
    assert group.pull().ext["queueOffset"] == "6"


def test_a_broker_may_ask_how_far_it_is_and_what_it_does(peers):
    group = running(peers)
    found(group.pull(), record(0), record(1), next_offset=2)
    group.finish()
    peers.tell(A, RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, {"topic": "T", "group": "CG"}, flag=0)
    status = peers.answer_of_client(A)
    assert status.body == b'{"consumerTable":{},"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:1}}'
    ext = {"consumerGroup": "CG", "clientId": CLIENT_ID}
    peers.tell(A, RequestCode.GET_CONSUMER_RUNNING_INFO, ext, flag=0)
    info = peers.answer_of_client(A).body
    assert b'"cachedMsgCount":1' in info
    assert b'"cachedMsgMinOffset":1' in info
    assert b'"allocateMessageQueueStrategy":"AVG"' in info


@pytest.mark.parametrize(
    ("ok", "error", "result"),
    [(True, "", "CR_SUCCESS"), (False, "", "CR_LATER"), (False, "Boom: no", "CR_THROW_EXCEPTION")],
)
def test_an_administrator_may_have_a_message_consumed_now(peers, ok, error, result):
    group = running(peers)
    ext = {"consumerGroup": "CG", "clientId": CLIENT_ID, "brokerName": "broker-a"}
    peers.tell(A, RequestCode.CONSUME_MESSAGE_DIRECTLY, ext, record(3, b"now"), flag=0)
    assert group.bodies() == [b"now"]
    batch = group.batches.pop()
    peers.do(lambda: group.consumer.finished(batch, ok, error))
    answer = peers.answer_of_client(A).json
    assert answer["consumeResult"] == result
    assert answer.get("remark") == (error or None)


def test_questions_about_other_groups_are_errors(peers):
    running(peers)
    peers.tell(A, RequestCode.GET_CONSUMER_RUNNING_INFO, {"consumerGroup": "X", "clientId": CLIENT_ID}, flag=0)
    assert peers.answer_of_client(A).code == 1


# --- inner batches


def inner(*messages: tuple[bytes, str]) -> bytes:
    """The body of an inner batch, as `MessageDecoder.encodeMessages` writes it."""
    return b"".join(
        (20 + len(body) + 2 + len(text)).to_bytes(4, "big")
        + bytes(8)
        + (7).to_bytes(4, "big")
        + len(body).to_bytes(4, "big")
        + body
        + len(text).to_bytes(2, "big")
        + text.encode()
        for body, text in messages
    )


@pytest.mark.parametrize("compressed", [False, True])
def test_an_inner_batch_comes_as_its_messages(peers, compressed):
    """`MessageDecoder.decodeMessage`; the filter compares the tag of each message."""
    group = running(peers, expression="A || B")
    body = inner((b"one", "TAGS\x01A\x02K\x011\x02"), (b"two", "TAGS\x01C\x02"), (b"three", "TAGS\x01B\x02"))
    if compressed:
        body = zlib.compress(body)
    flags = 0xC0 | (0x301 if compressed else 0)
    found(group.pull(), record(0, body, sys_flag=flags, tag="A"), record(3, b"four", tag="A"), next_offset=4)
    messages = [message for batch in group.batches for message in batch.messages]
    assert [(each.queue_offset, each.body, each.flag) for each in messages] == [
        (0, b"one", 7),
        (2, b"three", 7),
        (3, b"four", 0),
    ]
    assert messages[0].properties == {"TAGS": "A", "K": "1"}
    for _ in range(3):
        group.finish()
    peers.advance(5000)
    assert group.commits() == {"0": "4"}


def test_an_inner_batch_that_cannot_be_read_comes_as_it_is(peers):
    group = running(peers)
    found(group.pull(), record(0, b"torn", sys_flag=0xC0), next_offset=1)
    assert group.bodies() == [b"torn"]
