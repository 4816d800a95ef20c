"""Calls to name servers. The client stays with one, and tries the next when it does not respond.

A response counts even if it has an error code. But name servers share no state, and one that has
just started knows nothing until brokers register (30 s). So for some requests the code `unless`
("unknown") counts only if every name server that responds returns it. A call fails only if no name
server responds; the error then lists the reason of each.

Every name server knows the requests that clients make here. A peer that answers one of them with
REQUEST_CODE_NOT_SUPPORTED is another node, such as a broker, whose address was given by mistake. It
is skipped. If all are such nodes, waiting would not help, so the error is no PeerUnreachable.

Source: `remoting/.../netty/NettyRemotingClient.java` (`getAndCreateNameserverChannelAsync`).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rmqkit.errors import ClientError, PeerUnreachable
from rmqkit.runtime.calls import CallFailed, Reply, code_name
from rmqkit.runtime.connection import Address
from rmqkit.wire.codes import ResponseCode
from rmqkit.wire.schema import Ext

if TYPE_CHECKING:
    from rmqkit.client.client import Client

#: Least time for a name server to respond before the client tries the next one.
TRY_MS_MIN = 1000


class NameServers:
    """The name servers of one client, and the index of the one that responded last."""

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
        """Return the first response, whatever its code.

        A response with the code `unless` is returned only if no other name server returns more.
        `timeout_ms` is shared by all name servers. Raises PeerUnreachable if none responds,
        ClientError if the addresses are not those of name servers.
        """
        if not self.addresses:
            raise PeerUnreachable(
                "no name server is configured; pass namesrv= or set NAMESRV_ADDR", kind="connect", address=""
            )
        whole_ms = timeout_ms or self._client.settings.call_timeout_ms
        count = len(self.addresses)
        try_ms = max(min(TRY_MS_MIN, whole_ms), whole_ms // count)
        failures: list[CallFailed] = []
        strangers: list[str] = []
        unsure: Reply | None = None
        first = self._chosen
        for step in range(count):
            index = (first + step) % count
            outcome = await self._client.try_call(self.addresses[index], code, ext, body, timeout_ms=try_ms)
            if isinstance(outcome, CallFailed):
                failures.append(outcome)
            elif outcome.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                strangers.append(str(outcome.address))
            elif outcome.code == unless:
                unsure = unsure or outcome
            else:
                self._chosen = index
                return outcome
        if unsure is not None:
            return unsure
        self._chosen = (first + 1) % count
        wrong = (
            f"no name server is at {', '.join(strangers)}: the node there does not know {code_name(code)}, so it may be a "
            "broker or a controller"
        )
        advice = "correct --namesrv, namesrv= or NAMESRV_ADDR"
        if not failures:
            raise ClientError(f"{wrong}; {advice}", code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED)
        reasons = ", ".join(f"{each.address}: {each.text}" for each in failures)
        raise PeerUnreachable(
            f"no name server answers ({reasons}){f'; {wrong}' if strangers else ''}; start one, or {advice}",
            kind=failures[-1].kind,
            address=str(failures[-1].address),
        )
