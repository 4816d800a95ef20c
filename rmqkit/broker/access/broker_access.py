"""BrokerAccess: access control of a broker. It is off while `authenticationEnabled` is false.

- `table` has users and rules. A master saves it; its slaves copy it (`metadata_copy`).
- `gate` admits every request, on the ports P and P - 2.
- `replica_fault` decides about the HA port, whose protocol has no credentials. A slave of ours
  claims its connection by a signed request (906) before it reports, so a connection that reports
  without such a claim is closed. Apache's slaves claim nothing: `haSlaveAddresses` lists them.
- `metrics` decides about the metrics port, by address.

The broker's own requests are signed, but not those to its clients (`Remoting.sign`).
"""

from collections.abc import Callable

from rmqkit.access.addresses import AddressGate
from rmqkit.access.node_access import NodeAccess
from rmqkit.access.plain_acl import read_plain_acl
from rmqkit.access.plain_acl_files import PlainAclFiles, read_files
from rmqkit.access.table import AccessTable, Accounts
from rmqkit.config import BrokerRole, NodeConfig
from rmqkit.runtime.connection import Connection
from rmqkit.runtime.ports import Ports
from rmqkit.runtime.remoting import Remoting


class BrokerAccess(NodeAccess):
    """The parts of access control of one broker. `table` is None if it is off."""

    def __init__(self, ports: Ports, config: NodeConfig, remoting: Remoting, folder: str) -> None:
        settings = config.access
        super().__init__(ports, settings, remoting)
        self.table: AccessTable | None = None
        #: the files of ACL 1.0, which a master polls; None without aclEnable
        self.acl_files: PlainAclFiles | None = None
        self._replicas = AddressGate("HA", "haSlaveAddresses", settings.replica_addresses, self.audit, is_on=settings.is_on)
        if not settings.is_on:
            return
        identity = config.identity
        table = self.table = AccessTable(
            ports.disk,
            ports.clock,
            folder,
            cluster=identity.broker_cluster_name,
            is_copy=identity.broker_role is BrokerRole.SLAVE,
        )
        asked = (*config.network.namesrv_addrs, *config.election.controllers)
        hosts = tuple(each.rpartition(":")[0].strip("[]") for each in asked)
        gate = self.check_requests(lambda: (table,), hint_hosts=lambda: hosts)
        table.on_change.append(gate.changed)
        self._read_acl = ports.read_acl
        if settings.plain_acl and not table.is_copy:
            self.acl_files = PlainAclFiles(ports.read_acl, table, ports.log)

    def load(self) -> None:
        """Read the table, and create the first super user; on a master also the users of ACL 1.0.

        Raises AtomicFileDamaged, PlainAclError, AccessConflict.
        """
        if self.table is None:
            return
        self.table.load()
        if self._settings.init_user is not None:
            self.table.ensure_super(*self._settings.init_user)
        if self.table.is_copy:
            return
        if self.acl_files is not None:
            self.acl_files.load()
        else:
            self.table.adopt_files(read_plain_acl(read_files(self._read_acl)) if self._settings.plain_acl_migration else {})

    def save(self, then: Callable[[], None]) -> None:
        """Save the table; `then` is called once it is durable or the save has failed."""
        if self.table is None:
            then()
        else:
            self.table.save(then)

    @property
    def tables(self) -> list[Accounts]:
        """Where the gate looks users up."""
        return [] if self.table is None else [self.table]

    @property
    def inner_name(self) -> str:
        """The access key of the inner credentials, "" without them."""
        return self._settings.inner.name if self._settings.inner is not None else ""

    def replica_fault(self, conn: Connection, *, is_claimed: bool) -> str:
        """Return why an HA connection gets no data, "" if it may."""
        fault = "" if is_claimed else self._replicas.fault(conn)
        return f"no signed request has claimed the connection, and {fault}" if fault else ""
