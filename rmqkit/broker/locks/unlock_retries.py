"""UnlockRetries: repeats vote withdrawals until every peer acknowledges.

A request of a failed ballot may reach a member late, when a cut heals or a stopped process continues. The member then
votes for a client that has given up, and the queue is blocked for a lease. So an UNLOCK_BATCH_MQ that names its attempt is
repeated each second until the member has answered, for as long as the vote could run. A repetition is harmless: it changes
only what that attempt has left.
"""

from typing import TYPE_CHECKING, NamedTuple

from rmqkit.runtime.calls import CallFailed, Outcome
from rmqkit.wire.codes import RequestCode

if TYPE_CHECKING:
    from rmqkit.broker.locks.strict import Strict

DUTY = "lock-untold"
TIMEOUT_MS = 1_000
AGAIN_MS = 1_000
#: requests kept for all members; beyond it the oldest is dropped, and the lease runs out
UNTOLD_MAX = 1_000


class _Withdrawal(NamedTuple):
    member: int
    body: bytes
    until_ms: int


class UnlockRetries:
    def __init__(self, mode: "Strict") -> None:
        self._mode = mode
        self._broker = mode.broker
        self._kept: dict[_Withdrawal, None] = {}

    def start(self) -> None:
        self._broker.duties.add(DUTY, self._again, None)

    def tell(self, body: bytes, *, repeat: bool) -> None:
        """Every other member that is alive; with `repeat` until it has heard."""
        until_ms = self._broker.clock.mono_ms + (self._mode.table.live_ms if repeat else 0)
        for member, _ in self._mode.others():
            self._tell(_Withdrawal(member, body, until_ms))

    def _tell(self, told: _Withdrawal) -> None:
        address = dict(self._mode.others()).get(told.member)
        if address is None:
            self._keep(told)
            return

        def answered(outcome: Outcome) -> None:
            if isinstance(outcome, CallFailed):
                self._keep(told)

        self._broker.remoting.call(
            address, RequestCode.UNLOCK_BATCH_MQ, None, told.body, timeout_ms=TIMEOUT_MS, then=answered
        )

    def _keep(self, told: _Withdrawal) -> None:
        now_ms = self._broker.clock.mono_ms
        if now_ms >= told.until_ms:
            return
        if len(self._kept) >= UNTOLD_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept[told] = None
        self._broker.duties.wake(DUTY, now_ms + AGAIN_MS)

    def _again(self, now_ms: int) -> None:
        kept, self._kept = self._kept, {}
        for told in kept:
            if now_ms < told.until_ms:
                self._tell(told)
