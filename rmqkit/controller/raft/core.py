"""A member of a Raft group: terms, votes and roles. Messages and times go in, messages come out.

    follower       ->  follower, pre-candidate
    pre-candidate  ->  follower, pre-candidate, candidate
    candidate      ->  follower, pre-candidate, leader
    leader         ->  follower

The driver owns time, network and disk. In each turn it

1. calls `step` with each message that arrived, and `tick` once `due_ms` has come,
2. calls `propose`, `read` and `compact` as its state machine wants,
3. gives `take_writes` to the disk, one batch at a time, and calls `written` once it is durable,
4. sends what `take_messages` returns, in order, and may lose any of it,
5. gives what `take_committed` returns to the state machine.

**What is never sent too early.** A request for votes, a vote, an acknowledgement of entries and an
answer to a census promise what the member must not forget (`messages.PROMISES`). They wait until
everything that the member had decided before is durable. A leader's appends need not wait: it does
not count its own entries before they are durable.

**Where this departs from the paper**, always as etcd does it:

- *Pre-vote* (the author's thesis, 9.6): a member first asks who would vote for it, and raises its
  term only with a majority. So a member that was isolated does not depose a working leader.
- *Check quorum* (6.2): a leader steps down if no majority answers, and a member that heard its
  leader within the election time-out ignores requests for votes. So does a member that started
  within it, since it may have heard one just before (etcd's does not). See `leader.py`.
- A member answers a leader of an older term with its own term. Otherwise a member whose term is
  ahead could neither follow nor win.
- Refused appends carry a hint, so that a leader needs one probe per term, not one per entry.

One departure is ours. An election needs two durable votes, one after the other. If disks take
longer for that than the election time-out, every candidate would be overtaken by the next one. So
each further term without a leader doubles the time-outs of all members, up to PATIENCE_MAX times.

**A member without its files** (a new one, or one whose disk was wiped) does not know for whom it
voted or what it acknowledged. It takes entries, but it neither votes nor asks for votes until each
peer has answered its *census* with term and last entry. From then on it votes in later terms only,
and only for candidates that are at least as up to date as every peer was. So only a group's first
start and the replacement of a disk need all members.

The peers are fixed. A member's time-outs differ by a number that its driver's random source draws.
"""

from collections.abc import Hashable, Sequence
from enum import StrEnum
from typing import NamedTuple

from rmqkit.controller.raft.entry_log import EntryLog, LogWrites
from rmqkit.controller.raft.leader import APPEND_BYTES_MAX, LeaderTerm, ReadResult
from rmqkit.controller.raft.messages import (
    OF_LEADERS,
    ORIGIN,
    PROMISES,
    LogEntry,
    MessageKind,
    Position,
    RaftMessage,
    quorum,
)
from rmqkit.runtime.ports import Entropy
from rmqkit.runtime.states import Moves, StateMachine

MEMBERS_MAX = 5
#: how many times longer an election may take after terms without a leader
PATIENCE_MAX = 16
#: entries that a leader has accepted and not committed; beyond it `propose` refuses
UNCOMMITTED_MAX = 4096


