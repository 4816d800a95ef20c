"""One seed of a simulated Raft group: faults, load, healing, and the checks.

A seed draws everything: the number of members, how bad the network is, the faults and their times.
Its life has three parts:

1. *Storm*: messages are lost, repeated, delayed and reordered; members lose power at any disk
   operation, are killed, paused, isolated, in pairs or in groups; disks refuse a sync, a write or
   a replacement; one disk may be wiped. Proposals and reads go on all the time.
2. *Healing*: everything works again. Within RECOVER_TIMEOUTS election time-outs an entry must be
   committed, and all members must have the same table.
3. *Calm*: a follower is isolated for some election time-outs and returns. The leader must still be
   the same, in the same term.

Safety is checked after each turn of each member (`checks.py`), in all three parts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from random import Random
from typing import NamedTuple

from rmqkit.controller.contract import ControllerLogFault
from tools.drills.raft.checks import Broken, Checks
from tools.drills.raft.defects import DEFECTS, RaftDefect
from tools.drills.raft.machine import Machine

ELECTION_TIMEOUT_MS = 200
#: the storm's length in election time-outs, and the longest healing
STORM_TIMEOUTS = 40
RECOVER_TIMEOUTS = 40
CALM_TIMEOUTS = 6


#: fault -> how often it is drawn
FAULTS = {
    "cut": 8,
    "cut-at": 10,
    "cut-busy": 18,
    "cut-all": 2,
    "kill": 6,
    "pause": 6,
    "block": 6,
    "isolate": 8,
    "split": 8,
    "unblock": 14,
    "disk": 10,
    "start": 16,
    "wipe": 1,
}


class SeedEnd(NamedTuple):
    """How a seed ended. `broken` is the name of the check that did not hold, "" if all did."""

    seed: int
    broken: str
    text: str
    turns: int = 0
    elections: int = 0
    committed: int = 0
    faults: int = 0
    snapshots: int = 0


class Simulation:
    """A group in virtual time."""

    def __init__(self, seed: int, defect: str = "") -> None:
        self.seed = seed
        self.random = random = Random(f"raft/{seed}")
        self.defect: RaftDefect | None = DEFECTS[defect] if defect else None
        self.now_us = 1_000_000
        self.checks = Checks()
        self.election_timeout_ms = ELECTION_TIMEOUT_MS
        self.snapshot_entries = random.choice((3, 8, 20, 1000))
        count = random.choices((1, 2, 3, 4, 5), (3, 4, 50, 8, 35))[0]
        self.ids = [f"n{number}" for number in range(count)]
        self.machines = [Machine(self, id) for id in self.ids]
        self.by_id = {machine.id: machine for machine in self.machines}
        #: pairs (sender, receiver) between which nothing passes
        self.blocked: set[tuple[str, str]] = set()
        self.loss = random.choice((0.0, 0.02, 0.1, 0.25))
        self.repeats = random.choice((0.0, 0.05, 0.4))
        #: share of messages that take up to two election time-outs
        self.stragglers = random.choice((0.0, 0.02, 0.2))
        #: how long a message is under way, in microseconds, and how long the disk needs for a job
        self.delay_us = random.choice(((200, 2000), (200, 2000), (1000, 30_000)))
        self.disk_us = random.choice(((100, 2000), (100, 2000), (2000, 60_000)))
        #: bytes of entries in one append; few, so that old and new entries travel apart
        self.append_bytes = random.choice((1, 1 << 20))
        #: different time-outs that members draw during the storm; few let candidates compete
        self.timeouts = random.choice((1000, 1000, 3))
        #: whether faults wait for an election and strike its winner
        self.is_hunt = random.random() < 0.4
        self.faults = 0
        self._proposed = 0
        self._is_storm = True
        self._was_wiped = False
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0

    # --- time and network

    @property
    def now_ms(self) -> int:
        return self.now_us // 1000

    def at_us(self, due_us: int, function: Callable[[], None]) -> None:
        self._sequence += 1
        heappush(self._heap, (due_us, self._sequence, function))

    def after_us(self, delay_us: int, function: Callable[[], None]) -> None:
        self.at_us(self.now_us + delay_us, function)

    def run_for(self, duration_ms: int, until: Callable[[], bool] = lambda: False) -> bool:
        """Run for a time, or until a condition holds. Return whether it does."""
        heap, end_us = self._heap, self.now_us + duration_ms * 1000
        while heap and heap[0][0] <= end_us:
            self.now_us, _, function = heappop(heap)
            function()
            if until():
                return True
        self.now_us = end_us
        return until()

    def carry(self, sender: str, to: str, content: bytes) -> None:
        """Take a message over the network."""
        random = self.random
        if (sender, to) in self.blocked or (self._is_storm and random.random() < self.loss):
            return
        copies = 2 if self._is_storm and random.random() < self.repeats else 1
        for _ in range(copies):
            low_us, high_us = self.delay_us if self._is_storm else (200, 2000)
            delay_us = low_us + int(random.random() * (high_us - low_us))
            if self._is_storm and random.random() < self.stragglers:
                delay_us = int(random.random() * 2 * self.election_timeout_ms * 1000)
            self.after_us(delay_us, lambda: self._deliver(sender, to, content))

    def _deliver(self, sender: str, to: str, content: bytes) -> None:
        if (sender, to) not in self.blocked:
            self.by_id[to].receive(sender, content)

    # --- one seed

    def run(self) -> SeedEnd:
        """Run the whole life of the group. An exception of the code counts as a broken check."""
        broken, text = "", ""
        try:
            for machine in self.machines:
                machine.start()
            self._storm()
            self._heal()
            self._calm()
        except Broken as error:
            broken, text = error.check, str(error)
        except (AssertionError, ControllerLogFault, IndexError, KeyError, TypeError, ValueError) as error:
            broken, text = "invariants", f"invariants: {type(error).__name__}: {error}"
        checks = self.checks
        return SeedEnd(
            self.seed, broken, text, checks.turns, checks.elections, len(checks.history), self.faults, checks.snapshots
        )

    def _storm(self) -> None:
        random = self.random
        end_us = self.now_us + STORM_TIMEOUTS * self.election_timeout_ms * 1000
        pause_ms = random.choice((40, 150, 400))
        self._load(end_us)
        while self.now_us < end_us:
            if self.is_hunt:
                self._hunt()
            else:
                self.run_for(random.randrange(1, 2 * pause_ms))
                self._fault()

    def _load(self, end_us: int) -> None:
        """Propose and read at random times, mostly at members that lead or think that they do."""
        random = self.random
        machine = random.choice(self.machines)
        leaders = [each for each in self.machines if each.is_up and each.log.leadership.id == each.id]
        if leaders and random.random() < 0.8:
            machine = random.choice(leaders)
        if machine.is_up:
            if random.random() < 0.6:
                self._proposed += 1
                data = b"entry %d" % self._proposed
                machine.call(lambda: machine.propose(data))
            else:
                machine.call(machine.read)
        if self.now_us < end_us:
            self.after_us(1000 * random.randrange(1, self.election_timeout_ms // 4), lambda: self._load(end_us))

    def _hunt(self) -> None:
        """Strike the winner of the next election soon after it, as in figure 8 of the paper."""
        random, checks = self.random, self.checks
        elections = checks.elections
        if not self.run_for(4 * self.election_timeout_ms, lambda: checks.elections > elections):
            self._fault()
            self._restart_some()
            return
        self.faults += 1
        leader = self.by_id[checks.leaders[max(checks.leaders)]]
        others = [id for id in self.ids if id != leader.id]
        # The three moments of figure 8 in turn: with some entries, at once, and at its first
        # commit, when its own first entry is still in flight.
        moment, committed = self.faults % 3, checks.committed_max
        if moment == 0:
            self.run_for(random.randrange(1, 20))
        elif moment == 2:
            self.run_for(self.election_timeout_ms, lambda: checks.committed_max > committed)
        if random.random() < 0.8 and len(others) > 1:
            # Its next entries reach a few members at most.
            few = random.randrange(len(others) // 2 + 1) if random.random() < 0.2 else 0
            self._split([leader.id, *random.sample(others, few)])
            self.run_for(random.randrange(self.election_timeout_ms // 4))
        if random.random() < 0.8:
            random.choice((leader.cut, leader.kill, leader.kill))()
        if random.random() < 0.7:
            # The others elect, without the one that was struck or with it.
            self.blocked.clear()
            for machine in self.machines:
                if machine is not leader and not machine.is_up:
                    self._start(machine)
        if random.random() < 0.2:
            self._restart_some()

    def _fault(self) -> None:
        """Do one random fault, or undo one."""
        self.faults += 1
        random = self.random
        machine = self._target()
        kind = random.choices(tuple(FAULTS), tuple(FAULTS.values()))[0]
        if kind == "cut":
            machine.cut()
        elif kind == "cut-at":
            machine.cut_after = random.randrange(12)
        elif kind == "cut-busy":
            machine.is_cut_busy = True
        elif kind == "cut-all":
            for each in self.machines:
                each.cut()
        elif kind == "kill":
            machine.kill()
        elif kind == "pause" and machine.is_up:
            machine.pause()
        elif kind == "block":
            self.blocked.add((machine.id, random.choice(self.ids)))
        elif kind == "isolate":
            self._split([machine.id])
        elif kind == "split":
            self._split(random.sample(self.ids, len(self.ids) // 2))
        elif kind == "unblock":
            self.blocked.clear()
        elif kind == "disk" and machine.is_up:
            machine.disk.fail(random.choice(("sync", "write", "replace")))
            if random.random() < 0.5:
                machine.cut_after = random.randrange(4, 30)
        elif kind == "wipe" and not self._was_wiped and len(self.ids) > 2:
            self._was_wiped = True
            machine.wipe()
            self._start(machine)
        if random.random() < 0.5:
            self._restart_some()

    def _target(self) -> Machine:
        """Return a random member, more often one that leads."""
        leaders = [each for each in self.machines if each.is_up and each.log.leadership.id == each.id]
        if leaders and self.random.random() < 0.4:
            return self.random.choice(leaders)
        return self.random.choice(self.machines)

    def _split(self, some: list[str]) -> None:
        self.blocked.clear()
        for one in some:
            for other in self.ids:
                if other not in some:
                    self.blocked |= {(one, other), (other, one)}

    def _restart_some(self) -> None:
        for machine in self.machines:
            if machine.is_up and machine.log.failed and self.random.random() < 0.7:
                machine.kill()
            if not machine.is_up and self.random.random() < 0.7:
                self._start(machine)
            if machine.is_paused and self.random.random() < 0.7:
                machine.resume()

    def _start(self, machine: Machine) -> None:
        machine.cut_after, machine.is_cut_busy = None, False
        machine.start()

    def _heal(self) -> None:
        self._is_storm = False
        self.disk_us, self.timeouts = (100, 2000), 1000
        self.blocked.clear()
        for machine in self.machines:
            machine.cut_after, machine.is_cut_busy = None, False
            if machine.is_up:
                machine.disk.heal()
                machine.disk.sync_us = machine.disk.change_us = (100, 2000)
                if machine.is_paused:
                    machine.resume()
                if machine.log.failed:
                    machine.kill()
            if not machine.is_up:
                self._start(machine)
        # What was under way during the storm arrives first.
        self.run_for(2 * self.election_timeout_ms)
        step_ms, limit_ms = self.election_timeout_ms, RECOVER_TIMEOUTS * self.election_timeout_ms
        waited_ms = 0
        while not self._is_healed():
            if waited_ms >= limit_ms:
                raise Broken("recovers", f"not within {limit_ms} ms: {[dict(each.facts()) for each in self.machines]}")
            self._propose_last()
            self.run_for(step_ms, self._is_healed)
            waited_ms += step_ms
        tables = [machine.table for machine in self.machines]
        if any(table != self.checks.history for table in tables):
            raise Broken("state-machine", "the tables differ after the healing")
        if len(self.checks.history) < self.checks.acknowledged:
            raise Broken("acknowledged", "an acknowledged entry is lost")

    def _propose_last(self) -> None:
        self._proposed += 1
        data = b"last %d" % self._proposed
        for machine in self.machines:
            machine.call(partial(_propose_at_leader, machine, data))

    def _is_healed(self) -> bool:
        """Return whether an entry was committed since the healing, and all members have it."""
        history = self.checks.history
        if not history or not history[-1].startswith(b"last"):
            return False
        return all(machine.is_up and machine.table == history for machine in self.machines)

    def _calm(self) -> None:
        leader = next((each for each in self.machines if each.log.leadership.is_self), None)
        if leader is None:
            raise Broken("recovers", "no leader after the healing")
        term = leader.member.term
        followers = [machine for machine in self.machines if machine is not leader]
        if len(followers) >= 2:
            self._split([self.random.choice(followers).id])
            self.run_for(CALM_TIMEOUTS * self.election_timeout_ms)
            self.blocked.clear()
        self.run_for(CALM_TIMEOUTS * self.election_timeout_ms)
        for machine in self.machines:
            if (machine.member.term, machine.member.leader_id) != (term, leader.id):
                raise Broken("undisturbed", f"{machine.id} is in term {machine.member.term}, {leader.id} led {term}")

    # --- defects

    def plant_storage(self, machine: Machine) -> None:
        """Plant the defect's part in the files, before the member reads them."""
        if self.defect is not None and self.defect.plant_storage is not None:
            self.defect.plant_storage(machine)

    def plant(self, machine: Machine) -> None:
        """Plant the defect's part in the member, before its first turn."""
        if self.defect is not None and self.defect.plant is not None:
            self.defect.plant(machine)


def _propose_at_leader(machine: Machine, data: bytes) -> None:
    if machine.log.leadership.is_self:
        machine.propose(data)


def run_seed(seed: int, defect: str = "") -> SeedEnd:
    """Run one seed."""
    return Simulation(seed, defect).run()
