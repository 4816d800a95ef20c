"""Traces of producers and consumers.

Source: `AsyncTraceDispatcher.java`, `SendMessageTraceHookImpl.java`,
`ConsumeMessageTraceHookImpl.java`.
"""

import pytest

from rmqkit.client.consumers.push_queue import ListenerBatch, QueueWork
from rmqkit.client.flow import start
from rmqkit.client.message import Message, MessageExt
from rmqkit.client.producers import trace
from rmqkit.client.producers.trace import ConsumerTrace, ProducerTrace, TraceDispatch
from rmqkit.wire import properties as props
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.inflate import inflate_body
from rmqkit.wire.record import iter_records
from rmqkit.wire.trace import TRACE_TOPIC, ConsumeCode, TraceMessageType, TraceRecord, TraceType, decode
from rmqkit.wire.uniqueids import UniqueIds
from tests.client.group import record
from tests.client.peers import ON_A, A, Peers
from tests.client.producers.test_producer import SEND, STORED, Sender

REGION = {"MSG_REGION": "Here", "TRACE_ON": "true"}
BATCH = 320


def traced(peers, **settings):
    """A producer with traces."""
    sender = Sender(peers, **settings)

    def begin():
        sender.dispatch = TraceDispatch(peers.client, UniqueIds(bytes(4), 1, 1), topic=TRACE_TOPIC, group="PG")
        sender.producer.trace = ProducerTrace(sender.dispatch, "PG")

    peers.do(begin)
    return sender


@pytest.fixture
def peers():
    return Peers(routes={"T": ON_A, TRACE_TOPIC: ON_A})


def traces(peers):
    """Answer the trace messages in flight, and return the records of each."""
    found = []
    while waiting := [each for each in peers.asked if each.code == SEND and each.ext["b"] == TRACE_TOPIC]:
        for asked in waiting:
            peers.asked.remove(asked)
            body, flag = asked.command.body, int(asked.ext["f"])
            found.append(
                (
                    decode(inflate_body(body, flag) if flag else body),
                    props.decode(asked.ext["i"].encode()).get("KEYS", "").split(),
                )
            )
            asked.answer(0, STORED)
    return found


def answer_send(peers, ext=STORED | REGION, code=0):
    asked = next(each for each in peers.asked if each.code == SEND and each.ext["b"] == "T")
    peers.asked.remove(asked)
    asked.answer(code, ext)
    return asked


def test_an_acknowledged_send_is_traced(peers):
    sender = traced(peers)
    message = Message("T", b"hello", keys=["k1", "k2"], tags="TagA")
    began_ms = peers.script.clock.wall_ms
    outgoing = sender.prepare.message(message, began_ms)
    peers.do(lambda: sender.producer.send(outgoing, sender.outcomes.append, timeout_ms=3000))
    peers.advance(30, step_ms=10)
    answer_send(peers)
    assert traces(peers) == [], "it waits for company"
    peers.advance(5_000)
    ((records, keys),) = traces(peers)
    assert records == [
        TraceRecord(
            TraceType.PUB,
            outgoing.msg_id,
            time_ms=began_ms,
            region_id="Here",
            group="PG",
            topic="T",
            tags="TagA",
            keys="k1 k2",
            store_host=A,
            body_length=5,
            cost_ms=30,
            message_type=TraceMessageType.NORMAL,
            offset_msg_id=STORED["msgId"],
        )
    ]
    assert keys == [outgoing.msg_id, "k1", "k2"]
    assert sender.dispatch.dropped == 0


def test_twenty_make_a_message_at_once(peers):
    sender = traced(peers)
    for _ in range(45):
        sender.send()
        answer_send(peers)
    assert [len(records) for records, _ in traces(peers)] == [20, 20]
    peers.advance(5_000)
    assert [len(records) for records, _ in traces(peers)] == [5]


@pytest.mark.parametrize(
    ("ext", "wanted"),
    [({"TRACE_ON": "false"}, 0), ({}, 1), ({"TRACE_ON": "true"}, 1)],
)
def test_the_broker_says_whether_it_wants_traces(peers, ext, wanted):
    sender = traced(peers)
    sender.send()
    answer_send(peers, STORED | ext)
    peers.advance(5_000)
    records = [each for message, _ in traces(peers) for each in message]
    assert [each.region_id for each in records] == ["DefaultRegion"] * wanted


def test_a_send_that_failed_is_not_traced_and_one_that_is_not_safe_yet_is_no_success(peers):
    """Java's hook omits sends without a result."""
    sender = traced(peers, retry_times_when_send_failed=0)
    sender.send()
    answer_send(peers, {}, 1)
    sender.send()
    answer_send(peers, code=10)
    peers.advance(5_000)
    ((records, _),) = traces(peers)
    assert [each.success for each in records] == [False]


def test_kinds_of_messages(peers):
    sender = traced(peers)
    sender.send(ordering_key="k")
    answer_send(peers)
    outgoing = sender.prepare.message(Message("T", b"x", delay_level=3), 0)
    peers.do(lambda: sender.producer.send(outgoing, sender.outcomes.append, timeout_ms=3000))
    answer_send(peers)
    peers.advance(5_000)
    ((records, _),) = traces(peers)
    assert [each.message_type for each in records] == [TraceMessageType.ORDER, TraceMessageType.DELAY]


