"""The contract of a controller's log, as tests: what controllers rely on.

    from rmqkit.testing import ControllerLogContract

    class TestMine(ControllerLogContract):
        make = make_my_log       # the factory that the plug-in registers
        sizes = (1, 3)           # numbers of controllers that a group may have

Each test runs for each size. The controllers of a group are driven turn by turn in virtual time,
each on its own simulated disk. Power cuts lose or tear what was not synced.
"""

import json
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from random import Random
from typing import ClassVar

import pytest

from rmqkit.controller.contract import (
    ENTRY_SIZE_MAX,
    ControllerLog,
    ControllerPeer,
    Leadership,
    LogOutcome,
    LogParts,
)
from rmqkit.runtime.duties import Duties
from rmqkit.runtime.ports import Clock, Ports
from rmqkit.sim.disk import SimDisk
from rmqkit.sim.folder import SimFolder
from rmqkit.testing.store_world import START_MS, Notes

LIMIT_MS = 60_000
SEEDS = 5
#: controllers of a group that can lose one
GROUP_LEAST = 3
#: entries after which the logs of these tests take a snapshot
SNAPSHOT_ENTRIES = 20

LogFactory = Callable[[LogParts], ControllerLog]


class LogTable:
    """What a log drives in these tests: a table that is the list of its entries."""

    def __init__(self) -> None:
        self.entries: list[bytes] = []
        self.restored = 0
        self.leaderships: list[Leadership] = []

    def apply(self, entry: bytes) -> None:
        self.entries.append(bytes(entry))

    def check(self, before: Sequence[bytes], entries: Sequence[bytes]) -> None:
        """Accept every entry."""

    def check_snapshot(self, snapshot: bytes) -> None:
        """Accept every snapshot."""

    def snapshot(self) -> bytes:
        return json.dumps([each.decode() for each in self.entries]).encode()

    def restore(self, snapshot: bytes) -> None:
        self.entries = [each.encode() for each in json.loads(bytes(snapshot))]
        self.restored += 1

    def leadership_changed(self, leadership: Leadership) -> None:
        self.leaderships.append(leadership)


class LogNode:
    """One controller of a group: a log, its table, and its disk.

    Attributes:
        id: The id of the controller.
        log: The log of the present life (`rmqkit.controller.contract.ControllerLog`).
        table: What the log drives.
        disk: The simulated disk of the present life; `disk.fail("sync")` plans an error.
        folder: The files, in all lives.
        notes: The log lines.
        is_up: Whether it runs.
    """

    def __init__(self, world: "LogWorld", number: int) -> None:
        self.id = f"n{number}"
        self.folder = SimFolder()
        self.notes = Notes()
        self.is_up = False
        self._world = world
        self._random = Random(f"{world.seed}/{self.id}")

    def start(self) -> None:
        """Begin a life on the files. Raises ControllerLogFault."""
        self.duties = Duties()
        self.table = LogTable()
        self.disk = SimDisk(self.folder, clock=self._world.clock, random=self._random, after_us=self._world.after_us)
        ports = Ports(self._world.clock, self.disk, self._random, self.notes)
        self.log = self._world.make(
            LogParts(
                ports=ports,
                duties=self.duties,
                target=self.table,
                self_id=self.id,
                peers=self._world.peers,
                send=lambda peer_id, message: self._world.carry(self, peer_id, message),
                folder="log",
                election_timeout_ms=1000,
                snapshot_entries=SNAPSHOT_ENTRIES,
            )
        )
        self.is_up = True
        self.log.start()

    def cut_power(self) -> None:
        """End the life. Pages that were not synced are kept, lost or torn."""
        self.is_up = False
        self.disk.die(self._random)
        self.folder.crash(self._random)

    def kill(self) -> None:
        """End the life as `kill -9` does: everything that was written stays."""
        self.is_up = False
        self.disk.die()
        self.folder.kill()

    def turn(self, now_ms: int) -> None:
        for then, error in list(self.disk.take_completed()):
            then(error)
        self.duties.run_due(now_ms)
        self.log.settle()


