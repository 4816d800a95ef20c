"""`fencing`: strict queue locks with numbered grants, so that a former owner can be recognized.

A lock is a lease, and leases rely on clocks and on processes that keep running. A consumer that was
paused for longer than its lease may finish its batch and commit after another consumer has taken
the queue. A growing number detects this.

    client ──lock──► coordinator ──votes (strict)──► quorum       who may have it
                                 ──claims an epoch─► quorum       under which number
    client ◄─queues, epochs──────

The votes are those of `strict`. Then the coordinator claims an epoch for each granted queue: the
client's present epoch, or else one that is greater than all epochs it knows. Members agree or
refuse by their `Epochs`. A member that knows a greater epoch reports it, and the coordinator claims
again with a greater one, in at most `ROUNDS_MAX` rounds.

The response contains the epochs that a quorum has agreed to, in its object `rmqkit`:
`{"epochs": [...]}`, one for each queue of `lockOKMQSet`, in its order.

Any two quorums share a member. A member never agrees to one epoch for two clients, nor to a smaller
epoch than before. So of two owners the later one has the greater epoch, whichever brokers granted
the locks. A new epoch is at least the wall clock's time in ms. So epochs most likely keep growing
even if the disks that stored them are lost.

The fence: a broker refuses an offset that arrives over a connection of another client than the
owner of the greatest epoch it knows. It does so until `keepMillis` after that epoch was last
confirmed. Heartbeats tell the broker which client a connection belongs to.
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

#: how long a coordinator waits for a member's response
CLAIM_TIMEOUT_MS = 250
#: how often a coordinator claims epochs for one lock request
ROUNDS_MAX = 3


class FencingSettings(msgspec.Struct, rename="camel", kw_only=True, frozen=True):
    """The settings `plugin.fencing.…` of a broker."""

    #: time in ms after the last confirmation of an epoch during which offsets of other clients are
    #: refused
    keep_millis: Annotated[int, msgspec.Meta(ge=0, le=30 * 86_400_000)] = 3_600_000


class Fencing:
    """The lock mode `fencing` of one broker."""

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

    # --- claims of other brokers

    def _agree(self, group: str, client_id: str, listed: Any, now_ms: int, then: Locked) -> None:
        """Handle another broker's claim to epochs."""
        try:
            claims = msgspec.convert(listed, list[Claim])
        except msgspec.ValidationError as error:
            then(f"a claim must be [topic, broker name, queue id, number]: {error}")
            return

        def agreed(outcome: list[bool]) -> None:
            then([], {"agreed": outcome, "known": [self.epochs.number(group, claim.queue) for claim in claims]})

        self.epochs.agree(group, client_id, claims, now_ms, agreed)

    # --- the fence

    def refusal(self, group: str, topic: str, queue_id: int, conn: Connection) -> str:
        """Return why an offset of the group is refused on this connection, "" if it is accepted."""
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
        return f"the queue is locked under epoch {epoch.number} by {epoch.client_id}: offsets from {who} are refused"


class _Claim:
    """The second half of a lock request: claims epochs for the queues that a quorum has granted."""

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
        #: the greatest epoch of each queue that any member has reported
        self._known = [fencing.epochs.number(group, queue) for queue in queues]
        #: members of this round that have not answered, this broker included
        self._left = 0

    def begin(self) -> None:
        """Start a round: send the same claims to this broker and to all members of the group."""
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
        """Count a member's response. `current` is its round."""
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
        self._rounds = ROUNDS_MAX + 1  # later responses are ignored
        granted = [claim for claim, count in zip(self._claims, self._agreed, strict=True) if count >= self._quorum]
        if granted:
            self._then([claim.queue for claim in granted], {"epochs": [claim.number for claim in granted]})
        else:
            most = max(self._agreed)
            self._then(f"no epoch: {most} brokers of the group agreed to one, {self._quorum} must agree")


def _read(outcome: Outcome) -> tuple[Sequence[bool], Sequence[int]]:
    """Return whether a member agreed to each claim, and the greatest epochs that it knows.

    Both are empty if the member did not answer or has another lock mode.
    """
    if isinstance(outcome, CallFailed) or not outcome.is_ok:
        return (), ()
    try:
        answer = LockBatchAnswer.decode(outcome.body).rmqkit or {}
        return msgspec.convert((answer.get("agreed", ()), answer.get("known", ())), tuple[list[bool], list[int]])
    except (RemoteProtocolError, msgspec.ValidationError):
        return (), ()
