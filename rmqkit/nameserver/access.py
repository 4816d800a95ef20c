"""NameServerAccess: access control of a name server, which knows the users of its brokers.

Brokers send their tables of users and rules (60005, signed with the inner credentials), one for
each broker group. A user may do what the table of any group allows. So a user that is deleted at
one group only is still known here while another group has it.

The master's table replaces the group's earlier one. That of a slave does so only if it is newer: a
slave that has not copied yet must not bring back a deleted user.

The tables are in memory only, like the routes: after a restart both return with the registrations.
`initAuthenticationUser` is known at once.
"""

from rmqkit.access.node_access import NodeAccess
from rmqkit.access.table import Accounts
from rmqkit.config import NodeConfig
from rmqkit.runtime.ports import Ports
from rmqkit.runtime.remoting import Remoting
from rmqkit.wire.bodies.access import AccessTableBody

#: broker groups whose tables are kept; a table of a further one is refused
GROUPS_MAX = 1_000
MASTER_ID = 0


class NameServerAccess(NodeAccess):
    """Users and rules by broker group. Without authentication `is_on` is false and it is empty."""

    def __init__(self, ports: Ports, config: NodeConfig, remoting: Remoting) -> None:
        super().__init__(ports, config.access, remoting)
        self.is_on = config.access.is_on
        #: by cluster and broker name; the own table has the names ""
        self.tables: dict[tuple[str, str], Accounts] = {}
        if not self.is_on:
            return
        if config.access.init_user is not None:
            self.tables["", ""] = self.initial_accounts()
        self._gate = self.check_requests(lambda: list(self.tables.values()))

    def put(self, cluster: str, broker_name: str, broker_id: int, table: AccessTableBody) -> str:
        """Keep the table of a broker group. Return why it is refused, "" if it is not.

        Raises RemoteProtocolError if it is no valid table.
        """
        key = cluster, broker_name
        known = self.tables.get(key)
        if known is None and len(self.tables) >= GROUPS_MAX:
            return f"this name server keeps the users of at most {GROUPS_MAX} broker groups"
        if known is not None and broker_id != MASTER_ID and not table.data_version.newer_than(known.version):
            return ""
        taken = Accounts(cluster)
        taken.take(table)
        self.tables[key] = taken
        self._gate.changed()
        return ""
