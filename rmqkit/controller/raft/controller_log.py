"""`raft`: the log of a group of controllers, behind the contract of `rmqkit.controller.contract`.

It puts together a member (`core.py`), its files (`storage.py`) and its messages (`wire.py`), and
runs them in the turns of the controller's node:

- `receive` gives a message to the member. A duty gives it the time.
- `settle` ends the turn: the member's decisions of the turn become one batch for the disk, its
  messages leave, committed entries are applied, and what waits is answered.
- A completion of the disk does the same in a later turn.

A message that contradicts what this controller knows is refused as a whole, before the member sees
it (`_decode`). If a committed entry contradicts the table all the same, the log of this controller
or of its leader was forged earlier: this controller leaves the group (`_fail`), like one whose disk
has failed, and says so. To skip the entry would give two controllers different tables.

A proposal waits by its position. If another entry is applied at its index, the proposal was lost;
if this controller stops to lead, it cannot know, so the outcome is LOST as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count

from rmqkit.controller.contract import (
    ENTRY_SIZE_MAX,
    ControllerLog,
    ControllerLogFault,
    Leadership,
    LogOutcome,
    LogParts,
    Settled,
)
from rmqkit.controller.raft.core import Raft, RaftRole
from rmqkit.controller.raft.leader import ReadResult
from rmqkit.controller.raft.messages import OF_LEADERS, LogEntry, MessageKind, Position, RaftMessage
from rmqkit.controller.raft.storage import RaftStorage
from rmqkit.controller.raft.wire import SNAPSHOT_SIZE_MAX, decode_message, encode_message, group_number
from rmqkit.errors import RemoteProtocolError, RmqkitError

#: heartbeats in one election time-out: so many may be lost in a row, but one
HEARTBEATS = 10
DUTY = "controller-raft"
_COMMITTED, _LOST, _FAILED = LogOutcome


class RaftControllerLog:
    """One controller's part of the group's log; see the module."""

    def __init__(self, parts: LogParts) -> None:
        self.leadership = Leadership()
        self.failed = ""
        self._parts = parts
        self._addresses = {peer.id: peer.address for peer in parts.peers}
        self._group = group_number(list(self._addresses))
        self._storage = RaftStorage(parts.ports.disk, parts.folder, parts.self_id, self._group)
        self._member: Raft | None = None
        #: proposals that wait, by index, in order
        self._proposals: dict[int, tuple[Position, Settled]] = {}
        self._barriers: dict[int, Settled] = {}
        #: barriers that are confirmed, and wait for the table to be up to date
        self._confirmed: list[ReadResult] = []
        #: outcomes that are known; they are reported at the end of the turn
        self._known: list[tuple[Settled, LogOutcome]] = []
        self._tokens = count(1)
        self._is_stopping = False
        #: messages of peers that were refused, and the last reason
        self._refused_count = 0
        self._refused = ""
        self._refused_ms = 0
        #: the state machine's size was over the limit when the log was to be compacted last
        self._is_too_large = False

    @property
    def busy(self) -> bool:
        return self._storage.busy

    def start(self) -> None:
        """Read the files and begin as a follower. Raises ControllerLogFault."""
        parts = self._parts
        files = self._storage.load(lambda: self._fail(self._storage.failed))
        try:
            self._member = Raft(
                parts.self_id,
                list(self._addresses),
                files,
                election_timeout_ms=parts.election_timeout_ms,
                heartbeat_ms=max(1, parts.election_timeout_ms // HEARTBEATS),
                entropy=parts.ports.entropy,
                now_ms=self._now_ms,
            )
        except ValueError as error:
            raise RmqkitError(f"controllers: {error}") from error
        parts.duties.add(DUTY, self._run, self._now_ms)
        self._advance(self._member)
        if self.failed:
            raise ControllerLogFault(self.failed)

    def stop(self) -> None:
        """Begin to stop: answer what waits. The member is silent from now on."""
        self._is_stopping = True
        self._retire()

    # --- what the controller asks for

    def propose(self, entry: bytes, then: Settled) -> None:
        """Append an entry. Raises ValueError if it is empty or longer than ENTRY_SIZE_MAX."""
        if not 0 < len(entry) <= ENTRY_SIZE_MAX:
            raise ValueError(f"an entry has 1 to {ENTRY_SIZE_MAX} bytes, not {len(entry)}")
        member = self._serving()
        position = member.propose(entry, self._now_ms) if member is not None else None
        if position is None:
            # Nothing was appended. A leader with too many entries in flight can say so.
            is_full = member is not None and member.state is RaftRole.LEADER
            self._note(then, _FAILED if is_full else _LOST)
            return
        self._proposals[position.index] = (position, then)
        self._wake()

    def barrier(self, then: Settled) -> None:
        """Confirm that this controller leads, by a round of heartbeats to a majority."""
        member, token = self._serving(), next(self._tokens)
        if member is None or not member.read(token):
            self._note(then, _LOST)
            return
        self._barriers[token] = then
        self._wake()

    def receive(self, peer_id: str, message: bytes) -> None:
        """Take a message of a peer. Raises RemoteProtocolError."""
        member = self._serving()
        if member is None:
            return
        try:
            decoded = self._decode(member, peer_id, message)
        except RemoteProtocolError as error:
            self._refused_count += 1
            self._refused, self._refused_ms = f"{peer_id}: {error}", self._now_ms
            raise
        member.step(decoded, self._now_ms)

    def _decode(self, member: Raft, peer_id: str, message: bytes) -> RaftMessage:
        """Return a message that the member can take. Raises RemoteProtocolError."""
        target, decoded = self._parts.target, decode_message(message, self._group, sender=peer_id, to=member.id)
        if decoded.kind in OF_LEADERS and member.leading is not None and decoded.term == member.term:
            raise RemoteProtocolError(f"{peer_id} claims to lead term {member.term}, which {member.id} leads")
        if decoded.kind is MessageKind.SNAPSHOT:
            target.check_snapshot(decoded.data)
        if decoded.entries:
            before = member.log.unapplied(decoded.position)
            if before is None:
                # The member takes no entries over: it answers where its log ends. Until a snapshot
                # is restored, there is no table to compare them with; the leader sends them again.
                return replace(decoded, entries=())
            for entry in decoded.entries:
                known = member.log.entry_at(entry.index)
                if known is not None and known.term == entry.term and known.data != entry.data:
                    raise RemoteProtocolError(f"the entry {entry.position} is another one here")
            target.check(_data(before), _data(decoded.entries))
        return decoded

    def settle(self) -> None:
        """End the turn."""
        member = self._serving()
        if member is not None:
            self._advance(member)
        known, self._known = self._known, []
        for then, outcome in known:
            then(outcome)

    def facts(self) -> Mapping[str, str]:
        """Return what `rmqkit controller status` shows."""
        member = self._member
        if member is None:
            return {}
        log = member.log
        facts = {
            "role": str(member.state),
            "term": str(member.term),
            "leader": member.leader_id,
            "entries": str(len(log.entries)),
            "last": str(log.last.index),
            "committed": str(log.commit),
            "applied": str(log.applied),
            "snapshot": str(log.start.index),
            "bytes": str(self._storage.log_size),
            "refused": str(self._refused_count),
            "failed": self.failed,
        }
        if member.census_missing:
            facts["waits"] = f"without files it does not vote before it has heard from {', '.join(member.census_missing)}"
        if self._refused and self._now_ms - self._refused_ms < self._parts.election_timeout_ms:
            # The leader sends what was refused again with each heartbeat. So the text stays as long
            # as this controller refuses its leader.
            facts["refuses"] = f"it refuses messages of {self._refused}"
        if self._is_too_large:
            facts["too-large"] = f"the table exceeds {SNAPSHOT_SIZE_MAX} bytes, so the log grows without a snapshot"
        if member.leading is not None:
            for peer, progress in member.leading.progress.items():
                facts[f"peer-{peer}"] = f"{progress.state}, {progress.match} of {log.last.index}"
        return facts

    # --- turns

    @property
    def _now_ms(self) -> int:
        return self._parts.ports.clock.mono_ms

    def _serving(self) -> Raft | None:
        """Return the member, None if it must be silent."""
        return None if self.failed or self._is_stopping else self._member

    def _run(self, now_ms: int) -> int | None:
        member = self._serving()
        if member is None:
            return None
        member.tick(now_ms)
        self._advance(member)
        return member.due_ms()

    def _wake(self) -> None:
        """Let another turn follow: a call may come after this turn's `settle` has begun."""
        self._parts.duties.wake(DUTY, self._now_ms)

    def _note(self, then: Settled, outcome: LogOutcome) -> None:
        """Report an outcome at the end of the turn, or of the next one."""
        self._known.append((then, outcome))
        self._wake()

    def _advance(self, member: Raft) -> None:
        """Pass on what the member has decided: to the disk, the peers and the controller."""
        self._save(member)
        if self.failed:
            return
        self._apply(member)
        if self.failed:
            return
        for message in member.take_messages(self._now_ms):
            self._parts.send(message.to, encode_message(message, self._group))
        self._confirmed += member.take_reads()
        while self._confirmed and self._confirmed[0].index <= member.log.applied:
            then = self._barriers.pop(_number(self._confirmed.pop(0).token), None)
            if then is not None:
                self._note(then, _COMMITTED)
        self._show_leadership(member)
        self._parts.duties.wake(DUTY, member.due_ms())

    def _save(self, member: Raft) -> None:
        writes = member.take_writes()
        if writes is not None:
            self._storage.save(writes, self._saved)

    def _saved(self) -> None:
        member = self._serving()
        if member is not None:
            member.written(self._now_ms)
            self._advance(member)

    def _apply(self, member: Raft) -> None:
        snapshot, entries = member.take_committed()
        index = member.log.start.index
        try:
            if snapshot is not None:
                self._parts.target.restore(snapshot)
            for entry in entries:
                index = entry.index
                if entry.data:
                    self._parts.target.apply(entry.data)
                self._settle_proposal(entry)
        except ControllerLogFault as fault:
            self._fail(f"entry {index} is committed and cannot be applied: {fault}; {self._storage.advice}")
            return
        if len(member.log.entries) >= self._parts.snapshot_entries and entries:
            self._compact(member)

    def _compact(self, member: Raft) -> None:
        snapshot = self._parts.target.snapshot()
        self._is_too_large = len(snapshot) > SNAPSHOT_SIZE_MAX
        if self._is_too_large:
            self._parts.ports.log.warning("controller-snapshot-too-large", size=len(snapshot), limit=SNAPSHOT_SIZE_MAX)
            return
        member.compact(snapshot)
        self._save(member)

    def _settle_proposal(self, entry: LogEntry) -> None:
        position, then = self._proposals.pop(entry.index, (None, None))
        if then is not None:
            then(_COMMITTED if position == entry.position else _LOST)

    def _show_leadership(self, member: Raft) -> None:
        leader = member.leader_id
        may_decide = member.may_decide(self._now_ms)
        if leader != member.id:
            self._lose_waiting()
        shown = Leadership(member.term, leader, self._addresses.get(leader, ""), may_decide)
        if shown != self.leadership:
            self.leadership = shown
            self._parts.target.leadership_changed(shown)

    def _lose_waiting(self) -> None:
        """Answer everything that waits: its outcome is lost."""
        proposals, self._proposals = self._proposals, {}
        barriers, self._barriers = self._barriers, {}
        self._confirmed = []
        for _, then in proposals.values():
            then(_LOST)
        for then in barriers.values():
            then(_LOST)

    def _fail(self, reason: str) -> None:
        """Leave the group for good."""
        self.failed = reason
        self._parts.ports.log.error("controller-log-failed", reason=self.failed)
        self._retire()

    def _retire(self) -> None:
        """Take part no more: answer what waits, and know no leader."""
        self._lose_waiting()
        leadership = Leadership(self.leadership.term)
        if leadership != self.leadership:
            self.leadership = leadership
            self._parts.target.leadership_changed(leadership)


def make_raft(parts: LogParts) -> ControllerLog:
    """Return the log `raft` of a controller."""
    return RaftControllerLog(parts)


def _data(entries: Sequence[LogEntry]) -> Sequence[bytes]:
    """Return the content of entries; those with which terms begin have none."""
    return [entry.data for entry in entries if entry.data]


def _number(token: object) -> int:
    assert isinstance(token, int)
    return token
