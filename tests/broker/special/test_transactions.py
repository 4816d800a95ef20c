"""Transactions.

Source of the rules: `EndTransactionProcessor.java`, `TransactionalMessageServiceImpl.java`.
"""

from copy import copy

import pytest

from rmqkit.broker.escape.rewrite import escaping
from rmqkit.broker.special.transactions import rewrite
from rmqkit.broker.special.transactions.progress import GROUP
from rmqkit.config import load
from rmqkit.store.contract import PutStatus
from rmqkit.wire import properties as props
from rmqkit.wire.batch import BatchMessage, encode_batch
from rmqkit.wire.bodies import HeartbeatData, ProducerData
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.record import iter_records
from rmqkit.wire.topic_names import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_TOPIC
from tests.broker.requests import pull, records, send, send_fields, with_topic
from tests.broker.special.test_delay import opened_again, stop
from tests.helpers.script import write_command

COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


def unique(number):
    return f"{number:032X}"


def half(broker, client, number=1, body=b"half", more="", **changes):
    """Send a half message as Java does; return its answer."""
    text = f"UNIQ_KEY\x01{unique(number)}\x02TRAN_MSG\x01true\x02PGROUP\x01PG\x02WAIT\x01true\x02{more}"
    answer = send(client, "T", body, **{"i": text, "f": "4", "g": str(broker.clock.wall_ms), **changes})
    assert answer.code == 0, answer
    return answer


def end_fields(answer, outcome, **changes):
    fields = {
        "topic": "T",
        "producerGroup": "PG",
        "tranStateTableOffset": answer.ext["queueOffset"],
        "commitLogOffset": str(int(answer.ext["msgId"][-16:], 16)),
        "commitOrRollback": str(outcome),
        "fromTransactionCheck": "false",
        "msgId": answer.ext["transactionId"],
        "transactionId": answer.ext["transactionId"],
    }
    return {**fields, **changes}


def end(client, answer, outcome, **changes):
    return client.ask(RequestCode.END_TRANSACTION, end_fields(answer, outcome, **changes))


def bodies(client, topic="T", queue_id=0):
    return [each.body for each in records(pull(client, topic, queue_id))]


def producer(broker, group="PG", client_id="p1"):
    client = broker.connect()
    beat = HeartbeatData(client_id=client_id, consumer_data_set=[], producer_data_set=[ProducerData(group_name=group)])
    assert client.ask(RequestCode.HEART_BEAT, {}, beat.encode()).code == 0
    return client


def questions(client):
    return [each for each in client.take() if each.code == RequestCode.CHECK_TRANSACTION_STATE]


def offset(broker, topic=HALF_TOPIC):
    return broker.node.offsets.query(GROUP, topic, 0)


def end_question(client, question, outcome):
    ext = question.ext
    return client.ask(
        RequestCode.END_TRANSACTION,
        {
            "producerGroup": "PG",
            "tranStateTableOffset": ext["tranStateTableOffset"],
            "commitLogOffset": ext["commitLogOffset"],
            "commitOrRollback": str(outcome),
            "fromTransactionCheck": "true",
            "msgId": ext["msgId"],
        },
    )


# --- halves


def test_a_half_waits_in_the_half_topic_and_no_consumer_sees_it(broker):
    client = with_topic(broker)
    answer = half(broker, client, more="TAGS\x01A\x02", e="3", h="7")
    assert (answer.ext["queueId"], answer.ext["queueOffset"], answer.ext["transactionId"]) == ("3", "0", unique(1))
    (record,) = records(pull(client, HALF_TOPIC))
    mapping = props.decode(record.properties)
    assert (mapping["REAL_TOPIC"], mapping["REAL_QID"], mapping["__transactionId__"]) == ("T", "3", unique(1))
    assert (mapping["TRAN_MSG"], mapping["PGROUP"]) == ("true", "PG")
    assert (record.sys_flag & 0xC, record.flag) == (0, 7)
    assert bodies(client, queue_id=3) == []