def test_each_message_of_a_batch_is_found(peers):
    sender = traced(peers)
    outgoing = sender.prepare.batch([Message("T", b"a"), Message("T", b"b")], 0)
    peers.do(lambda: sender.producer.send(outgoing, sender.outcomes.append, timeout_ms=3000))
    asked = peers.take(BATCH)
    first, second = "0A000201000029FF0000000000000000", "0A000201000029FF0000000000000100"
    asked.answer(0, STORED | REGION | {"msgId": f"{first},{second}"})
    peers.advance(5_000)
    ((records, keys),) = traces(peers)
    assert [each.msg_id for each in records] == outgoing.msg_id.split(",") == keys
    assert [each.offset_msg_id for each in records] == [first, second]


def test_nothing_waits_for_a_trace_topic_that_takes_none(peers, monkeypatch):
    """Records are dropped and counted; sends continue."""
    monkeypatch.setattr(trace, "RECORDS_MAX", 50)
    monkeypatch.setattr(trace, "SENDS_MAX", 1)
    sender = traced(peers)
    for _ in range(100):
        sender.send()
        answer_send(peers)
    assert len(sender.outcomes) == 100
    assert sender.dispatch.dropped == 30, "20 on their way, 50 wait"
    peers.advance(6_000)
    assert ("warning", "traces-dropped") in [line[:2] for line in peers.script.log.lines]


def test_traces_that_could_not_be_sent_are_counted(peers):
    peers.routes.pop(TRACE_TOPIC)
    sender = traced(peers)
    sender.send()
    answer_send(peers)
    peers.advance(5_000)
    assert sender.dispatch.dropped == 1


def test_long_keys_are_spread_over_messages(peers):
    sender = traced(peers)
    for number in range(3):
        outgoing = sender.prepare.message(Message("T", b"x", keys=f"{number}" * 9_000), 0)
        peers.do(lambda out=outgoing: sender.producer.send(out, sender.outcomes.append, timeout_ms=3000))
        answer_send(peers)
    peers.advance(5_000)
    assert [len(records) for records, _ in traces(peers)] == [1, 1, 1]
    assert sender.dispatch.dropped == 0


def test_closing_sends_what_is_there(peers):
    sender = traced(peers)
    sender.send()
    answer_send(peers)
    ended = []
    peers.do(lambda: ended.append(start(sender.dispatch.close())))
    assert not ended[0].done
    assert len(traces(peers)) == 1
    assert ended[0].done
    assert f"{trace.GROUP_PREFIX}-PG-1" not in peers.client.producer_groups


def test_closing_waits_no_longer_than_it_must(peers):
    sender = traced(peers)
    sender.send()
    answer_send(peers)
    ended = []
    peers.do(lambda: ended.append(start(sender.dispatch.close())))
    peers.advance(trace.CLOSE_WAIT_MS)
    assert ended[0].done


def test_messages_to_the_trace_topic_are_not_traced(peers):
    sender = traced(peers)
    sender.send(topic=TRACE_TOPIC)
    traces(peers)
    peers.advance(5_000)
    assert traces(peers) == []


# --- consumers


def batch_of(*offsets, answer=None, **more):
    messages = [MessageExt(next(iter_records(record(offset, **more))), "broker-a") for offset in offsets]
    return ListenerBatch(QueueWork.begun_at(MessageQueue("T", "broker-a", 0), 0), messages, answer)


def id_of(number):
    return f"{number:032X}"


def properties(number, **more):
    return props.encode({"UNIQ_KEY": id_of(number), "MSG_REGION": "Here", "TRACE_ON": "true", **more})


@pytest.fixture
def consumer(peers):
    made = []

    def begin():
        dispatch = TraceDispatch(peers.client, UniqueIds(bytes(4), 1, 1), topic=TRACE_TOPIC, group="CG")
        made.append(ConsumerTrace(dispatch, "CG"))

    peers.do(begin)
    return made[0]


@pytest.mark.parametrize(
    ("ok", "error", "code"),
    [(True, "", ConsumeCode.SUCCESS), (False, "", ConsumeCode.FAILED), (False, "Boom: x", ConsumeCode.EXCEPTION)],
)
def test_a_listener_is_traced_before_and_after(peers, consumer, ok, error, code):
    batch = batch_of(1, properties=properties(1, KEYS="k"), reconsume_times=2)
    consumer.began(batch, 1_000)
    consumer.ended(batch, 1_250, ok, error)
    peers.advance(5_000)
    ((records, keys),) = traces(peers)
    before, after = records
    assert before == TraceRecord(
        TraceType.SUB_BEFORE,
        id_of(1),
        time_ms=1_000,
        region_id="Here",
        group="CG",
        request_id=before.request_id,
        keys="k",
        retry_times=2,
    )
    assert after == TraceRecord(
        TraceType.SUB_AFTER,
        id_of(1),
        time_ms=1_250,
        group="CG",
        request_id=before.request_id,
        keys="k",
        cost_ms=250,
        success=ok,
        code=code,
    )
    assert len(before.request_id) == 32
    assert keys == [id_of(1), "k"]


def test_what_is_not_to_be_traced_is_left_out(peers, consumer):
    off = batch_of(1, properties=properties(1, TRACE_ON="false"))
    direct = batch_of(2, properties=properties(2), answer=lambda ok, error: None)
    for batch in (off, direct):
        consumer.began(batch, 1_000)
        consumer.ended(batch, 2_000, True, "")
    peers.advance(5_000)
    assert traces(peers) == []


def test_the_time_of_a_call_is_shared_by_its_messages(peers, consumer):
    batch = batch_of(1, 2, properties=properties(1))
    consumer.began(batch, 1_000)
    consumer.ended(batch, 1_100, True, "")
    peers.advance(5_000)
    ((records, _),) = traces(peers)
    assert [each.cost_ms for each in records if each.type is TraceType.SUB_AFTER] == [50, 50]
    assert len({each.request_id for each in records}) == 1
