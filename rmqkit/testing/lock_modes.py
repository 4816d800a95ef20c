"""The contract of a lock mode, as tests: what ordered consumption relies on, whoever grants the locks.

    from rmqkit.testing import LockModeContract

    class TestMine(LockModeContract):
        make = my_mode           # the factory that the plug-in registers

    class TestMineInAGroup(LockModeContract):
        make = my_mode
        replicas = 3             # brokers of the group; the mode is asked at its master
        excludes = True          # no queue is with two clients, whichever broker is asked and whatever is cut or killed

A mode is made for each broker of a simulated group, and time is the simulator's: an answer may take up to
`answers_within_ms`. What a mode decides beyond the lease (a quorum, a preferred member) is its own affair; that no queue is
with two clients is not. A group of several has acting masters and short timers.
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
#: how long a mode may need after the start of its group before it grants
READY_MS = 5_000

#: tests of modes that exclude, and how many brokers each wants
EXCLUDING = {
    "test_no_broker_grants_against_another": 2,
    "test_two_that_ask_at_once_do_not_both_get_it": 2,
    "test_on_both_sides_of_a_cut_one_client_has_it": 3,
    "test_what_got_no_quorum_is_given_back": 3,
    "test_a_broker_that_was_killed_does_not_grant_what_it_forgot": 1,
}


class LockModeContract:
    #: the factory under test; called with each broker of each test's group
    make: ClassVar[Callable[[BrokerView], LockMode]]
    #: settings of the brokers that it is made for, "key=value"
    settings: ClassVar[Sequence[str]] = ()
    #: how long an answer may take; Java's consumers wait for 1 s
    answers_within_ms: ClassVar[int] = 900
    #: brokers of the group
    replicas: ClassVar[int] = 1
    #: the brokers of a group do not grant against each other, nor after a restart against what they granted before
    excludes: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Tests of what the mode does not promise are left out."""
        super().__init_subclass__()
        for name, replicas in EXCLUDING.items():
            if not cls.excludes or cls.replicas < replicas:
                setattr(cls, name, None)

    @pytest.fixture(autouse=True)
    def _made(self) -> None:
        self.cluster = self.make_group()

    # --- what the tests are written with

    def make_group(self) -> SimCluster:
        """A group of its own, which grants."""
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
        """The mode of the group's broker with that id."""
        return self.cluster.broker(self.cluster.brokers[at]).locks

    def now_ms(self, at: int = 0) -> int:
        return self.cluster.broker(self.cluster.brokers[at]).clock.mono_ms

    def advance(self, ms: int) -> None:
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
        """Ask without waiting; the answer comes into the list."""
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
        """The ids of the queues that were granted; with `refused` an answer that is a text is none."""
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
        assert len(answers) == 1, f"a request was answered {len(answers)} times in {self.answers_within_ms} ms"
        granted = answers[0][0]
        if isinstance(granted, str):
            assert refused, f"refused: {granted}"
            return []
        assert set(granted) <= set(queues), "what nobody asked for was granted"
        assert len(set(granted)) == len(granted), "a queue was granted twice"
        return sorted(queue.queue_id for queue in granted)

    def unlock(self, client_id: str, *queues: MessageQueue, group: str = "G", at: int = 0) -> None:
        def unlock(broker: Broker) -> None:
            now_ms = broker.clock.mono_ms
            broker.locks.unlock(group, client_id, list(queues), only_this_broker=False, now_ms=now_ms)

        self.cluster.world.call(self.cluster.brokers[at], unlock)
        self.advance(self.answers_within_ms)

    def holds_any(self, group: str = "G") -> bool:
        return self.mode().holds_any(group, self.now_ms())

    def cut(self, *cut_off: int) -> None:
        """These brokers of the group and the others hear nothing of each other, until `heal`."""
        names = self.cluster.brokers
        others = [name for at, name in enumerate(names) if at not in cut_off]
        self.cluster.world.net.partition([names[at] for at in cut_off], others)

    def heal(self) -> None:
        self.cluster.world.net.heal()

    def kill(self, at: int) -> None:
        """kill -9, and the broker starts again."""
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
        """`only_this_broker`: no question goes round in circles, and a foreign lock is seen."""
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

    # --- of modes that exclude

    def test_no_broker_grants_against_another(self) -> None:
        assert self.lock("c1", *QUEUES[:2]) == [0, 1]
        assert self.lock("c2", *QUEUES, at=1) == [2, 3]
        assert self.lock("c1", *QUEUES, at=1) == [0, 1], "a lock is renewed wherever its owner asks"

    def test_two_that_ask_at_once_do_not_both_get_it(self) -> None:
        for at in (0, 1):
            for other in range(self.replicas):
                one, two = self.ask("c1", *QUEUES, at=at), self.ask("c2", *QUEUES, at=other)
                self.advance(self.answers_within_ms)
                got = self.granted(one, QUEUES, refused=True) + self.granted(two, QUEUES, refused=True)
                assert len(set(got)) == len(got), f"granted twice: {sorted(got)}"
                self.unlock("c1", *QUEUES, at=at)
                self.unlock("c2", *QUEUES, at=other)
        assert self.lock("c3", *QUEUES) == [0, 1, 2, 3], "whatever happened, it was given back"

    def test_on_both_sides_of_a_cut_one_client_has_it(self) -> None:
        assert self.lock("c1", *QUEUES) == [0, 1, 2, 3]
        self.cut(0)
        assert self.lock("c2", *QUEUES, at=1, refused=True) == []
        assert self.lock("c1", *QUEUES, refused=True) == [], "a minority renews nothing"
        assert self.lock("c2", *QUEUES, at=1, refused=True) == [], "and gives nothing up that runs"
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
        assert self.lock("c2", *QUEUES) == [0, 1, 2, 3], "what was forgotten has run out"