class RaftRole(StrEnum):
    """The roles of a member; the module head describes them."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


FOLLOWER, PRE_CANDIDATE, CANDIDATE, LEADER = RaftRole

MOVES = Moves(
    {
        FOLLOWER: (FOLLOWER, PRE_CANDIDATE),
        PRE_CANDIDATE: (FOLLOWER, PRE_CANDIDATE, CANDIDATE),
        CANDIDATE: (FOLLOWER, PRE_CANDIDATE, LEADER),
        LEADER: (FOLLOWER,),
    }
)


class VoteRecord(NamedTuple):
    """What a member must remember of its votes.

    `vote` is the member that it voted for in `term`, "" for none. `is_counted` is false before its
    census. `floor` is the position below which it neither votes nor stands.
    """

    term: int = 0
    vote: str = ""
    is_counted: bool = False
    floor: Position = ORIGIN


class RaftFiles(NamedTuple):
    """What a member finds on its disk when it starts."""

    ballot: VoteRecord = VoteRecord()
    start: Position = ORIGIN
    snapshot: bytes = b""
    entries: Sequence[LogEntry] = ()


class RaftWrites(NamedTuple):
    """A batch for the disk: the ballot first, if it is there, and then the log."""

    ballot: VoteRecord | None
    log: LogWrites


class Raft(StateMachine[RaftRole]):
    """One member. `now_ms` is monotonic time; it must not go back."""

    def __init__(
        self,
        self_id: str,
        peers: Sequence[str],
        files: RaftFiles,
        *,
        election_timeout_ms: int,
        heartbeat_ms: int,
        entropy: Entropy,
        now_ms: int,
    ) -> None:
        """Begin as a follower.

        `peers` are the ids of all members. Raises ValueError if they are not 1 to MEMBERS_MAX
        different ones with `self_id` among them.
        """
        if self_id not in peers or len(set(peers)) != len(peers) or len(peers) > MEMBERS_MAX:
            raise ValueError(f"a group has 1 to {MEMBERS_MAX} different members, and {self_id!r} is one: {list(peers)}")
        super().__init__(MOVES)
        self.id = self_id
        self.peers = tuple(sorted(peers))
        self.term, self.vote = files.ballot.term, files.ballot.vote
        self.is_counted, self.floor = files.ballot.is_counted, files.ballot.floor
        self.log = EntryLog(files.start, files.snapshot, files.entries)
        #: the leader of the current term, "" if unknown
        self.leader_id = ""
        #: exactly while this member leads
        self.leading: LeaderTerm | None = None
        #: bytes of entries in one append of this member as the leader
        self.append_bytes_max = APPEND_BYTES_MAX
        self._election_timeout_ms = election_timeout_ms
        self._heartbeat_ms = heartbeat_ms
        self._entropy = entropy
        #: when this member last heard from a leader. After a restart: now, since the leader's last
        #: message may have arrived just before
        self._heard_ms = now_ms if self.term else now_ms - election_timeout_ms
        self._election_due_ms = 0
        #: terms that this member has entered since it last knew a leader
        self._leaderless = 0
        self._campaign_ms = now_ms
        #: answers to the current request for votes or pre-votes
        self._votes: dict[str, bool] = {}
        #: answers to the census, until there is one of each peer
        self._census: dict[str, tuple[int, Position]] = {}
        self._census_due_ms = now_ms
        #: the ballot as the disk was given it last, and as it is durable. A member without files
        #: writes its ballot before anything else
        self._ballot_given = self._ballot_saved = self.ballot if self.is_counted else None
        self._is_writing = False
        self._messages: list[RaftMessage] = []
        #: promises that wait for the batch in flight, and promises that wait for the next one
        self._promises_given: list[RaftMessage] = []
        self._promises: list[RaftMessage] = []
        self._reads_done: list[ReadResult] = []
        if len(self.peers) == 1:
            self.is_counted = True
        self._restart_election(now_ms)
        if len(self.peers) == 1:
            self._election_due_ms = now_ms  # nobody else could lead

    # --- what the driver sees

    @property
    def ballot(self) -> VoteRecord:
        return VoteRecord(self.term, self.vote, self.is_counted, self.floor)

    @property
    def census_missing(self) -> Sequence[str]:
        """Peers that this member waits for before it votes."""
        if self.is_counted:
            return ()
        return [peer for peer in self.peers if peer != self.id and peer not in self._census]

    def may_decide(self, now_ms: int) -> bool:
        """Return whether this member leads, knows all that is committed, and has its lease."""
        leading = self.leading
        if leading is None or self.log.applied < leading.first_index:
            return False
        return len(self.peers) == 1 or now_ms < leading.lease_end_ms

    def due_ms(self) -> int:
        """Return when `tick` is due next."""
        if self.leading is not None:
            return self.leading.due_ms()
        return self._election_due_ms if self.is_counted else min(self._election_due_ms, self._census_due_ms)

    def take_messages(self, now_ms: int) -> Sequence[RaftMessage]:
        """Return the messages to send."""
        if self.leading is not None:
            self.leading.settle(now_ms)
        messages, self._messages = self._messages, []
        return messages

    def take_writes(self) -> RaftWrites | None:
        """Return the next batch for the disk, None if there is none or one is in flight."""
        if self._is_writing:
            return None
        ballot = self.ballot if self.ballot != self._ballot_given else None
        if ballot is None and not self.log.has_unsaved:
            # Nothing was decided that is not durable, so the promises need not wait.
            self._messages += self._promises
            self._promises = []
            return None
        self._is_writing = True
        self._promises_given, self._promises = self._promises, []
        self._ballot_given = self.ballot
        return RaftWrites(ballot, self.log.take_unsaved())

    def written(self, now_ms: int) -> None:
        """Note that the batch in flight is durable."""
        assert self._is_writing
        self._is_writing = False
        self._ballot_saved = self._ballot_given
        self._messages += self._promises_given
        self._promises_given = []
        self.log.confirm()
        if self.leading is not None:
            self.leading.saved(now_ms)
        elif self.state is CANDIDATE and self._ballot_saved == self.ballot:
            self._count_vote(self.id, True, now_ms)

    def take_committed(self) -> tuple[bytes | None, Sequence[LogEntry]]:
        """Return what the state machine has to take over.

        First a snapshot that replaces its state, if there is one, then the next committed entries.
        An entry without data has no meaning for it.
        """
        return self.log.take_committed()

    def take_reads(self) -> Sequence[ReadResult]:
        """Return the reads that are confirmed.

        Those that are not when a leader loses its role never will be.
        """
        if self.leading is not None:
            self._reads_done += self.leading.reads_done
            self.leading.reads_done = []
        done, self._reads_done = self._reads_done, []
        return done

    # --- requests of the driver

    def propose(self, data: bytes, now_ms: int) -> Position | None:
        """Append an entry as the leader, and send it.

        Return its position. It is committed once `take_committed` returns an entry of this
        position, and lost once it returns another one with its index. Return None if this member
        does not lead, or if UNCOMMITTED_MAX entries wait. Raises ValueError for an empty entry.
        """
        if not data:
            raise ValueError("an entry without data is what a leader begins its term with")
        if self.leading is None or self.log.last.index - self.log.commit >= UNCOMMITTED_MAX:
            return None
        entry = self.log.append(self.term, data)
        self.leading.broadcast(now_ms)
        return entry.position

    def read(self, token: Hashable) -> bool:
        """Begin a read; `take_reads` returns the token once it is confirmed.

        Return False if this member does not lead or too many reads wait.
        """
        return self.leading is not None and self.leading.read(token)

    def compact(self, snapshot: bytes) -> None:
        """Replace all applied entries by a snapshot of the state machine as it is now."""
        self.log.compact(snapshot)

    # --- time

    def tick(self, now_ms: int) -> None:
        """Do what is due."""
        if self.leading is not None:
            if not self.leading.tick(now_ms):
                self._become_follower(self.term, "", now_ms)
            return
        if not self.is_counted and now_ms >= self._census_due_ms:
            self._ask_census(now_ms)
        if now_ms >= self._election_due_ms:
            if self.is_counted and self.log.last >= self.floor:
                self._campaign(now_ms)
            else:
                self._restart_election(now_ms)

    def _restart_election(self, now_ms: int) -> None:
        wait_ms = self._election_timeout_ms * min(1 << max(0, self._leaderless - 1), PATIENCE_MAX)
        self._election_due_ms = now_ms + wait_ms + self._entropy.randrange(wait_ms)

    def _hears_leader(self, now_ms: int) -> bool:
        """Return whether a leader may count on this member not to vote."""
        return self.leading is not None or now_ms - self._heard_ms < self._election_timeout_ms

    # --- messages

    def step(self, message: RaftMessage, now_ms: int) -> None:
        """Take a message of a peer, of any age and any number of times."""
        kind = message.kind
        if kind is MessageKind.CENSUS:
            self._send(MessageKind.CENSUS_REPLY, message.sender, position=self.log.last)
        elif kind is MessageKind.CENSUS_REPLY:
            self._count_member(message)
        elif message.term < self.term:
            self._answer_past(message)
        elif self._enter_term(message, now_ms):
            _STEPS[kind](self, message, now_ms)

    def _enter_term(self, message: RaftMessage, now_ms: int) -> bool:
        """Enter the term of a message, if it is a later one. Return whether to go on with it."""
        kind = message.kind
        if message.term > self.term:
            if kind in (MessageKind.VOTE, MessageKind.PRE_VOTE) and self._hears_leader(now_ms):
                return False
            if kind is MessageKind.PRE_VOTE or (kind is MessageKind.PRE_VOTE_REPLY and not message.rejected):
                return True  # the term of an election that may never be
            self._become_follower(message.term, "", now_ms)
        if kind in OF_LEADERS:
            assert self.leading is None, f"two leaders in term {self.term}: {self.id} and {message.sender}"
            if self.state is not FOLLOWER or self.leader_id != message.sender:
                self._become_follower(message.term, message.sender, now_ms)
            self._heard_ms = now_ms
            self._leaderless = 0
            self._restart_election(now_ms)
        return True

    def _answer_past(self, message: RaftMessage) -> None:
        kind = message.kind
        if kind in OF_LEADERS:
            self._send(MessageKind.APPEND_REPLY, message.sender, rejected=True)
        elif kind is MessageKind.PRE_VOTE:
            self._send(MessageKind.PRE_VOTE_REPLY, message.sender, rejected=True)
        elif kind is MessageKind.VOTE:
            self._send(MessageKind.VOTE_REPLY, message.sender, rejected=True)

    # --- elections

    def _take_vote_request(self, message: RaftMessage, now_ms: int) -> None:
        if not self.is_counted:
            return
        is_pre_vote = message.kind is MessageKind.PRE_VOTE
        is_free = (
            self.vote == message.sender
            or (not self.vote and not self.leader_id)
            or (is_pre_vote and message.term > self.term)
        )
        reply = MessageKind.PRE_VOTE_REPLY if is_pre_vote else MessageKind.VOTE_REPLY
        if not is_free or message.position < max(self.log.last, self.floor):
            self._send(reply, message.sender, rejected=True)
            return
        if not is_pre_vote:
            self.vote = message.sender
            self._restart_election(now_ms)
        self._send(reply, message.sender, term=message.term)

    def _take_vote_reply(self, message: RaftMessage, now_ms: int) -> None:
        is_pre_vote = message.kind is MessageKind.PRE_VOTE_REPLY
        is_old = is_pre_vote and not message.rejected and message.term != self.term + 1
        if self.state is (PRE_CANDIDATE if is_pre_vote else CANDIDATE) and not is_old:
            self._count_vote(message.sender, not message.rejected, now_ms)

    def _campaign(self, now_ms: int) -> None:
        """Ask who would vote for this member."""
        self.move(PRE_CANDIDATE)
        self.leader_id = ""
        self._votes = {}
        self._restart_election(now_ms)
        self._ask_votes(MessageKind.PRE_VOTE, self.term + 1)
        self._count_vote(self.id, True, now_ms)

    def _stand(self, now_ms: int) -> None:
        """Enter a new term and ask for votes. The own vote counts once it is durable."""
        self.move(CANDIDATE)
        self.term, self.vote = self.term + 1, self.id
        self._leaderless += 1
        self._votes = {}
        self._campaign_ms = now_ms
        self._restart_election(now_ms)
        self._ask_votes(MessageKind.VOTE, self.term)

    def _ask_votes(self, kind: MessageKind, term: int) -> None:
        for peer in self.peers:
            if peer != self.id:
                self._send(kind, peer, term=term, position=self.log.last)

    def _count_vote(self, peer: str, is_granted: bool, now_ms: int) -> None:
        self._votes[peer] = is_granted
        needed = quorum(len(self.peers))
        granted = sum(self._votes.values())
        if granted >= needed:
            if self.state is PRE_CANDIDATE:
                self._stand(now_ms)
            else:
                self._become_leader(now_ms)
        elif len(self._votes) - granted >= needed:
            self._become_follower(self.term, "", now_ms)

    def _become_leader(self, now_ms: int) -> None:
        self.move(LEADER)
        self.leader_id = self.id
        self._leaderless = 0
        self.leading = LeaderTerm(
            self.id,
            self.peers,
            self.term,
            self.log,
            self._post,
            election_timeout_ms=self._election_timeout_ms,
            heartbeat_ms=self._heartbeat_ms,
            elected_ms=self._campaign_ms,
            now_ms=now_ms,
            append_bytes_max=self.append_bytes_max,
        )
        # The first entry of the term commits what earlier leaders left.
        self.log.append(self.term, b"")
        self.leading.broadcast(now_ms)
        self.leading.tick(now_ms)

    def _become_follower(self, term: int, leader_id: str, now_ms: int) -> None:
        self.move(FOLLOWER)
        if self.leading is not None:
            self._reads_done += self.leading.reads_done
            self.leading = None
        if term != self.term:
            self.term, self.vote = term, ""
            self._leaderless += 1
        self.leader_id = leader_id
        self._votes = {}
        self._restart_election(now_ms)

    # --- the census of a member without files

    def _ask_census(self, now_ms: int) -> None:
        self._census_due_ms = now_ms + self._heartbeat_ms
        for peer in self.census_missing:
            self._send(MessageKind.CENSUS, peer)

    def _count_member(self, message: RaftMessage) -> None:
        if self.is_counted:
            return
        self._census[message.sender] = (message.term, message.position)
        if self.census_missing:
            return
        self.is_counted = True
        term = max(term for term, _ in self._census.values())
        self.floor = max(position for _, position in self._census.values())
        # In the terms up to here it may have voted before it lost its files. A vote for itself,
        # without standing, keeps it from voting in the last of them.
        if term > self.term:
            self.term, self.leader_id = term, ""
        self.vote = self.id

    # --- entries

    def _take_append(self, message: RaftMessage, now_ms: int) -> None:
        log = self.log
        if message.position.index < log.commit:
            self._acknowledge(message.sender, log.commit)
            return
        index = log.merge(message.position, message.entries)
        if index is None:
            hint = log.find_agreement(message.position.index, message.position.term)
            self._send(MessageKind.APPEND_REPLY, message.sender, position=message.position, hint=hint, rejected=True)
            return
        log.commit_to(min(message.commit, index))
        self._acknowledge(message.sender, index)

    def _take_snapshot(self, message: RaftMessage, now_ms: int) -> None:
        start, log = message.position, self.log
        if start.index > log.commit:
            if log.term_at(start.index) == start.term:
                log.commit_to(start.index)
            else:
                log.restore(start, message.data)
        self._acknowledge(message.sender, log.commit)

    def _acknowledge(self, to: str, index: int) -> None:
        self._send(MessageKind.APPEND_REPLY, to, position=Position(self.log.term_at(index) or 0, index))

    def _take_append_reply(self, message: RaftMessage, now_ms: int) -> None:
        if self.leading is not None:
            self.leading.append_reply(message, now_ms)

    def _take_heartbeat(self, message: RaftMessage, now_ms: int) -> None:
        self._send(MessageKind.HEARTBEAT_REPLY, message.sender, round=message.round, commit=self.log.commit)

    def _take_heartbeat_reply(self, message: RaftMessage, now_ms: int) -> None:
        if self.leading is not None:
            self.leading.heartbeat_reply(message, now_ms)

    # --- output

    def _send(
        self,
        kind: MessageKind,
        to: str,
        *,
        term: int | None = None,
        position: Position = ORIGIN,
        hint: Position = ORIGIN,
        commit: int = 0,
        round: int = 0,
        rejected: bool = False,
    ) -> None:
        term = self.term if term is None else term
        self._post(RaftMessage(kind, self.id, to, term, position, hint, commit, round, rejected))

    def _post(self, message: RaftMessage) -> None:
        (self._promises if message.kind in PROMISES else self._messages).append(message)

    def validate(self) -> None:
        self.log.validate()
        assert (self.state is LEADER) == (self.leading is not None)
        assert (self.state is LEADER) == (self.leader_id == self.id)
        assert self.state in (FOLLOWER, LEADER) or not self.leader_id
        assert self.state not in (CANDIDATE, LEADER) or self.vote == self.id
        assert self.state in (PRE_CANDIDATE, CANDIDATE) or not self._votes or self.leading is not None
        assert self.log.last.term <= self.term
        assert self.state is FOLLOWER or self.is_counted
        if self.leading is not None:
            assert self.leading.term == self.term
            assert self._ballot_saved is not None
            assert self._ballot_saved.term == self.term
            self.leading.validate()


_STEPS = {
    MessageKind.PRE_VOTE: Raft._take_vote_request,
    MessageKind.VOTE: Raft._take_vote_request,
    MessageKind.PRE_VOTE_REPLY: Raft._take_vote_reply,
    MessageKind.VOTE_REPLY: Raft._take_vote_reply,
    MessageKind.APPEND: Raft._take_append,
    MessageKind.APPEND_REPLY: Raft._take_append_reply,
    MessageKind.HEARTBEAT: Raft._take_heartbeat,
    MessageKind.HEARTBEAT_REPLY: Raft._take_heartbeat_reply,
    MessageKind.SNAPSHOT: Raft._take_snapshot,
}
