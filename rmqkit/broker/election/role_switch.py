"""RoleSwitch: what changes in a broker when it becomes master or slave while it runs.

The role and the id are settings: every part reads `config.identity` when it needs them. So a switch
replaces the settings, and then starts and stops what exists in one role alone: following and
copying of tables on a slave, the answers to slaves on a master, the special duties (`Roles`), and
the registration. On the wire the master has the id 0; it uses its own id again in its next role.

A new master's tables get the epoch as their state version. So they are newer than every copy, and
name servers believe the registration of the newer master. A topic that the log has messages of, and
the table does not know, is created: its creation had not been copied when the old master died.
Otherwise the old master would delete it, with its messages, when it copies the newer table.

A master that becomes a slave forgets the queue locks that it has granted: from now on another
broker grants them. If it were elected again with the old ones, it would refuse the members that
have locked the queues meanwhile.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.metadata.copied_tables import CopiedTables
from rmqkit.broker.registration import Registration
from rmqkit.broker.roles import Roles
from rmqkit.broker.roles.role import MASTER_ID, Online, Role
from rmqkit.config import BrokerRole, NodeConfig
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import CallFailed, Outcome
from rmqkit.runtime.connection import Address
from rmqkit.store.contract import StorageEngine
from rmqkit.wire.schemas.admin import ExchangeHAInfoResponse

if TYPE_CHECKING:
    from rmqkit.broker.replication.epoch_client import EpochClient
    from rmqkit.broker.replication.replication import Replication


class RoleSwitch:
    """Switches one broker. `Election` and `Takeover` say when."""

    def __init__(
        self,
        context: BrokerContext,
        store: StorageEngine,
        tables: CopiedTables,
        replication: "Replication",
        follow: "EpochClient",
        roles: Roles,
        registration: Registration,
        apply: Callable[[NodeConfig], None],
    ) -> None:
        """`apply` replaces the settings of the whole broker."""
        self._context = context
        self._store = store
        self._tables = tables
        self._replication = replication
        self._follow = follow
        self._roles = roles
        self._registration = registration
        self._apply = apply
        self._is_locating = False

    def named(self, broker_id: int) -> None:
        self._take(BrokerRole.SLAVE, broker_id)

    def _take(self, role: BrokerRole, broker_id: int, epoch: int = 0) -> None:
        self._apply(self._context.config.in_role(role, broker_id))
        is_copy = role is BrokerRole.SLAVE
        self._tables.topics.take_role(is_copy=is_copy, epoch=epoch)
        self._tables.groups.take_role(is_copy=is_copy, epoch=epoch)
        if self._tables.access is not None:
            self._tables.access.is_copy = is_copy

    # --- master -----------------------------------------------------------------------------------

    @property
    def is_following(self) -> bool:
        return self._follow.is_busy

    def stop_following(self) -> None:
        if self._replication.is_slave:
            self._replication.stop_following("this broker was elected")

    def lead(self, epoch: int) -> None:
        self._take(BrokerRole.SYNC_MASTER, MASTER_ID, epoch)
        queues: dict[str, int] = {}
        for queue in self._store.queues():
            queues[queue.topic] = max(queues.get(queue.topic, 0), queue.queue_id + 1)
        created = self._tables.topics.adopt(queues)
        if created:
            self._context.log.warning("topics-created", why="the log has messages of unknown topics", topics=created)
        self._replication.lead()
        self._roles.assign(Role.MASTER, Online.PRE_ONLINE, f"elected in epoch {epoch}")

    def lead_again(self, epoch: int) -> None:
        self._tables.topics.take_role(is_copy=False, epoch=epoch)
        self._tables.groups.take_role(is_copy=False, epoch=epoch)
        self._registration.hurry()

    def copy_progress(self, members: Mapping[int, Address], then: Callable[[str], None]) -> None:
        self._roles.copy_progress(dict(members), then)

    def serve(self, why: str) -> None:
        self._replication.acks.changed()
        self._roles.assign(Role.MASTER, Online.ONLINE, why)

    # --- slave ------------------------------------------------------------------------------------

    def follow(self, broker_id: int, master: Address, why: str) -> None:
        was_master = not self._replication.is_slave
        self._take(BrokerRole.SLAVE, broker_id)
        if was_master:
            self._replication.stop_leading(why)
            if self._tables.leases is not None:
                self._tables.leases.adopt((), self._context.clock.mono_ms)
        self._replication.follow_master(master)
        self._roles.assign(Role.SLAVE, Online.ONLINE, why)
        self._registration.hurry()

    def locate(self) -> bool:
        follow = self._follow
        master = follow.master
        if master is None or follow.master_ha is not None:
            return True
        if self._is_locating:
            return False
        self._is_locating = True

        def answered(outcome: Outcome) -> None:
            self._is_locating = False
            if isinstance(outcome, CallFailed) or not outcome.is_ok or follow.master != master:
                return
            try:
                text = outcome.read(ExchangeHAInfoResponse).master_ha_address
                if text:
                    follow.learned(master, Address.parse(text))
            except (RemoteProtocolError, ValueError) as error:
                self._context.log.warning("master-address-unreadable", reason=str(error))

        self._replication.calls.locate(master, answered)
        return False

    def lease_changed(self, end_ms: int) -> None:
        self._roles.liveness.stalled_at_ms = end_ms
