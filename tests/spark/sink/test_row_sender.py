"""The sink's lanes, batches, windows and retries, with a scripted producer."""

from collections import deque
from concurrent.futures import Future
from dataclasses import replace

import pytest

from rmqkit.broker.handlers.messages import batch_shape
from rmqkit.broker.handlers.messages.batch_shape import COUNT_MIN
from rmqkit.client.message import Message, SendResult, SendStatus
from rmqkit.client.producers.outgoing_message import Prepare
from rmqkit.errors import InvalidMessage, NoRoute, PeerUnreachable, SendFailed
from rmqkit.spark.options import parse
from rmqkit.spark.sink import row_sender
from rmqkit.spark.sink.pace import SendPace
from rmqkit.spark.sink.row_sender import (
    BATCH_BYTES,
    BATCH_MESSAGES,
    Lane,
    RowSender,
    WorkerState,
    WriteFailed,
    _Row,
)
from rmqkit.wire.batch import decode_batch
from rmqkit.wire.codes import ResponseCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit.wire.uniqueids import UniqueIds

QUEUES = [MessageQueue("T", broker, queue) for broker in ("broker-a", "broker-b") for queue in range(2)]
SETTINGS = parse({"namesrv": "127.0.0.1:9876", "maxWaitForBroker": "500", "requestTimeout": "3000"}, "sink")
FORBIDDEN = b"forbidden"


class Scripted:
    """A producer that answers each request with the next of `answers`, then with SEND_OK.

    `requests` has the requests. `hold` keeps them unanswered until `release`.
    """

    def __init__(self, *answers, hold=False):
        self.answers = list(answers)
        self.requests = []
        self.stored = []
        self.held = []
        self.hold = hold

    def queues(self, topic):
        if topic != "T":
            raise NoRoute(f"no name server knows topic {topic}")
        return QUEUES

    def send_async(self, message, queue=None, *, timeout_ms):
        return self.send_batch_async([message], queue, timeout_ms=timeout_ms)

    def send_batch_async(self, messages, queue=None, *, timeout_ms):
        assert timeout_ms == SETTINGS.request_timeout
        if any(message.body == FORBIDDEN for message in messages):
            raise InvalidMessage("not this body")
        future = Future()
        self.requests.append((queue, [message.body for message in messages]))
        self.held.append((future, queue, messages))
        if not self.hold:
            self.release()
        return future

    def release(self):
        for future, queue, messages in self.held:
            answer = self.answers.pop(0) if self.answers else SendStatus.SEND_OK
            if isinstance(answer, Exception):
                future.set_exception(answer)
                continue
            self.stored += [(queue, message.body) for message in messages]
            future.set_result(SendResult(answer, "id", "offset id", queue or QUEUES[0], 0))
        self.held = []


@pytest.fixture(autouse=True)
def no_rest(monkeypatch):
    monkeypatch.setattr(row_sender, "REST_S", 0.001)
    monkeypatch.setattr(row_sender, "REST_MAX_S", 0.001)


def sending_with(producer, known=("T",), **changed):
    return RowSender(WorkerState(producer, set(known)), replace(SETTINGS, **changed), "partition 3")


def message(number):
    return Message("T", b"%d" % number)


def test_rows_of_a_queue_stay_in_order_also_when_a_request_is_sent_again():
    lost = SendFailed("no answer", topic="T", tries=1, maybe_stored=True)
    producer = Scripted(lost, SendStatus.SEND_OK, lost, lost)
    work = sending_with(producer)
    for number in range(300):
        work.put(number, message(number), queue=1)
    work.finish()
    assert producer.stored == [(QUEUES[1], b"%d" % number) for number in range(300)]
    assert work.acknowledged == 300
    assert sum(len(bodies) for _queue, bodies in producer.requests) >= 300 + 3


def test_rows_collected_during_a_request_are_sent_as_one_batch():
    producer = Scripted(hold=True)
    work = sending_with(producer)
    for number in range(2 * BATCH_MESSAGES):
        work.put(number, message(number), ordering_key="k")
    assert producer.requests == [(producer.requests[0][0], [b"0"])]
    producer.hold = False
    producer.release()
    work.finish()
    assert [len(bodies) for _queue, bodies in producer.requests] == [1, 9, 90, BATCH_MESSAGES, 388, 24]
    assert len({queue for queue, _bodies in producer.requests}) == 1


