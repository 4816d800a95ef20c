"""Runs the public contract suites on everything built in: the built-ins pass the same tests."""

import pytest

from rmqkit import plugins
from rmqkit.broker.locks.contract import Loose
from rmqkit.client.allocators import MachineRoom
from rmqkit.client.fault_policy import QueueRing
from rmqkit.testing import AllocatorContract, FaultPolicyContract, FilterContract, LockModeContract
from rmqkit.testing.fault_policies import queues_of

BUILT_IN = plugins.load(entry_points=False)


class TestNone(FaultPolicyContract):
    make = BUILT_IN.fault_policies["none"]


class TestLatency(FaultPolicyContract):
    make = BUILT_IN.fault_policies["latency"]


class TestLatency4x(FaultPolicyContract):
    make = BUILT_IN.fault_policies["latency-4x"]


class TestAverage(AllocatorContract):
    make = BUILT_IN.allocators["average"]
    uneven_max = 1


class TestCircle(AllocatorContract):
    make = BUILT_IN.allocators["circle"]
    uneven_max = 1


class TestConsistentHash(AllocatorContract):
    make = BUILT_IN.allocators["consistent-hash"]


class TestMachineRoom(AllocatorContract):
    """The allocator of the factory has no rooms, so it takes no queue."""

    make = BUILT_IN.allocators["machine-room"]
    shares_all = False


class TestMachineRoomWithRooms(AllocatorContract):
    make = staticmethod(lambda: MachineRoom(["east"]))
    broker_names = ("east@broker-a", "east@broker-b")
    uneven_max = 1


class TestConfig(AllocatorContract):
    make = BUILT_IN.allocators["config"]
    shares_all = False


class TestLoose(LockModeContract):
    make = BUILT_IN.lock_modes["loose"]


class TestStrict(LockModeContract):
    """A single broker."""

    make = BUILT_IN.lock_modes["strict"]
    excludes = True


@pytest.mark.long
class TestStrictInAGroup(LockModeContract):
    make = BUILT_IN.lock_modes["strict"]
    replicas = 3
    excludes = True


class TestTags(FilterContract):
    make = BUILT_IN.filters["TAG"]
    wanted = (
        ("*", {"TAGS": "a"}),
        ("", {}),
        ("a", {"TAGS": "a"}),
        ("a || b", {"TAGS": "b"}),
        (" a||b ", {"TAGS": "b"}),
        ("Aa", {"TAGS": "BB"}),
    )
    unwanted = (("a", {}), ("a", {"TAGS": "c"}), ("a || b", {"TAGS": "a || b"}))
    bad = ("||", "||||")


class TestSql92(FilterContract):
    make = BUILT_IN.filters["SQL92"]
    wanted = (
        ("a > 1", {"a": "2"}),
        ("a BETWEEN 1 AND 3 AND region IN ('eu', 'us')", {"a": "3", "region": "us"}),
        ("TAGS = 'a' OR b IS NULL", {"TAGS": "x"}),
    )
    unwanted = (("a > 1", {"a": "1"}), ("a > 1", {}), ("a > 1", {"a": "x"}), ("TAGS = 'a' OR b IS NULL", {"b": "1"}))
    bad = ("", "a >", "a > 'x'", "a LIKE 'x'", "(a > 1", "*", "a || b")


@pytest.mark.parametrize("hook", ["fault_policies", "allocators", "lock_modes", "filters"])
def test_every_built_in_has_its_suite(hook):
    suites = [each for each in globals().values() if isinstance(each, type) and each.__name__.startswith("Test")]
    tried = {suite.make.name for suite in suites if isinstance(suite.make, plugins.FactoryCheck)}
    assert set(getattr(BUILT_IN, hook)) <= tried


# --- the suites find violations


class Stuck:
    """Never picks a broker again after one failure."""

    def __init__(self):
        self.failed = set()

    def pick(self, ring, broker_failed, now_ms):
        return ring.next_with(lambda queue: queue.broker_name not in self.failed) or ring.next()

    def update(self, broker_name, latency_ms, *, isolate, reachable, now_ms):
        if isolate:
            self.failed.add(broker_name)


