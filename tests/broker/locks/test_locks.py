"""Queue locks.

Source: `RebalanceLockManager.java`, `AdminBrokerProcessor.{lockBatchMQ,unlockBatchMQ}`.
"""

import json

import pytest

from rmqkit.broker.locks.lock_table import LOCK_LIVE_MS, RELEASED_MAX, RELEASED_MS, LockTable
from rmqkit.wire.codes import RequestCode, ResponseCode
from rmqkit.wire.fastjson import MessageQueue

Q0, Q1 = (MessageQueue("T", "broker-a", each) for each in (0, 1))


def queue(queue_id=0, topic="T"):
    return {"brokerName": "broker-a", "queueId": queue_id, "topic": topic}


def body(client_id, *queues, group="CG"):
    """Encode a `LockBatchRequestBody` as Java does."""
    asked = {"clientId": client_id, "consumerGroup": group, "mqSet": list(queues), "onlyThisBroker": False}
    return json.dumps(asked, separators=(",", ":")).encode()


def lock(client, client_id, *queue_ids, group="CG"):
    answer = client.ask(RequestCode.LOCK_BATCH_MQ, {}, body(client_id, *map(queue, queue_ids), group=group))
    assert answer.code == 0, answer
    return [each["queueId"] for each in answer.json["lockOKMQSet"]]


def unlock(client, client_id, *queue_ids, group="CG"):
    assert client.ask(RequestCode.UNLOCK_BATCH_MQ, {}, body(client_id, *map(queue, queue_ids), group=group)).code == 0


def test_a_queue_is_locked_by_one_client_of_a_group(broker):
    client = broker.connect()
    assert lock(client, "c1", 0, 1) == [0, 1]
    assert lock(client, "c2", 0, 1, 2) == [2]
    assert lock(client, "c1", 0, 1, 2) == [0, 1]
    assert lock(client, "c2", 0, group="Other") == [0], "groups do not meet"


def test_the_answer_is_what_java_reads(broker):
    answer = broker.connect().ask(RequestCode.LOCK_BATCH_MQ, {}, body("c1", queue(3)))
    assert answer.body == b'{"lockOKMQSet":[{"brokerName":"broker-a","queueId":3,"topic":"T"}]}'


def test_a_lease_is_renewed_by_its_owner_and_stolen_when_it_ran_out(broker):
    client = broker.connect()
    lock(client, "c1", 0)
    broker.advance(50_000)
    assert lock(client, "c1", 0) == [0]
    broker.advance(LOCK_LIVE_MS)
    assert lock(client, "c2", 0) == [], "60 s are not over yet (LockEntry.isExpired: later than)"
    broker.advance(1)
    assert lock(client, "c2", 0) == [0]
    assert lock(client, "c1", 0) == []


def test_only_the_owner_gives_a_lock_back(broker):
    client = broker.connect()
    lock(client, "c1", 0, 1)
    unlock(client, "c2", 0)
    unlock(client, "c1", 1, 7)
    assert lock(client, "c2", 0, 1) == [1]


def test_a_group_with_a_live_lock_consumes_in_order(broker):
    """Source: `RebalanceLockManager.isLockAllExpired`."""
    client = broker.connect()
    locks, clock = broker.node.locks, broker.clock
    assert not locks.holds_any("CG", clock.mono_ms)
    lock(client, "c1", 0)
    broker.advance(LOCK_LIVE_MS)
    assert locks.holds_any("CG", clock.mono_ms)
    assert not locks.holds_any("Other", clock.mono_ms)
    broker.advance(1)
    assert not locks.holds_any("CG", clock.mono_ms)


def test_expired_locks_are_removed(broker):
    client = broker.connect()
    lock(client, "c1", 0, 1)
    broker.advance(70_000)
    lock(client, "c1", 1)
    broker.advance(25_000)
    assert broker.node.locks.table.count == 1
    broker.advance(70_000)
    assert broker.node.locks.table.by_group == {}


@pytest.mark.parametrize(
    "sent",
    [
        body("", queue()),
        body("c1", queue(), group=""),
        body("c1", queue(), group="no such/../group"),
        body("x" * 2000, queue()),
        body("c1", queue(topic="t" * 2000)),
        body("c1", *[queue(each) for each in range(16_385)]),
    ],
)
def test_what_cannot_be_a_lock_is_refused(broker, sent):
    answer = broker.connect().ask(RequestCode.LOCK_BATCH_MQ, {}, sent)
    assert answer.code == ResponseCode.INVALID_PARAMETER
    assert broker.node.locks.table.count == 0


@pytest.mark.parametrize("sent", [b"", b"nonsense", b'{"mqSet":7}', b'{"clientId":"c","consumerGroup":"g","mqSet":[1]}'])
def test_a_body_that_is_none_is_an_error(broker, sent):
    for code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
        assert broker.connect().ask(code, {}, sent).code != 0
    assert broker.node.locks.table.count == 0


def test_a_full_table_is_swept_and_then_says_so(broker):
    client = broker.connect()
    table = broker.node.locks.table = LockTable(locks_max=3)
    assert lock(client, "c1", 0, 1) == [0, 1]
    answer = client.ask(RequestCode.LOCK_BATCH_MQ, {}, body("c2", queue(2), queue(3)))
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_BUSY, "too many queues are locked on this broker")
    assert table.count == 2, "all or nothing"
    assert lock(client, "c1", 0, 1, 2) == [0, 1, 2]
    assert lock(client, "c1", 0) == [0], "a renewal needs no room"
    broker.clock.mono_ms += LOCK_LIVE_MS + 1
    assert lock(client, "c2", 4, 5, 6) == [4, 5, 6]
    assert list(table.by_group["CG"]) == [MessageQueue("T", "broker-a", each) for each in (4, 5, 6)]


def test_a_queue_named_twice_is_one_lock(broker):
    client = broker.connect()
    assert lock(client, "c1", 0, 0) == [0]
    assert broker.node.locks.table.count == 1


@pytest.mark.parametrize(("after_ms", "held"), [(RELEASED_MS, 0), (RELEASED_MS + 1, 1)])
def test_a_release_that_overtakes_the_copy_of_its_lease_counts_for_a_bounded_time(after_ms, held):
    told, adopted = LockTable(), LockTable()
    told.lock("CG", "c1", [Q0, Q1], 0)
    adopted.release("CG", "c1", [Q0], 0)
    adopted.release("CG", "c2", [Q1], 0)
    adopted.adopt(told.copy(0), after_ms)
    assert (adopted.lease("CG", Q0) is not None) == bool(held)
    assert adopted.lease("CG", Q1), "another client released it"
    adopted.adopt(told.copy(0), after_ms)
    assert adopted.lease("CG", Q0), "a release counts for one copy"


def test_the_number_of_releases_ahead_is_limited():
    table = LockTable()
    table.release("CG", "c1", [MessageQueue("T", "b", each) for each in range(RELEASED_MAX + 1)], 0)
    told = LockTable()
    told.lock("CG", "c1", [MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)], 0)
    table.adopt(told.copy(0), 0)
    assert table.lease("CG", MessageQueue("T", "b", 0)), "the oldest was dropped"
    assert table.lease("CG", MessageQueue("T", "b", 1)) is None
