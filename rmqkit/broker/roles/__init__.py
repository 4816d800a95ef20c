"""Roles: what this broker is in its group, whether it is online, and what follows from both.

    role          Role, Online, and the table of duties
    members       live members of the group, as the name servers list them
    liveness      heartbeats, and noticing that there were none
    acting        when a slave acts for its master
    known_members members of former times, for name servers that list nobody
    nameservers   what their routes show of this broker
    pre_online    what a broker does before it is online
    reverse_sync  how a master takes progress back from a member, and how an acting slave yields it
    runtime_info  what code 28 shows of the role

`Roles` alone changes the role. Other parts read the `RoleState`, or add themselves to its `on_change`.

    isolated ──the other members are known──► pre-online ──has their progress──► online
        ▲                                                                         │
        └─────────── stalled, or a name server has removed it (`isolate`) ◄───────┘

Without `enableSlaveActingMaster`, or without a name server, a broker is online from its start and its role is that of its
`brokerRole`.

Source: `broker/.../BrokerController.java`, RIP-32.
"""

from collections.abc import Callable, Mapping

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.metadata.copied_tables import CopiedTables
from rmqkit.broker.registration import Registration
from rmqkit.broker.replication.replication import Replication
from rmqkit.broker.roles import runtime_info
from rmqkit.broker.roles.acting_master import ActingMaster
from rmqkit.broker.roles.known_members import KnownMembers
from rmqkit.broker.roles.liveness import Liveness
from rmqkit.broker.roles.members import MemberPolls
from rmqkit.broker.roles.nameservers import Nameservers
from rmqkit.broker.roles.pre_online import PreOnline
from rmqkit.broker.roles.reverse_sync import GiveWay
from rmqkit.broker.roles.role import CLIENT_CODES, MASTER_ID, Duty, Online, Role, RoleState
from rmqkit.broker.special.contract import Destination
from rmqkit.runtime.connection import Address
from rmqkit.store.contract import StorageEngine

__all__ = ["CLIENT_CODES", "Duty", "Online", "Role", "RoleState", "Roles"]


