"""Ballot: one attempt to get the votes of a quorum for the queues that a client asks for.

The coordinator votes first, if it may; what it has given to another client is not asked for further. Every other member
that is alive is asked at once. A queue is decided when a quorum has voted for it, or when those who have not answered
cannot make one any more; the ballot ends when all are decided, or after `VOTE_TIMEOUT_MS`. What got no quorum is given
back, on every member and with the number of the attempt (`LockTable.undo`): a lease that the client holds from an earlier
attempt is left as it was. Apache's brokers do not know attempts; what they have given to a ballot that failed runs out.

Three outcomes of a queue: granted; refused, as too many voted for another client; undecided, as too few answered. The
client is told the granted ones. When there is none and some are undecided it is told why, as an error: its old lease may
be as good as ever, and it must not take silence for a refusal.

An answer counts only while the attempt is younger than `VOTE_TIMEOUT_MS`, whatever the coordinator did meanwhile: a
process that was stopped does not grant by votes that it finds when it wakes up. A queue that its client gives back while
the ballot runs is not granted.

    new      ->  asking, granted, refused, failed
    asking   ->  granted, refused, failed
    granted  ->  (end)
    refused  ->  (end)
    failed   ->  (end)

It is `granted` when the client got at least one queue, and `failed` when the client gets an error.

Source: `AdminBrokerProcessor.lockBatchMQ`. Upstream waits for 1 s, just as long as its clients do, so that an answer at the
end is never heard; it asks and answers the same.
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
    NEW = "new"
    ASKING = "asking"
    GRANTED = "granted"
    REFUSED = "refused"
    FAILED = "failed"


NEW, ASKING, GRANTED, REFUSED, FAILED = BallotState
ENDS = (GRANTED, REFUSED, FAILED)
MOVES = Moves({NEW: (ASKING, *ENDS), ASKING: ENDS, GRANTED: (), REFUSED: (), FAILED: ()})


class Ballot(StateMachine[BallotState]):
    def __init__(
        self, mode: "Strict", group: str, client_id: str, queues: Sequence[MessageQueue], now_ms: int, then: Locked
    ) -> None:
        super().__init__(MOVES)
        self.group = group
        self.client_id = client_id
        self.attempt = 1 + mode.broker.entropy.getrandbits(52)
        #: members of the group, and how many of them make a quorum, as the attempt begins
        self.size, self.quorum = mode.size, mode.quorum
        self._mode = mode
        self._broker = mode.broker
        self._wanted = list(dict.fromkeys(queues))
        self._votes = dict.fromkeys(self._wanted, 0)
        self._refusals = dict.fromkeys(self._wanted, 0)
        self._asked = list(mode.others())
        self._waiting = {member for member, _ in self._asked}
        self._given_back: set[MessageQueue] = set()
        self._began_ms = now_ms
        self._then = then

    def validate(self) -> None:
        assert self.state is not NEW, "a ballot begins in the turn that it is made in"
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
        for member, address in self._asked:

            def answered(outcome: Outcome, member: int = member) -> None:
                self._heard(member, outcome)

            self._broker.remoting.call(
                address, RequestCode.LOCK_BATCH_MQ, None, body, timeout_ms=VOTE_TIMEOUT_MS, then=answered
            )

    def withdraw(self, queues: Iterable[MessageQueue]) -> None:
        """The client gives them back before it is answered."""
        self._given_back.update(queues)

    def _heard(self, member: int, outcome: Outcome) -> None:
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
            return  # it has not voted, for whomever
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
            mode.tell_others(
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
        own_from_ms = self._mode.recall.votes_from_ms(self._broker.clock.mono_ms)
        if own_from_ms:
            return f"; this one votes in {own_from_ms // 1000 + 1} s, when all it may have forgotten has run out"
        if self.size > 1 and not self._broker.roles.is_enabled:
            return "; members know each other only with enableSlaveActingMaster"
        return ""

    def _finish(self, outcome: Sequence[MessageQueue] | str) -> None:
        self.move(FAILED if isinstance(outcome, str) else GRANTED if outcome else REFUSED)
        self._mode.ended(self, outcome)
        self._then(outcome)
