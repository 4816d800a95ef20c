"""The contract of a lock mode, as tests: what ordered consumption relies on, whoever grants the locks.

    from rmqkit.testing import LockModeContract

    class TestMine(LockModeContract):
        make = my_mode           # the factory that the plug-in registers

A mode is made for a `SimBroker`, and time is that broker's: an answer may take up to `answers_within_ms`. What a mode
decides beyond the lease (a quorum, a preferred member) is its own affair; that no queue is with two clients is not.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest

from rmqkit.broker.lock_modes import LockMode
from rmqkit.broker.locks import LOCK_LIVE_MS
from rmqkit.broker.node import Broker
from rmqkit.testing.brokers import SimBroker
from rmqkit.wire.fastjson import MessageQueue

QUEUES = tuple(MessageQueue(topic="T", broker_name="broker-a", queue_id=each) for each in range(4))


class LockModeContract:
    #: the factory under test; called with the broker for every test
    make: ClassVar[Callable[[Broker], LockMode]]
    #: settings of the broker that it is made for
    settings: ClassVar[Sequence[str]] = ()
    #: how long an answer may take; Java's consumers wait for 1 s
    answers_within_ms: ClassVar[int] = 900

    @pytest.fixture(autouse=True)
    def _made(self) -> None:
        self.broker = SimBroker(*self.settings)
        self.mode = type(self).make(self.broker.node)

    # --- what the tests are written with

    def lock(self, client_id: str, *queues: MessageQueue, group: str = "G", only_this_broker: bool = False) -> list[int]:
        """The ids of the queues that were granted."""
        answers: list[Sequence[MessageQueue] | str] = []
        now_ms = self.broker.node.clock.mono_ms
        self.mode.lock(
            group, client_id, list(queues), only_this_broker=only_this_broker, now_ms=now_ms, then=answers.append
        )
        if not answers:
            self.broker.advance(self.answers_within_ms)
        assert len(answers) == 1, f"a request was answered {len(answers)} times in {self.answers_within_ms} ms"
        (granted,) = answers
        assert not isinstance(granted, str), f"refused: {granted}"
        assert set(granted) <= set(queues), "what nobody asked for was granted"
        assert len(set(granted)) == len(granted), "a queue was granted twice"
        return sorted(queue.queue_id for queue in granted)

    def unlock(self, client_id: str, *queues: MessageQueue, group: str = "G") -> None:
        now_ms = self.broker.node.clock.mono_ms
        self.mode.unlock(group, client_id, list(queues), only_this_broker=False, now_ms=now_ms)
        self.broker.advance(self.answers_within_ms)

    def holds_any(self, group: str = "G") -> bool:
        return self.mode.holds_any(group, self.broker.node.clock.mono_ms)

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
            self.broker.advance(LOCK_LIVE_MS // 2)
            assert self.lock("c1", *QUEUES) == [0, 1, 2, 3]
            assert self.lock("c2", *QUEUES) == []

    def test_nobody_else_gets_it_before_the_lease_is_over(self) -> None:
        self.lock("c1", *QUEUES)
        self.broker.advance(LOCK_LIVE_MS - self.answers_within_ms - 1)
        assert self.lock("c2", *QUEUES) == []

    def test_a_client_that_is_gone_loses_it(self) -> None:
        self.lock("c1", *QUEUES)
        self.broker.advance(LOCK_LIVE_MS + self.answers_within_ms + 1)
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
        self.broker.advance(LOCK_LIVE_MS + self.answers_within_ms + 1)
        assert not self.holds_any()

    def test_sweeping_forgets_nothing_that_counts(self) -> None:
        self.lock("c1", *QUEUES)
        for _ in range(6):
            self.broker.advance(5_000)
            self.mode.sweep(self.broker.node.clock.mono_ms)
        assert self.lock("c2", *QUEUES) == []
        self.broker.advance(LOCK_LIVE_MS + self.answers_within_ms + 1)
        self.mode.sweep(self.broker.node.clock.mono_ms)
        assert not self.holds_any()
        assert self.lock("c2", *QUEUES) == [0, 1, 2, 3]

    def test_modes_share_nothing(self) -> None:
        self.lock("c1", *QUEUES)
        self.mode = type(self).make(SimBroker(*self.settings).node)
        assert not self.holds_any()
        assert self.lock("c2", *QUEUES) == [0, 1, 2, 3]