@pytest.mark.parametrize("more", ["", "TAGS\x01A\x02", "REAL_TOPIC\x01X\x02REAL_QID\x019\x02", "K\x01REAL_\x02", "K\x01v"])
def test_the_order_of_the_properties_makes_no_difference(broker, more):
    """Java's hash map returns TRAN_MSG before the unique id, a form with a path of its own."""
    client = with_topic(broker)
    mark, rest = "TRAN_MSG\x01true\x02", f"UNIQ_KEY\x01{unique(1)}\x02WAIT\x01true\x02PGROUP\x01PG\x02"
    found = []
    for number, text in enumerate((mark + rest + more, rest + mark + more)):
        answer = half(broker, client, i=text)
        assert end(client, answer, COMMIT).code == 0
        half_record = records(pull(client, HALF_TOPIC))[number]
        found.append((props.decode(half_record.properties), props.decode(records(pull(client))[number].properties)))
    assert found[0] == found[1]
    waiting, delivered = found[0]
    assert (waiting["REAL_TOPIC"], waiting["REAL_QID"]) == ("T", "0")
    assert waiting.keys() - delivered.keys() == {"REAL_TOPIC", "REAL_QID"}


def test_v1_requests_are_halves_too(broker):
    client = with_topic(broker)
    letters = send_fields(i="TRAN_MSG\x01TRUE\x02PGROUP\x01PG\x02", f="4")
    names = [
        "producerGroup",
        "topic",
        "defaultTopic",
        "defaultTopicQueueNums",
        "queueId",
        "sysFlag",
        "bornTimestamp",
        "flag",
        "properties",
    ]
    fields = dict(zip(names, (letters[each] for each in "abcdefghi"), strict=True))
    assert client.ask(RequestCode.SEND_MESSAGE, fields, b"half").code == 0
    assert bodies(client, HALF_TOPIC) == [b"half"]


@pytest.mark.parametrize(
    ("properties", "changes", "code"),
    [
        ("TRAN_MSG\x01true\x02DELAY\x013\x02", {}, ResponseCode.MESSAGE_ILLEGAL),
        ("TRAN_MSG\x01true\x02TIMER_DELAY_SEC\x0110\x02", {}, ResponseCode.MESSAGE_ILLEGAL),
        ("TRAN_MSG\x01no\x02", {"f": "4"}, ResponseCode.MESSAGE_ILLEGAL),
        ("A\x011\x02", {"f": "8"}, ResponseCode.MESSAGE_ILLEGAL),
        (f"TRAN_MSG\x01true\x02A\x01{'x' * 32500}\x02", {}, ResponseCode.MESSAGE_ILLEGAL),
    ],
)
def test_a_half_that_could_not_be_finished_is_refused(broker, properties, changes, code):
    client = with_topic(broker)
    assert send(client, i=properties, **changes).code == code
    assert bodies(client, HALF_TOPIC) == bodies(client) == []


@pytest.mark.parametrize(
    ("fields", "own"),
    [({"i": "TRAN_MSG\x01true\x02"}, b""), ({"f": "4"}, b""), ({}, b"TRAN_MSG\x01true\x02")],
)
def test_a_batch_is_no_half(broker, fields, own):
    client = with_topic(broker)
    answer = client.ask(
        RequestCode.SEND_BATCH_MESSAGE, send_fields(**{"m": "true", **fields}), encode_batch([BatchMessage(0, b"x", own)])
    )
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "transaction" in answer.remark
    assert bodies(client) == bodies(client, HALF_TOPIC) == []


def test_an_operator_may_refuse_halves(make):
    broker = make("rejectTransactionMessage=true")
    answer = send(with_topic(broker), i="TRAN_MSG\x01true\x02", f="4")
    assert answer.code == ResponseCode.NO_PERMISSION


# --- outcomes


def test_a_commit_delivers_the_message(broker):
    client = with_topic(broker)
    answer = half(broker, client, more="TAGS\x01A\x02KEYS\x01k\x02", e="2", h="7", j="3")
    assert end(client, answer, COMMIT).code == 0
    (record,) = records(pull(client, queue_id=2, subscription="A"))
    mapping = props.decode(record.properties)
    assert "REAL_TOPIC" not in mapping
    assert "REAL_QID" not in mapping
    assert (mapping["TRAN_MSG"], mapping["__transactionId__"], mapping["KEYS"]) == ("true", unique(1), "k")
    assert (record.sys_flag & 0xC, record.flag, record.reconsume_times) == (8, 7, 3)
    assert record.prepared_offset == int(answer.ext["msgId"][-16:], 16)