class LogWorld:
    """A group of controllers' logs in virtual time.

    Args:
        make: The factory of the logs.
        size: The number of controllers.
        seed: Seed of disks and messages.

    Attributes:
        nodes: The controllers (`LogNode`).
        clock: The clock of all.
    """

    def __init__(self, make: LogFactory, size: int, seed: int = 1) -> None:
        self.make = make
        self.seed = seed
        self.clock = Clock(mono_ms=1000, wall_ms=START_MS)
        self.peers = [ControllerPeer(f"n{number}", f"10.0.0.{number + 1}:9000") for number in range(size)]
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._random = Random(f"{seed}/net")
        self.nodes = [LogNode(self, number) for number in range(size)]
        for node in self.nodes:
            node.start()

    def after_us(self, delay_us: int, function: Callable[[], None]) -> None:
        self._sequence += 1
        heappush(self._events, (self.clock.mono_ms * 1000 + delay_us, self._sequence, function))

    def carry(self, sender: LogNode, peer_id: str, message: bytes) -> None:
        """Deliver a message after 1 to 5 ms, if both are up then."""
        receiver = next(node for node in self.nodes if node.id == peer_id)
        life = sender.log

        def arrive() -> None:
            if receiver.is_up and sender.is_up and sender.log is life:
                receiver.log.receive(sender.id, message)

        self.after_us(self._random.randrange(1000, 5000), arrive)

    def turn(self) -> None:
        """Let 1 ms pass, then run a turn of each controller that is up."""
        self.clock.mono_ms += 1
        self.clock.wall_ms += 1
        while self._events and self._events[0][0] <= self.clock.mono_ms * 1000:
            heappop(self._events)[2]()
        for node in self.nodes:
            if node.is_up:
                node.turn(self.clock.mono_ms)

    def until(self, wanted: Callable[[], object], what: str = "") -> None:
        """Run turns until `wanted` returns true. Raises AssertionError after 60 s."""
        for _ in range(LIMIT_MS):
            if wanted():
                return
            self.turn()
        raise AssertionError(f"not reached within {LIMIT_MS} ms: {what or wanted}")

    def leader(self) -> LogNode | None:
        """Return the controller that may decide, None if there is none."""
        found = [node for node in self.nodes if node.is_up and node.log.leadership.is_self]
        return max(found, key=lambda node: node.log.leadership.term, default=None)

    def lead(self) -> LogNode:
        """Run until a controller leads; return it."""
        self.until(lambda: self.leader() is not None, "a leader")
        found = self.leader()
        assert found is not None
        return found

    def commit(self, entry: bytes) -> LogNode:
        """Propose an entry until a leader has committed it; return that leader.

        An outcome that leaves it open is followed by another proposal, as a broker would send it.
        """
        for _ in range(100):
            node = self.lead()
            outcomes: list[LogOutcome] = []
            life = node.log
            life.propose(entry, outcomes.append)
            self.until(lambda: outcomes or not node.is_up, "an outcome")  # noqa: B023
            if outcomes == [LogOutcome.COMMITTED]:
                return node
        raise AssertionError("100 proposals of an entry were not committed")


