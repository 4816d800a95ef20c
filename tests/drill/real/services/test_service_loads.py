"""The services' loads with fake clients: which rows they leave, and how they end."""

from concurrent.futures import Future

import pytest

from rmqkit.client.producers.transactions import TransactionQuestion, TransactionResult
from rmqkit.drill.plan import POP, TIMERS, TRANSACTIONS
from rmqkit.drill.real.client_threads import DelayedItems
from rmqkit.drill.real.services import pop_load, timer_load, transaction_load
from rmqkit.drill.real.services.killed_producer import HalfAnswer
from rmqkit.drill.services import scripts
from rmqkit.errors import BrokerError
from rmqkit.runtime.connection import Address
from rmqkit.wire.bodies.pop import ReceiptHandle
from tests.drill.real.services.lab import BROKER, TOPIC, FakeProducer, acknowledged, nothing, rows_of, run_until


@pytest.fixture(autouse=True)
def producers(monkeypatch):
    monkeypatch.setattr(FakeProducer, "made", made := [])
    return made


def test_what_is_due_later_comes_in_order():
    later = DelayedItems()
    for at_ms, item in ((30, "c"), (10, "a"), (20, "b")):
        later.add(at_ms, item)
    assert list(later.due(9)) == []
    assert list(later.due(20)) == ["a", "b"]
    assert list(later.due(99)) == ["c"]


# --- timers


@pytest.mark.parametrize("recalls", ["true", "false"])
def test_timers_are_sent_both_ways_and_recalled_where_brokers_allow_it(monkeypatch, producers, recalls):
    monkeypatch.setattr(timer_load, "Producer", FakeProducer)
    monkeypatch.setattr(scripts, "DELAYS_MS", (700, 900))  # so that recalls are soon
    rows = rows_of(TIMERS, settings={"recallMessageEnable": recalls})
    load = timer_load.TimerLoad(rows, namesrv="127.0.0.1:1", read=nothing)

    def are_enough():
        kinds = rows.history.by_kind
        return len(kinds["timer"]) >= 20 and (recalls == "false" or len(kinds["recall"]) >= 2)

    run_until(load, are_enough)
    timers = rows.history.by_kind["timer"]
    (producer,) = producers
    assert producer.closed
    assert {queue.broker_name for _, queue in producer.sent} == {BROKER}
    assert {bool(message.deliver_at_ms) for message, _ in producer.sent} == {True, False}
    assert all(bool(message.deliver_at_ms) != bool(message.delay_ms) for message, _ in producer.sent)
    assert all(row.extra["due_ms"] == row.invoke_ms + row.extra["delay_ms"] for row in timers)
    handles = {row.key: row.extra["handle"] for row in timers}
    assert [handles[row.key] for row in rows.history.by_kind["recall"]] == producer.recalled
    assert bool(producer.recalled) is (recalls == "true")


# --- transactions


class FakeTransactions(FakeProducer):
    """Stands for `RecordedProducer`."""

    def send_half(self, message, queue):
        self.sent.append((message, queue))
        future = Future()
        if len(self.sent) == 1:
            future.set_exception(BrokerError("refused", code=1))
        else:
            future.set_result(acknowledged(queue))
        return future

    def end(self, half, state):
        self.ended.append(half)
        future = Future()
        future.set_result(TransactionResult(half, state, "broker says no" if len(self.ended) == 1 else ""))
        return future

    def master_of(self, broker):
        return f"{broker}-0"


class FakeProcess:
    """Stands for `ProducerProcess`: the third half of each gets no answer."""

    made = ()

    def __init__(self, task):
        self.task, self.sent, self.is_killed = task, [], False
        self.made.append(self)

    def send(self, order, timeout_s):
        self.sent.append(order.key)
        if len(self.sent) == 3:
            return HalfAnswer(key=order.key, error="the producer process gave no answer", maybe_stored=True)
        return HalfAnswer(key=order.key, status="SEND_OK", msg_id="id")

    def kill(self):
        self.is_killed = True


def test_producers_end_their_transactions_or_die(monkeypatch, producers):
    monkeypatch.setattr(transaction_load, "RecordedProducer", FakeTransactions)
    monkeypatch.setattr(transaction_load, "ProducerProcess", FakeProcess)
    monkeypatch.setattr(FakeProcess, "made", processes := [])
    rows = rows_of(TRANSACTIONS)
    load = transaction_load.TransactionLoad(rows, namesrv="127.0.0.1:1", read=nothing, nodes={})
    # A process is not used any more after a half without an answer, so the second one has begun.
    run_until(load, lambda: len(processes) >= 2 and len(processes[1].sent) >= 1)
    halves = {row.key: row for row in rows.history.by_kind["half"]}
    decided = {row.key: row for row in rows.history.by_kind["decide"]}
    assert all(each.closed for each in producers)
    assert all(each.is_killed for each in processes)
    assert [len(each.sent) for each in processes[:1]] == [3]
    killed = [key for each in processes for key in each.sent]
    assert {key for key, row in halves.items() if row.extra["local"] == scripts.DIES} == set(killed)
    assert {halves[key].client for key in processes[1].sent} == {"killed-1"}
    assert halves[killed[2]].outcome == "unknown"
    # Outcomes follow from the local transaction, also those of slow ones at the end.
    ended = {key for key, row in halves.items() if row.extra["local"] in (scripts.COMMIT, scripts.ROLLBACK)}
    assert set(decided) == {key for key in ended if halves[key].outcome == "ok"}
    assert all(row.value == halves[key].extra["local"] for key, row in decided.items())
    assert {row.outcome for row in decided.values()} == {"ok", "unknown"}
    assert {row.extra["node"] for row in decided.values()} == {f"{BROKER}-0"}
    assert {row.outcome for row in halves.values() if row.client.startswith("transactor")} == {"ok", "fail"}


