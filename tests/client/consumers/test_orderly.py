"""Orderly consumption: the broker's lock, one batch at a time, pauses after failures, unlocking."""

import json

import pytest

from rmqkit.wire.codes import RequestCode
from rmqkit.wire.fastjson import MessageQueue
from tests.client.group import LOCK, MEMBERS, READ, SEND_BACK, UNLOCK, Group, found, members, record
from tests.client.peers import CLIENT_ID, A, B, Peers, route

ONE_QUEUE = route(("broker-a", {0: A}), queues=1)
QUEUE_0 = {"brokerName": "broker-a", "queueId": 0, "topic": "T"}
OTHER = "10.0.0.1@1"


@pytest.fixture
def peers():
    return Peers(routes={"T": ONE_QUEUE})


def granted(*queues: dict) -> bytes:
    return json.dumps({"lockOKMQSet": queues}).encode()


def running(peers, **settings) -> Group:
    group = Group(peers, orderly=True, **settings)
    peers.take(MEMBERS).answer(0, body=members(CLIENT_ID))
    peers.take(LOCK).answer(0, body=granted(QUEUE_0))
    peers.take(READ).answer(22)
    return group


def change_group(peers, *ids: str) -> None:
    peers.tell(A, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "CG"})
    peers.take(MEMBERS).answer(0, body=members(*ids))


def test_a_queue_is_locked_before_it_is_read(peers):
    Group(peers, orderly=True)
    peers.take(MEMBERS).answer(0, body=members(CLIENT_ID))
    asked = peers.take(LOCK)
    assert asked.address == A
    assert asked.command.json == {
        "clientId": CLIENT_ID,
        "consumerGroup": "CG",
        "mqSet": [QUEUE_0],
        "onlyThisBroker": False,
    }
    assert not peers.waiting()
    asked.answer(0, body=granted(QUEUE_0))
    assert peers.waiting() == [(A, READ)]


def test_a_queue_somebody_else_holds_is_asked_for_again_in_a_second(peers):
    group = Group(peers, orderly=True)
    peers.take(MEMBERS).answer(0, body=members(CLIENT_ID))
    peers.take(LOCK).answer(0, body=granted())
    assert not group.consumer.works
    peers.advance(1050)
    peers.take(MEMBERS).answer(0, body=members(CLIENT_ID))
    peers.take(LOCK).answer(0, body=granted(QUEUE_0))
    peers.take(READ).answer(0, {"offset": "4"})
    assert group.pull().ext["queueOffset"] == "4"


