"""Calls to name servers: one is chosen and kept; when it does not answer, the others are tried in turn.

The answer of any of them counts, an error code too. But they share nothing, and one that has just been started knows
nothing until the brokers tell it (30 s), so for some questions "I do not know" counts only when all say so (`unless`). A
call fails only when none of them answered, and then says so for each.

Source: `remoting/.../netty/NettyRemotingClient.java` (`getAndCreateNameserverChannel`).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rmqkit.errors import PeerUnreachable
from rmqkit.runtime.calls import CallFailed, Reply
from rmqkit.runtime.connection import Address
from rmqkit.wire.schema import Ext

if TYPE_CHECKING:
    from rmqkit.client.client import Client

#: a name server gets at least this long before the next one is asked
TRY_MS_MIN = 1000


class NameServers:
    def __init__(self, client: "Client", addresses: Sequence[Address]) -> None:
        self.addresses = list(addresses)
        self._client = client
        self._chosen = client.ports.entropy.randrange(len(addresses)) if addresses else 0

    async def ask(
        self,
        code: int,
        ext: Ext | None = None,
        body: bytes = b"",
        *,
        timeout_ms: int | None = None,
        unless: int | None = None,
    ) -> Reply:
        """The answer of the first that answers, whatever its code; one with the code `unless` only when no other has more
        to say. Raises PeerUnreachable when none answers.
        """
        if not self.addresses:
            raise PeerUnreachable(
                "no name server is configured; pass namesrv= or set NAMESRV_ADDR", kind="connect", address=""
            )
        whole_ms = timeout_ms or self._client.settings.call_timeout_ms
        count = len(self.addresses)
        try_ms = max(min(TRY_MS_MIN, whole_ms), whole_ms // count)
        failures: list[CallFailed] = []
        unsure: Reply | None = None
        first = self._chosen
        for step in range(count):
            index = (first + step) % count
            outcome = await self._client.try_call(self.addresses[index], code, ext, body, timeout_ms=try_ms)
            if isinstance(outcome, CallFailed):
                failures.append(outcome)
            elif outcome.code == unless:
                unsure = unsure or outcome
            else:
                self._chosen = index
                return outcome
        if unsure is not None:
            return unsure
        self._chosen = (first + 1) % count
        told = ", ".join(f"{each.address}: {each.text}" for each in failures)
        raise PeerUnreachable(
            f"no name server answers ({told}); start one, or correct namesrv= or NAMESRV_ADDR",
            kind=failures[-1].kind,
            address=str(failures[-1].address),
        )