class ControllerLogContract:
    """Tests for a controller's log. Subclass it and set `make`.

    Attributes:
        make: The factory under test.
        sizes: Numbers of controllers in a group; each test runs for each of them.

    Example:
        Test a log for a single controller:

            from rmqkit.testing import ControllerLogContract

            class TestMine(ControllerLogContract):
                make = make_my_log
    """

    make: ClassVar[LogFactory]
    sizes: ClassVar[Sequence[int]] = (1,)

    def world(self, size: int, seed: int = 1) -> LogWorld:
        """Return a started group.

        Args:
            size: The number of controllers.
            seed: Seed of disks and messages.
        """
        return LogWorld(type(self).make, size, seed)

    def __init_subclass__(cls) -> None:
        """Remove the tests of groups if the log has no peers."""
        super().__init_subclass__()
        if max(cls.sizes) < GROUP_LEAST:
            # pytest skips None
            cls.test_a_group_loses_a_controller_and_continues = None  # type: ignore[method-assign,assignment]
            cls.test_a_controller_far_behind_gets_a_snapshot = None  # type: ignore[method-assign,assignment]

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Run each test for each size of a group. pytest calls this.

        Args:
            metafunc: The test that pytest collects.
        """
        for name, least in (("size", 1), ("group_size", GROUP_LEAST)):
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, [each for each in type(self).sizes if each >= least])

    def test_one_controller_leads_and_all_know_it(self, size: int) -> None:
        world = self.world(size)
        leader = world.lead()
        address = next(peer.address for peer in world.peers if peer.id == leader.id)
        world.until(lambda: all(node.log.leadership.address == address for node in world.nodes), "all know the leader")
        assert [node.id for node in world.nodes if node.log.leadership.is_self] == [leader.id]
        assert leader.table.leaderships[-1].is_self

    def test_entries_are_applied_in_order_everywhere(self, size: int) -> None:
        world = self.world(size)
        entries = [b"entry %d" % number for number in range(2 * SNAPSHOT_ENTRIES)]
        for entry in entries:
            world.commit(entry)
        world.until(lambda: all(node.table.entries == entries for node in world.nodes), "all have applied all")

    def test_an_outcome_comes_later_and_after_its_entry(self, size: int) -> None:
        world = self.world(size)
        node = world.lead()
        seen: list[list[bytes]] = []
        for number in range(3):
            node.log.propose(b"%d" % number, lambda outcome: seen.append(list(node.table.entries)))
            assert not seen
        world.until(lambda: len(seen) == 3, "three outcomes")
        assert seen == [[b"0"], [b"0", b"1"], [b"0", b"1", b"2"]]

    def test_an_outcome_may_propose(self, size: int) -> None:
        world = self.world(size)
        node = world.lead()
        node.log.propose(b"1", lambda outcome: node.log.propose(b"2", lambda last: node.log.barrier(lambda held: None)))
        world.until(lambda: node.table.entries == [b"1", b"2"], "both entries")

    def test_a_barrier_holds_at_the_leader_only(self, size: int) -> None:
        world = self.world(size)
        leader = world.lead()
        outcomes: dict[str, list[LogOutcome]] = {node.id: [] for node in world.nodes}
        for node in world.nodes:
            node.log.barrier(outcomes[node.id].append)
            assert not outcomes[node.id]
        world.until(lambda: all(outcomes.values()), "all outcomes")
        assert {name for name, found in outcomes.items() if found == [LogOutcome.COMMITTED]} == {leader.id}

    @pytest.mark.parametrize("seed", range(SEEDS))
    def test_committed_entries_survive_a_power_cut_of_all(self, size: int, seed: int) -> None:
        world = self.world(size, seed)
        for number in range(SNAPSHOT_ENTRIES + 7):
            world.commit(b"%d" % number)
        leader = world.lead()
        leader.log.propose(b"open", lambda outcome: None)
        leader.log.settle()
        for node in world.nodes:
            node.cut_power()
        for node in world.nodes:
            node.start()
        leader = world.lead()
        wanted = [b"%d" % number for number in range(SNAPSHOT_ENTRIES + 7)]
        assert leader.table.entries[: len(wanted)] == wanted
        assert leader.table.entries[len(wanted) :] in ([], [b"open"])
        world.commit(b"after")
        assert world.lead().table.entries[-1] == b"after"

    def test_a_restart_begins_with_a_snapshot(self, size: int) -> None:
        world = self.world(size)
        for number in range(3 * SNAPSHOT_ENTRIES):
            world.commit(b"%d" % number)
        world.turn()
        for node in world.nodes:
            node.kill()
        for node in world.nodes:
            node.start()
        leader = world.lead()
        assert leader.table.restored == 1
        assert leader.table.entries == [b"%d" % number for number in range(3 * SNAPSHOT_ENTRIES)]

    def test_a_group_loses_a_controller_and_continues(self, group_size: int) -> None:
        world = self.world(group_size)
        world.commit(b"1")
        first = world.lead()
        first.kill()
        world.commit(b"2")
        second = world.lead()
        assert second is not first
        assert second.table.entries == [b"1", b"2"]
        first.start()
        world.until(lambda: first.table.entries == [b"1", b"2"], "the old leader has caught up")
        assert second.log.leadership.term > 0

    def test_a_controller_far_behind_gets_a_snapshot(self, group_size: int) -> None:
        world = self.world(group_size)
        world.commit(b"first")
        late = next(node for node in world.nodes if node is not world.lead())
        late.kill()
        for number in range(4 * SNAPSHOT_ENTRIES):
            world.commit(b"%d" % number)
        late.start()
        world.until(lambda: late.table.entries == world.lead().table.entries, "it has caught up")
        assert late.table.restored

    def test_too_long_entries_are_refused(self, size: int) -> None:
        node = self.world(size).lead()
        with pytest.raises(ValueError, match=str(ENTRY_SIZE_MAX)):
            node.log.propose(bytes(ENTRY_SIZE_MAX + 1), lambda outcome: None)

    def test_a_failed_sync_ends_the_log_of_its_controller(self, size: int) -> None:
        world = self.world(size)
        world.commit(b"1")
        node = world.lead()
        outcomes: list[LogOutcome] = []
        node.disk.fail("sync", times=100)
        node.log.propose(b"2", outcomes.append)
        world.until(lambda: node.log.failed, "the log has failed")
        world.until(lambda: not node.log.leadership.is_self, "it leads no more")
        world.until(lambda: outcomes, "an outcome")
        node.log.propose(b"3", outcomes.append)
        world.until(lambda: len(outcomes) == 2, "an outcome after the failure")
        assert outcomes[1] is LogOutcome.LOST
        assert size > 1 or outcomes[0] is LogOutcome.LOST

    def test_a_stopped_log_settles_what_waits(self, size: int) -> None:
        world = self.world(size)
        node = world.lead()
        outcomes: list[LogOutcome] = []
        for number in range(3):
            node.log.propose(b"%d" % number, outcomes.append)
        node.log.stop()
        world.until(lambda: len(outcomes) == 3 and not node.log.busy, "all outcomes, and nothing in flight")
        assert not node.log.leadership.is_self

    def test_it_has_facts(self, size: int) -> None:
        facts = self.world(size).lead().log.facts()
        assert facts
        assert all(isinstance(name, str) and isinstance(value, str) for name, value in facts.items())
