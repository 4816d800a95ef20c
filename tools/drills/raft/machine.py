"""One simulated member: its disk, its turns, and the ways in which it can fail.

The member is the real `RaftControllerLog` with its real storage, on the simulator's disk. A turn
follows the node contract: completions, messages, what is due, settle, and then what it sends
leaves. A power cut at a disk operation ends the turn in its middle, and nothing of it leaves.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from rmqkit.controller.contract import ControllerPeer, Leadership, LogOutcome, LogParts
from rmqkit.controller.raft.controller_log import RaftControllerLog
from rmqkit.controller.raft.core import Raft
from rmqkit.controller.raft.messages import ORIGIN, MessageKind, Position
from rmqkit.controller.raft.storage import RaftStorage
from rmqkit.controller.raft.wire import KIND_AT, KINDS, decode_message
from rmqkit.runtime.duties import Duties
from rmqkit.runtime.ports import Clock, Ports
from rmqkit.sim.disk import SimDisk
from rmqkit.sim.folder import SimFolder

if TYPE_CHECKING:
    from tools.drills.raft.simulation import Simulation

FOLDER = "raft"
_VOTE_REPLY = KINDS.index(MessageKind.VOTE_REPLY)


class PowerCut(Exception):
    """The machine loses power in the middle of a turn."""


class _NoLog:
    def info(self, event: str, **fields: Any) -> None: ...
    def warning(self, event: str, **fields: Any) -> None: ...
    def error(self, event: str, **fields: Any) -> None: ...


class _Draws(Random):
    """The member's random source; during a storm it may draw few different numbers."""

    simulation: Simulation

    def randrange(self, stop: int) -> int:  # type: ignore[override]
        """Return a number below `stop`."""
        count = self.simulation.timeouts
        return super().randrange(stop) if count >= stop else super().randrange(count) * stop // count


