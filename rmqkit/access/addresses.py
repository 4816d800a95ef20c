"""AddressGate: who may use a port whose protocol has no credentials, by the peer's address.

With authentication, the metrics port and the HA port admit the addresses of their setting only.
"""

from collections.abc import Sequence

from rmqkit.access.audit import Audit
from rmqkit.access.model import Network, read_network, read_source
from rmqkit.runtime.connection import Connection


class AddressGate:
    """Admits the addresses of one setting. `is_on` is false without authentication."""

    def __init__(self, port: str, key: str, texts: Sequence[str], audit: Audit, *, is_on: bool) -> None:
        """`port` names the port in the audit log; `key` is the setting whose value is `texts`."""
        self._port = port
        self._key = key
        self._networks: tuple[Network, ...] = tuple(map(read_network, texts))
        self._audit = audit
        self._is_on = is_on

    def fault(self, conn: Connection) -> str:
        """Return why a connection gets nothing, "" if it may; a refusal is audited."""
        if not self._is_on:
            return ""
        source = read_source(conn.peer.host)
        if source is not None and any(source.version == each.version and source in each for each in self._networks):
            return ""
        self._audit.refused("", conn.peer, f"{self._port} connection", "address", "the address is not allowed")
        return f"{self._key} does not list its address"