def test_the_progress_knows_of_an_end_at_once(broker):
    client, checks = with_topic(broker), broker.node.view.transactions
    answers = [half(broker, client, number) for number in range(3)]
    assert end(client, answers[1], COMMIT).code == 0
    assert checks.snapshot().half == 0, "the first half is undecided"
    assert end(client, answers[0], COMMIT).code == 0
    assert checks.snapshot().half == 2
    assert offset(broker) <= 0, "a power loss could undo the commits"
    broker.advance(6_000)
    assert offset(broker) == 2


def test_a_rollback_delivers_nothing(broker):
    client = with_topic(broker)
    answer = half(broker, client)
    assert end(client, answer, ROLLBACK).code == 0
    broker.advance(120_000)
    assert bodies(client) == []
    assert questions(producer(broker)) == []
    assert end(client, answer, COMMIT).code == ResponseCode.SYSTEM_ERROR


def test_a_second_commit_stores_nothing(broker):
    """Apache stores the message twice."""
    client = with_topic(broker)
    answer = half(broker, client)
    code, fields = RequestCode.END_TRANSACTION, end_fields(answer, COMMIT)
    client.send(write_command(code, fields, opaque=7001) + write_command(code, fields, opaque=7002))
    codes = {each.opaque: each.code for each in client.take()}
    assert codes == {7001: 0, 7002: ResponseCode.SYSTEM_ERROR}
    broker.advance(60_000)
    assert end(client, answer, COMMIT).code == ResponseCode.SYSTEM_ERROR
    assert bodies(client) == [b"half"]


def test_unknown_changes_nothing(broker):
    client = with_topic(broker)
    answer = half(broker, client)
    assert end(client, answer, UNKNOWN).code == 0
    assert end(client, answer, COMMIT).code == 0


@pytest.mark.parametrize(
    ("changes", "remark"),
    [
        ({"producerGroup": "other"}, "producer group wrong"),
        ({"tranStateTableOffset": "5"}, "state table offset wrong"),
        ({"commitLogOffset": "3"}, "Find prepared"),
        ({"commitLogOffset": "-1"}, "Find prepared"),
        ({"commitLogOffset": str(2**62)}, "Find prepared"),
        ({"commitLogOffset": str(2**63)}, "commitLogOffset"),
        ({"commitLogOffset": "0x10"}, "commitLogOffset"),
        ({"tranStateTableOffset": "-1"}, "state table offset wrong"),
        ({"tranStateTableOffset": ""}, "tranStateTableOffset"),
        ({"commitOrRollback": "4"}, "not 0, 8 or 12"),
        ({"commitOrRollback": "-8"}, "not 0, 8 or 12"),
        ({"commitOrRollback": "eight"}, "commitOrRollback"),
        ({"commitOrRollback": str(2**31)}, "commitOrRollback"),
        ({"producerGroup": ""}, "producer group wrong"),
        ({"producerGroup": "PG\x01PG"}, "producer group wrong"),
        ({"producerGroup": None}, "missing required field `producerGroup`"),
        ({"tranStateTableOffset": None}, "missing required field `tranStateTableOffset`"),
        ({"commitLogOffset": None}, "missing required field `commitLogOffset`"),
        ({"commitOrRollback": None}, "missing required field `commitOrRollback`"),
        ({"msgId": None}, "missing required field `msgId`"),
    ],
)
def test_forged_ends_are_refused(broker, changes, remark):
    client = with_topic(broker)
    answer = half(broker, client)
    fields = {name: value for name, value in end_fields(answer, COMMIT, **changes).items() if value is not None}
    refused = client.ask(RequestCode.END_TRANSACTION, fields)
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert remark in refused.remark
    assert bodies(client) == []
    assert end(client, answer, COMMIT).code == 0, "the half is as it was"
    assert bodies(client) == [b"half"]