class Machine:
    """A member on its own machine; it outlives restarts. It is the target of its own log."""

    def __init__(self, simulation: Simulation, id: str) -> None:
        self.id = id
        self.simulation = simulation
        self.folder = SimFolder(f"/sim/{id}")
        self.is_up = False
        self.is_paused = False
        #: power is cut at the disk operation after so many more; None: not planned
        self.cut_after: int | None = None
        #: power is cut once it has sent something while its disk is at work
        self.is_cut_busy = False
        self.disk: SimDisk
        self.log: RaftControllerLog
        self.member: Raft
        self.storage: RaftStorage
        #: what is applied, in order: the state machine
        self.table: list[bytes] = []
        #: what the checks have compared in this life
        self.seen: tuple[Position, Position, int] = (ORIGIN, ORIGIN, -1)
        self.verified: dict[int, int] = {}
        self.commit_seen = 0
        self._lives = 0
        self._random = Random(f"{simulation.seed}/{id}")
        self._inbox: list[tuple[str, bytes]] = []
        self._outbox: list[tuple[str, bytes]] = []
        self._calls: list[Callable[[], None]] = []
        self._clock = Clock()
        self._duties = Duties()
        self._planned_us: int | None = None

    # --- life

    def start(self) -> None:
        """Start the member on what its disk holds."""
        simulation = self.simulation
        self._lives += 1
        life = self._lives
        stream = f"{simulation.seed}/{self.id}/{life}"
        self.disk = SimDisk(
            self.folder,
            clock=self._clock,
            random=Random(f"{stream}/disk"),
            after_us=simulation.after_us,
            ended=self.plan,
            trace=lambda data: self._at_disk_operation(),
        )
        self.disk.sync_us = self.disk.change_us = simulation.disk_us
        self._duties = Duties()
        self.table, self.verified = [], {}
        self.seen, self.commit_seen = (ORIGIN, ORIGIN, -1), 0
        self._inbox, self._outbox, self._calls = [], [], []
        self.is_up, self.is_paused = True, False
        self._clock.mono_ms = simulation.now_ms
        draws = _Draws(f"{stream}/entropy")
        draws.simulation = simulation
        ports = Ports(clock=self._clock, disk=self.disk, entropy=draws, log=_NoLog())
        parts = LogParts(
            ports=ports,
            duties=self._duties,
            target=self,
            self_id=self.id,
            peers=[ControllerPeer(id, f"10.0.0.{number}:9876") for number, id in enumerate(simulation.ids)],
            send=lambda to, message: self._outbox.append((to, message)),
            folder=FOLDER,
            election_timeout_ms=simulation.election_timeout_ms,
            snapshot_entries=simulation.snapshot_entries,
        )
        self.log = RaftControllerLog(parts)
        self.storage = self.log._storage
        simulation.plant_storage(self)
        self.turn(self._start)

    def _start(self) -> None:
        self.log.start()
        member = self.log._member
        assert member is not None
        self.member = member
        member.append_bytes_max = self.simulation.append_bytes
        self.simulation.plant(self)

    def kill(self) -> None:
        """End the process; the page cache stays."""
        if self.is_up:
            self.is_up = False
            self.disk.die()
            self.folder.kill()

    def cut(self) -> None:
        """Cut the power: of what was not synced, anything may be lost."""
        if self.is_up:
            self.is_up = False
            self.cut_after = None
            self.disk.die(self._random)
            self.folder.crash(self._random)

    def wipe(self) -> None:
        """Lose the disk."""
        self.kill()
        self.folder = SimFolder(f"/sim/{self.id}")

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        self.plan()

    def _at_disk_operation(self) -> None:
        if self.cut_after is not None:
            self.cut_after -= 1
            if self.cut_after < 0:
                raise PowerCut

    # --- turns

    def receive(self, sender: str, message: bytes) -> None:
        if self.is_up:
            self._inbox.append((sender, message))
            self.plan()

    def call(self, function: Callable[[], None]) -> None:
        """Call a function in the next turn."""
        self._calls.append(function)
        self.plan()

    def plan(self, due_us: int = 0) -> None:
        """Take a turn at `due_us`, or now."""
        due_us = max(due_us, self.simulation.now_us)
        if self.is_up and not self.is_paused and (self._planned_us is None or due_us < self._planned_us):
            self._planned_us = due_us
            self.simulation.at_us(due_us, self._fire)

    def _fire(self) -> None:
        if self._planned_us == self.simulation.now_us:
            self._planned_us = None
            if self.is_up and not self.is_paused:
                self.turn(self._work)

    def turn(self, work: Callable[[], None]) -> None:
        """Take one turn, and send what it left."""
        self._clock.mono_ms = self.simulation.now_ms
        try:
            work()
            self.log.settle()
        except PowerCut:
            self.cut()
            return
        outbox, self._outbox = self._outbox, []
        checks = self.simulation.checks
        for to, content in outbox:
            if content[KIND_AT] == _VOTE_REPLY:
                checks.sent(decode_message(content, self.log._group, sender=self.id, to=to))
            self.simulation.carry(self.id, to, content)
        if not self.log.failed:
            checks.turn(self, self.simulation.machines, self.simulation.now_ms)
        if self.is_cut_busy and outbox and self.storage.busy:
            self.is_cut_busy = False
            self.cut()
            return
        due_ms = self._duties.next_due_ms()
        if due_ms is not None:
            self.plan(due_ms * 1000)
        if self.disk.completed or self._inbox or self._calls:
            self.plan()

    def _work(self) -> None:
        for completion, error in self.disk.take_completed():
            completion(error)
        inbox, self._inbox = self._inbox, []
        for sender, message in inbox:
            self.log.receive(sender, message)
        calls, self._calls = self._calls, []
        for function in calls:
            function()
        self._duties.run_due(self._clock.mono_ms)

    # --- the target of the log

    def apply(self, entry: bytes) -> None:
        self.simulation.checks.applied(self, entry)
        self.table.append(entry)

    def check(self, before: Sequence[bytes], entries: Sequence[bytes]) -> None:
        """Accept every entry: nothing is forged here."""

    def check_snapshot(self, snapshot: bytes) -> None:
        """Accept every snapshot."""

    def snapshot(self) -> bytes:
        return json.dumps([entry.decode() for entry in self.table]).encode()

    def restore(self, snapshot: bytes) -> None:
        table = [entry.encode() for entry in json.loads(snapshot)]
        self.simulation.checks.restored(self, table)
        self.table = table

    def leadership_changed(self, leadership: Leadership) -> None:
        pass

    # --- the load

    def propose(self, data: bytes) -> None:
        """Propose an entry, and note its outcome."""

        def then(outcome: LogOutcome) -> None:
            if outcome is LogOutcome.COMMITTED:
                self.simulation.checks.acknowledge(self, data)

        self.log.propose(data, then)

    def read(self) -> None:
        """Read through a barrier, and compare what the table then has."""
        checks = self.simulation.checks
        before = checks.acknowledged

        def then(outcome: LogOutcome) -> None:
            if outcome is LogOutcome.COMMITTED:
                checks.read(self, before)

        self.log.barrier(then)

    def facts(self) -> Mapping[str, str]:
        """Return what the log shows of itself."""
        return self.log.facts()
