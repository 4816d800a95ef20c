"""`fencing`: strict queue locks whose grants are numbered, so that yesterday's owner can be told from today's.

A lock is a lease, and a lease is trusted as long as clocks and processes go on: a consumer that was stopped for longer may
finish its batch and commit after another one has taken the queue. A number helps where the lease does not.

    client ──lock──► coordinator ──votes (strict)──► quorum       who may have it
                                 ──claims an epoch─► quorum       under which number
    client ◄─queues, epochs──────

The votes are those of `strict`, unchanged. Then the coordinator claims an epoch for what was granted: its client's own when
it has one, else a greater one than it knows. Members agree by `Epochs`; whoever knows a greater one says so and it is
claimed again beyond that, three times at most. What a quorum has agreed to is answered: in the object `rmqkit` of the
answer, `{"epochs": [...]}`, one for each queue of `lockOKMQSet` in its order. Two quorums share a member; it never agrees
to one number for two clients nor to a smaller one than before: of two owners the later has the greater epoch, whichever
brokers granted it. A new epoch is not smaller than the wall clock in milliseconds, so that it goes on growing for all
practical purposes where a disk with its epochs is lost.

The fence: an offset that comes by a connection of another client than the one with the epoch that this broker knows last is
refused, for as long as `keepMillis` after that one was last confirmed. Which client a connection belongs to is known by its
heartbeats.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from rmqkit.broker.locks.contract import NOTHING_MORE, Locked, More
from rmqkit.broker.locks.strict import Strict
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import CallFailed, Outcome
from rmqkit.runtime.connection import Connection
from rmqkit.wire.bodies import LockBatchAnswer, LockBatchBody
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.fastjson import MessageQueue
from rmqkit_fencing.epochs import Claim, Epochs

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

#: how long a coordinator waits for members that do not answer, and how often it claims
CLAIM_TIMEOUT_MS = 250
ROUNDS_MAX = 3


class FencingSettings(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """`plugin.fencing.…` of a broker's configuration."""

    #: how long after its last confirmation an epoch keeps the offsets of others out
    keep_millis: Annotated[int, msgspec.Meta(ge=0, le=30 * 86_400_000)] = 3_600_000


class Fencing:
    def __init__(self, broker: "BrokerView", settings: FencingSettings) -> None:
        self.broker = broker
        self.settings = settings
        self.strict = Strict(broker)
        self.epochs = Epochs(broker.ports.disk)
        self.commits_refused = 0
        broker.commit_guard = self.refusal

    # --- LockMode

    def start(self) -> None:
        self.epochs.load(self.broker.clock.mono_ms)
        self.strict.start()

    def stop(self, then: Callable[[], None]) -> None:
        self.strict.stop(lambda: self.epochs.save(then))

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
        if only_this_broker and "claim" in more:
            self._agree(group, client_id, more["claim"], now_ms, then)
            return

        def voted(outcome: Sequence[MessageQueue] | str, more: More = NOTHING_MORE) -> None:
            if only_this_broker or isinstance(outcome, str) or not outcome:
                then(outcome, more)
            else:
                _Claim(self, group, client_id, outcome, then).begin()

        self.strict.lock(group, client_id, queues, only_this_broker=only_this_broker, now_ms=now_ms, then=voted, more=more)

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
        self.strict.unlock(group, client_id, queues, only_this_broker=only_this_broker, now_ms=now_ms, more=more)

    def holds_any(self, group: str, now_ms: int) -> bool:
        return self.strict.holds_any(group, now_ms)

    def sweep(self, now_ms: int) -> None:
        self.strict.sweep(now_ms)

    def facts(self, now_ms: int) -> Mapping[str, str]:
        return {
            **self.strict.facts(now_ms),
            "lockEpochs": str(len(self.epochs.known)),
            "lockCommitsRefused": str(self.commits_refused),
        }

    # --- a member that is asked

    def _agree(self, group: str, client_id: str, listed: Any, now_ms: int, then: Locked) -> None:
        try:
            claims = msgspec.convert(listed, list[Claim])
        except msgspec.ValidationError as error:
            then(f"a claim is [topic, broker name, queue id, number]: {error}")
            return

        def agreed(outcome: list[bool]) -> None:
            then([], {"agreed": outcome, "known": [self.epochs.number(group, claim.queue) for claim in claims]})

        self.epochs.agree(group, client_id, claims, now_ms, agreed)

    # --- the fence

    def refusal(self, group: str, topic: str, queue_id: int, conn: Connection) -> str:
        """Why an offset of the group that comes by this connection is not taken, "" when it is."""
        broker = self.broker
        queue = MessageQueue(topic, broker.config.identity.broker_name, queue_id)
        epoch = self.epochs.known.get((group, queue))
        if epoch is None or broker.clock.mono_ms - epoch.since_ms > self.settings.keep_millis:
            return ""
        known = broker.clients.consumers.get(group)
        member = known.members.get(conn.id) if known is not None else None
        if member is not None and member.client_id == epoch.client_id:
            return ""
        self.commits_refused += 1
        who = "a client that is not a member of the group" if member is None else member.client_id
        return f"the queue is locked under epoch {epoch.number} by {epoch.client_id}: no offset is taken from {who}"


