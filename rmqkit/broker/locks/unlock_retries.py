"""UnlockRetries: repeats vote withdrawals until every peer acknowledges.

A failed ballot's request may reach a member late: after a network partition heals, or when a
stopped process resumes. The member then votes for a client that has given up, and the queue stays
blocked until that lease expires. So an UNLOCK_BATCH_MQ that names its attempt is repeated every
second until the member answers, for at most the lifetime of a lease. Repeating is harmless: the
request affects only votes of that attempt.
"""

from typing import TYPE_CHECKING, NamedTuple

from rmqkit.runtime.calls import CallFailed, Outcome
from rmqkit.wire.codes import RequestCode

if TYPE_CHECKING:
    from rmqkit.broker.locks.strict import Strict

DUTY = "lock-unlock-retries"
TIMEOUT_MS = 1_000
AGAIN_MS = 1_000
#: withdrawals that wait for a retry, of all members together. Beyond the limit the oldest is
#: dropped; the vote then blocks its queue until the lease expires
UNTOLD_MAX = 1_000


class _Withdrawal(NamedTuple):
    member: int
    body: bytes
    until_ms: int


class UnlockRetries:
    """Sends vote withdrawals to peers, and repeats those that failed."""

    def __init__(self, mode: "Strict") -> None:
        self._mode = mode
        self._broker = mode.broker
        self._pending: dict[_Withdrawal, None] = {}

    def start(self) -> None:
        self._broker.duties.add(DUTY, self._retry, None)

    def send(self, body: bytes, *, repeat: bool) -> None:
        """Send an UNLOCK_BATCH_MQ to every live peer; with `repeat`, until the peer answers."""
        until_ms = self._broker.clock.mono_ms + (self._mode.table.live_ms if repeat else 0)
        for member, _ in self._mode.others():
            self._send(_Withdrawal(member, body, until_ms))

    def _send(self, withdrawal: _Withdrawal) -> None:
        address = dict(self._mode.others()).get(withdrawal.member)
        if address is None:
            self._keep_for_retry(withdrawal)
            return

        def answered(outcome: Outcome) -> None:
            if isinstance(outcome, CallFailed):
                self._keep_for_retry(withdrawal)

        self._broker.remoting.call(
            address, RequestCode.UNLOCK_BATCH_MQ, None, withdrawal.body, timeout_ms=TIMEOUT_MS, then=answered
        )

    def _keep_for_retry(self, withdrawal: _Withdrawal) -> None:
        now_ms = self._broker.clock.mono_ms
        if now_ms >= withdrawal.until_ms:
            return
        if len(self._pending) >= UNTOLD_MAX:
            del self._pending[next(iter(self._pending))]
        self._pending[withdrawal] = None
        self._broker.duties.wake(DUTY, now_ms + AGAIN_MS)

    def _retry(self, now_ms: int) -> None:
        pending, self._pending = self._pending, {}
        for withdrawal in pending:
            if now_ms < withdrawal.until_ms:
                self._send(withdrawal)