def test_queues_that_are_refused_at_different_times_are_asked_for_once_a_second():
    peers = Peers(routes={"T": route(("broker-a", {0: A}), ("broker-b", {0: B}), queues=1)})
    Group(peers, orderly=True)
    asked_for, waiting = 0, []
    for _ in range(5_000 // 10):
        for asked in peers.take_all(MEMBERS):
            asked.answer(0, body=members(CLIENT_ID))
        for asked in peers.take_all(LOCK):
            asked_for += asked.address == A
            waiting.append((3 if asked.address == A else 7, asked))
        waiting = [(left - 1, asked) for left, asked in waiting]
        for _, asked in [each for each in waiting if not each[0]]:
            asked.answer(0, body=granted())
        waiting = [each for each in waiting if each[0]]
        peers.advance(10)
    assert asked_for == 5


def test_a_round_that_comes_due_during_another_runs_right_after_it():
    one, other = route(("broker-a", {0: A}), queues=1), route(("broker-b", {0: B}), queues=1)
    peers = Peers(routes={"T": one, "U": other})
    Group(peers, topics=("T", "U"), orderly=True)
    peers.take(MEMBERS).answer(0, body=members(CLIENT_ID))
    slow = peers.take(MEMBERS)
    peers.take(LOCK).answer(0, body=granted())
    peers.advance(1_200)
    assert not peers.waiting(), "the first round waits for the members of the second topic"
    slow.answer(0, body=members(CLIENT_ID))
    peers.take(LOCK).answer(0, body=granted({**QUEUE_0, "brokerName": "broker-b", "topic": "U"}))
    again = peers.take(MEMBERS)
    assert again.address == A
    again.answer(0, body=members(CLIENT_ID))
    assert peers.take(LOCK).address == A


def test_a_broker_that_locks_nothing_any_more_has_a_new_route_looked_for(peers):
    Group(peers, orderly=True)
    peers.take(MEMBERS).answer(0, body=members(CLIENT_ID))
    peers.take(LOCK).answer(0, body=granted())
    peers.advance(1_050)
    peers.take(MEMBERS).answer(0, body=members(CLIENT_ID))
    peers.routes["T"] = route(("broker-a", {0: B}), queues=1)
    peers.take(LOCK).answer(14, remark="a slave locks no queues")
    peers.advance(1_050)
    peers.take(MEMBERS, B).answer(0, body=members(CLIENT_ID))
    assert peers.take(LOCK).address == B


def test_a_broker_without_locks_is_logged_once_and_consumed_from(peers):
    peers.routes["T"] = route(("broker-a", {0: A}), queues=3)
    group = Group(peers, orderly=True)
    peers.take(MEMBERS).answer(0, body=members(CLIENT_ID))
    for asked in peers.take_all(LOCK):
        asked.answer(3, remark=" request type 41 not supported")
    for asked in peers.take_all(READ):
        asked.answer(22)
    assert len(group.pulls()) == 3
    assert peers.script.log.events().count("no-queue-locks") == 1
    peers.advance(25_000, step_ms=1000)
    assert LOCK not in [code for _, code in peers.waiting()]


def test_one_batch_at_a_time_in_order(peers):
    group = running(peers)
    found(group.pull(), record(0, b"a"), record(1, b"b"), next_offset=2)
    found(group.pull(), record(2, b"c"), next_offset=3)
    seen = []
    while group.batches:
        assert len(group.batches) == 1
        seen += group.bodies()
        group.finish()
    assert seen == [b"a", b"b", b"c"]
    peers.advance(5000)
    assert group.commits() == {"0": "3"}


def test_a_failed_batch_comes_again_after_a_pause_and_before_what_is_behind_it(peers):
    group = running(peers)
    found(group.pull(), record(0, b"a"), record(1, b"b"), next_offset=2)
    group.finish(False)
    assert not group.batches
    peers.advance(950)
    assert not group.batches
    peers.advance(100)
    assert group.bodies() == [b"a"]
    assert group.batches[0].messages[0].reconsume_times == 1
    group.finish()
    assert group.bodies() == [b"b"]


def test_new_messages_do_not_overtake_one_that_waits(peers):
    group = running(peers)
    found(group.pull(), record(0, b"a"), next_offset=1)
    group.finish(False)
    found(group.pull(), record(1, b"b"), next_offset=2)
    assert not group.batches
    peers.advance(1050)
    assert group.bodies() == [b"a"]


def test_without_a_limit_it_comes_again_for_ever(peers):
    group = running(peers)
    found(group.pull(), record(0, b"a"), next_offset=1)
    for times in range(17):
        assert group.batches[0].messages[0].reconsume_times == times
        group.finish(False)
        peers.advance(1050)
    assert SEND_BACK not in [code for _, code in peers.log]


def test_with_a_limit_it_goes_to_the_dead_letters(peers):
    group = running(peers, max_reconsume_times=1)
    found(group.pull(), record(0, b"a"), record(1, b"b"), next_offset=2)
    group.finish(False)
    peers.advance(1050)
    group.finish(False)
    asked = peers.take(SEND_BACK)
    assert (asked.ext["delayLevel"], asked.ext["maxReconsumeTimes"]) == ("-1", "1")
    asked.answer()
    assert group.bodies() == [b"b"]


def test_what_the_broker_does_not_take_as_a_dead_letter_is_kept(peers):
    group = running(peers, max_reconsume_times=0)
    found(group.pull(), record(0, b"a"), record(1, b"b"), next_offset=2)
    group.finish(False)
    peers.take(SEND_BACK).answer(3)
    peers.advance(1050)
    assert group.bodies() == [b"a"]


# --- renewing and losing the lock


def test_the_lock_is_renewed_every_20_seconds(peers):
    group = running(peers)
    peers.always[MEMBERS] = members(CLIENT_ID)
    for _ in range(3):
        peers.advance(20_000, step_ms=1000)
        asked = peers.take(LOCK)
        assert asked.command.json["mqSet"] == [QUEUE_0]
        asked.answer(0, body=granted(QUEUE_0))
    assert list(group.consumer.works) == [MessageQueue("T", "broker-a", 0)]


def test_a_lock_another_member_has_taken_ends_the_work_on_its_queue(peers):
    group = running(peers)
    found(group.pull(), record(0), next_offset=1)
    peers.always[MEMBERS] = members(CLIENT_ID)
    peers.advance(20_000, step_ms=1000)
    peers.take(LOCK).answer(0, body=granted())
    # The listener still runs. The queue is requested again only after it ends.
    assert not group.consumer.works
    group.finish()
    assert group.commits() == {"0": "1"}
    assert peers.take(UNLOCK).command.json["mqSet"] == [QUEUE_0]


def test_nothing_is_delivered_on_a_lock_that_ran_out(peers):
    group = running(peers)
    peers.always[MEMBERS] = members(CLIENT_ID)
    found(group.pull(), record(0), record(1), next_offset=2)
    for _ in range(2):
        peers.advance(16_000, step_ms=1000)
        peers.take_all(LOCK)
    # The lease has expired. The first message was delivered under it and still counts.
    group.finish()
    assert not group.batches
    assert "queue-dropped" in peers.script.log.events()


# --- release


def test_a_queue_is_given_back_after_its_offset_is_stored(peers):
    group = running(peers)
    found(group.pull(), record(0), next_offset=1)
    group.finish()
    change_group(peers, OTHER, CLIENT_ID)
    assert UNLOCK not in [code for _, code in peers.waiting()]
    assert group.commits() == {"0": "1"}
    assert peers.take(UNLOCK).command.json == {
        "clientId": CLIENT_ID,
        "consumerGroup": "CG",
        "mqSet": [QUEUE_0],
        "onlyThisBroker": False,
    }


def test_a_listener_at_work_is_waited_for_and_counts(peers):
    group = running(peers)
    found(group.pull(), record(0), record(1), next_offset=2)
    change_group(peers, OTHER, CLIENT_ID)
    peers.advance(2000)
    assert not peers.waiting() or UNLOCK not in [code for _, code in peers.waiting()]
    group.finish()
    assert not group.batches
    assert group.commits() == {"0": "1"}
    peers.take(UNLOCK)


def test_a_listener_that_does_not_end_is_waited_for_20_seconds(peers):
    group = running(peers)
    found(group.pull(), record(0), next_offset=1)
    peers.always[MEMBERS] = members(OTHER, CLIENT_ID)
    peers.tell(A, RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": "CG"})
    peers.advance(19_000, step_ms=1000)
    assert UNLOCK not in [code for _, code in peers.waiting()]
    peers.advance(1000)
    peers.take(UNLOCK)
    group.finish()
    assert group.commits() == {}


def test_a_batch_nobody_delivered_lets_the_queue_go_at_once(peers):
    group = running(peers)
    found(group.pull(), record(0), next_offset=1)
    change_group(peers, OTHER, CLIENT_ID)
    peers.do(lambda: group.consumer.undelivered(group.batches.pop()))
    peers.take(UNLOCK)
    assert group.commits() == {}


def test_closing_gives_every_queue_back(peers):
    group = running(peers)
    found(group.pull(), record(0), next_offset=1)
    group.finish()
    group.close()
    assert group.commits() == {"0": "1"}
    peers.take(UNLOCK).answer()
    assert peers.log[-1][1] == RequestCode.UNREGISTER_CLIENT


def test_broadcasting_needs_no_locks():
    peers = Peers(routes={"T": ONE_QUEUE})
    group = Group(peers, orderly=True, broadcasting=True)
    assert group.pulls()
    assert LOCK not in [code for _, code in peers.log]