class _Claim:
    """The second half of a lock request: epochs for the queues that a quorum has granted."""

    def __init__(self, fencing: Fencing, group: str, client_id: str, queues: Sequence[MessageQueue], then: Locked) -> None:
        self._fencing = fencing
        self._broker = fencing.broker
        self._group = group
        self._client_id = client_id
        self._queues = list(queues)
        self._then = then
        self._quorum = fencing.strict.quorum
        self._rounds = 0
        self._claims: list[Claim] = []
        self._agreed: list[int] = []
        #: the greatest epoch of each queue that somebody knows
        self._known = [fencing.epochs.number(group, queue) for queue in queues]
        self._left = 0

    def begin(self) -> None:
        """A round: this broker and all others are asked for the same claims."""
        self._rounds += 1
        epochs, wall_ms = self._fencing.epochs, self._broker.clock.wall_ms
        numbers = []
        for queue, known in zip(self._queues, self._known, strict=True):
            own = epochs.of(self._group, queue, self._client_id)
            numbers.append(own if own and own >= known else max(known + 1, wall_ms))
        self._claims = [Claim(*queue, number) for queue, number in zip(self._queues, numbers, strict=True)]
        self._agreed = [0] * len(self._claims)
        others = self._fencing.strict.others()
        self._left = 1 + len(others)
        current = self._rounds
        body = LockBatchBody(
            client_id=self._client_id,
            consumer_group=self._group,
            only_this_broker=True,
            rmqkit={"claim": [list(claim) for claim in self._claims]},
        ).encode()
        now_ms = self._broker.clock.mono_ms
        for _, address in others:
            self._broker.remoting.call(
                address,
                RequestCode.LOCK_BATCH_MQ,
                None,
                body,
                timeout_ms=CLAIM_TIMEOUT_MS,
                then=lambda outcome: self._heard(current, *_read(outcome)),
            )
        epochs.agree(
            self._group, self._client_id, self._claims, now_ms, lambda agreed: self._heard(current, agreed, self._known)
        )

    def _heard(self, current: int, agreed: Sequence[bool], known: Sequence[int]) -> None:
        if current != self._rounds:
            return
        self._left -= 1
        if len(agreed) == len(known) == len(self._claims):
            for at, (yes, number) in enumerate(zip(agreed, known, strict=True)):
                self._agreed[at] += yes
                self._known[at] = max(self._known[at], number)
        if not any(count < self._quorum <= count + self._left for count in self._agreed):
            self._decided()

    def _decided(self) -> None:
        is_whole = all(count >= self._quorum for count in self._agreed)
        beaten = any(known > claim.number for known, claim in zip(self._known, self._claims, strict=True))
        if not is_whole and beaten and self._rounds < ROUNDS_MAX:
            self.begin()
            return
        self._rounds = ROUNDS_MAX + 1  # answers that come later count no more
        granted = [claim for claim, count in zip(self._claims, self._agreed, strict=True) if count >= self._quorum]
        if granted:
            self._then([claim.queue for claim in granted], {"epochs": [claim.number for claim in granted]})
        else:
            most = max(self._agreed)
            self._then(f"no epoch: {most} brokers of the group agreed to one, {self._quorum} have to")


def _read(outcome: Outcome) -> tuple[Sequence[bool], Sequence[int]]:
    """What a member said; two empty lists for one that is in another lock mode, or did not answer."""
    if isinstance(outcome, CallFailed) or not outcome.is_ok:
        return (), ()
    try:
        said = LockBatchAnswer.decode(outcome.body).rmqkit or {}
        return msgspec.convert((said.get("agreed", ()), said.get("known", ())), tuple[list[bool], list[int]])
    except (RemoteProtocolError, msgspec.ValidationError):
        return (), ()
