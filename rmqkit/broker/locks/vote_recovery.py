"""VoteRecovery: whether this broker knows all its unexpired votes. Only then may it vote.

Votes are leases of 60 s in memory. A process that was killed has forgotten its votes. If it then
voted for another client, two quorums would both count this broker. So after a start it votes only
once it is *sure* of its votes, which is when one of these holds:

1. The previous run ended with a clean stop. The stop wrote all unexpired votes to
   `config/lockVotes.json`. The start restores them as leases that begin now, so none ends too
   early.
2. The broker has served for 60 s (monotonic). Every earlier vote has expired, because the previous
   run ended before the broker began to serve.
3. Enough peers that are sure of their own votes have sent all their unexpired votes. The broker
   has recovered them (`recovered_votes`) with the remaining lifetime that each peer reported,
   counted from the arrival of its answer.

Why (3) is enough: only votes in a granted lock matter, and only until its lease expires. A lock
that counts a forgotten vote of ours was granted by a quorum of q among n brokers. So at least q-1
peers voted for it, and any n-q+1 of the n-1 peers include one of them. That peer's vote does not
expire before the lease, which counts from an earlier moment: when the client asked. So the answers
of n-q+1 peers contain every such lock. Any further votes in them only block a queue until they
expire.

- Peers are asked no earlier than `ASK_AFTER_MS` after the start. A vote counts for at most 1 s
  after the coordinator's request, so by then every peer has cast the votes that count together
  with a forgotten vote of ours. A vote that a peer casts after its answer cannot belong to a
  forgotten vote: we cast none until we are sure. So an answer stays valid, however long the next
  peer takes.
- A vote of an undecided ballot is sent like any other, because our vote may have decided the
  ballot. It is sent with the leases that an `undo` would restore. If a peer has handled an unlock,
  either the lease has ended, or a later attempt granted the lock again.
- A peer also sends votes that it recovered itself, because it may have cast them. It passes on
  their remaining lifetime and never prolongs it.
- A peer that is not sure does not count. So two members that were killed cannot learn from each
  other. In a group of three both wait for (2); in a group of five each asks the remaining three.
- If a peer has more votes than fit into one answer (`recovered_votes.REPORTED_MAX`), it sends none.
  Apache's brokers send none either. In both cases (2) decides.

A store that never voted looks like one whose disk was just lost: neither has the file. So a new
store also waits for (2) or asks (3). Its own answer, that it has no unexpired vote, counts only
for peers that are new too. So a new group votes 2 s after its brokers know each other, and a
member that lost its disk still learns its votes from its peers. Votes can be lost only if two
disks of a group are lost within a minute. A new group of one votes at once. A store that has
messages but no file is not new: it ran in another lock mode.

Before the first vote the file durably says `voting`, so the votes of a clean stop are used only
once.

    stopped  ->  waiting, sure
    waiting  ->  asking, sure, voting
    asking   ->  sure, voting
    sure     ->  voting
    voting   ->  (end)

A `sure` broker knows its votes, and waits until the file with `voting` is on disk. Only a `voting`
broker votes.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from rmqkit.broker.locks.lock_table import LockTable
from rmqkit.broker.locks.recovered_votes import (
    RecoveredVotes,
    RemainingLease,
    VoteReport,
    all_running,
    decode_votes,
    encode_votes,
)
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.runtime.calls import CallFailed, Outcome
from rmqkit.runtime.states import Moves, StateMachine
from rmqkit.wire import fastjson
from rmqkit.wire.bodies import LockBatchAnswer, LockBatchBody
from rmqkit.wire.codes import RequestCode

if TYPE_CHECKING:
    from rmqkit.broker.locks.strict import Strict

FILE = "config/lockVotes.json"
DUTY = "lock-votes"
ASK_AFTER_MS = 2_000
LOOK_MS = 1_000
ASK_TIMEOUT_MS = 900
#: group name of the request of (3). It is a LOCK_BATCH_MQ without queues, so an Apache broker locks
#: nothing and answers with no queue
ASKING_GROUP = "rmqkit-lock-votes"


class VoteRecoveryState(StrEnum):
    """What a broker knows of its own votes. The file records `stopped` or `voting`."""

    STOPPED = "stopped"
    #: it has started; peers may still cast votes that count together with a vote of its previous
    #: run
    WAITING = "waiting"
    #: it asks its peers for their votes
    ASKING = "asking"
    #: it knows all its unexpired votes
    SURE = "sure"
    #: as `sure`, and the file says `voting`: it may vote
    VOTING = "voting"


STOPPED, WAITING, ASKING, SURE, VOTING = VoteRecoveryState

MOVES = Moves(
    {
        STOPPED: (WAITING, SURE),
        WAITING: (ASKING, SURE, VOTING),
        ASKING: (SURE, VOTING),
        SURE: (VOTING,),
        VOTING: (),
    }
)


class VoteRecovery(StateMachine[VoteRecoveryState]):
    """Decides when this broker may vote, and owns the file of its votes."""

    def __init__(self, mode: "Strict", table: LockTable, recovered: RecoveredVotes) -> None:
        super().__init__(MOVES)
        self._mode = mode
        self._broker = mode.broker
        self._table = table
        self._recovered = recovered
        self._disk = mode.broker.ports.disk
        self._file = AtomicFile(self._disk, FILE)
        self._started_ms: int | None = None
        #: neither a vote file nor messages: a new store, or a lost disk
        self.is_new = False
        #: the file says `voting`, durably
        self._is_marked = False
        #: broker ids of peers whose votes have been recovered
        self._answered_by: set[int] = set()

    def start(self) -> None:
        self._started_ms = now_ms = self._broker.clock.mono_ms
        found, votes = self._load()
        self.is_new = not found and self._broker.store.offset_max <= 0
        self._is_marked = found == VOTING
        if found == STOPPED:
            self._take(votes, now_ms)
        is_sure = found == STOPPED or (self.is_new and self._mode.size == 1)
        self.move(SURE if is_sure else WAITING)
        if not self._is_marked:
            self._mark()
        self._broker.duties.add(DUTY, self._check, now_ms)

    @property
    def is_sure(self) -> bool:
        """Whether this broker knows all its unexpired votes."""
        return self.state in (SURE, VOTING)

    def validate(self) -> None:
        assert (self.state is STOPPED) == (self._started_ms is None)
        assert self.state is not SURE or not self._is_marked
        assert self.state is not VOTING or self._is_marked
        assert self._recovered.is_noting == (self.state is ASKING)

    def stop(self, then: Callable[[], None]) -> None:
        """Write the unexpired votes to the file, then call `then`.

        A broker that never became sure leaves the file unchanged.
        """
        if not self.is_sure:
            then()
            return
        running = all_running(self._table, self._recovered, self._broker.clock.mono_ms)
        kept = dict.fromkeys((group, lease.client_id, queue) for group, queue, lease in running)
        votes = [{"group": group, "clientId": client_id, "queue": list(queue)} for group, client_id, queue in kept]
        self._file.save(lambda: fastjson.dumps({"state": STOPPED, "votes": votes}), then)

    def votes_from_ms(self, now_ms: int) -> int:
        """Return the time in ms after which this broker certainly may vote, 0 if it may now.

        It may become sure earlier, by the answers of its peers.
        """
        if self.is_sure:
            return 0 if self.state is VOTING else 1
        if self._started_ms is None:
            return self._table.live_ms
        return max(1, self._started_ms + self._table.live_ms + 1 - now_ms)

    def votes_for_peer(self, now_ms: int) -> Mapping[str, Any]:
        """Return the answer to a peer that asks for votes (3)."""
        running = all_running(self._table, self._recovered, now_ms)
        votes = encode_votes(running, self._table.live_ms, now_ms)
        return {"sure": self.is_sure, "new": self.is_new, "running": len(running), "votes": votes}

    # --- the file

    def _load(self) -> tuple[str, list[Any]]:
        """Return the state and votes that the previous run saved.

        The state is "" if there is no file, and `voting` if the file cannot be read. The backup is
        never read: it is older, and may hold a clean stop from before the run that was killed.
        """
        size = self._disk.size(FILE)
        if size is None:
            return ("" if self._disk.size(f"{FILE}.bak") is None else VOTING), []
        try:
            read = fastjson.loads(self._disk.read(FILE, 0, size))
            return (STOPPED, list(read["votes"])) if read["state"] == STOPPED else (VOTING, [])
        except (RemoteProtocolError, KeyError, TypeError) as error:
            self._broker.log.warning("lock-votes-unreadable", file=FILE, error=str(error))
            return VOTING, []

    def _take(self, votes: list[Any], now_ms: int) -> None:
        whole = [RemainingLease(self._table.live_ms, 0)]
        taken = []
        for vote in votes:
            topic, broker_name, queue_id = vote["queue"]
            taken.append(VoteReport(vote["group"], vote["clientId"], topic, broker_name, queue_id, whole))
        self._recovered.take(taken, now_ms)

    def _mark(self) -> None:
        def marked() -> None:
            if self._file.error is None:
                self._is_marked = True
                if self.state is SURE:
                    self.move(VOTING)
            else:
                self._broker.log.warning("lock-votes-not-kept", file=FILE, error=str(self._file.error))

        self._file.save(lambda: fastjson.dumps({"state": VOTING}), marked)

    # --- asking peers

    def _check(self, now_ms: int) -> int | None:
        assert self._started_ms is not None
        if not self._is_marked and not self._file.busy:
            self._mark()
        up_ms = now_ms - self._started_ms
        if not self.is_sure and up_ms > self._table.live_ms:
            self._end_recovery("all votes of earlier runs have expired")
        elif not self.is_sure and up_ms >= ASK_AFTER_MS:
            self._ask()
        return None if self.state is VOTING else now_ms + LOOK_MS

    def _end_recovery(self, why: str) -> None:
        self.move(VOTING if self._is_marked else SURE)
        self._recovered.note(on=False)
        self._broker.log.info("lock-votes", why=why)

    def _ask(self) -> None:
        broker = self._broker
        identity = broker.config.identity
        body = LockBatchBody(
            client_id=f"{identity.broker_name}:{identity.broker_id}",
            consumer_group=ASKING_GROUP,
            only_this_broker=True,
            rmqkit={"whatRuns": True},
        ).encode()
        if self.state is WAITING:
            self.move(ASKING)
        # Each round starts a new list: ASK_TIMEOUT_MS ends the calls of a round before the next
        # one.
        self._recovered.note(on=True)
        for member, address in self._mode.others():
            if member in self._answered_by:
                continue

            def answered(outcome: Outcome, member: int = member) -> None:
                self._answered(member, outcome)

            broker.remoting.call(address, RequestCode.LOCK_BATCH_MQ, None, body, timeout_ms=ASK_TIMEOUT_MS, then=answered)

    def _answered(self, member: int, outcome: Outcome) -> None:
        if self.is_sure or isinstance(outcome, CallFailed) or not outcome.is_ok:
            return
        try:
            said = LockBatchAnswer.decode(outcome.body).rmqkit or {}
        except RemoteProtocolError:
            return
        votes = decode_votes(said.get("votes"))
        if votes is None or not (said.get("sure") is True or (self.is_new and said.get("new") is True)):
            return
        now_ms = self._broker.clock.mono_ms
        self._recovered.take(votes, now_ms)
        self._answered_by.add(member)
        if len(self._answered_by) >= self._mode.size - self._mode.quorum + 1:
            unexpired = sum(1 for _ in self._recovered.running(now_ms))
            self._end_recovery(f"{len(self._answered_by)} peers sent their votes, {unexpired} of them unexpired")