class Shared(Stuck):
    """Stores failures in the class, so the producers of a process affect each other."""

    failures = set()  # noqa: RUF012

    def __init__(self):
        self.failed = self.failures


class Greedy:
    """Gives every member all queues."""

    name = "GREEDY"

    def allocate(self, group, client_id, queues, client_ids):
        return list(queues)


class Forgetful:
    """Leaves out the queues that cannot be divided evenly."""

    name = "FORGETFUL"

    def allocate(self, group, client_id, queues, client_ids):
        if client_id not in client_ids:
            return []
        share, index = len(queues) // len(client_ids), client_ids.index(client_id)
        return list(queues[index * share : (index + 1) * share])


def suite_of(base, factory):
    return type("Suite", (base,), {"make": staticmethod(factory)})()


def test_a_policy_that_gives_brokers_up_is_found():
    with pytest.raises(AssertionError):
        suite_of(FaultPolicyContract, Stuck).test_a_broker_that_failed_is_tried_again_a_day_later(Stuck(), "broker-a")


def test_a_policy_with_shared_state_is_found():
    with pytest.raises(AssertionError):
        suite_of(FaultPolicyContract, Shared).test_the_factory_makes_policies_that_share_nothing()


def test_a_policy_that_picks_what_just_failed_is_found():
    class Blind(Stuck):
        def pick(self, ring, broker_failed, now_ms):
            return ring.queues[0]

    with pytest.raises(AssertionError):
        suite_of(FaultPolicyContract, Blind).test_the_next_try_is_not_on_the_broker_that_just_failed(Blind(), "broker-a")


def test_an_allocator_that_gives_a_queue_twice_is_found():
    with pytest.raises(AssertionError):
        suite_of(AllocatorContract, Greedy).test_no_queue_is_taken_twice(8, 3)


def test_an_allocator_that_leaves_queues_over_is_found():
    with pytest.raises(AssertionError):
        suite_of(AllocatorContract, Forgetful).test_no_queue_is_left_over(8, 3)


def lock_suite(factory, **attributes):
    suite = type("Suite", (LockModeContract,), {"make": staticmethod(factory), **attributes})()
    suite.cluster = suite.make_group()
    return suite


class Generous(Loose):
    """Grants every lock to every client."""

    def lock(self, group, client_id, queues, **more):
        self.table.by_group.clear()
        self.table.count = 0
        super().lock(group, client_id, queues, **more)


def test_a_lock_mode_that_grants_a_queue_twice_is_found():
    with pytest.raises(AssertionError):
        lock_suite(lambda broker: Generous()).test_a_queue_is_with_one_client()


def test_a_lock_mode_that_does_not_exclude_is_found():
    loose = BUILT_IN.lock_modes["loose"]
    with pytest.raises(AssertionError):
        lock_suite(loose, replicas=3, excludes=True).test_no_broker_grants_against_another()
    with pytest.raises(AssertionError):
        lock_suite(loose, excludes=True).test_a_broker_that_was_killed_does_not_grant_what_it_forgot()


def test_a_lock_mode_that_never_answers_is_found():
    class Mute(Loose):
        def lock(self, *args, **more):
            pass

    with pytest.raises(AssertionError, match="answered 0 times"):
        lock_suite(lambda broker: Mute()).test_a_free_queue_is_granted()


def test_a_lock_mode_may_answer_later():
    class Slow(Loose):
        def __init__(self, broker):
            super().__init__()
            self.broker = broker

        def lock(self, *args, then, **more):
            def answer(outcome):
                duties = self.broker.duties

                def late(now_ms):
                    duties.remove("slow")
                    then(outcome)

                duties.add("slow", late, self.broker.clock.mono_ms + 500)

            super().lock(*args, then=answer, **more)

    lock_suite(Slow).test_a_queue_is_with_one_client()


def test_a_ring_for_the_suite_has_every_broker_in_it():
    ring = QueueRing(queues_of("broker-a", "broker-b"), 0)
    assert [queue.broker_name for queue in ring.queues] == ["broker-a", "broker-a", "broker-b", "broker-b"]