def test_only_the_start_of_a_half_names_it(broker):
    """The offset may lie within the half, or at a record of another kind, or at another half."""
    client = with_topic(broker)
    first, second = half(broker, client), half(broker, client, 2, b"second")
    place = int(first.ext["msgId"][-16:], 16)
    for each in (place + 1, place + 4, place + 88):
        assert end(client, first, COMMIT, commitLogOffset=str(each)).remark.startswith("Find prepared")
    other = int(second.ext["msgId"][-16:], 16)
    assert end(client, first, COMMIT, commitLogOffset=str(other)).remark == "The transaction state table offset wrong"
    assert end(client, first, COMMIT).code == 0
    broker.advance(4_000)
    for topic in ("T", OP_TOPIC):
        (record,) = records(pull(client, topic))
        assert end(client, first, COMMIT, commitLogOffset=str(record.phy_offset)).remark.startswith("Find prepared")
    assert bodies(client) == [b"half"]
    assert end(client, second, ROLLBACK).code == 0


def test_an_ordinary_message_cannot_be_ended(broker):
    client = with_topic(broker)
    answer = send(client)
    assert end(client, answer, COMMIT).remark.startswith("Find prepared")
    assert bodies(client) == [b"hello"]


def test_after_its_immunity_only_a_check_ends_a_half(broker):
    client = with_topic(broker)
    answer = half(broker, client, more="CHECK_IMMUNITY_TIME_IN_SECONDS\x017\x02")
    broker.advance(7_001)
    assert end(client, answer, COMMIT).code == ResponseCode.ILLEGAL_OPERATION
    assert end(client, answer, COMMIT, fromTransactionCheck="true").code == 0


def test_a_slave_refuses(make):
    broker = make("brokerRole=SLAVE", "brokerId=1")
    fields = {
        "producerGroup": "PG",
        "tranStateTableOffset": "0",
        "commitLogOffset": "0",
        "commitOrRollback": "8",
        "msgId": "x",
    }
    assert broker.connect().ask(RequestCode.END_TRANSACTION, fields).code == ResponseCode.SLAVE_NOT_AVAILABLE


# --- ops


def test_outcomes_are_written_together(broker):
    client = with_topic(broker)
    for number in range(3):
        end(client, half(broker, client, number), ROLLBACK)
    broker.advance(2_999)
    assert bodies(client, OP_TOPIC) == []
    broker.advance(1)
    (record,) = records(pull(client, OP_TOPIC))
    assert record.body == b"0,1,2,"
    assert props.decode(record.properties) == {"TAGS": "d", "WAIT": "true"}


def test_a_full_op_is_written_at_once(make):
    broker = make("transactionOpMsgMaxSize=24")
    client = with_topic(broker)
    for number in range(12):
        end(client, half(broker, client, number), ROLLBACK)
    broker.advance(0)
    assert bodies(client, OP_TOPIC)[0] == b"0,1,2,3,4,5,6,7,8,9,10,"


# --- checks


def test_an_undecided_half_is_put_again_and_its_producer_asked(broker):
    client, asked = with_topic(broker), producer(broker)
    answer = half(broker, client, e="2", more="TAGS\x01A\x02", h="7")
    broker.advance(30_000)
    (question,) = questions(asked)
    (_, copy) = records(pull(client, HALF_TOPIC))
    assert props.decode(copy.properties)["TRANSACTION_CHECK_TIMES"] == "1"
    assert copy.flag == 7
    assert question.ext["tranStateTableOffset"] == "1"
    assert question.ext["commitLogOffset"] == str(copy.phy_offset)
    assert question.ext["msgId"] == question.ext["transactionId"] == unique(1)
    assert question.ext["bname"] == "broker-a", "Java's producer writes it into its answer"
    (shown,) = iter_records(question.body, check_crc=True)
    assert (shown.topic, shown.queue_id, shown.body) == ("T", 2, b"half")
    assert end_question(asked, question, COMMIT).code == 0
    assert bodies(client, queue_id=2) == [b"half"]
    # The late answer about the first copy is about the same message.
    assert end(client, answer, COMMIT).code == ResponseCode.SYSTEM_ERROR
    broker.advance(120_000)
    assert questions(asked) == []
    assert bodies(client, queue_id=2) == [b"half"]


def test_an_outcome_for_an_older_copy_decides_the_newest(broker):
    client = with_topic(broker)
    answer = half(broker, client)
    broker.advance(60_000)
    assert len(records(pull(client, HALF_TOPIC))) == 3
    assert end(client, answer, COMMIT).code == 0
    assert bodies(client) == [b"half"]
    broker.advance(120_000)
    assert len(records(pull(client, HALF_TOPIC))) == 3, "no copy is left to be checked"


