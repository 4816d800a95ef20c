"""The broker of the next attempt: the tables of 5.x and 4.x, and the choices of MQFaultStrategy."""

import pytest

from rmqkit.client.fault_policy import FAULT_POLICIES, TABLE_4X, TABLE_5X, LatencyFault, QueueRing, RoundRobin
from rmqkit.wire.fastjson import MessageQueue

NOW = 1_000_000


def ring(*brokers, queue_count=2):
    return QueueRing([MessageQueue("T", broker, i) for broker in brokers for i in range(queue_count)], -1)


def picks(policy, queues, count, *, failed=None, now_ms=NOW):
    return [policy.pick(queues, failed, now_ms).broker_name for _ in range(count)]


@pytest.mark.parametrize(
    ("latency_ms", "pause_5x_ms", "pause_4x_ms"),
    [
        (0, 0, 0),
        (49, 0, 0),
        (50, 0, 0),
        (100, 0, 0),
        (549, 0, 0),
        (550, 2000, 30_000),
        (1000, 2000, 60_000),
        (1800, 5000, 60_000),
        (2000, 5000, 120_000),
        (3000, 6000, 180_000),
        (5000, 10_000, 180_000),
        (15_000, 30_000, 600_000),
        (99_999, 30_000, 600_000),
    ],
)
def test_pauses_follow_MQFaultStrategy_computeNotAvailableDuration(latency_ms, pause_5x_ms, pause_4x_ms):
    assert TABLE_5X.not_available_for_ms(latency_ms) == pause_5x_ms
    assert TABLE_4X.not_available_for_ms(latency_ms) == pause_4x_ms


@pytest.mark.parametrize(("table", "pause_ms"), [(TABLE_5X, 10_000), (TABLE_4X, 600_000)])
def test_a_failure_rests_as_MQFaultStrategy_updateFaultItem(table, pause_ms):
    policy = LatencyFault(table)
    policy.update("a", 3, isolate=True, reachable=True, now_ms=NOW)
    queues = ring("a", "b")
    assert picks(policy, queues, 4, now_ms=NOW + pause_ms - 1) == ["b"] * 4
    assert set(picks(policy, queues, 4, now_ms=NOW + pause_ms)) == {"a", "b"}


def test_round_robin_goes_over_all_queues():
    queues = ring("a", "b")
    taken = [RoundRobin().pick(queues, None, NOW) for _ in range(8)]
    assert taken[:4] == list(queues.queues)
    assert taken[4:] == list(queues.queues)


def test_round_robin_skips_the_broker_that_failed_as_TopicPublishInfo_selectOneMessageQueue():
    assert picks(RoundRobin(), ring("a", "b"), 6, failed="a") == ["b"] * 6


def test_round_robin_comes_back_to_the_only_broker():
    assert picks(RoundRobin(), ring("a"), 3, failed="a") == ["a"] * 3


def test_reachable_comes_before_any():
    policy = LatencyFault(TABLE_5X)
    policy.update("a", 3, isolate=True, reachable=False, now_ms=NOW)
    policy.update("b", 600, isolate=False, reachable=True, now_ms=NOW)
    # Neither is available; b was only slow, so it is reachable.
    assert picks(policy, ring("a", "b"), 4) == ["b"] * 4


def test_with_nothing_left_any_broker_is_tried():
    policy = LatencyFault(TABLE_5X)
    for broker in ("a", "b"):
        policy.update(broker, 3, isolate=True, reachable=False, now_ms=NOW)
    assert set(picks(policy, ring("a", "b"), 4)) == {"a", "b"}


def test_a_success_makes_a_broker_reachable_again():
    policy = LatencyFault(TABLE_5X)
    policy.update("a", 3, isolate=True, reachable=False, now_ms=NOW)
    policy.update("a", 3, isolate=False, reachable=True, now_ms=NOW + 5)
    assert not policy.unreachable


def test_in_5x_a_rest_is_not_cut_short_and_in_4x_it_is():
    """5.x: FaultItem.updateNotAvailableDuration can only extend. 4.x resets the start time."""
    for table, later in ((TABLE_5X, NOW + 10_000), (TABLE_4X, NOW + 1)):
        policy = LatencyFault(table)
        policy.update("a", 3, isolate=True, reachable=True, now_ms=NOW)
        policy.update("a", 3, isolate=False, reachable=True, now_ms=NOW + 1)
        assert policy.available_from_ms["a"] == later


def test_the_built_in_names_make_a_new_policy_each_time():
    assert sorted(FAULT_POLICIES) == ["latency", "latency-4x", "none"]
    first, second = FAULT_POLICIES["latency"](), FAULT_POLICIES["latency"]()
    first.update("a", 3, isolate=True, reachable=True, now_ms=NOW)
    assert picks(first, ring("a", "b"), 2) == ["b", "b"]
    assert set(picks(second, ring("a", "b"), 4)) == {"a", "b"}
