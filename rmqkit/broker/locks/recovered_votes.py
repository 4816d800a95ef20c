"""RecoveredVotes: votes learned from peers after a restart, or read from the file of a clean stop.

The recovered votes contain each vote that this broker cast and forgot, and that may count in a
granted lock (`vote_recovery` has the proof). They may also contain votes that this broker never
cast. It cannot distinguish the two kinds. So a recovered vote blocks, but never grants:

- Until it expires, this broker votes on its queue only for the same client. Such a vote is a new
  lease in the `LockTable`; the recovered one beside it still expires at its own time.
- If two peers report votes for two clients, one of those votes did not become a lock. This broker
  votes for neither client until one of the two votes has expired.

A recovered vote is withdrawn like a vote of the broker's own:

- by an `undo` or an unlock that names its attempt. An `undo` restores the previous lease;
- by an unlock of this broker's newer vote for the same client. Every forgotten vote was requested
  before this broker started, and the newer one after it.

Withdrawals that arrive while this broker asks its peers are noted, and repeated on the peers'
answers. A peer may have sent its answer before it received the withdrawal.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from rmqkit.broker.locks.lock_table import BEHIND_MAX, Lease, LockTable, chain, linked
from rmqkit.wire.fastjson import MessageQueue

#: limits of one answer: votes, and characters of all names in them
REPORTED_MAX = 5_000
REPORTED_CHARS_MAX = 2_000_000
#: leases per vote: the vote itself and its predecessors
LEASES_MAX = 1 + BEHIND_MAX
#: withdrawals noted during one round of asking; beyond it the oldest is dropped
NOTED_MAX = 1_000

Key = tuple[str, MessageQueue]


class RemainingLease(NamedTuple):
    """The remaining lifetime of a lease, and its attempt."""

    left_ms: int
    attempt: int


class VoteReport(NamedTuple):
    """An unexpired vote as one broker sends it to another: a JSON list in this order.

    The first of `leases` is the vote itself, the rest are its predecessors (`Lease.before`), newest
    first.
    """

    group: str
    client_id: str
    topic: str
    broker_name: str
    queue_id: int
    leases: list[RemainingLease]


class _VoteNote(NamedTuple):
    undone: bool
    group: str
    client_id: str
    queues: Sequence[MessageQueue]
    attempt: int


class RecoveredVotes:
    """The recovered votes of one broker. They block votes for other clients, and never grant."""

    def __init__(self, table: LockTable) -> None:
        self._table = table
        self._by_queue: dict[Key, list[Lease]] = {}
        self._noted: deque[_VoteNote] | None = None

    # --- recovery

    @property
    def is_noting(self) -> bool:
        """Whether withdrawals are noted, because this broker asks its peers for their votes."""
        return self._noted is not None

    def note(self, *, on: bool) -> None:
        """Start or stop noting withdrawals. Either discards those noted before."""
        self._noted = deque(maxlen=NOTED_MAX) if on else None

    def take(self, votes: Iterable[VoteReport], now_ms: int) -> None:
        """Add votes, then repeat the noted withdrawals on them.

        A vote that is known already keeps the later of both ends.
        """
        for vote in votes:
            key = (vote.group, MessageQueue(vote.topic, vote.broker_name, vote.queue_id))
            lease = linked(
                [Lease(vote.client_id, self._since_ms(each.left_ms, now_ms), each.attempt) for each in vote.leases]
            )
            assert lease is not None
            held = self._by_queue.setdefault(key, [])
            same = next((known for known in held if _attempts(known) == _attempts(lease)), None)
            if same is None:
                held.append(lease)
            else:
                held[held.index(same)] = _later(same, lease)
        for noted in tuple(self._noted or ()):
            (self._undo if noted.undone else self._unlock)(*noted[1:])

    def _since_ms(self, left_ms: int, now_ms: int) -> int:
        """Return the start of a lease with this remaining lifetime, limited to a full lifetime."""
        live_ms = self._table.live_ms
        return now_ms + min(left_ms, live_ms) - live_ms

    # --- voting

    def open_to(self, client_id: str, group: str, queues: Sequence[MessageQueue], now_ms: int) -> Sequence[MessageQueue]:
        """Return the queues on which no recovered vote blocks a vote for this client."""
        if not self._by_queue:
            return queues
        return [
            queue for queue in queues if all(each.client_id == client_id for each in self._running((group, queue), now_ms))
        ]

    def unlock(self, group: str, client_id: str, queues: Sequence[MessageQueue], attempt: int = 0) -> None:
        """Withdraw votes as `LockTable.unlock` does; without an attempt, all of the client."""
        if attempt:
            self._note(_VoteNote(False, group, client_id, queues, attempt))
        self._unlock(group, client_id, queues, attempt)

    def undo(self, group: str, client_id: str, queues: Sequence[MessageQueue], attempt: int) -> None:
        """Withdraw an attempt's votes as `LockTable.undo` does."""
        self._note(_VoteNote(True, group, client_id, queues, attempt))
        self._undo(group, client_id, queues, attempt)

    def _note(self, noted: _VoteNote) -> None:
        if self._noted is not None:
            self._noted.append(noted)

    def _unlock(self, group: str, client_id: str, queues: Sequence[MessageQueue], attempt: int) -> None:
        for queue in queues:
            held = self._by_queue.get((group, queue), ())
            kept = [each for each in held if each.client_id != client_id or attempt not in (0, each.attempt)]
            self._keep((group, queue), kept)

    def _undo(self, group: str, client_id: str, queues: Sequence[MessageQueue], attempt: int) -> None:
        for queue in queues:
            kept: list[Lease] = []
            for each in self._by_queue.get((group, queue), ()):
                if (each.client_id, each.attempt) != (client_id, attempt):
                    kept.append(each)
                elif each.before is not None:
                    kept.append(each.before)
            self._keep((group, queue), kept)

    def _keep(self, key: Key, kept: list[Lease]) -> None:
        if kept:
            self._by_queue[key] = kept
        else:
            self._by_queue.pop(key, None)

    # --- queries

    def leases(self, group: str, queue: MessageQueue) -> Sequence[Lease]:
        """Return the recovered votes on a queue, expired or not."""
        return self._by_queue.get((group, queue), ())

    def _running(self, key: Key, now_ms: int) -> Iterator[Lease]:
        live_ms = self._table.live_ms
        return (each for each in self._by_queue.get(key, ()) if now_ms - each.since_ms <= live_ms)

    def running(self, now_ms: int) -> Iterator[tuple[str, MessageQueue, Lease]]:
        for group, queue in self._by_queue:
            for lease in self._running((group, queue), now_ms):
                yield group, queue, lease

    def holds_any(self, group: str, now_ms: int) -> bool:
        return any(group == each for each, _, _ in self.running(now_ms))

    def sweep(self, now_ms: int) -> None:
        for key in list(self._by_queue):
            self._keep(key, list(self._running(key, now_ms)))