def test_a_young_half_is_not_checked(broker):
    client, asked = with_topic(broker), producer(broker)
    broker.advance(25_000)
    half(broker, client)
    broker.advance(5_999)
    assert questions(asked) == []
    broker.advance(30_000)
    assert len(questions(asked)) == 1


def test_a_half_is_not_checked_within_its_own_immunity(broker):
    client, asked = with_topic(broker), producer(broker)
    half(broker, client, more="CHECK_IMMUNITY_TIME_IN_SECONDS\x01100\x02")
    broker.advance(95_000)
    assert questions(asked) == []
    copies = records(pull(client, HALF_TOPIC))
    assert [props.decode(each.properties).get("TRAN_PREPARED_QUEUE_OFFSET") for each in copies] == [None, "0", "0", "0"]
    broker.advance(60_000)
    assert questions(asked)


def test_a_half_without_an_outcome_is_given_up_after_its_checks(make):
    broker = make("transactionCheckMax=2")
    client, asked = with_topic(broker), producer(broker)
    half(broker, client)
    broker.advance(200_000)
    assert len(questions(asked)) == 2
    (record,) = records(pull(client, CHECK_MAX_TIME_TOPIC))
    assert props.decode(record.properties)["REAL_TOPIC"] == "T"
    assert offset(broker) == 3
    given_up = f"{broker.node.view.hosts.store_host.hex().upper()}{record.phy_offset:016X}"
    assert client.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"topic": CHECK_MAX_TIME_TOPIC, "msgId": given_up}).code == 0
    asked = producer(broker)
    broker.advance(31_000)
    (question,) = questions(asked)
    assert end_question(asked, question, COMMIT).code == 0
    assert bodies(client) == [b"half"]


@pytest.mark.parametrize("msg_id", ["", "no id", "F" * 32, "0" * 32])
def test_what_is_no_half_is_not_checked_again(broker, msg_id):
    client = with_topic(broker)
    send(client)
    answer = client.ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, {"topic": "T", "msgId": msg_id})
    assert answer.code == ResponseCode.SYSTEM_ERROR


def test_producers_of_the_group_take_turns(broker):
    client = with_topic(broker)
    first, second, other = producer(broker), producer(broker, client_id="p2"), producer(broker, "other", "p3")
    for number in range(4):
        half(broker, client, number)
    broker.advance(30_000)
    assert [len(questions(each)) for each in (first, second, other)] == [2, 2, 0]


def test_two_halves_with_one_unique_id_are_two_transactions(broker):
    client, asked = with_topic(broker), producer(broker)
    end(client, half(broker, client, 1, b"one"), COMMIT)
    half(broker, client, 1, b"two")
    half(broker, client, 1, b"three")
    broker.advance(30_000)
    for question in questions(asked):
        assert end_question(asked, question, COMMIT).code == 0
    assert sorted(bodies(client)) == [b"one", b"three", b"two"]


def test_without_a_producer_a_half_waits_for_one(broker):
    client = with_topic(broker)
    half(broker, client)
    broker.advance(61_000)
    facts = broker.node.special.facts()
    assert (facts["transactionsNoProducer"], facts["transactionsPrepared"]) == ("2", "1")
    asked = producer(broker)
    broker.advance(30_000)
    assert len(questions(asked)) == 1


# --- progress


def test_progress_moves_over_finished_halves_only(broker):
    client = with_topic(broker)
    first, second = half(broker, client, 1), half(broker, client, 2)
    end(client, second, COMMIT)
    broker.advance(5_500)
    assert offset(broker) == -1
    end(client, first, COMMIT)
    broker.advance(40_000)
    assert (offset(broker), offset(broker, OP_TOPIC)) == (2, 2)


def test_progress_is_never_ahead_of_what_a_power_loss_leaves(broker):
    client = with_topic(broker)
    end(client, half(broker, client), COMMIT)
    assert offset(broker) == -1
    broker.advance(10_000)
    assert offset(broker) == 1
    assert broker.node.store.offset_synced >= broker.node.store.queue_range("T", 0).offset_max


