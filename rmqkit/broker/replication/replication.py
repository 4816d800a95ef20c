"""`Replication` owns the parts of replication: it starts and stops them and reports their state."""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.election.sync_states import SyncStates
from rmqkit.broker.metadata.copied_tables import CopiedTables
from rmqkit.broker.metadata.copy_round import GroupMembers
from rmqkit.broker.metadata.metadata_copy import MetadataCopy
from rmqkit.broker.metadata.metadata_server import MetadataServer
from rmqkit.broker.metadata.request_modes import RequestModes
from rmqkit.broker.replication.acks import Acks
from rmqkit.broker.replication.divergence import Divergence
from rmqkit.broker.replication.epoch_client import EpochClient
from rmqkit.broker.replication.epoch_server import EpochServer
from rmqkit.broker.replication.epochs import Epochs
from rmqkit.broker.replication.ha_client import HaClient
from rmqkit.broker.replication.ha_connection import HaConnections
from rmqkit.broker.replication.ha_server import HaServer
from rmqkit.broker.replication.ha_state import CONNECTING, FOLLOWING, NO_MASTER
from rmqkit.broker.replication.log_tail import LogStart
from rmqkit.broker.replication.member_calls import MemberAnswers, MemberCalls
from rmqkit.broker.replication.members import RegistrationFacts, ReplicaMembers
from rmqkit.broker.replication.truncation import Truncation
from rmqkit.broker.roles.role import RoleState
from rmqkit.config import BrokerRole
from rmqkit.runtime.connection import Address
from rmqkit.store.contract import StorageEngine
from rmqkit.wire.bodies.replication import HAClientRuntimeInfo, HAConnectionRuntimeInfo, HARuntimeInfo


class ElectedLog(NamedTuple):
    """What replication needs in controller mode."""

    epochs: Epochs
    sync_states: SyncStates


