"""RoleNotices: tells the live members of a broker set who their master is (1008).

A notice (NOTIFY_BROKER_ROLE_CHANGED) is a one-way request to the registered address of each live
member, sent once the election is committed. Nothing answers it, and it is a hint only: a broker
that misses it asks (1004) within 5 s. Connections stay open for the next notice.

Source: `controller/.../ControllerManager.{notifyBrokerRoleChanged,NotifyService}`.
"""

from rmqkit.controller.heartbeats import HeartbeatTable
from rmqkit.controller.sets.decisions import sync_state_set_of
from rmqkit.controller.sets.table import BrokerSet
from rmqkit.runtime.connection import Address
from rmqkit.runtime.ports import Log
from rmqkit.runtime.remoting import Remoting
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schemas.controller import NotifyBrokerRoleChangedRequest


class RoleNotices:
    """The sender of notices. `sent` counts them."""

    def __init__(self, remoting: Remoting, live: HeartbeatTable, log: Log) -> None:
        self.sent = 0
        self._remoting = remoting
        self._live = live
        self._log = log

    def send(self, brokers: BrokerSet) -> None:
        """Send the present master of a set, if it has one, to its live members."""
        if brokers.master_id is None:
            return
        notice = NotifyBrokerRoleChangedRequest(
            master_address=brokers.master_address,
            master_broker_id=brokers.master_id,
            master_epoch=brokers.master_epoch,
            sync_state_set_epoch=brokers.sync_epoch,
        )
        body = sync_state_set_of(brokers)
        for broker_id, replica in brokers.replicas.items():
            if not self._live.is_alive(brokers.broker_name, broker_id):
                continue
            try:
                address = Address.parse(replica.address)
            except ValueError as error:
                self._log.warning("role-notice-left-out", broker_name=brokers.broker_name, error=str(error))
                continue
            self._remoting.oneway(address, RequestCode.NOTIFY_BROKER_ROLE_CHANGED, notice, body)
            self.sent += 1