@pytest.mark.parametrize("lanes", [1, row_sender.LANES])
def test_the_messages_of_a_batch_look_alike(lanes):
    """The broker stores them as one uniform batch (`store/log/uniform_batch.py`)."""
    prepare = Prepare(UniqueIds(bytes([127, 0, 0, 1]), 77, 5))
    made = [Message("T", b"b" * 10, tags="A", properties={"DEDUP_KEY": f"run//3/{number}"}) for number in range(12_000)]
    lane = Lane("T", None, deque(_Row(number, made[number], 30, False) for number in range(0, len(made), lanes)))
    sizes = []
    while lane.waiting:
        rows = lane.take()
        sizes.append(len(rows))
        messages = decode_batch(prepare.batch([row.message for row in rows], 1_760_000_000_000).body)
        assert len(rows) < COUNT_MIN or batch_shape.of_messages(messages) is not None
    assert sum(sizes) == 12_000 // lanes
    assert len([size for size in sizes if size < BATCH_MESSAGES]) <= 5


def test_a_batch_has_a_size_and_takes_no_delayed_or_large_message():
    producer = Scripted(hold=True)
    work = sending_with(producer)
    delays = {b"level": {"delay_level": 2}, b"after": {"delay_ms": 5000}, b"at": {"deliver_at": 1}}
    bodies = [b"first", b"a", *delays, b"b", b"L" * 5000, b"c", *[b"x" * 4000] * 140]
    for number, body in enumerate(bodies):
        work.put(number, Message("T", body, **delays.get(body, {})), queue=0)
    producer.hold = False
    producer.release()
    work.finish()
    sizes = [len(sent) for _queue, sent in producer.requests]
    assert sizes[:7] == [1] * 7
    assert sum(sizes) == len(bodies)
    assert all(sum(map(len, sent)) <= BATCH_BYTES for _queue, sent in producer.requests)
    assert [body for _queue, sent in producer.requests for body in sent] == bodies


def test_rows_without_a_queue_are_dealt_out():
    producer = Scripted(hold=True)
    work = sending_with(producer)
    for number in range(40):
        work.put(number, message(number))
    assert producer.requests == [(None, [b"%d" % number]) for number in range(row_sender.LANES)]
    producer.hold = False
    producer.release()
    work.finish()
    assert sorted(body for _queue, body in producer.stored) == sorted(b"%d" % number for number in range(40))


def test_the_window_holds_the_reader_back(monkeypatch):
    monkeypatch.setattr(row_sender, "WINDOW_ROWS", 10)
    producer = Scripted(*[PeerUnreachable("gone", kind="lost", address="a")] * 3)
    work = sending_with(producer)
    for number in range(100):
        work.put(number, message(number))
        assert number + 1 - work.acknowledged <= 10
    work.finish()
    assert work.acknowledged == 100


def test_a_status_that_is_not_as_safe_as_asked_is_sent_again_and_then_fails():
    producer = Scripted(SendStatus.FLUSH_SLAVE_TIMEOUT)
    work = sending_with(producer)
    work.put(0, message(0))
    work.finish()
    assert (len(producer.requests), work.acknowledged) == (2, 1)

    work = sending_with(Scripted(*[SendStatus.FLUSH_DISK_TIMEOUT] * 3))
    work.put(7, message(7))
    with pytest.raises(
        WriteFailed, match="partition 3, row 7 to T: stored 3 times, but broker-a answers FLUSH_DISK_TIMEOUT"
    ):
        work.finish()


def test_any_status_counts_where_it_is_allowed():
    producer = Scripted(SendStatus.FLUSH_SLAVE_TIMEOUT, SendStatus.SLAVE_NOT_AVAILABLE)
    work = sending_with(producer, required_status="any")
    for number in range(3):
        work.put(number, message(number))
    work.finish()
    assert (len(producer.requests), work.acknowledged) == (3, 3)


def test_a_broker_that_stays_away_fails_the_task_when_the_time_is_over():
    gone = SendFailed("no answer", topic="T", tries=1, maybe_stored=True)
    work = sending_with(Scripted(SendStatus.SEND_OK, *[gone] * 100_000), max_wait_for_broker=20)
    work.put(0, message(0))
    work.put(1, message(1), queue=2)
    wanted = r"row 1 to T: tried for 0 s \(maxWaitForBroker\): no answer; .* acknowledged before: 1, in flight: 1"
    with pytest.raises(WriteFailed, match=wanted):
        work.finish()


