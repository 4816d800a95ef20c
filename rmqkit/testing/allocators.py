"""The contract of an allocator, as tests: what consumer groups rely on.

    from rmqkit.testing import AllocatorContract

    class TestMine(AllocatorContract):
        make = MyAllocator       # the factory that the plug-in registers

Every member of a group computes its own share with its own allocator, from the same two sorted
lists. The members do not talk to each other. So the tests check that the shares fit together.

An allocator that leaves queues out on purpose sets `shares_all = False`. One that does not spread
the queues evenly leaves `uneven_max` at None.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest

from rmqkit.client.allocators import Allocator, sorted_ids
from rmqkit.wire.fastjson import MessageQueue

#: number of queues of the topic, number of members of the group
SIZES = ((1, 1), (8, 1), (1, 8), (8, 8), (8, 3), (3, 8), (16, 5), (64, 7))


class AllocatorContract:
    """Tests for an allocator. Subclass it and set `make`.

    Attributes:
        make: The factory under test. The tests call it without arguments, once for each member.
        broker_names: The broker names of the topic's queues. Set names that your allocator
            understands, if it reads them.
        shares_all: Whether every queue gets a member.
        uneven_max: Most queues that one member has more than another. None: no limit.

    Example:
        Test an allocator that deals out the queues one by one:

            from rmqkit.testing import AllocatorContract

            class TestMine(AllocatorContract):
                make = MyAllocator
                uneven_max = 1
    """

    make: ClassVar[Callable[[], Allocator]]
    broker_names: ClassVar[Sequence[str]] = ("broker-a", "broker-b")
    shares_all: ClassVar[bool] = True
    uneven_max: ClassVar[int | None] = None

    def __init_subclass__(cls) -> None:
        """Remove the tests of properties that the allocator does not have."""
        super().__init_subclass__()
        if not cls.shares_all:
            cls.test_no_queue_is_left_over = cls.test_who_is_no_member_gets_nothing = None  # type: ignore[method-assign,assignment]  # pytest skips None
        if cls.uneven_max is None:
            cls.test_shares_are_as_even_as_promised = None  # type: ignore[method-assign,assignment]  # pytest skips None

    def queues(self, count: int, topic: str = "T") -> list[MessageQueue]:
        """Return `count` queues of `broker_names` in turn, sorted as consumers sort them.

        Args:
            count: Number of queues.
            topic: Their topic.
        """
        names = type(self).broker_names
        unsorted = [
            MessageQueue(topic=topic, broker_name=names[i % len(names)], queue_id=i // len(names)) for i in range(count)
        ]
        return sorted(unsorted, key=lambda queue: (queue.topic, queue.broker_name, queue.queue_id))

    def members(self, count: int) -> list[str]:
        """Return `count` client ids, sorted as consumers sort them.

        Args:
            count: Number of members.
        """
        return sorted_ids([f"10.0.{i % 3}.{i}@{7000 + i}" for i in range(count)])

    def shares(self, queues: Sequence[MessageQueue], members: Sequence[str]) -> list[list[MessageQueue]]:
        """Return the share of each member, in the order of `members`.

        Each member uses a new allocator.

        Args:
            queues: All queues, sorted.
            members: All client ids, sorted.
        """
        return [list(type(self).make().allocate("G", member, queues, members)) for member in members]

    @pytest.mark.parametrize(("queue_count", "member_count"), SIZES)
    def test_no_queue_is_taken_twice(self, queue_count: int, member_count: int) -> None:
        queues = self.queues(queue_count)
        taken = [queue for share in self.shares(queues, self.members(member_count)) for queue in share]
        assert len(taken) == len(set(taken))
        assert set(taken) <= set(queues)

    @pytest.mark.parametrize(("queue_count", "member_count"), SIZES)
    def test_no_queue_is_left_over(self, queue_count: int, member_count: int) -> None:
        queues = self.queues(queue_count)
        taken = [queue for share in self.shares(queues, self.members(member_count)) for queue in share]
        assert set(taken) == set(queues)

    @pytest.mark.parametrize(("queue_count", "member_count"), SIZES)
    def test_shares_are_as_even_as_promised(self, queue_count: int, member_count: int) -> None:
        sizes = [len(share) for share in self.shares(self.queues(queue_count), self.members(member_count))]
        assert max(sizes) - min(sizes) <= (type(self).uneven_max or 0)

    def test_a_member_gets_the_same_share_each_time(self) -> None:
        queues, members = self.queues(16), self.members(3)
        allocator = type(self).make()
        first = [list(allocator.allocate("G", member, queues, members)) for member in members]
        again = [list(allocator.allocate("G", member, queues, members)) for member in members]
        assert first == again == self.shares(queues, members)

    def test_what_it_is_given_stays_as_it_is(self) -> None:
        queues, members = self.queues(8), self.members(3)
        type(self).make().allocate("G", members[1], queues, members)
        assert (queues, members) == (self.queues(8), self.members(3))

    def test_who_is_no_member_gets_nothing(self) -> None:
        """Its heartbeat has not arrived yet, so the other members do not count it."""
        assert list(type(self).make().allocate("G", "10.9.9.9@1", self.queues(8), self.members(3))) == []

    @pytest.mark.parametrize(("queue_count", "member_count"), [(0, 2), (4, 0)])
    def test_nothing_to_share_is_refused_or_shared_as_nothing(self, queue_count: int, member_count: int) -> None:
        queues, members = self.queues(queue_count), self.members(member_count)
        try:
            share = type(self).make().allocate("G", "10.0.0.0@7000", queues, members)
        except ValueError:
            return
        assert list(share) == []

    def test_topics_are_shared_each_for_itself(self) -> None:
        members = self.members(2)
        for topic in ("T", "U"):
            for share in self.shares(self.queues(4, topic), members):
                assert {queue.topic for queue in share} <= {topic}

    def test_it_has_a_name(self) -> None:
        """A consumer's running info shows the name."""
        name = type(self).make().name
        assert isinstance(name, str)
        assert name