class Replication:
    """The parts of replication, and what the rest of the broker asks of them."""

    def __init__(
        self,
        context: BrokerContext,
        store: StorageEngine,
        role: RoleState,
        registration: RegistrationFacts,
        tables: CopiedTables,
        folder: str,
        group: Callable[[], GroupMembers],
        elected: ElectedLog | None = None,
    ) -> None:
        """`group` returns the live members of the group, as `Roles` knows them.

        `elected` is set in controller mode.
        """
        self._context = context
        self._store = store
        self._start = LogStart(context)
        links = HaConnections()
        self.members = ReplicaMembers(context, store, role, registration, links, lambda: group().members)
        self.acks = Acks(context, self.members)
        self.members.on_change = self.acks.changed
        self._elected = elected
        if elected is None:
            self.accept = HaServer(context, store, links, self.members, self.acks)
        else:
            self.acks.sync_set = states = elected.sync_states
            states.links, states.on_change = self.members.bound, self.acks.changed
            self.members.is_counted = states.counts
            self.accept = EpochServer(context, store, links, self.members, self.acks, elected.epochs, states)
        self.calls = MemberCalls(context, store, self._start)
        divergence = Divergence(context, store, folder)
        truncation = Truncation(context, store, divergence, self.calls, tables.offsets, tables.special)
        has_nameservers = bool(registration.nameservers)
        if elected is None:
            self.follow = HaClient(context, store, self.calls, divergence, truncation, has_nameservers=has_nameservers)
        else:
            self.follow = EpochClient(context, store, self.calls, divergence, truncation, elected.epochs)
        self.request_modes = RequestModes(context.disk, folder)
        self.metadata_server = MetadataServer(context, store, tables, self._start, lambda: self.log_of)
        self.metadata = MetadataCopy(context, store, role, tables, self.request_modes, self.follow, group)
        self.answers = MemberAnswers(context, store, self._start, self.members, self.follow, lambda: group().is_masterless)
        self.answers.on_return.append(self.metadata.master_returns)

    # --- identity and state -----------------------------------------------------------------------

    @property
    def start_id(self) -> str:
        """The unique id of this start of the broker."""
        return self._start.id

    @property
    def is_slave(self) -> bool:
        return self._context.config.identity.broker_role is BrokerRole.SLAVE

    @property
    def master_address(self) -> Address | None:
        """A slave's master, None while unknown."""
        return self.follow.master

    @property
    def is_seeking(self) -> bool:
        """Whether this is a slave whose master is unknown or cannot be reached."""
        return self.is_slave and self.follow.state in (NO_MASTER, CONNECTING)

    @property
    def state(self) -> str:
        return self.follow.state if self.is_slave else "serving"

    @property
    def why(self) -> str:
        """The problem that an operator should know; "" when all is well."""
        if self.is_slave:
            return self.follow.why or self.follow.divergence.history_missing
        if self.acks.too_few:
            return self.acks.too_few
        if self.acks.no_slave:
            return "no slave is in sync: puts are stored and answered SLAVE_NOT_AVAILABLE"
        missing = [member for member in self.members.seen() if member.why]
        return "; ".join(f"slave {_name(member.broker_id, member.address)}: {member.why}" for member in missing)

    def in_sync_count(self) -> int:
        """Return the number of copies in sync, this master's own included; 0 on a slave."""
        return 0 if self.is_slave else 1 + len(self.members.in_sync())

    @property
    def sync_states(self) -> SyncStates | None:
        """The members in sync in controller mode; None without it."""
        return None if self._elected is None else self._elected.sync_states

    # --- life and turns ---------------------------------------------------------------------------

    def load(self) -> None:
        """Load the saved state.

        Raises RmqkitError if a file is damaged or haMasterAddress is no address.
        """
        self.follow.load()
        self.metadata.load()

    def start(self) -> None:
        """Begin to serve and to follow: the store is ready."""
        self._start.end = self._store.offset_written
        self.acks.configure()
        self.accept.start()
        if self.is_slave:
            self.follow.start()
            self.metadata.start()
        elif self.members.are_wanted:
            self.metadata_server.start()
            self.members.start()

    # --- changes of the role (controller mode) ----------------------------------------------------

    def stop_following(self, why: str) -> None:
        """Stop following: this slave was elected, and is not master yet."""
        assert isinstance(self.follow, EpochClient)
        self.metadata.stop()
        self.follow.pause(why)

    def lead(self) -> None:
        """Serve slaves as master from now on."""
        self._start.renew(self._store.offset_written)
        self.acks.changed()
        self.metadata_server.start()
        self.members.start()

    def stop_leading(self, why: str) -> None:
        """Serve no slave any more: another master was elected. Puts in flight fail."""
        self.metadata_server.hand_over()
        self.accept.close_all(why)
        self.acks.fail_all()
        self.acks.changed()

    def follow_master(self, master: Address) -> None:
        assert isinstance(self.follow, EpochClient)
        self.follow.follow_master(master)
        if not self.metadata.is_on:
            self.metadata.start()
        self.metadata.again()

    def stop(self) -> None:
        self.metadata.stop()
        self.metadata_server.hand_over()
        self.acks.fail_all()
        if self.is_slave:
            self.follow.stop()
        self.accept.close_all("the broker is stopping")

    def settle(self) -> None:
        """Send or report what this turn has written; called once the write is done."""
        is_slave = self.is_slave
        if self._elected is not None:
            self._elected.sync_states.update()
        if self.accept.links:
            self.accept.settle()
            if not is_slave:
                self.acks.configure()
        if is_slave:
            self.follow.settle()

    @property
    def log_of(self) -> str:
        """The start id of the master that wrote this log; "" while unknown."""
        return self.follow.log_of if self.is_slave else self.start_id

    # --- status -----------------------------------------------------------------------------------

    def facts(self) -> dict[str, str]:
        """Return what code 28 reports about replication.

        `replicationGap` is in bytes, -1 while unknown.
        """
        members = [] if self.is_slave else self.members.seen()
        gap = self.follow.gap if self.is_slave else max((member.gap for member in members), default=0)
        return {
            "replicationRole": "slave" if self.is_slave else "master",
            "replicationState": self.state,
            "replicationWhy": self.why,
            "replicationInSync": str(self.in_sync_count()),
            "replicationWanted": str(self.acks.copies_needed),
            "replicationGap": str(gap),
            "replicationMembers": msgspec.json.encode([member._asdict() for member in members]).decode(),
            **self.metadata.facts(),
        }

    def runtime_info(self) -> HARuntimeInfo:
        """Return what code 907 reports.

        Source: `DefaultHAService.getRuntimeInfo`, `DefaultHAClient`.
        """
        end = self._store.offset_written
        if self.is_slave:
            follow = self.follow
            offset_ms = self._context.clock.wall_ms - self._context.clock.mono_ms
            client = HAClientRuntimeInfo(
                last_read_timestamp=follow.read_ms + offset_ms if follow.read_ms else 0,
                last_write_timestamp=follow.written_ms + offset_ms if follow.written_ms else 0,
                master_addr=str(follow.master_ha) if follow.master_ha and follow.state == FOLLOWING else None,
                master_flush_offset=max(follow.master_end, 0),
                max_offset=end,
            )
            return HARuntimeInfo(ha_client_runtime_info=client)
        in_sync = {link.conn.id for link in self.members.in_sync()}
        connections = [
            HAConnectionRuntimeInfo(
                addr=str(link.peer),
                diff=end - link.acked,
                in_sync=link.conn.id in in_sync,
                slave_ack_offset=link.acked,
                transfer_from_where=link.sent,
            )
            for link in self.accept.links.values()
        ]
        return HARuntimeInfo(
            ha_connection_info=connections,
            in_sync_slave_nums=len(in_sync),
            master=True,
            master_commit_log_max_offset=end,
        )


def _name(broker_id: int, address: str) -> str:
    return f"at {address}" if broker_id < 0 else f"{broker_id} ({address})"