def test_a_kill_before_the_op_does_not_commit_twice(make):
    """Apache checks such a half again, and a producer that commits again duplicates it."""
    broker = make()
    client = with_topic(broker)
    end(client, half(broker, client), COMMIT)
    broker.finish_disk()
    again = opened_again(broker)
    client, asked = again.connect(), producer(again)
    assert bodies(client) == [b"half"]
    again.advance(120_000)
    assert questions(asked) == []
    assert bodies(client, OP_TOPIC) == [b"0,"]
    assert len(records(pull(client, HALF_TOPIC))) == 1


def test_an_end_that_is_repeated_after_a_kill_does_not_commit_twice(make):
    """The producer got no answer, and the op of its commit was not written yet."""
    broker = make()
    client = with_topic(broker)
    decided, undecided = half(broker, client, 1), half(broker, client, 2, b"other")
    end(client, decided, COMMIT)
    broker.finish_disk()
    again = opened_again(broker)
    client = again.connect()
    reply = end(client, decided, COMMIT)
    assert (reply.code, "its outcome is known already" in reply.remark) == (ResponseCode.SYSTEM_ERROR, True)
    assert end(client, undecided, COMMIT).code == 0
    assert bodies(client) == [b"half", b"other"]


def test_a_kill_between_copy_and_progress_leaves_one_half(make):
    broker = make()
    client = with_topic(broker)
    half(broker, client)
    broker.advance(30_000)
    assert len(records(pull(client, HALF_TOPIC))) == 2
    broker.node.offsets.table.clear()
    broker.disk.files.pop("config/consumerOffset.json", None)
    again = opened_again(broker)
    client, asked = again.connect(), producer(again)
    again.advance(31_000)
    assert len(records(pull(client, HALF_TOPIC))) == 3, "the first half was superseded by its copy"
    (question,) = questions(asked)
    end_question(asked, question, COMMIT)
    again.advance(120_000)
    assert bodies(client) == [b"half"]
    assert questions(asked) == []


def test_an_op_of_apaches_form_decides_its_halves(broker):
    client = with_topic(broker)
    asked = producer(broker)
    half(broker, client, 1)
    half(broker, client, 2)
    broker.turn(lambda: broker.node.store.append(rewrite.op([1, 0], bytes(8), 1)))
    broker.advance(120_000)
    assert questions(asked) == []
    assert (offset(broker), offset(broker, OP_TOPIC)) == (2, 1)


def test_a_clean_stop_writes_the_op(make):
    broker = make()
    client = with_topic(broker)
    end(client, half(broker, client), ROLLBACK)
    stop(broker)
    again = opened_again(broker)
    client = again.connect()
    assert bodies(client, OP_TOPIC) == [b"0,"]
    again.advance(60_000)
    assert len(records(pull(client, HALF_TOPIC))) == 1


def test_a_half_that_escapes_is_a_prepared_message_of_its_topic(broker):
    client = with_topic(broker)
    half(broker, client, e="2", more="TAGS\x01A\x02")
    broker.advance(30_000)
    *_, record = records(pull(client, HALF_TOPIC))
    put = rewrite.again(record, bytes(8), checks=2)
    escaped = escaping(put, "broker-a:HALF:0", "broker-a:1").put
    mapping = props.decode(escaped.properties)
    assert (escaped.topic, escaped.queue_id, escaped.sys_flag & 0xC) == ("T", 2, 4)
    assert (mapping["TRAN_MSG"], mapping["PGROUP"], mapping["ESCAPED_FROM"]) == ("true", "PG", "broker-a:HALF:0")
    assert mapping["TRANSACTION_CHECK_TIMES"] == "2"
    assert "REAL_QID" not in mapping
    # A master in the same process makes it a half of its own; another one does so when it is sent.
    statuses = []
    inbox = broker.node.escape.inbox
    message = escaping(put, "broker-a:HALF:0", "broker-a:1")
    neighbour = copy(broker.node.view)
    neighbour.config = load([], ["brokerName=broker-b", "storePathRootDir=/t"], "broker")
    broker.turn(lambda: inbox.leave(message, neighbour, statuses.append))
    broker.advance(10)
    assert statuses == [PutStatus.PUT_OK]
    *_, left = records(pull(client, HALF_TOPIC))
    assert props.decode(left.properties)["ESCAPED_BY"] == "broker-a:1"
    assert bodies(client, queue_id=2) == []
