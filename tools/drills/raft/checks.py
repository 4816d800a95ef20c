"""What must hold in every simulated group, compared after each turn of each member.

The names follow figure 3 of the paper, where it has one:

    one-leader        election safety: at most one leader in a term
    one-vote          a member grants one vote in a term, across restarts
    log-matching      two logs with the same entry have the same entries before it
    leader-complete   a leader has every entry that was committed before its term
    state-machine     all members apply the same entries in the same order, and commit no others
    acknowledged      an acknowledged proposal is applied by every member in the end
    reads-current     a confirmed read sees everything that was acknowledged before it began
    one-lease         at most one member may decide at any time
    undisturbed       a member that was isolated does not depose a working leader
    recovers          a healed group has a leader that commits, and all members follow it
    invariants        `validate()` and every assertion of the code holds

A check raises Broken with its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rmqkit.controller.raft.core import RaftRole
from rmqkit.controller.raft.messages import RaftMessage

if TYPE_CHECKING:
    from tools.drills.raft.machine import Machine

CHECKS = (
    "one-leader",
    "one-vote",
    "log-matching",
    "leader-complete",
    "state-machine",
    "acknowledged",
    "reads-current",
    "one-lease",
    "undisturbed",
    "recovers",
    "invariants",
)


class Broken(Exception):
    """A check does not hold."""

    def __init__(self, check: str, text: str) -> None:
        super().__init__(f"{check}: {text}")
        self.check = check


class Checks:
    """What a group has done so far, and the comparison of each turn with it."""

    def __init__(self) -> None:
        self.leaders: dict[int, str] = {}
        #: (member, term) -> the member that it granted its vote in that term
        self.votes: dict[tuple[str, int], str] = {}
        #: (index, term) -> its data and the term of the entry before it, of every log ever seen
        self.entries: dict[tuple[int, int], tuple[bytes, int]] = {}
        #: index -> term of what was committed, with the term of the member that committed first
        self.committed: dict[int, tuple[int, int]] = {}
        self.committed_max = 0
        #: the data of committed entries that are not empty, in order
        self.history: list[bytes] = []
        #: entries of `history` that were acknowledged, as a count: all before count too
        self.acknowledged = 0
        self.turns = 0
        self.elections = 0
        self.snapshots = 0

    def sent(self, message: RaftMessage) -> None:
        """Note a reply to a request for votes that leaves a member."""
        if not message.rejected:
            key = (message.sender, message.term)
            known = self.votes.setdefault(key, message.to)
            if known != message.to:
                raise Broken("one-vote", f"{message.sender} voted for {known} and {message.to} in term {message.term}")

    def turn(self, machine: Machine, machines: Sequence[Machine], now_ms: int) -> None:
        """Compare a member after one of its turns."""
        self.turns += 1
        member = machine.member
        member.validate()
        machine.storage.validate()
        self._check_log(machine)
        if member.state is RaftRole.LEADER:
            self._check_leader(machine)
            if member.may_decide(now_ms):
                self._check_lease(machine, machines, now_ms)

    def _check_log(self, machine: Machine) -> None:
        log = machine.member.log
        if (log.start, log.last, log.commit) == machine.seen:
            return
        entries, verified = log.entries, machine.verified
        for number in range(len(entries) - 1, -1, -1):
            entry = entries[number]
            if verified.get(entry.index) == entry.term:
                break
            before = entries[number - 1].term if number else log.start.term
            if entry.index != log.start.index + number + 1 or entry.term < before:
                raise Broken("invariants", f"{machine.id}: {entry} is number {number} after {log.start}")
            known = self.entries.setdefault((entry.index, entry.term), (entry.data, before))
            if known != (entry.data, before):
                raise Broken("log-matching", f"{machine.id} has {entry} after term {before}, another log {known}")
            verified[entry.index] = entry.term
        # `seen` is of the same life; a member starts with the commit index of its snapshot.
        for index in range(max(machine.commit_seen, log.start.index - 1) + 1, log.commit + 1):
            term = log.term_at(index)
            if term is None:
                continue
            known_term, _ = self.committed.setdefault(index, (term, machine.member.term))
            if known_term != term:
                raise Broken("state-machine", f"{machine.id} commits entry {index} of term {term}, others {known_term}")
            self.committed_max = max(self.committed_max, index)
        if log.commit < machine.commit_seen:
            raise Broken("state-machine", f"the commit index of {machine.id} went back to {log.commit}")
        machine.seen, machine.commit_seen = (log.start, log.last, log.commit), log.commit

    def _check_leader(self, machine: Machine) -> None:
        member = machine.member
        known = self.leaders.get(member.term)
        if known == machine.id:
            return
        if known is not None:
            raise Broken("one-leader", f"{known} and {machine.id} lead term {member.term}")
        self.leaders[member.term] = machine.id
        self.elections += 1
        for index, (term, committed_in) in self.committed.items():
            if index > member.log.start.index and committed_in < member.term and member.log.term_at(index) != term:
                raise Broken("leader-complete", f"{machine.id} leads term {member.term} without entry {index}")

    def _check_lease(self, machine: Machine, machines: Sequence[Machine], now_ms: int) -> None:
        for other in machines:
            if other is not machine and other.is_up and other.member.may_decide(now_ms):
                raise Broken("one-lease", f"{machine.id} and {other.id} may decide")

    # --- the state machine of a member

    def applied(self, machine: Machine, data: bytes) -> None:
        """Compare an entry that a member applies; its table has everything before it."""
        place = len(machine.table)
        if place < len(self.history):
            if self.history[place] != data:
                raise Broken("state-machine", f"{machine.id} applies {data!r} as number {place}: {self.history[place]!r}")
        else:
            self.history.append(data)

    def restored(self, machine: Machine, table: Sequence[bytes]) -> None:
        """Compare a snapshot that a member restores."""
        self.snapshots += 1
        if len(table) < len(machine.table):
            raise Broken("state-machine", f"{machine.id} goes back from {len(machine.table)} entries to {len(table)}")
        if list(table) != self.history[: len(table)]:
            raise Broken("state-machine", f"{machine.id} restores a table that is not the group's")

    def acknowledge(self, machine: Machine, data: bytes) -> None:
        """Note that a proposal was acknowledged."""
        if not machine.table or machine.table[-1] != data:
            raise Broken("acknowledged", f"{machine.id} acknowledges {data!r} without having applied it just before")
        self.acknowledged = max(self.acknowledged, len(machine.table))

    def read(self, machine: Machine, acknowledged_before: int) -> None:
        """Compare a confirmed read with what was acknowledged when it began."""
        if len(machine.table) < acknowledged_before:
            raise Broken("reads-current", f"{machine.id} read {len(machine.table)} entries of {acknowledged_before}")
