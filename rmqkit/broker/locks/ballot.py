"""Ballot: one attempt to collect a quorum of votes for the queues that a client wants to lock.

1. The coordinator votes first, if it may vote. It drops the queues that it has granted to another
   client.
2. It asks every live peer for its vote, all at the same time.
3. A queue is decided once a quorum has voted for it, or once the missing answers cannot make a
   quorum any more. The ballot ends when every queue is decided, or after `VOTE_TIMEOUT_MS`.
4. The votes for a queue without a quorum are withdrawn on every member. The withdrawal names the
   attempt (`LockTable.undo`), so a lease from an earlier attempt stays valid. Apache's brokers
   know no attempts: there, votes for a failed ballot expire.

A queue has one of three outcomes:

- granted: a quorum voted for the client;
- refused: too many members voted for another client;
- undecided: too few members answered.

The client receives the granted queues. If none is granted and some are undecided, the client
receives an error with the reason. It must not mistake silence for a refusal, because its earlier
lease may still be valid.

An answer counts only while the attempt is younger than `VOTE_TIMEOUT_MS`. So a coordinator whose
process was stopped grants nothing by votes that it reads after it resumes. A queue that the client
unlocks during the ballot is not granted.

    new      ->  asking, granted, refused, failed
    asking   ->  granted, refused, failed
    granted  ->  (end)
    refused  ->  (end)
    failed   ->  (end)

`granted` means that the client got at least one queue, `failed` that it receives an error.

Source: `AdminBrokerProcessor.lockBatchMQ`. Apache's coordinator waits for 1 s. Its clients time
out after 1 s too, so they miss an answer that comes at the end. The requests and answers are
otherwise the same.
"""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from rmqkit.broker.locks.contract import NO_ROOM, Locked
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import CallFailed, Outcome
from rmqkit.runtime.states import Moves, StateMachine
from rmqkit.wire.bodies import LockBatchAnswer, LockBatchBody
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.fastjson import MessageQueue

if TYPE_CHECKING:
    from rmqkit.broker.locks.strict import Strict

VOTE_TIMEOUT_MS = 800


class BallotState(StrEnum):
    """The states of a ballot; the module head describes them."""

    NEW = "new"
    ASKING = "asking"
    GRANTED = "granted"
    REFUSED = "refused"
    FAILED = "failed"


NEW, ASKING, GRANTED, REFUSED, FAILED = BallotState
ENDS = (GRANTED, REFUSED, FAILED)
MOVES = Moves({NEW: (ASKING, *ENDS), ASKING: ENDS, GRANTED: (), REFUSED: (), FAILED: ()})


class Ballot(StateMachine[BallotState]):
    """One attempt, of this broker as coordinator, to lock queues for a client.

    `then` is called exactly once, with the granted queues or the text of an error.
    """

    def __init__(
        self, mode: "Strict", group: str, client_id: str, queues: Sequence[MessageQueue], now_ms: int, then: Locked
    ) -> None:
        super().__init__(MOVES)
        self.group = group
        self.client_id = client_id
        self.attempt = 1 + mode.broker.entropy.getrandbits(52)
        #: size of the broker group and of its quorum when the attempt began
        self.size, self.quorum = mode.size, mode.quorum
        self._mode = mode
        self._broker = mode.broker
        self._wanted = list(dict.fromkeys(queues))
        self._votes = dict.fromkeys(self._wanted, 0)
        self._refusals = dict.fromkeys(self._wanted, 0)
        self._peers = list(mode.others())
        self._waiting = {member for member, _ in self._peers}
        self._given_back: set[MessageQueue] = set()
        self._began_ms = now_ms
        self._then = then

    def validate(self) -> None:
        assert self.state is not NEW, "a ballot begins in the turn that creates it"
        assert self.state is not ASKING or not self._is_decided()
        assert self._mode.is_open(self.attempt) == (self.state is ASKING)

    def begin(self) -> None:
        mode, now_ms = self._mode, self._began_ms
        if mode.may_vote(now_ms):
            granted = mode.vote(self.group, self.client_id, self._wanted, now_ms, self.attempt)
            if granted is None:
                self._finish(NO_ROOM)
                return
            self._wanted = granted
            self._votes = dict.fromkeys(granted, 1)
        if self._is_decided():
            self._end()
            return
        self.move(ASKING)
        body = LockBatchBody(
            client_id=self.client_id,
            consumer_group=self.group,
            mq_set=self._wanted,
            only_this_broker=True,
            rmqkit={"attempt": self.attempt},
        ).encode()
        for member, address in self._peers:

            def answered(outcome: Outcome, member: int = member) -> None:
                self._answered(member, outcome)

            self._broker.remoting.call(
                address, RequestCode.LOCK_BATCH_MQ, None, body, timeout_ms=VOTE_TIMEOUT_MS, then=answered
            )

    def withdraw(self, queues: Iterable[MessageQueue]) -> None:
        """Do not grant these queues: the client unlocked them before the ballot ended."""
        self._given_back.update(queues)

    def _answered(self, member: int, outcome: Outcome) -> None:
        self._waiting.discard(member)
        if self.state is not ASKING:
            return
        if self._broker.clock.mono_ms - self._began_ms <= VOTE_TIMEOUT_MS:
            self._count(outcome)
        if self._is_decided():
            self._end()

    def _count(self, outcome: Outcome) -> None:
        if isinstance(outcome, CallFailed) or not outcome.is_ok:
            return
        try:
            answer = LockBatchAnswer.decode(outcome.body)
        except RemoteProtocolError:
            return
        if (answer.rmqkit or {}).get("votesFrom"):
            return  # the member may not vote yet: neither a vote nor a refusal
        voted = set(answer.lock_ok_mq_set)
        for queue in self._wanted:
            (self._votes if queue in voted else self._refusals)[queue] += 1

    def _is_decided(self) -> bool:
        quorum, left = self.quorum, len(self._waiting)
        return not any(votes < quorum <= votes + left for votes in self._votes.values())

    def _end(self) -> None:
        mode = self._mode
        granted = [queue for queue in self._wanted if self._votes[queue] >= self.quorum and queue not in self._given_back]
        lost = [queue for queue in self._wanted if self._votes[queue] < self.quorum]
        if lost:
            mode.undo(self.group, self.client_id, lost, self.attempt)
            mode.send_unlock(
                self.group, self.client_id, (), {"undo": self.attempt, "queues": [list(queue) for queue in lost]}
            )
        refused_by = self.size - self.quorum + 1
        undecided = [queue for queue in lost if self._refusals[queue] < refused_by]
        if undecided and not granted:
            most = max(self._votes[queue] for queue in undecided)
            text = f"no quorum: {most} of {self.size} brokers voted for the queue, {self.quorum} have to"
            self._finish(text + self._hint())
        else:
            self._finish(granted)

    def _hint(self) -> str:
        own_from_ms = self._mode.vote_recovery.votes_from_ms(self._broker.clock.mono_ms)
        if own_from_ms:
            return f"; this broker votes in {own_from_ms // 1000 + 1} s, when all votes it may have forgotten have expired"
        if self.size > 1 and not self._broker.roles.is_enabled:
            return "; brokers of a group know each other only with enableSlaveActingMaster=true"
        return ""

    def _finish(self, outcome: Sequence[MessageQueue] | str) -> None:
        self.move(FAILED if isinstance(outcome, str) else GRANTED if outcome else REFUSED)
        self._mode.ended(self, outcome)
        self._then(outcome)
