"""Host addresses in the form that records hold: raw IP (4 or 16 bytes), then the port as int32.

`store_host` is the address that this broker advertises: message ids contain it, and clients connect
to it (queryMsgById). `of(conn)` returns the sender's address, cached per connection, with the
sysFlag bits that say which of the two addresses are IPv6.
"""

from rmqkit.runtime.connection import Address, Connection
from rmqkit.wire.codes import MessageSysFlag
from rmqkit.wire.hosts import HOST_V4_SIZE, pack_host


class Hosts:
    """Packs the addresses of this broker and of its clients."""

    def __init__(self, store: Address) -> None:
        self.store_host = pack_host(store.host, store.port)
        self._store_flag = MessageSysFlag.STORE_HOST_V6 if len(self.store_host) > HOST_V4_SIZE else 0
        self._by_connection: dict[int, tuple[bytes, int]] = {}

    def of(self, conn: Connection) -> tuple[bytes, int]:
        """Return (born host bytes, sysFlag bits of both hosts)."""
        known = self._by_connection.get(conn.id)
        if known is None:
            born = pack_host(conn.peer.host, conn.peer.port)
            born_flag = MessageSysFlag.BORN_HOST_V6 if len(born) > HOST_V4_SIZE else 0
            known = self._by_connection[conn.id] = (born, born_flag | self._store_flag)
        return known

    def forget(self, conn: Connection) -> None:
        self._by_connection.pop(conn.id, None)
