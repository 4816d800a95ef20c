"""The contract of a fault policy, as tests: what every producer relies on.

    from rmqkit.testing import FaultPolicyContract

    class TestMine(FaultPolicyContract):
        make = MyPolicy          # the factory that the plug-in registers

Time is an argument of the policy, and the tests choose it. A policy that prefers some brokers even
without failures sets `spreads = False`. Everything else holds for every policy.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest

from rmqkit.client.fault_policy import FaultPolicy, QueueRing
from rmqkit.wire.fastjson import MessageQueue

BROKERS = ("broker-a", "broker-b", "broker-c")
START_MS = 1_000_000
DAY_MS = 86_400_000
LATENCIES_MS = (0, 1, 49, 50, 549, 550, 2_000, 15_000, 10**9)


def queues_of(*brokers: str, topic: str = "T", each: int = 2) -> list[MessageQueue]:
    """Return queues of a topic on the given brokers, in the order of a route.

    Args:
        *brokers: Names of the brokers.
        topic: The topic.
        each: Number of queues on each broker.
    """
    return [MessageQueue(topic=topic, broker_name=name, queue_id=i) for name in brokers for i in range(each)]


def picks(policy: FaultPolicy, ring: QueueRing, count: int, now_ms: int = START_MS) -> list[MessageQueue]:
    """Return the queues that the policy picks for `count` first attempts."""
    return [policy.pick(ring, None, now_ms) for _ in range(count)]


def fail(policy: FaultPolicy, broker: str, now_ms: int = START_MS) -> None:
    """Report an attempt without a response to the policy, as a producer does."""
    policy.update(broker, 3_000, isolate=True, reachable=False, now_ms=now_ms)


class FaultPolicyContract:
    """Tests for a fault policy. Subclass it and set `make`.

    Attributes:
        make: The factory under test. Each test calls it without arguments.
        spreads: Whether every queue gets its turn as long as nothing fails.

    Example:
        Test a policy that prefers some brokers:

            from rmqkit.testing import FaultPolicyContract

            class TestMine(FaultPolicyContract):
                make = MyPolicy
                spreads = False
    """

    make: ClassVar[Callable[[], FaultPolicy]]
    spreads: ClassVar[bool] = True

    def __init_subclass__(cls) -> None:
        """Remove the test of a property that the policy does not have."""
        super().__init_subclass__()
        if not cls.spreads:
            cls.test_every_queue_has_its_turn_while_all_is_well = None  # type: ignore[method-assign,assignment]  # pytest skips None

    @pytest.fixture
    def policy(self) -> FaultPolicy:
        """A new policy for each test.

        Example:
            Add a test of your own to the suite:

                from rmqkit.client.fault_policy import QueueRing
                from rmqkit.testing.fault_policies import queues_of

                class TestMine(FaultPolicyContract):
                    make = MyPolicy

                    def test_it_begins_with_the_second_queue(self, policy):
                        ring = QueueRing(queues_of("broker-a"), 0)
                        assert policy.pick(ring, None, 0).queue_id == 1
        """
        return type(self).make()

    def test_it_picks_from_the_ring_it_is_given(self, policy: FaultPolicy) -> None:
        for topic in ("T", "U", "T"):
            queues = queues_of(*BROKERS, topic=topic)
            for queue in picks(policy, QueueRing(queues, 0), 10):
                assert queue in queues

    def test_it_leaves_the_queues_as_they_are(self, policy: FaultPolicy) -> None:
        queues = queues_of(*BROKERS)
        ring = QueueRing(queues, 0)
        picks(policy, ring, 3)
        fail(policy, "broker-b")
        policy.pick(ring, "broker-b", START_MS)
        assert ring.queues is queues
        assert queues == queues_of(*BROKERS)

    def test_every_queue_has_its_turn_while_all_is_well(self, policy: FaultPolicy) -> None:
        queues = queues_of(*BROKERS)
        ring = QueueRing(queues, 5)
        seen = []
        for _ in range(len(queues) * 4):
            queue = policy.pick(ring, None, START_MS)
            policy.update(queue.broker_name, 2, isolate=False, reachable=True, now_ms=START_MS)
            seen.append(queue)
        assert set(seen) == set(queues)

    @pytest.mark.parametrize("broker", BROKERS)
    def test_the_next_try_is_not_on_the_broker_that_just_failed(self, policy: FaultPolicy, broker: str) -> None:
        ring = QueueRing(queues_of(*BROKERS), 0)
        for now_ms in range(START_MS, START_MS + 20_000, 1_000):
            fail(policy, broker, now_ms)
            assert policy.pick(ring, broker, now_ms).broker_name != broker

    def test_a_broker_that_is_alone_is_tried_again(self, policy: FaultPolicy) -> None:
        ring = QueueRing(queues_of("broker-a"), 0)
        for _ in range(5):
            fail(policy, "broker-a")
            assert policy.pick(ring, "broker-a", START_MS).broker_name == "broker-a"

    def test_it_picks_when_every_broker_has_failed(self, policy: FaultPolicy) -> None:
        queues = queues_of(*BROKERS)
        ring = QueueRing(queues, 0)
        for broker in BROKERS:
            fail(policy, broker)
        assert all(queue in queues for queue in picks(policy, ring, 10))
        assert policy.pick(ring, "broker-c", START_MS) in queues

    @pytest.mark.parametrize("broker", BROKERS)
    def test_a_broker_that_failed_is_tried_again_a_day_later(self, policy: FaultPolicy, broker: str) -> None:
        """A policy gives up no broker for good: nothing else checks whether the broker is back."""
        wanted = _brokers(picks(type(self).make(), QueueRing(queues_of(*BROKERS), 0), 60))
        fail(policy, broker)
        found = picks(policy, QueueRing(queues_of(*BROKERS), 0), 60, START_MS + DAY_MS)
        assert _brokers(found) >= wanted

    @pytest.mark.parametrize("latency_ms", LATENCIES_MS)
    def test_any_outcome_of_any_broker_is_taken(self, policy: FaultPolicy, latency_ms: int) -> None:
        queues = queues_of(*BROKERS)
        for isolate in (False, True):
            for reachable in (False, True):
                for broker in (*BROKERS, "never-heard-of"):
                    policy.update(broker, latency_ms, isolate=isolate, reachable=reachable, now_ms=START_MS)
                    assert policy.pick(QueueRing(queues, 0), broker, START_MS) in queues

    def test_the_factory_makes_policies_that_share_nothing(self) -> None:
        one, two, three = (type(self).make() for _ in range(3))
        before = picks(one, QueueRing(queues_of(*BROKERS), 0), 12)
        for broker in BROKERS[:2]:
            fail(two, broker)
        assert picks(three, QueueRing(queues_of(*BROKERS), 0), 12) == before

    def test_the_same_outcomes_lead_to_the_same_choices(self) -> None:
        """A policy neither uses random numbers nor reads a clock: simulated runs are repeatable."""
        assert self._run() == self._run()

    def _run(self) -> Sequence[MessageQueue]:
        policy = type(self).make()
        ring = QueueRing(queues_of(*BROKERS), 3)
        chosen: list[MessageQueue] = []
        failed = None
        for turn in range(60):
            now_ms = START_MS + turn * 700
            queue = policy.pick(ring, failed, now_ms)
            bad = turn % 7 == 3
            policy.update(queue.broker_name, 40 * (turn % 30), isolate=bad, reachable=not bad, now_ms=now_ms)
            failed = queue.broker_name if bad else None
            chosen.append(queue)
        return chosen


def _brokers(queues: Sequence[MessageQueue]) -> set[str]:
    return {queue.broker_name for queue in queues}
