"""Roles: what this broker is in its group, whether it is online, and what follows from both.

    role           `Role`, `Online`, and the table of duties
    members        polls the name servers for the live members of the group
    liveness       sends heartbeats, and detects that this broker was stalled
    acting_master  decides when a slave acts for its master
    group_contact  whether another member may have taken over from this master unnoticed
    known_members  members known from earlier, for name servers that list nobody
    nameservers    checks what the name servers' routes show of an acting master
    pre_online     what a broker does before it serves
    reverse_sync   a returning master copies progress from a member
    handover       an acting slave hands over to its returning master
    runtime_info   the role's fields in code 28

Only `Roles` changes the role. Other parts read the `RoleState`, or register in its `on_change`.

    isolated ──the other members are known──► pre-online ──has their progress──► online
        ▲                                                                         │
        └─────────── stalled, or a name server has removed it (`isolate`) ◄───────┘

Without `enableSlaveActingMaster`, or without a name server, a broker is online from its start, and
its role is its `brokerRole`.

Source: `broker/.../BrokerController.java`, RIP-32.
"""

from collections.abc import Callable, Mapping

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.metadata.copied_tables import CopiedTables
from rmqkit.broker.registration import Registration
from rmqkit.broker.replication.replication import Replication
from rmqkit.broker.roles import runtime_info
from rmqkit.broker.roles.acting_master import ActingMaster
from rmqkit.broker.roles.group_contact import GroupContact
from rmqkit.broker.roles.handover import Handover
from rmqkit.broker.roles.known_members import KnownMembers
from rmqkit.broker.roles.liveness import Liveness
from rmqkit.broker.roles.members import MemberPolls
from rmqkit.broker.roles.nameservers import Nameservers
from rmqkit.broker.roles.pre_online import PreOnline
from rmqkit.broker.roles.role import CLIENT_CODES, HANDOVER_CODES, MASTER_ID, Duty, Online, Role, RoleState
from rmqkit.broker.special.contract import Destination
from rmqkit.runtime.connection import Address
from rmqkit.store.contract import StorageEngine

__all__ = ["CLIENT_CODES", "HANDOVER_CODES", "Duty", "Online", "Role", "RoleState", "Roles"]


