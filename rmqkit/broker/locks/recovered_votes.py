"""RecoveredVotes: votes learned from peers after a restart, or read from the file of a clean stop.

Some of them are votes that this broker cast and forgot, and none of its forgotten votes is missing. It cannot know which
ones, so a recovered vote blocks and never grants: while it runs, this broker votes on its queue for its client only. If
two members report votes for two clients, one of those votes came to nothing; until one of the two has run out, this broker
votes for neither. A vote for the client itself is a new one in the `LockTable`, beside the recovered one, which runs out.

It is freed as the vote would be. An `undo`, or an unlock that names its attempt, withdraws it; after an `undo` the lease
from before is back. An unlock of a newer vote of this broker for the same client withdraws it as well: every forgotten
vote was requested before this broker started, and the newer one after it. Withdrawals that come while peers are asked are
noted and repeated on the peers' answers, which may have left before the peers heard of them.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from rmqkit.broker.locks.lock_table import BEHIND_MAX, Lease, LockTable, chain, linked
from rmqkit.wire.fastjson import MessageQueue

#: votes, and characters of the names in them, that one answer tells
TOLD_MAX = 5_000
TOLD_CHARS_MAX = 2_000_000
LEASES_MAX = 1 + BEHIND_MAX
#: requests to take back that are noted during one round of asking
NOTED_MAX = 1_000

Key = tuple[str, MessageQueue]


class Left(NamedTuple):
    """How long a lease runs on, and its attempt."""

    left_ms: int
    attempt: int


class ToldVote(NamedTuple):
    """A vote that runs, as one broker tells another: a list in this order, with lists in `leases`. The first of those is
    the vote, the others are behind it (`locks.Lease.before`)."""

    group: str
    client_id: str
    topic: str
    broker_name: str
    queue_id: int
    leases: list[Left]


class _VoteNote(NamedTuple):
    undone: bool
    group: str
    client_id: str
    queues: Sequence[MessageQueue]
    attempt: int


class RecoveredVotes:
    def __init__(self, table: LockTable) -> None:
        self._table = table
        self._by_queue: dict[Key, list[Lease]] = {}
        self._noted: deque[_VoteNote] | None = None

    # --- taking over

    @property
    def is_noting(self) -> bool:
        """Whether others are asked now."""
        return self._noted is not None

    def note(self, *, on: bool) -> None:
        """Others are asked from now on, or no more."""
        self._noted = deque(maxlen=NOTED_MAX) if on else None

    def take(self, votes: Iterable[ToldVote], now_ms: int) -> None:
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
        """No vote runs longer than a lease."""
        live_ms = self._table.live_ms
        return now_ms + min(left_ms, live_ms) - live_ms

    # --- voting

    def open_to(self, client_id: str, group: str, queues: Sequence[MessageQueue], now_ms: int) -> Sequence[MessageQueue]:
        """Those of the queues on which no recovered vote blocks a vote for this client."""
        if not self._by_queue:
            return queues
        return [
            queue for queue in queues if all(each.client_id == client_id for each in self._running((group, queue), now_ms))
        ]

    def unlock(self, group: str, client_id: str, queues: Sequence[MessageQueue], attempt: int = 0) -> None:
        """As `LockTable.unlock`: without an attempt all that the client has."""
        if attempt:
            self._note(_VoteNote(False, group, client_id, queues, attempt))
        self._unlock(group, client_id, queues, attempt)

    def undo(self, group: str, client_id: str, queues: Sequence[MessageQueue], attempt: int) -> None:
        """As `LockTable.undo`."""
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

    # --- looking

    def leases(self, group: str, queue: MessageQueue) -> Sequence[Lease]:
        """Whether they run or not."""
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
    """Every vote of a broker that runs, those that it only may have cast with them."""
    own = [
        (group, queue, lease)
        for group, held in table.by_group.items()
        for queue, lease in held.items()
        if now_ms - lease.since_ms <= table.live_ms
    ]
    return [*own, *recovered.running(now_ms)]


def tell(votes: Sequence[tuple[str, MessageQueue, Lease]], live_ms: int, now_ms: int) -> list[Any] | None:
    """What another broker is told of them, as plain lists; None when they are more than one answer has room for."""

    if len(votes) > TOLD_MAX:
        return None
    told, chars = [], 0
    for group, queue, lease in votes:
        left = [(each.since_ms + live_ms - now_ms, each.attempt) for each in chain(lease)]
        told.append([group, lease.client_id, *queue, [list(each) for each in left if each[0] >= 0]])
        chars += len(group) + len(lease.client_id) + len(queue.topic) + len(queue.broker_name)
    return told if chars <= TOLD_CHARS_MAX else None


def read_told(said: Any) -> list[ToldVote] | None:
    """None for what is no list of votes: a member that cannot tell, or has too many."""
    try:
        votes = msgspec.convert(said, list[ToldVote])
    except msgspec.ValidationError:
        return None
    return votes if all(0 < len(vote.leases) <= LEASES_MAX for vote in votes) else None


def _attempts(lease: Lease) -> tuple[str, list[int]]:
    return lease.client_id, [each.attempt for each in chain(lease)]


def _later(one: Lease, other: Lease) -> Lease:
    """Of two tellings of one vote, each end as late as anybody has it."""
    both = zip(chain(one), chain(other), strict=True)
    later = linked([max(pair, key=lambda lease: lease.since_ms) for pair in both])
    assert later is not None
    return later