def all_running(table: LockTable, recovered: RecoveredVotes, now_ms: int) -> list[tuple[str, MessageQueue, Lease]]:
    """Return every unexpired vote of a broker, recovered ones included."""
    own = [
        (group, queue, lease)
        for group, held in table.by_group.items()
        for queue, lease in held.items()
        if now_ms - lease.since_ms <= table.live_ms
    ]
    return [*own, *recovered.running(now_ms)]


def encode_votes(votes: Sequence[tuple[str, MessageQueue, Lease]], live_ms: int, now_ms: int) -> list[Any] | None:
    """Encode votes for a peer as plain lists; None if they exceed the limits of one answer."""

    if len(votes) > REPORTED_MAX:
        return None
    reports, chars = [], 0
    for group, queue, lease in votes:
        left = [(each.since_ms + live_ms - now_ms, each.attempt) for each in chain(lease)]
        reports.append([group, lease.client_id, *queue, [list(each) for each in left if each[0] >= 0]])
        chars += len(group) + len(lease.client_id) + len(queue.topic) + len(queue.broker_name)
    return reports if chars <= REPORTED_CHARS_MAX else None


def decode_votes(report: Any) -> list[VoteReport] | None:
    """Decode what `encode_votes` of another broker sent.

    Returns None if it is no list of votes: the peer has too many, or cannot send any.
    """
    try:
        votes = msgspec.convert(report, list[VoteReport])
    except msgspec.ValidationError:
        return None
    return votes if all(0 < len(vote.leases) <= LEASES_MAX for vote in votes) else None


def _attempts(lease: Lease) -> tuple[str, list[int]]:
    return lease.client_id, [each.attempt for each in chain(lease)]


def _later(one: Lease, other: Lease) -> Lease:
    """Merge two reports of one vote: each lease gets the later of its two ends."""
    both = zip(chain(one), chain(other), strict=True)
    later = linked([max(pair, key=lambda lease: lease.since_ms) for pair in both])
    assert later is not None
    return later
