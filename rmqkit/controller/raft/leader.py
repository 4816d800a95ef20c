"""The duties of a leader in one term: replication, commits, its lease, and read barriers.

A member makes a `LeaderTerm` when it wins an election, and drops it when it stops to lead, so
nothing of one term reaches another.

- **Commits.** An entry is committed once a majority has it for sure, but only an entry of the
  leader's own term is counted (section 5.4.2). Entries of earlier terms are committed with it.
- **Rounds.** Every heartbeat belongs to a numbered round; the reply repeats the number. A round is
  *confirmed* once a majority, the leader included, has answered it or a later one.
- **Lease.** No member grants a vote within the election time-out after it heard its leader. So
  for that long after a confirmed round *began*, no other leader can be elected, if the members'
  clocks run at about the same rate. A leader whose lease has ended steps down (check quorum). Only
  availability depends on the lease; reads use a barrier.
- **Read barrier.** A read begins a round and is done when that round is confirmed: this member was
  still the leader after the read began. The index that it returns is the commit index of the time
  before the round, so a state machine that has applied it contains every change that was answered
  before. A new leader first has to commit an entry of its own term, because until then it does not
  know the commit index.
"""

from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import NamedTuple

from rmqkit.controller.raft.entry_log import EntryLog
from rmqkit.controller.raft.messages import MessageKind, Position, RaftMessage, quorum
from rmqkit.controller.raft.progress import PROBE, SNAPSHOT, Progress

#: bytes of entries in one append; the rest follows in further ones
APPEND_BYTES_MAX = 1024 * 1024
#: reads that wait for a barrier; beyond it a read is refused
READS_MAX = 10_000
#: a snapshot without an answer is sent again after this many election time-outs
SNAPSHOT_TIMEOUTS = 4


class ReadResult(NamedTuple):
    """A confirmed read: it may be answered from a state machine that has applied `index`."""

    token: Hashable
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs


class _Read(NamedTuple):
    token: Hashable
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs
    round: int


