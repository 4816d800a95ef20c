"""The lock mode `strict`: a quorum of the broker group grants a lock.

A quorum is `size` / 2 + 1 members, rounded down. Each member has a table of votes: leases of 60 s
by its own monotonic clock.

- A client asks the master, or the acting master. That broker is the coordinator (`ballot`): it
  votes, then sends LOCK_BATCH_MQ with `onlyThisBroker` to its peers. They vote and ask no further
  broker. The coordinator grants the queues that reached the quorum.
- Any two quorums share a member, and a member votes for one client at a time. So two coordinators
  that do not know of each other never grant one queue to two clients.
- A lease counts from the moment when its client asked. Every vote for it is younger.
- A member that does not know all its earlier votes does not vote (`vote_recovery`). It may still
  coordinate.
- An unlock goes to all members (`unlock_retries`).

Every member may vote, whether it is a slave, the acting master or isolated. The size of the group
is `totalReplicas`, or the number of known members if that is greater. A group of one member grants
by itself. After a kill it waits like any other, because no peer knows its leases.

Apache's brokers and ours can vote and coordinate in one group. Ours put an object `rmqkit` beside
the fields of 41 and 42; Apache's brokers ignore it and send none. They vote as soon as they have
started, even if they have forgotten votes. So one of them can break the guarantee after a restart.

Source: `AdminBrokerProcessor.{lockBatchMQ,unlockBatchMQ}`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rmqkit.broker.locks.ballot import Ballot
from rmqkit.broker.locks.contract import NO_ROOM, NOTHING_MORE, Locked, More
from rmqkit.broker.locks.lock_table import Lease, LockTable
from rmqkit.broker.locks.recovered_votes import RecoveredVotes, all_running
from rmqkit.broker.locks.unlock_retries import UnlockRetries
from rmqkit.broker.locks.vote_recovery import VoteRecovery
from rmqkit.runtime.connection import Address
from rmqkit.wire.bodies import LockBatchBody
from rmqkit.wire.fastjson import MessageQueue

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

#: entries of `Strict._over`; beyond it the oldest is dropped
OVER_MAX = 10_000
#: sentinel: no attempt
UNKNOWN = -1


class Strict:
    """The lock mode `strict` on one broker: as a voter, and as a coordinator of ballots."""

    def __init__(self, broker: "BrokerView") -> None:
        self.broker = broker
        self.table = LockTable()
        self.recovered = RecoveredVotes(self.table)
        self.vote_recovery = VoteRecovery(self, self.table, self.recovered)
        self.retries = UnlockRetries(self)
        self._ballots: dict[int, Ballot] = {}
        #: ended attempts of other coordinators, and when this broker learned of each (monotonic
        #: ms). Their vote requests may still arrive
        self._over: dict[int, int] = {}
        #: leases that this broker's ballots granted; all votes for them may be on peers
        self._granted: dict[str, dict[MessageQueue, Lease]] = {}

    # --- the group

    def others(self) -> list[tuple[int, Address]]:
        """Return id and address of each live peer, by id."""
        own_id = self.broker.config.identity.broker_id
        members = sorted(self.broker.roles.members.items())
        return [(member, address) for member, address in members if member != own_id and address != self.broker.address]

    @property
    def size(self) -> int:
        return max(self.broker.config.replication.total_replicas, 1 + len(self.others()))

    @property
    def quorum(self) -> int:
        return self.size // 2 + 1

    def send_unlock(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        more: Mapping[str, Any],
        *,
        repeat: bool = True,
    ) -> None:
        """Send UNLOCK_BATCH_MQ to every peer; with `repeat`, until each has answered."""
        body = LockBatchBody(
            client_id=client_id,
            consumer_group=group,
            mq_set=list(queues),
            only_this_broker=True,
            rmqkit=dict(more),
        ).encode()
        self.retries.send(body, repeat=repeat)

    # --- LockMode

    def start(self) -> None:
        self.retries.start()
        self.vote_recovery.start()

    def stop(self, then: Callable[[], None]) -> None:
        self.vote_recovery.stop(then)

    def may_vote(self, now_ms: int) -> bool:
        return self.vote_recovery.votes_from_ms(now_ms) == 0

    def lock(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        *,
        only_this_broker: bool,
        now_ms: int,
        then: Locked,
        more: More = NOTHING_MORE,
    ) -> None:
        if more.get("whatRuns"):
            then([], self.vote_recovery.votes_for_peer(now_ms))
        elif only_this_broker:
            self._vote(group, client_id, queues, now_ms, then, _attempt(more))
        else:
            ballot = Ballot(self, group, client_id, queues, now_ms, then)
            self._ballots[ballot.attempt] = ballot
            ballot.begin()

    def _vote(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], now_ms: int, then: Locked, attempt: int
    ) -> None:
        votes_from_ms = self.vote_recovery.votes_from_ms(now_ms)
        if votes_from_ms:
            then([], {"votesFrom": votes_from_ms})
            return
        if attempt in self._over:
            then([])
            return
        granted = self.vote(group, client_id, queues, now_ms, attempt)
        then(NO_ROOM if granted is None else granted)

    def vote(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], now_ms: int, attempt: int
    ) -> list[MessageQueue] | None:
        """Vote for the client; return the queues that got this broker's vote.

        Returns None if the table is full. The caller has checked `may_vote`.
        """
        return self.table.lock(group, client_id, self.recovered.open_to(client_id, group, queues, now_ms), now_ms, attempt)

    def undo(self, group: str, client_id: str, queues: Sequence[MessageQueue], attempt: int) -> None:
        """Withdraw this broker's votes for a failed attempt."""
        self.table.undo(group, client_id, queues, attempt)
        self.recovered.undo(group, client_id, queues, attempt)

    def is_open(self, attempt: int) -> bool:
        """Whether this attempt's ballot is still running."""
        return attempt in self._ballots

    def ended(self, ballot: Ballot, outcome: Sequence[MessageQueue] | str) -> None:
        """Forget an ended ballot and record what it granted."""
        del self._ballots[ballot.attempt]
        if outcome and not isinstance(outcome, str):
            lease = Lease(ballot.client_id, self.broker.clock.mono_ms, ballot.attempt)
            self._granted.setdefault(ballot.group, {}).update(dict.fromkeys(outcome, lease))

    def unlock(
        self,
        group: str,
        client_id: str,
        queues: Sequence[MessageQueue],
        *,
        only_this_broker: bool,
        now_ms: int,
        more: More = NOTHING_MORE,
    ) -> None:
        if only_this_broker:
            self._unlock_here(group, client_id, queues, now_ms, more)
            return
        for ballot in self._ballots.values():
            if (ballot.group, ballot.client_id) == (group, client_id):
                ballot.withdraw(queues)
        # The client may have locked a queue again through another coordinator. So that a late
        # unlock does not release that lock, it names the attempt that it ends. If the attempt is
        # unknown, Apache's brokers release the queue, and on ours the lease expires.
        by_attempt: dict[int, list[MessageQueue]] = {}
        for queue in dict.fromkeys(queues):
            by_attempt.setdefault(self._attempt_of(group, client_id, queue), []).append(queue)
        self.table.unlock(group, client_id, queues)
        self.recovered.unlock(group, client_id, queues)
        for attempt, some in by_attempt.items():
            self.send_unlock(group, client_id, some, {"attempt": attempt}, repeat=attempt != UNKNOWN)
            for queue in some:
                self._granted.get(group, {}).pop(queue, None)

    def _attempt_of(self, group: str, client_id: str, queue: MessageQueue) -> int:
        """Return the newest attempt of the client for the queue known here, or UNKNOWN."""
        own = (self.table.lease(group, queue), self._granted.get(group, {}).get(queue))
        leases = (*own, *self.recovered.leases(group, queue))
        known = (lease for lease in leases if lease is not None and lease.client_id == client_id and lease.attempt)
        return max(known, key=lambda lease: lease.since_ms, default=Lease("", 0, UNKNOWN)).attempt

    def _unlock_here(self, group: str, client_id: str, queues: Sequence[MessageQueue], now_ms: int, more: More) -> None:
        """Handle a peer's withdrawal: its attempt failed, or the client unlocked queues."""
        undone, attempt = _attempt(more, "undo"), _attempt(more)
        if undone or attempt > 0:
            self._over[undone or attempt] = now_ms
            if len(self._over) > OVER_MAX:
                del self._over[next(iter(self._over))]
        if undone:
            lost = _queues(more.get("queues"))
            self.undo(group, client_id, lost, undone)
        else:
            freed = self.table.unlock(group, client_id, queues, attempt)
            self.recovered.unlock(group, client_id, freed)
            self.recovered.unlock(group, client_id, queues, attempt)

    def holds_any(self, group: str, now_ms: int) -> bool:
        if self.table.holds_any(group, now_ms) or self.recovered.holds_any(group, now_ms):
            return True
        live_ms = self.table.live_ms
        return any(now_ms - lease.since_ms <= live_ms for lease in self._granted.get(group, {}).values())

    def sweep(self, now_ms: int) -> None:
        self.table.sweep(now_ms)
        self.recovered.sweep(now_ms)
        self._over = {attempt: told_ms for attempt, told_ms in self._over.items() if now_ms - told_ms <= self.table.live_ms}
        for group, granted in list(self._granted.items()):
            left = {queue: lease for queue, lease in granted.items() if now_ms - lease.since_ms <= self.table.live_ms}
            self._granted[group] = left
            if not left:
                del self._granted[group]

    def facts(self, now_ms: int) -> Mapping[str, str]:
        return {
            "lockHeld": str(len({(group, queue) for group, queue, _ in all_running(self.table, self.recovered, now_ms)})),
            "lockVotesFrom": str(self.vote_recovery.votes_from_ms(now_ms)),
        }


def _attempt(more: More, name: str = "attempt") -> int:
    """Return the attempt, or 0 if the request has none (Apache's brokers send none)."""
    attempt = more.get(name, 0)
    return attempt if isinstance(attempt, int) else 0


def _queues(listed: Any) -> list[MessageQueue]:
    """Return the listed queues without malformed entries."""
    if not isinstance(listed, list):
        return []
    parts = [each for each in listed if isinstance(each, list | tuple) and tuple(map(type, each)) == (str, str, int)]
    return [MessageQueue(*each) for each in parts]