@pytest.mark.parametrize(
    "refusal",
    [
        SendFailed("not allowed", topic="T", tries=1, code=ResponseCode.MESSAGE_ILLEGAL),
        NoRoute("no name server knows topic T"),
    ],
)
def test_permanent_refusals_fail_at_once(refusal):
    producer = Scripted(refusal)
    work = sending_with(producer, known=())
    with pytest.raises(WriteFailed, match=f"partition 3, row 0 to T: {refusal}"):
        work.put(0, message(0))
    assert len(producer.requests) == 1


def test_a_topic_that_took_messages_may_be_gone_for_a_while():
    producer = Scripted(NoRoute("no name server knows topic T"), PeerUnreachable("gone", kind="lost", address="a"))
    work = sending_with(producer)
    work.put(0, message(0))
    work.finish()
    assert producer.stored == [(None, b"0")]


def test_the_row_that_no_broker_takes_is_named_also_out_of_a_batch():
    producer = Scripted(hold=True)
    work = sending_with(producer)
    for number, body in enumerate([b"0", b"1", b"2", FORBIDDEN, b"4"]):
        work.put(number, Message("T", body), queue=0)
    producer.hold = False
    producer.release()
    with pytest.raises(WriteFailed, match="row 3 to T: not this body"):
        work.finish()
    assert [body for _queue, body in producer.stored] == [b"0", b"1", b"2"]


def test_a_batch_that_a_broker_refuses_goes_one_by_one():
    """The batch as a whole may exceed a broker's `maxMessageSize`, so it is sent row by row.

    If a single row is refused, the error names it.
    """
    refusal = SendFailed("illegal", topic="T", tries=1, code=ResponseCode.MESSAGE_ILLEGAL)
    producer = Scripted(SendStatus.SEND_OK, refusal, hold=True)
    work = sending_with(producer)
    for number in range(5):
        work.put(number, message(number), queue=0)
    producer.hold = False
    producer.release()
    work.finish()
    assert [body for _queue, body in producer.stored] == [b"%d" % number for number in range(5)]

    producer = Scripted(SendStatus.SEND_OK, refusal, SendStatus.SEND_OK, refusal, hold=True)
    work = sending_with(producer)
    for number in range(5):
        work.put(number, message(number), queue=0)
    producer.hold = False
    producer.release()
    with pytest.raises(WriteFailed, match="row 2 to T: illegal"):
        work.finish()


def test_the_queue_of_a_row():
    producer = Scripted()
    work = sending_with(producer)
    work.put(0, message(0), queue=3)
    work.put(1, message(1), queue=0, broker="broker-b")
    # Java's hash of a single letter is its code point: `SelectMessageQueueByHash`
    work.put(2, message(2), ordering_key="a")
    work.put(3, message(3), ordering_key="b")
    work.finish()
    assert producer.stored == [
        (QUEUES[3], b"0"),
        (MessageQueue("T", "broker-b", 0), b"1"),
        (QUEUES[97 % 4], b"2"),
        (QUEUES[98 % 4], b"3"),
    ]
    with pytest.raises(WriteFailed, match="row 4 to T: queue 4 does not exist: the topic has 4"):
        work.put(4, message(4), queue=4)
    with pytest.raises(WriteFailed, match="row 5 to U: no name server knows topic U"):
        work.put(5, Message("U", b"5"), ordering_key="a")


class TestPace:
    def test_answers_are_worked_on_meanwhile(self, monkeypatch):
        """Responses that block a lane are processed while the next row waits for its turn."""
        clock = Clock()
        monkeypatch.setattr(row_sender, "time", clock)
        producer = Scripted()
        work = RowSender(WorkerState(producer, set()), SETTINGS, "partition 0", SendPace(2))
        for number in range(3):
            work.put(number, Message("T", b"%d" % number), queue=0)
        work.finish()
        assert [bodies for _, bodies in producer.requests] == [[b"0"], [b"1"], [b"2"]]
        assert (work.acknowledged, clock.now_s) == (3, 1.0)

    def test_a_driver_that_does_not_answer_fails_the_row(self):
        class Gone:
            def pause_s(self, _now_s):
                raise PeerUnreachable("the driver is gone", kind="connect", address="a")

        work = RowSender(WorkerState(Scripted(), set()), SETTINGS, "partition 0", Gone())
        with pytest.raises(WriteFailed, match="partition 0, row 8 to T: the driver is gone"):
            work.put(8, message(8))


class Clock:
    """A clock that advances only by `sleep`."""

    def __init__(self):
        self.now_s = 0.0

    def monotonic(self):
        return self.now_s

    def sleep(self, pause_s):
        self.now_s += pause_s
