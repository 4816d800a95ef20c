"""A member without disk and network, for tests that give it one message at a time.

    member = Member(entries=[1, 1, 2], term=2)      # "a" of a, b, c; entries by their terms
    member.receive(APPEND, "b", term=2, ...)
    assert member.sent(APPEND_REPLY) == [...]

What the member decides is durable at once, unless the test holds the disk back. `validate` runs
after each event.
"""

from collections.abc import Sequence

from rmqkit.controller.raft.core import Raft, RaftFiles, RaftWrites, VoteRecord
from rmqkit.controller.raft.messages import ORIGIN, LogEntry, MessageKind, Position, RaftMessage

TIMEOUT_MS, HEARTBEAT_MS = 1000, 100
NAMES = "abcde"


class Draws:
    """A random source that returns what the test wants."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.stops: list[int] = []

    def randrange(self, stop: int, /) -> int:
        self.stops.append(stop)
        return self.number % stop

    def random(self) -> float:
        return 0.0

    def getrandbits(self, k: int, /) -> int:
        return 0


def entries_of(terms: Sequence[int], first: int = 1) -> list[LogEntry]:
    """Return entries with these terms; each says its term and index."""
    return [LogEntry(term, index, b"%d/%d" % (term, index)) for index, term in enumerate(terms, first)]


class Member:
    """The member "a" of a group, its time, and what it has sent."""

    def __init__(
        self,
        *,
        size: int = 3,
        term: int = 0,
        vote: str = "",
        entries: Sequence[int] = (),
        start: Position = ORIGIN,
        snapshot: bytes = b"",
        is_counted: bool = True,
        draw: int = 0,
        id: str = "a",
        has_just_started: bool = False,
    ) -> None:
        self.draws = Draws(draw)
        self.now_ms = 50_000
        self.peers = [each for each in NAMES[:size] if each != id]
        files = RaftFiles(VoteRecord(term, vote, is_counted), start, snapshot, entries_of(entries, start.index + 1))
        self.raft = Raft(
            id,
            list(NAMES[:size]),
            files,
            election_timeout_ms=TIMEOUT_MS,
            heartbeat_ms=HEARTBEAT_MS,
            entropy=self.draws,
            now_ms=self.now_ms,
        )
        if not has_just_started:
            self.raft._heard_ms -= TIMEOUT_MS
        self.is_disk_held = False
        self.writes: list[RaftWrites] = []
        self.applied: list[LogEntry] = []
        self.restored: list[bytes] = []
        self._sent: list[RaftMessage] = []
        self._settle()

    # --- events

    def wait(self, duration_ms: int) -> None:
        """Let time pass; the member's time is up as often as it wants."""
        end_ms = self.now_ms + duration_ms
        while self.raft.due_ms() <= end_ms:
            self.now_ms = max(self.now_ms, self.raft.due_ms())
            self.raft.tick(self.now_ms)
            self._settle()
        self.now_ms = end_ms

    def time_out(self) -> None:
        """Let the election time-out pass."""
        self.now_ms = self.raft._election_due_ms
        self.raft.tick(self.now_ms)
        self._settle()

    def receive(
        self,
        kind: MessageKind,
        sender: str,
        term: int,
        position: Position = ORIGIN,
        *,
        entries: Sequence[int] = (),
        commit: int = 0,
        rejected: bool = False,
        hint: Position = ORIGIN,
        round: int = 0,
        data: bytes = b"",
    ) -> None:
        message = RaftMessage(
            kind, sender, self.raft.id, term, position, hint, commit, round, rejected,
            tuple(entries_of(entries, position.index + 1)), data,
        )  # fmt: skip
        self.raft.step(message, self.now_ms)
        self._settle()

    def propose(self, data: bytes = b"x") -> Position | None:
        position = self.raft.propose(data, self.now_ms)
        self._settle()
        return position

    def stand(self) -> None:
        """Become a candidate: the pre-vote is granted by the first peers."""
        self.time_out()
        for peer in self.peers[: len(self.peers) // 2]:
            self.receive(MessageKind.PRE_VOTE_REPLY, peer, self.raft.term + 1)
        self.forget()

    def lead(self) -> None:
        """Become the leader; the first entry of the term is sent, but nobody has it yet."""
        self.stand()
        for peer in self.peers[: len(self.peers) // 2]:
            self.receive(MessageKind.VOTE_REPLY, peer, self.raft.term)

    def hear_all(self) -> None:
        """Let every peer answer the last heartbeat."""
        assert self.raft.leading is not None
        for peer in self.peers:
            self.receive(
                MessageKind.HEARTBEAT_REPLY, peer, self.raft.term, round=self.raft.leading.round,
                commit=self.raft.log.commit,
            )  # fmt: skip

    def acknowledge(self, peer: str, index: int | None = None) -> None:
        """Let a peer acknowledge the log up to an index."""
        index = self.raft.log.last.index if index is None else index
        self.receive(MessageKind.APPEND_REPLY, peer, self.raft.term, Position(self.raft.log.term_at(index) or 0, index))

    # --- the disk

    def release_disk(self) -> None:
        """End the write that is in flight, and let the next ones be durable at once."""
        self.is_disk_held = False
        self.raft.written(self.now_ms)
        self._settle()

    def _settle(self) -> None:
        raft = self.raft
        raft.validate()
        while (writes := raft.take_writes()) is not None:
            self.writes.append(writes)
            if self.is_disk_held:
                break
            raft.written(self.now_ms)
            raft.validate()
        self._sent += raft.take_messages(self.now_ms)
        snapshot, entries = raft.take_committed()
        if snapshot is not None:
            self.restored.append(snapshot)
        self.applied += entries
        raft.validate()

    # --- what came out

    def sent(self, *kinds: MessageKind) -> list[RaftMessage]:
        """Return the messages of these kinds since the last call of `forget`, or all of them."""
        return [message for message in self._sent if not kinds or message.kind in kinds]

    def forget(self) -> None:
        self._sent = []

    @property
    def terms(self) -> list[int]:
        return [entry.term for entry in self.raft.log.entries]
