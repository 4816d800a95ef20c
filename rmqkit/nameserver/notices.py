"""Notices: informs the members of a broker group when its smallest live id changes (905).

A notice (NOTIFY_MIN_BROKER_ID_CHANGE) is a one-way request to the address that a broker
registered. Nothing answers it. If one is lost, the broker learns of the change when it next asks
for its member group (901). Notices are sent once per turn, for the net changes of the turn:

- The smallest id left: to all remaining members, with the address that left (`offlineBrokerAddr`).
- A smaller id arrived, or the same id at another address: to all other members, with the
  newcomer's HA address.

As in Apache, a departure is sent only in a group that may have an acting master, and an arrival in
any group. Unlike Apache, the notice contains `brokerName`, so a receiver can detect a notice for
another group. Connections stay open for the next notice. Those to addresses that no broker has are
closed before it.

Source:
`namesrv/.../routeinfo/RouteInfoManager.{notifyMinBrokerIdChanged,chooseBrokerAddrsToNotify}`.
"""

from rmqkit.nameserver.route_table import MinIdChange, RouteTable
from rmqkit.runtime.connection import Address
from rmqkit.runtime.ports import Log
from rmqkit.runtime.remoting import Remoting
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schemas.nameserver import NotifyMinBrokerIdChangeRequest


class Notices:
    """The sender of notices. `sent` counts them."""

    def __init__(self, table: RouteTable, remoting: Remoting, log: Log) -> None:
        self.sent = 0
        self._table = table
        self._remoting = remoting
        self._log = log

    def send(self, *, enabled: bool) -> None:
        """Send notices of the changes since the last call; if not `enabled`, drop the changes."""
        changes = self._table.take_changes()
        if not changes or not enabled:
            return
        self._close_links()
        for change in changes:
            if change.newcomer is not None or change.group.enable_acting_master:
                self._send(change)

    def _send(self, change: MinIdChange) -> None:
        group = change.group
        smallest = group.members[group.broker_id_min]
        told = [each for each in group.members.values() if change.newcomer is None or each is not smallest]
        notice = NotifyMinBrokerIdChangeRequest(
            min_broker_id=smallest.broker_id,
            broker_name=group.broker_name,
            min_broker_addr=smallest.address,
            offline_broker_addr=change.offline,
            ha_broker_addr=smallest.ha_address if change.newcomer is not None else None,
        )
        for member in told:
            self._remoting.oneway(Address.parse(member.address), RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, notice)
        self.sent += len(told)
        self._log.info(
            "min-broker-id-changed",
            broker_name=group.broker_name,
            broker_id=smallest.broker_id,
            address=smallest.address,
            offline=change.offline or "",
            told=[each.broker_id for each in told],
        )

    def _close_links(self) -> None:
        """Close connections to addresses that no broker has; otherwise they would accumulate."""
        groups = self._table.groups.values()
        wanted = {member.address for group in groups for member in group.members.values()}
        for address, conn in list(self._remoting.links.items()):
            if str(address) not in wanted:
                self._remoting.outbox.close(conn, "no broker is registered there any more")
