"""The contract of a lock mode, as tests: what ordered consumption relies on.

    from rmqkit.testing import LockModeContract

    class TestMine(LockModeContract):
        make = my_mode           # the factory that the plug-in registers

    class TestMineInAGroup(LockModeContract):
        make = my_mode
        replicas = 3             # brokers of the group; requests go to its master by default
        excludes = True          # never two owners of a queue, despite partitions and restarts

The tests create a mode for each broker of a simulated group, in virtual time. A response may take
up to `answers_within_ms`. How a mode decides (alone, by quorum, for a preferred member) is its own
choice. In every mode a broker has one owner per queue; with `excludes` the whole group has.

A group of several brokers has acting masters and short timers.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest

from rmqkit.broker.locks.contract import NOTHING_MORE, LockMode, More
from rmqkit.broker.locks.lock_table import LOCK_LIVE_MS
from rmqkit.broker.node import Broker
from rmqkit.broker.view import BrokerView
from rmqkit.sim.cluster import SimCluster
from rmqkit.sim.world import World
from rmqkit.wire.fastjson import MessageQueue

QUEUES = tuple(MessageQueue(topic="T", broker_name="broker-a", queue_id=each) for each in range(4))
#: time in ms between the start of a group and the first lock request
READY_MS = 5_000

#: tests that need `excludes`, and how many brokers each needs
EXCLUDING = {
    "test_no_broker_grants_against_another": 2,
    "test_two_that_ask_at_once_do_not_both_get_it": 2,
    "test_on_both_sides_of_a_cut_one_client_has_it": 3,
    "test_what_got_no_quorum_is_given_back": 3,
    "test_a_broker_that_was_killed_does_not_grant_what_it_forgot": 1,
}


class LockModeContract:
    """Tests for a lock mode. Subclass it and set `make`.

    Attributes:
        make: The factory under test. The tests call it for each broker of a group.
        settings: Settings of the brokers, as `key=value`.
        answers_within_ms: The longest time that a response may take. Java's consumers wait for 1 s.
        replicas: Number of brokers in the group.
        excludes: Whether the group never has two owners of a queue: no broker grants a lock that
            another broker has granted, or that it granted itself before a restart.
        cluster: The simulated cluster of the current test (`rmqkit.sim.cluster.SimCluster`).

    Example:
        Test a mode on a single broker and in a group of three:

            from rmqkit.testing import LockModeContract

            class TestMine(LockModeContract):
                make = my_mode

            class TestMineInAGroup(LockModeContract):
                make = my_mode
                replicas = 3
                excludes = True
    """

    make: ClassVar[Callable[[BrokerView], LockMode]]
    settings: ClassVar[Sequence[str]] = ()
    answers_within_ms: ClassVar[int] = 900
    replicas: ClassVar[int] = 1
    excludes: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Remove the tests of properties that the mode does not have."""
        super().__init_subclass__()
        for name, replicas in EXCLUDING.items():
            if not cls.excludes or cls.replicas < replicas:
                setattr(cls, name, None)

    @pytest.fixture(autouse=True)
    def _set_up(self) -> None:
        self.cluster = self.make_group()

    # --- for the tests

    def make_group(self) -> SimCluster:
        """Return a new simulated group that is ready to grant locks."""
        settings: dict[str, Any] = dict(each.split("=", 1) for each in self.settings)
        many = self.replicas > 1
        cluster = SimCluster(
            World(seed=1),
            replicas=self.replicas,
            acting=many,
            fast=many,
            settings=settings,
            lock_mode=type(self).make,
        )
        cluster.ready()
        cluster.world.run_for(READY_MS)
        return cluster

    def mode(self, at: int = 0) -> LockMode:
        """Return the lock mode of a broker.

        Args:
            at: The broker's id.
        """
        return self.cluster.broker(self.cluster.brokers[at]).locks

    def now_ms(self, at: int = 0) -> int:
        """Return the monotonic time of a broker in ms.

        Args:
            at: The broker's id.
        """
        return self.cluster.broker(self.cluster.brokers[at]).clock.mono_ms

    def advance(self, ms: int) -> None:
        """Let time pass.

        Args:
            ms: Milliseconds of virtual time.
        """
        self.cluster.world.run_for(ms)

    def ask(
        self,
        client_id: str,
        *queues: MessageQueue,
        group: str = "G",
        only_this_broker: bool = False,
        at: int = 0,
        more: More = NOTHING_MORE,
    ) -> list[tuple[Sequence[MessageQueue] | str, More]]:
        """Send a lock request without waiting. Return a list that the response is appended to.

        A response is the granted queues or an error text, and the object `rmqkit` beside them.

        Args:
            client_id: The client that wants the locks.
            *queues: The queues to lock.
            group: The consumer group.
            only_this_broker: Whether the caller is another broker of the group, not a client.
            at: Id of the broker that gets the request.
            more: The object `rmqkit` of the request.
        """
        answers: list[tuple[Sequence[MessageQueue] | str, More]] = []

        def then(outcome: Sequence[MessageQueue] | str, more: More = NOTHING_MORE) -> None:
            answers.append((outcome, more))

        def lock(broker: Broker) -> None:
            broker.locks.lock(
                group,
                client_id,
                list(queues),
                only_this_broker=only_this_broker,
                now_ms=broker.clock.mono_ms,
                then=then,
                more=more,
            )

        self.cluster.world.call(self.cluster.brokers[at], lock)
        return answers

    def lock(
        self,
        client_id: str,
        *queues: MessageQueue,
        group: str = "G",
        only_this_broker: bool = False,
        at: int = 0,
        refused: bool = False,
    ) -> list[int]:
        """Lock queues and return the ids of those that were granted.

        Fails if there is no response within `answers_within_ms`.

        Args:
            client_id: The client that wants the locks.
            *queues: The queues to lock.
            group: The consumer group.
            only_this_broker: Whether the caller is another broker of the group, not a client.
            at: Id of the broker that gets the request.
            refused: Whether an error text counts as no grant. By default the test fails.
        """
        answers = self.ask(client_id, *queues, group=group, only_this_broker=only_this_broker, at=at)
        self.cluster.world.run_until(lambda: answers, self.answers_within_ms)
        return self.granted(answers, queues, refused=refused)

    def granted(
        self,
        answers: Sequence[tuple[Sequence[MessageQueue] | str, More]],
        queues: Sequence[MessageQueue],
        *,
        refused: bool = False,
    ) -> list[int]:
        """Return the ids of the granted queues from a list that `ask` returned.

        Fails unless there is exactly one response, or if it grants a queue twice or one that was
        not requested.

        Args:
            answers: The list of responses.
            queues: The requested queues.
            refused: Whether an error text counts as no grant. By default the test fails.
        """
        assert len(answers) == 1, f"a request was answered {len(answers)} times in {self.answers_within_ms} ms"
        granted = answers[0][0]
        if isinstance(granted, str):
            assert refused, f"refused: {granted}"
            return []
        assert set(granted) <= set(queues), "a queue was granted that was not requested"
        assert len(set(granted)) == len(granted), "a queue was granted twice"
        return sorted(queue.queue_id for queue in granted)

    def unlock(self, client_id: str, *queues: MessageQueue, group: str = "G", at: int = 0) -> None:
        """Release queues, and let `answers_within_ms` pass.

        Args:
            client_id: The client that releases the locks.
            *queues: The queues to unlock.
            group: The consumer group.
            at: Id of the broker that gets the request.
        """

        def unlock(broker: Broker) -> None:
            now_ms = broker.clock.mono_ms
            broker.locks.unlock(group, client_id, list(queues), only_this_broker=False, now_ms=now_ms)

        self.cluster.world.call(self.cluster.brokers[at], unlock)
        self.advance(self.answers_within_ms)

    def holds_any(self, group: str = "G") -> bool:
        """Return whether the master says that a queue is locked for the consumer group.

        Args:
            group: The consumer group.
        """
        return self.mode().holds_any(group, self.now_ms())

    def cut(self, *cut_off: int) -> None:
        """Separate some brokers of the group from the other ones until `heal`.

        Args:
            *cut_off: Ids of the brokers on one side.
        """
        names = self.cluster.brokers
        others = [name for at, name in enumerate(names) if at not in cut_off]
        self.cluster.world.net.partition([names[at] for at in cut_off], others)

    def heal(self) -> None:
        """End all separations."""
        self.cluster.world.net.heal()

    def kill(self, at: int) -> None:
        """Kill a broker (`kill -9`), start it again, and wait until it serves.

        Args:
            at: The broker's id.
        """
        name = self.cluster.brokers[at]
        self.cluster.world.kill(name)
        self.advance(100)
        self.cluster.world.restart(name)
        assert self.cluster.world.run_until(lambda: self.cluster.broker(name).serving, 30_000)

    # --- the contract

    def test_a_free_queue_is_granted(self) -> None:
        assert self.lock("c1", *QUEUES) == [0, 1, 2, 3]

    def test_a_queue_is_with_one_client(self) -> None:
        self.lock("c1", *QUEUES[:2])
        assert self.lock("c2", *QUEUES) == [2, 3]
        assert self.lock("c1", *QUEUES) == [0, 1]

    def test_its_owner_renews(self) -> None:
        self.lock("c1", *QUEUES)
        for _ in range(4):
            self.advance(LOCK_LIVE_MS // 2)
            assert self.lock("c1", *QUEUES) == [0, 1, 2, 3]
            assert self.lock("c2", *QUEUES) == []

    def test_nobody_else_gets_it_before_the_lease_is_over(self) -> None:
        self.lock("c1", *QUEUES)
        self.advance(LOCK_LIVE_MS - self.answers_within_ms - 1)
        assert self.lock("c2", *QUEUES) == []

    def test_a_client_that_is_gone_loses_it(self) -> None:
        self.lock("c1", *QUEUES)
        self.advance(LOCK_LIVE_MS + self.answers_within_ms + 1)
        assert self.lock("c2", *QUEUES) == [0, 1, 2, 3]
        assert self.lock("c1", *QUEUES) == []

    def test_its_owner_gives_it_back(self) -> None:
        self.lock("c1", *QUEUES)
        self.unlock("c1", QUEUES[1], QUEUES[3])
        assert self.lock("c2", *QUEUES) == [1, 3]

    def test_nobody_else_gives_it_back(self) -> None:
        self.lock("c1", *QUEUES)
        self.unlock("c2", *QUEUES)
        self.unlock("c1", *QUEUES, group="H")
        assert self.lock("c2", *QUEUES) == []

    def test_what_was_never_locked_may_be_given_back(self) -> None:
        self.unlock("c1", *QUEUES)
        assert self.lock("c2", *QUEUES) == [0, 1, 2, 3]

    def test_groups_do_not_meet(self) -> None:
        self.lock("c1", *QUEUES, group="G")
        assert self.lock("c2", *QUEUES, group="H") == [0, 1, 2, 3]

    def test_another_broker_of_the_group_is_answered(self) -> None:
        """`only_this_broker`: the broker decides alone, so that requests do not circulate.

        It respects the locks that it has granted to other clients.
        """
        assert self.lock("c1", *QUEUES[:2], only_this_broker=True) == [0, 1]
        assert self.lock("c2", *QUEUES, only_this_broker=True) == [2, 3]

    def test_no_queues_are_no_locks(self) -> None:
        assert self.lock("c1") == []
        assert not self.holds_any()

    def test_a_group_that_holds_a_lock_is_known(self) -> None:
        assert not self.holds_any()
        self.lock("c1", QUEUES[0])
        assert self.holds_any()
        assert not self.holds_any("H")
        self.unlock("c1", QUEUES[0])
        assert not self.holds_any()
        self.lock("c1", QUEUES[0])
        self.advance(LOCK_LIVE_MS + self.answers_within_ms + 1)
        assert not self.holds_any()

    def test_sweeping_forgets_nothing_that_counts(self) -> None:
        self.lock("c1", *QUEUES)
        for _ in range(6):
            self.advance(5_000)
            self.mode().sweep(self.now_ms())
        assert self.lock("c2", *QUEUES) == []
        self.advance(LOCK_LIVE_MS + self.answers_within_ms + 1)
        self.mode().sweep(self.now_ms())
        assert not self.holds_any()
        assert self.lock("c2", *QUEUES) == [0, 1, 2, 3]

    def test_modes_share_nothing(self) -> None:
        self.lock("c1", *QUEUES)
        self.cluster = self.make_group()
        assert not self.holds_any()
        assert self.lock("c2", *QUEUES) == [0, 1, 2, 3]

    def test_facts_are_told(self) -> None:
        self.lock("c1", *QUEUES[:3])
        facts = self.mode().facts(self.now_ms())
        assert all(isinstance(value, str) for value in facts.values())
        assert (facts["lockHeld"], facts["lockVotesFrom"]) == ("3", "0")

    def test_a_clean_stop_ends(self) -> None:
        name = self.cluster.brokers[0]
        self.lock("c1", *QUEUES)
        self.cluster.world.stop(name)
        assert self.cluster.world.run_until(lambda: not self.cluster.world.is_alive(name), 10_000)
        self.cluster.world.restart(name)
        assert self.cluster.world.run_until(lambda: self.cluster.broker(name).serving, 30_000)

    # --- with `excludes`

    def test_no_broker_grants_against_another(self) -> None:
        assert self.lock("c1", *QUEUES[:2]) == [0, 1]
        assert self.lock("c2", *QUEUES, at=1) == [2, 3]
        assert self.lock("c1", *QUEUES, at=1) == [0, 1], "another broker of the group did not renew the owner's lock"

    def test_two_that_ask_at_once_do_not_both_get_it(self) -> None:
        for at in (0, 1):
            for other in range(self.replicas):
                one, two = self.ask("c1", *QUEUES, at=at), self.ask("c2", *QUEUES, at=other)
                self.advance(self.answers_within_ms)
                got = self.granted(one, QUEUES, refused=True) + self.granted(two, QUEUES, refused=True)
                assert len(set(got)) == len(got), f"granted twice: {sorted(got)}"
                self.unlock("c1", *QUEUES, at=at)
                self.unlock("c2", *QUEUES, at=other)
        assert self.lock("c3", *QUEUES) == [0, 1, 2, 3], "a lock was not released"

    def test_on_both_sides_of_a_cut_one_client_has_it(self) -> None:
        assert self.lock("c1", *QUEUES) == [0, 1, 2, 3]
        self.cut(0)
        assert self.lock("c2", *QUEUES, at=1, refused=True) == []
        assert self.lock("c1", *QUEUES, refused=True) == [], "a minority renewed a lock"
        assert self.lock("c2", *QUEUES, at=1, refused=True) == [], "the majority granted a lock before its lease expired"
        self.advance(LOCK_LIVE_MS)
        assert self.lock("c2", *QUEUES, at=1) == [0, 1, 2, 3]
        assert self.lock("c1", *QUEUES, refused=True) == []
        self.heal()
        self.advance(5_000)
        assert self.lock("c1", *QUEUES, refused=True) == []
        assert self.lock("c2", *QUEUES) == [0, 1, 2, 3]

    def test_what_got_no_quorum_is_given_back(self) -> None:
        self.cut(0)
        assert self.lock("c1", *QUEUES, refused=True) == []
        self.heal()
        self.advance(5_000)
        assert self.lock("c2", *QUEUES) == [0, 1, 2, 3]

    def test_a_broker_that_was_killed_does_not_grant_what_it_forgot(self) -> None:
        assert self.lock("c1", *QUEUES) == [0, 1, 2, 3]
        for at in range(self.replicas):
            self.kill(at)
            assert self.lock("c2", *QUEUES, at=at, refused=True) == []
        self.advance(LOCK_LIVE_MS // 2)
        for at in range(self.replicas):
            assert self.lock("c2", *QUEUES, at=at, refused=True) == []
        self.advance(2 * LOCK_LIVE_MS)
        assert self.lock("c2", *QUEUES) == [0, 1, 2, 3], "a lock outlived its lease"
