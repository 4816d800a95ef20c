"""Audit: one log line for each refusal and for each change, counters, and a limit on guessing.

A line names the user, its address, the request, what it was about, and why. It never has a secret
or a signature. A node writes the lines to its log, as JSON whatever the log's format is, as events
`access-refused` and `access-changed` (`rmqkit.shell.log.AUDIT_EVENTS`).

Guessing. A wrong signature costs its sender nothing, so an address that has sent
`authFailuresMax` wrong ones within a minute loses its connection with each further one, and only
the number of these is logged. Requests from that address with a right signature are served: behind
a shared address one client cannot lock out the others.

Source of what is worth a line: `auth/.../provider/Default*Provider.java` (doAuditLog), which writes
signatures, and no changes.
"""

from collections.abc import Iterator

from rmqkit.runtime.connection import Address
from rmqkit.runtime.ports import Clock, Log

#: why requests and connections are refused
REASONS = ("no-user", "user", "signature", "permission", "address")
WINDOW_MS = 60_000
#: addresses whose failures are counted at a time; beyond it the oldest is forgotten
ADDRESSES_MAX = 10_000
#: characters of a name or remark from the wire in a line
TEXT_SIZE_MAX = 200


class Audit:
    """The audit of one node."""

    def __init__(self, log: Log, clock: Clock, failures_max: int) -> None:
        self._log = log
        self._clock = clock
        self.failures_max = failures_max
        #: refusals since the start, by reason
        self.counts: dict[str, int] = {}
        #: changes of users and rules since the start
        self.change_count = 0
        #: host -> (start of its minute, failures in it)
        self._failures: dict[str, tuple[int, int]] = {}

    def refused(self, user: str, peer: Address, request: str, reason: str, remark: str) -> None:
        """Note that a request was refused."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        self._log.warning(
            "access-refused",
            user=user[:TEXT_SIZE_MAX],
            peer=str(peer),
            request=request,
            reason=reason,
            why=remark[:TEXT_SIZE_MAX],
        )

    def changed(self, user: str, peer: Address, request: str, what: str) -> None:
        """Note a change of users, rules, settings, topics or offsets by an administrator."""
        self.change_count += 1
        self._log.info(
            "access-changed", user=user[:TEXT_SIZE_MAX], peer=str(peer), request=request, what=what[:TEXT_SIZE_MAX]
        )

    def failed(self, user: str, peer: Address, request: str, reason: str, remark: str) -> bool:
        """Note a request whose sender is not known. Return whether to close its connection."""
        now_ms = self._clock.mono_ms
        since_ms, count = self._failures.pop(peer.host, (now_ms, 0))
        if now_ms - since_ms >= WINDOW_MS:
            if count > self.failures_max:
                self._log.warning("access-guessing", peer=peer.host, not_logged=count - self.failures_max)
            since_ms, count = now_ms, 0
        while len(self._failures) >= ADDRESSES_MAX:
            del self._failures[next(iter(self._failures))]
        self._failures[peer.host] = since_ms, count + 1
        if count < self.failures_max:
            self.refused(user, peer, request, reason, remark)
            return False
        self.counts[reason] = self.counts.get(reason, 0) + 1
        if count == self.failures_max:
            self._log.warning("access-guessing", peer=peer.host, failures=count, window_ms=WINDOW_MS)
        return True


def refusals(audit: Audit) -> Iterator[tuple[tuple[str], int]]:
    """Yield the number of refusals for each reason, as samples of a metric."""
    for reason in REASONS:
        yield (reason,), audit.counts.get(reason, 0)
