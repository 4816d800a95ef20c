"""Notices: 905, the word to the brokers of a group that its smallest live id is another one.

One way, to the addresses that brokers registered with: nobody answers, and a notice that is lost costs its receiver the
time until it asks for its member group again (901). Told once a turn, of what the turn changed in the end:

- the smallest id left: all that are still there, with the address that left (`offlineBrokerAddr`)
- a smaller id came, or another address with the same id: the others, with the newcomer's HA address

`brokerName` is filled, so that a receiver can tell a notice for another group; upstream leaves it out. A departure is
told only in a group that may have an acting master, an arrival in any, as upstream has it. The connections stay open for
the next time; those to addresses of nobody are closed with it.

Source: `namesrv/.../routeinfo/RouteInfoManager.{notifyMinBrokerIdChanged,chooseBrokerAddrsToNotify}`.
"""

from rmqkit.nameserver.route_table import MinIdChange, RouteTable
from rmqkit.runtime.connection import Address
from rmqkit.runtime.ports import Log
from rmqkit.runtime.remoting import Remoting
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schemas.nameserver import NotifyMinBrokerIdChangeRequest


class Notices:
    def __init__(self, table: RouteTable, remoting: Remoting, log: Log) -> None:
        self.sent = 0
        self._table = table
        self._remoting = remoting
        self._log = log

    def tell(self, *, enabled: bool) -> None:
        """Tell the changes since the last time; without `enabled` they are let go."""
        changes = self._table.take_changes()
        if not changes or not enabled:
            return
        self._close_links()
        for change in changes:
            if change.newcomer is not None or change.group.enable_acting_master:
                self._tell(change)

    def _tell(self, change: MinIdChange) -> None:
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
        """Without this every address that ever registered would keep a connection."""
        groups = self._table.groups.values()
        wanted = {member.address for group in groups for member in group.members.values()}
        for address, conn in list(self._remoting.links.items()):
            if str(address) not in wanted:
                self._remoting.outbox.close(conn, "no broker is registered there any more")