class Roles:
    def __init__(
        self,
        context: BrokerContext,
        state: RoleState,
        registration: Registration,
        store: StorageEngine,
        replication: Replication,
        tables: CopiedTables,
        destinations: Mapping[Role, Destination],
        folder: str,
    ) -> None:
        self._context = context
        self.state = state
        self._registration = registration
        self._special = tables.special
        #: where special duties put what is due, in the roles that have them
        self.destinations = destinations
        self.is_enabled = state.is_enabled
        self.broker_id = context.config.identity.broker_id
        self.is_running = False
        #: called when clients are to be refused, or no longer
        self.on_refusal: Callable[[], None] = lambda: None
        #: called when what clients get here may have changed
        self.on_served: Callable[[], None] = lambda: None
        #: members that answered themselves while no name server lists anybody
        self.known_before: dict[int, Address] = {}
        #: and those that did not
        self._silent: list[int] = []
        self.known_members = KnownMembers(context, folder)
        self._members = MemberPolls(context, state, registration, self._members_changed, self.isolate)
        self.liveness = Liveness(context, state, registration, tables.topics, self._members.knows_heartbeats)
        self.acting = ActingMaster(self, context, store, replication)
        self.nameservers = Nameservers(context, state, registration)
        self.pre_online = PreOnline(self, context, store, replication, tables)
        #: an acting master whose master comes back delivers no more
        self.give_way = GiveWay(context, replication, tables.special, self._is_master_back, self._give_way_changed)
        self._known: tuple[Mapping[int, Address], tuple[int, Address] | None] = ({}, None)
        #: counts the times that it was isolated: an answer of an earlier time does not count
        self._round = 0

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def role(self) -> Role:
        return self.state.role

    @property
    def online(self) -> Online:
        return self.state.online

    @property
    def is_acting(self) -> bool:
        return self.state.is_acting

    @property
    def members(self) -> Mapping[int, Address]:
        """Alive members of the group by id, in the order of ids; this broker included once it is registered."""
        return self._members.alive

    @property
    def others(self) -> Mapping[int, Address]:
        """The members but this broker; while the name servers list nobody, those that answered themselves."""
        own = self._context.address
        alive = {each: address for each, address in self.members.items() if each != self.broker_id and address != own}
        return alive or self.known_before

    @property
    def head(self) -> tuple[int, Address] | None:
        """The smallest id alive: the master, or the slave that acts for it."""
        return next(iter(self.members.items()), None)

    @property
    def is_cut_off(self) -> bool:
        """Whether no name server has answered for so long that another member may have taken this broker's place."""
        return self._members.is_cut_off

    @property
    def is_ripe(self) -> bool:
        """Whether the name servers had the time to know all members."""
        return self._members.is_ripe

    @property
    def is_masterless(self) -> bool:
        """Whether the name servers list live members, and the master is not among them: asking it is pointless."""
        return self.is_enabled and self.acting.had_time and self.head is not None and MASTER_ID not in self.members

    @property
    def conflict(self) -> str:
        """The address of another broker with this one's id, "" when there is none."""
        return self._members.conflict

    @property
    def stage(self) -> str:
        """What is done on the way to being online."""
        return "asking who else is alive" if self.online is Online.ISOLATED else self.pre_online.stage

    def facts(self) -> dict[str, str]:
        return runtime_info.facts(self)

    # --- life and turns -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """The broker serves: its store is ready, replication has begun."""
        self.is_running = True
        if not self.is_enabled:
            self._apply()
            return
        self.known_members.load()
        self._members.start()
        self.liveness.start()
        self.acting.start()
        if self.online is Online.ISOLATED:
            # Members of its group are answered from now on: they may be looking for whom they knew, too.
            self.on_refusal()
            self._seek()
        else:
            self._apply()

    def stop(self) -> None:
        self.is_running = False
        self._members.stop()
        self.liveness.stop()
        self.known_members.stop()
        self.pre_online.stop()
        self.nameservers.stop()

    def stalled(self) -> None:
        """A turn begins that comes too late: nothing that came meanwhile has been served yet."""
        limit_ms = self._context.config.acting.not_active_ms
        self.isolate(f"it stood still for {self.liveness.silence_ms()} ms, and counts as dead after {limit_ms} ms")

    def hint(self) -> None:
        """Members may have changed: ask at once."""
        if self.is_running and self.is_enabled:
            self._members.hint()

    # --- changes ------------------------------------------------------------------------------------------------------

    def isolate(self, why: str) -> None:
        """Leave the routes, refuse clients, stop special duties; then find the live members, and go pre-online."""
        if not self.is_running or not self.is_enabled:
            return
        self.pre_online.stop()
        self._change(Role.SLAVE if self.role is Role.ACTING else self.state.role, Online.ISOLATED, why)
        self._seek()

    def set_acting(self, acts: bool, why: str) -> None:
        self._change(Role.ACTING if acts else Role.SLAVE, self.online, why)

    def _seek(self) -> None:
        self._round += 1
        self.known_members.stop()
        self.known_before, self._silent = {}, []
        self._members.seek(self._sought)

    def _sought(self) -> None:
        """The name servers have listed the live members, or are silent."""
        if self.others or not self.known_members.by_id or self._context.config.acting.skip_pre_online:
            self._begin_pre_online()
        else:
            self.known_members.ask(self._asked_directly)

    def _asked_directly(self, found: dict[int, Address]) -> None:
        self.known_before = found
        self._silent = sorted(self.known_members.by_id.keys() - found.keys())
        self._begin_pre_online()

    def _begin_pre_online(self) -> None:
        if not self.others:
            silent = f"no name server has said who else is alive: {self._members.failures()}"
            how = silent if self.is_cut_off else "nobody else of its group is alive"
            self._is_online("; ".join([how] + [f"member {each} gives no answer" for each in self._silent]))
        elif self._context.config.acting.skip_pre_online:
            self._is_online("skipPreOnline")
        else:
            self._change(self.state.role, Online.PRE_ONLINE, self.state.why)
            round_started = self._round

            def ended(how: str) -> None:
                if self._round == round_started and self.online is Online.PRE_ONLINE and self.is_running:
                    self._is_online(how or "it has copied the newer metadata of its group")

            self.pre_online.start(ended)

    def _is_online(self, how: str) -> None:
        self.known_before = {}
        self._change(self.state.role, Online.ONLINE, how)

    def _members_changed(self) -> None:
        """Members, or what is known of this broker's own place among them."""
        (members_before, head_before), self._known = self._known, (self.members, self.head)
        if self.members != members_before:
            self.known_members.note(self.members)
            if self.others:
                self.known_members.enough()
            self._context.log.info("members", alive={str(key): str(address) for key, address in self.members.items()})
            if MASTER_ID in self.members and MASTER_ID not in members_before and self.broker_id != MASTER_ID:
                # The answer to a registration tells where its log is to be had.
                self._registration.hurry()
        self.acting.look()
        if self.head != head_before:
            self.state.changed()

    def _change(self, role: Role, online: Online, why: str) -> None:
        state = self.state
        before = (state.role, state.online)
        state.role, state.online, state.why = role, online, why
        if (role, online) == before:
            return
        state.change_count += 1
        state.since_ms = self._context.clock.wall_ms
        self._context.log.info("role", role=role, online=online, why=why, members=list(self.members))
        self._apply()
        if online is Online.ONLINE and self.is_enabled:
            self.acting.look()

    def _apply(self) -> None:
        """Everything that depends on the role is brought into line with it."""
        if not self.is_running:
            return  # a broker that stops starts no duty again, and stays unregistered
        state, special = self.state, self._special
        self.on_refusal()
        destination = self.destinations[state.role] if state.does(Duty.SPECIAL) else None
        if destination is not special.destination:
            if special.destination is not None:
                special.stop()
                special.save()
            if destination is not None:
                special.start(destination)
        if state.does(Duty.REGISTER):
            self._registration.start()
        else:
            self._registration.leave()
        self.nameservers.changed()
        self.state.changed()
        self.on_served()

    def _is_master_back(self) -> bool:
        return MASTER_ID in self.members and not self.is_acting

    def _give_way_changed(self) -> None:
        self.state.suspended = frozenset((Duty.SPECIAL,)) if self.give_way.is_on else frozenset()
        self._apply()