class Roles:
    """This broker's role and online state, and everything that follows from a change of them."""

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
        self._replication = replication
        #: where special duties put messages that are due, for each role that has special duties
        self.destinations = destinations
        self.is_enabled = state.is_enabled
        self.is_running = False
        #: called when the broker starts or stops refusing clients
        self.on_refusal: Callable[[], None] = lambda: None
        #: called when the requests that clients may send here may have changed
        self.on_served: Callable[[], None] = lambda: None
        #: controller mode: called if a turn begins after the end of the master's lease
        self.on_lease_end: Callable[[], None] = lambda: None
        #: controller mode: whether the lease is over, so that nothing may be put
        self.is_lease_over: Callable[[], bool] = lambda: False
        #: members that answered this broker directly while the name servers list no other member
        self.known_before: dict[int, Address] = {}
        #: ids of the members that did not answer directly
        self._silent: list[int] = []
        self.known_members = KnownMembers(context, folder)
        self._members = MemberPolls(context, state, registration, self._members_changed, self.isolate)
        self.liveness = Liveness(context, state, registration, tables.topics, self._members.knows_heartbeats)
        self.acting = ActingMaster(self, context, store, replication)
        self.nameservers = Nameservers(context, state, registration)
        self.pre_online = PreOnline(self, context, store, replication, tables)
        #: hands over to the returning master
        self.handover = Handover(context, replication, tables.special, self._is_master_back, self._apply)
        #: holds back what is due on a master until contact with the group is proven
        self.contact = GroupContact(context, replication.calls, self)
        self.contact.on_change = self._apply
        self._known: tuple[Mapping[int, Address], tuple[int, Address] | None] = ({}, None)
        #: number of times that this broker was isolated; results of earlier rounds are ignored
        self._round = 0

    # --- state ------------------------------------------------------------------------------------

    @property
    def broker_id(self) -> int:
        return self._context.config.identity.broker_id

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
        """The live members of the group, ordered by id; includes this broker once registered."""
        return self._members.alive

    @property
    def others(self) -> Mapping[int, Address]:
        """The live members without this broker.

        While the name servers list no other member: the members that answered this broker directly.
        """
        own = self._context.address
        alive = {each: address for each, address in self.members.items() if each != self.broker_id and address != own}
        return alive or self.known_before

    @property
    def head(self) -> tuple[int, Address] | None:
        """The live member with the smallest id: the master, or the slave that acts for it."""
        return next(iter(self.members.items()), None)

    @property
    def is_cut_off(self) -> bool:
        """Whether all name servers are silent for so long that a member may have taken over."""
        return self._members.is_cut_off

    @property
    def is_ripe(self) -> bool:
        """Whether a name server has known this broker long enough to know all members."""
        return self._members.is_ripe

    @property
    def is_masterless(self) -> bool:
        """Whether the name servers list live members without the master: asking it is pointless."""
        is_known = self.acting.had_time and self.head is not None
        return self.is_acting or (self.is_enabled and is_known and MASTER_ID not in self.members)

    @property
    def heard_ms(self) -> int:
        return self._members.heard_ms

    @property
    def reachable(self) -> Mapping[int, Address]:
        """The members to ask for contact: listed ones, followers, else those known before."""
        found = dict(self.others)
        for broker_id, link in self._replication.members.bound.items():
            if link.binding is not None and broker_id not in found:
                try:
                    found[broker_id] = Address.parse(link.binding.address)
                except ValueError:
                    continue
        if not found and self.is_cut_off:
            found.update(self.known_members.by_id)
        return found

    @property
    def conflict(self) -> str:
        """The address of another broker with the same id; "" if there is none."""
        return self._members.conflict

    @property
    def stage(self) -> str:
        """The current step towards being online, for status; "" once online."""
        return "asking which other members are alive" if self.online is Online.ISOLATED else self.pre_online.stage

    def facts(self) -> dict[str, str]:
        return runtime_info.facts(self)

    # --- life and turns ---------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to find the members; called once the store is ready and replication has begun."""
        self.is_running = True
        if self.state.is_elected:
            self.on_refusal()  # members get answers from now on
            return
        if not self.is_enabled:
            self._apply()
            return
        self.known_members.load()
        self._members.start()
        self.liveness.start()
        self.acting.start()
        if self.online is Online.ISOLATED:
            # Members of the group get answers from now on: they may be asking their known members,
            # too.
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
        self.contact.set_on(False)

    def stalled(self) -> None:
        """Isolate this broker: a turn begins after a stall, and has not served anything yet.

        In controller mode: a turn begins after the lease of this master.
        """
        if self.state.is_elected:
            self.on_lease_end()
            return
        limit_ms = self._context.config.acting.not_active_ms
        self.isolate(f"it was stalled for {self.liveness.silence_ms()} ms, and counts as dead after {limit_ms} ms")

    def hint(self) -> None:
        """Ask the name servers at once: the members may have changed."""
        if self.is_running and self.is_enabled:
            self._members.hint()

    # --- changes ----------------------------------------------------------------------------------

    def isolate(self, why: str) -> None:
        """Leave the routes, refuse clients, stop special duties, and search the live members.

        Once the members are known, the broker goes pre-online.
        """
        if not self.is_running or not self.is_enabled:
            return
        self.pre_online.stop()
        self._change(Role.SLAVE if self.role is Role.ACTING else self.state.role, Online.ISOLATED, why)
        self._seek()

    def set_acting(self, acts: bool, why: str) -> None:
        """Begin or stop to act for the master; `why` is shown in status."""
        self._change(Role.ACTING if acts else Role.SLAVE, self.online, why)

    def assign(self, role: Role, online: Online, why: str) -> None:
        """Take the role that the controllers give (controller mode)."""
        self.pre_online.stop()
        self._change(role, online, why)

    def copy_progress(self, members: dict[int, Address], then: Callable[[str], None]) -> None:
        """Copy newer progress from these members as a new master; `then` gets what failed."""
        self.known_before = members
        if members and not self._context.config.acting.skip_pre_online:
            self.pre_online.start(then)
        else:
            then("")

    def lease_changed(self) -> None:
        """Stop or resume the special duties: a lease has ended, or was renewed."""
        self._apply()

    def _seek(self) -> None:
        self._round += 1
        self.known_members.stop()
        self.known_before, self._silent = {}, []
        self._members.seek(self._members_found)

    def _members_found(self) -> None:
        """Go pre-online, or ask known members: the name servers have answered, or are silent."""
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
            silent = f"no name server has listed the live members: {self._members.failures()}"
            how = silent if self.is_cut_off else "no other member of its group is alive"
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
        """React to a change of the members, of a conflict, or of contact with the name servers."""
        (members_before, head_before), self._known = self._known, (self.members, self.head)
        if self.members != members_before:
            self.known_members.note(self.members)
            if self.others:
                self.known_members.end_round()
            self._context.log.info("members", alive={str(key): str(address) for key, address in self.members.items()})
            if MASTER_ID in self.members and MASTER_ID not in members_before and self.broker_id != MASTER_ID:
                # The answer to a registration has the master's HA address.
                self._registration.hurry()
        self.acting.update()
        if self.is_cut_off:
            self.contact.ask()
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
            self.acting.update()

    def _apply(self) -> None:
        """Start and stop everything that depends on the role and the online state."""
        if not self.is_running:
            return  # a stopping broker restarts no duty and stays unregistered
        state, special = self.state, self._special
        self.contact.set_on(self.is_enabled and state.is_master)
        state.suspended, state.is_sealed = self._suspended(), self.handover.is_sealed
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
        elif state.is_elected and state.online is Online.PRE_ONLINE:
            self._registration.hold()  # a slave that becomes master stays in the routes, as with Apache's
        else:
            self._registration.leave()
        self.nameservers.changed()
        self.state.changed()
        self.on_served()

    def _is_master_back(self) -> bool:
        return MASTER_ID in self.members and not self.is_acting

    def _suspended(self) -> frozenset[Duty]:
        """Return the duties that are off: the master returns, or contact with the group is lost."""
        if self.handover.is_sealed:
            return frozenset((Duty.SPECIAL, Duty.LOCK))
        if self.is_lease_over():
            return frozenset((Duty.SPECIAL, Duty.LOCK))
        return frozenset((Duty.SPECIAL,)) if self.handover.is_on or self.contact.is_lost else frozenset()