def test_answers_to_checks_are_recorded_with_the_node_that_asked():
    rows = rows_of(TRANSACTIONS)
    producer = transaction_load.RecordedProducer.__new__(transaction_load.RecordedProducer)
    producer._rows, producer._client, producer._asked_ms = rows, "transactor-1", {}
    producer._nodes = {"127.0.0.1:10921": "broker-a-1"}
    for decision, why in (("commit", ""), ("rollback", "no answer")):
        message = Message("x0-000007", 0)
        message.body, message.msg_id = f"x0-000007 {decision}".encode(), decision
        state = producer._check_record(message)
        question = TransactionQuestion(message, Address("127.0.0.1", 10921), None)
        producer._answered(question, state, why)
    first, second = rows.history.by_kind["decide"]
    assert (first.key, first.value, first.outcome, first.extra["by"]) == ("x0-000007", "commit", "ok", "check")
    assert first.extra["node"] == "broker-a-1"
    assert (second.value, second.outcome, second.extra["error"]) == ("rollback", "unknown", "no answer")


def test_some_local_transactions_are_slow():
    times = [transaction_load.local_ms(f"x0-{number:06d}") for number in range(400)]
    slow = [each for each in times if each]
    assert 60 < len(slow) < 140
    assert min(slow) >= transaction_load.SLOW_MS[0]
    assert max(slow) < transaction_load.SLOW_MS[1]


# --- pop


class Message:
    def __init__(self, key, attempt):
        self.keys, self.reconsume_times = key, attempt
        self.body, self.topic, self.queue_id, self.queue_offset = key.encode(), TOPIC, 0, 0


class FakePeers:
    """Stands for `Peers`, and for the broker behind it, which refuses each third ack.

    It gives the messages of `left`. A message whose ack it refused is given again.
    """

    left = acks = given = ()  # a test sets lists

    def __init__(self, nameserver):
        self.error = ""

    def master_of(self, topic, broker):
        return "" if broker == "broker-b" else "127.0.0.1:10911"

    def ask(self, address, work):
        return work(self)

    def pop(self, request, broker):
        found = []
        while self.left and len(found) < request.max_msg_nums:
            key, attempt = self.left.pop()
            handle = ReceiptHandle(0, request.born_time, request.invisible_time, 0, "0", broker, 0, int(key[1:]))
            self.given.append((key, attempt))
            found.append((Message(key, attempt), handle))
        return found

    def ack(self, request):
        self.acks.append(request.extra_info)
        key, attempt = f"w{request.offset}", max(each[1] for each in self.given if each[0] == f"w{request.offset}")
        if len(self.acks) % 3:
            return True
        self.left.append((key, attempt + 1))
        self.error = "answer 14"
        return None

    def close(self):
        pass


def test_members_pop_ack_and_forget(monkeypatch):
    keys = [f"w{number}" for number in range(40)]
    monkeypatch.setattr(pop_load, "Peers", FakePeers)
    for name, value in (("left", [(key, 0) for key in keys]), ("acks", []), ("given", [])):
        monkeypatch.setattr(FakePeers, name, value)
    rows = rows_of(POP)
    for key in keys:
        rows.history.add("send", key=key, invoke_ms=0, broker=BROKER)
    nodes = {"127.0.0.1:10911": "broker-a-0"}
    load = pop_load.PopLoad(rows, nameserver=Address("127.0.0.1", 1), nodes=nodes, brokers=[BROKER, "broker-b"])
    forgotten = {key for key in keys if not scripts.is_acked(key, 0)}
    assert forgotten

    def are_acked():
        return {row.key for row in rows.history.by_kind["acked"]} >= set(keys) - forgotten

    run_until(load, are_acked)
    acked = rows.history.by_kind["acked"]
    assert {row.outcome for row in acked} == {"ok", "unknown"}
    assert {row.extra["node"] for row in acked} == {"broker-a-0"}
    assert not {row.key for row in acked} & forgotten, "a forgotten message is not acked on its first delivery"
    popped = rows.history.by_kind["popped"]
    assert {row.client for row in popped} <= {scripts.popper(0), scripts.popper(1)}
    assert {row.key for row in popped} == set(keys)
    assert all(row.extra["pop_ms"] <= row.complete_ms + 2 for row in popped), "wall times are rounded"