class LeaderTerm:
    """What a leader does and knows in its term.

    `send` gets each message; its term, sender and receiver are set.
    """

    def __init__(
        self,
        self_id: str,
        peers: Sequence[str],
        term: int,
        log: EntryLog,
        send: Callable[[RaftMessage], None],
        *,
        election_timeout_ms: int,
        heartbeat_ms: int,
        elected_ms: int,
        now_ms: int,
        append_bytes_max: int,
    ) -> None:
        self.term = term
        #: the others; this member's own part is `log.saved`
        self.progress: Mapping[str, Progress] = {peer: Progress(log.last.index + 1) for peer in peers if peer != self_id}
        #: index of the entry with which the term begins
        self.first_index = log.last.index + 1
        self.round = 0
        self.lease_end_ms = elected_ms + election_timeout_ms
        #: until when a majority may confirm this leader first. Slow disks make elections long, so
        #: the lease from the request for votes may be over
        self._first_until_ms = now_ms + election_timeout_ms
        self.heartbeat_due_ms = elected_ms
        self.reads_done: list[ReadResult] = []
        self._self_id = self_id
        self._log = log
        self._send = send
        self._election_timeout_ms = election_timeout_ms
        self._heartbeat_ms = heartbeat_ms
        self._append_bytes_max = append_bytes_max
        self._quorum = quorum(len(self.progress) + 1)
        #: rounds that are not confirmed, with the time at which they began
        self._rounds: deque[tuple[int, int]] = deque()
        #: reads whose round has begun, and reads without a round
        self._reads: deque[_Read] = deque()
        self._reads_new: list[Hashable] = []

    @property
    def has_committed(self) -> bool:
        """Whether an entry of this term is committed, and with it everything before."""
        return self._log.commit >= self.first_index

    @property
    def reads_count(self) -> int:
        return len(self._reads) + len(self._reads_new)

    # --- time

    def tick(self, now_ms: int) -> bool:
        """Do what is due. Return False if the lease has ended, so that the leader steps down."""
        if now_ms >= self._ends_ms and self.progress:
            return False
        for peer, progress in self.progress.items():
            if progress.state is SNAPSHOT and now_ms >= progress.snapshot_due_ms:
                progress.probe()
                self._append_to(peer, now_ms)
        if now_ms >= self.heartbeat_due_ms:
            self._begin_round(now_ms)
        return True

    def due_ms(self) -> int:
        """Return when `tick` is due next."""
        due_ms = self.heartbeat_due_ms
        return min(due_ms, self._ends_ms) if self.progress else due_ms

    @property
    def _ends_ms(self) -> int:
        """When this leader steps down, unless a majority answers."""
        return max(self.lease_end_ms, self._first_until_ms)

    def _begin_round(self, now_ms: int) -> None:
        self.round += 1
        self.heartbeat_due_ms = now_ms + self._heartbeat_ms
        self._rounds.append((self.round, now_ms))
        for peer in self.progress:
            self._tell(MessageKind.HEARTBEAT, peer, round=self.round)
        self._confirm_rounds()

    def _confirm_rounds(self) -> None:
        answered = sorted([self.round, *(each.round for each in self.progress.values())], reverse=True)
        confirmed = answered[self._quorum - 1]
        while self._rounds and self._rounds[0][0] <= confirmed:
            _, began_ms = self._rounds.popleft()
            self.lease_end_ms = max(self.lease_end_ms, began_ms + self._election_timeout_ms)
        while self._reads and self._reads[0].round <= confirmed:
            read = self._reads.popleft()
            self.reads_done.append(ReadResult(read.token, read.index))

    # --- reads

    def read(self, token: Hashable) -> bool:
        """Begin a read with the next `settle`. Return False if too many wait."""
        if self.reads_count >= READS_MAX:
            return False
        self._reads_new.append(token)
        return True

    def settle(self, now_ms: int) -> None:
        """Begin one round for all reads of this turn."""
        if not self._reads_new or not self.has_committed:
            return
        new, self._reads_new = self._reads_new, []
        self._reads += [_Read(token, self._log.commit, self.round + 1) for token in new]
        self._begin_round(now_ms)

    # --- replication

    def broadcast(self, now_ms: int) -> None:
        """Send every peer what it lacks, or else the commit index."""
        for peer in self.progress:
            self._append_to(peer, now_ms)

    def saved(self, now_ms: int) -> None:
        """Count this member's own entries, which have become durable."""
        if self._commit_by_count():
            self.broadcast(now_ms)

    def append_reply(self, message: RaftMessage, now_ms: int) -> None:
        peer, index = message.sender, message.position.index
        progress, log = self.progress[peer], self._log
        progress.heard_ms = now_ms
        if message.rejected:
            hint = log.find_agreement(message.hint.index, message.hint.term)
            if progress.refused(index, hint.index + 1):
                self._append_to(peer, now_ms)
            return
        # Nobody has entries of this term that its leader lacks.
        if index > log.last.index or not progress.accepted(index, log.start.index):
            return
        if self._commit_by_count():
            self.broadcast(now_ms)
        while self._append_to(peer, now_ms, is_empty_sent=False):
            pass

    def heartbeat_reply(self, message: RaftMessage, now_ms: int) -> None:
        peer = message.sender
        progress = self.progress[peer]
        progress.heard_ms = now_ms
        progress.waits = False
        if progress.round < message.round <= self.round:
            progress.round = message.round
            self._confirm_rounds()
        # An append or its reply may have been lost. If so, the peer refuses this one, or learns
        # the commit index from it.
        is_behind = progress.match < self._log.last.index or message.commit < self._log.commit
        if is_behind or progress.state is PROBE:
            self._append_to(peer, now_ms)

    def _append_to(self, peer: str, now_ms: int, *, is_empty_sent: bool = True) -> bool:
        """Send an append, or a snapshot, unless the peer is paused. Return whether it was sent.

        Without `is_empty_sent`, an append without entries is not sent.
        """
        progress, log = self.progress[peer], self._log
        if progress.is_paused:
            return False
        term = log.term_at(progress.next - 1)
        if term is None:
            self._send_snapshot(peer, now_ms)
            return False
        entries = () if progress.is_full else log.read(progress.next, self._append_bytes_max)
        if not entries and not is_empty_sent:
            return False
        previous = Position(term, progress.next - 1)
        self._tell(MessageKind.APPEND, peer, position=previous, entries=entries, commit=log.commit)
        progress.sent(len(entries))
        return progress.state is not PROBE

    def _send_snapshot(self, peer: str, now_ms: int) -> None:
        progress, log = self.progress[peer], self._log
        heard_ms = progress.heard_ms
        if heard_ms is None or now_ms - heard_ms > self._election_timeout_ms:
            return  # a peer that is down would only get it later, and older
        due_ms = now_ms + SNAPSHOT_TIMEOUTS * self._election_timeout_ms
        self._tell(MessageKind.SNAPSHOT, peer, position=log.start, data=log.snapshot)
        progress.sent_snapshot(log.start.index, due_ms)

    def _commit_by_count(self) -> bool:
        """Commit what a majority has. Return whether the commit index has changed."""
        log = self._log
        matches = sorted([log.saved, *(each.match for each in self.progress.values())], reverse=True)
        index = matches[self._quorum - 1]
        if index <= log.commit or log.term_at(index) != self.term:
            return False
        log.commit_to(index)
        return True

    def _tell(self, kind: MessageKind, to: str, **fields: object) -> None:
        self._send(RaftMessage(kind, self._self_id, to, self.term, **fields))  # type: ignore[arg-type]

    def validate(self) -> None:
        for progress in self.progress.values():
            progress.validate()
            assert progress.match <= self._log.last.index
            assert progress.round <= self.round
