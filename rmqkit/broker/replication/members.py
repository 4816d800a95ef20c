"""Decides which slave connections count as copies.

A connection on the HA port carries no name. Before a slave of ours reports, it tells the master's
main port which connection is its own (906 with our fields): that connection is *bound* to a member
of the group. The newest connection of a member wins. If the holder of an id is connected, another
broker that claims the same id is refused.

A connection without a binding (an Apache slave, or an unknown peer) counts only with
`haAcceptAnonymous`. Of each host, at most as many count as the name servers list unbound slaves on
that host, the oldest first. If no name server has answered, one of each host counts.

A slave is in sync if it has reported and lacks fewer than `haMaxGapNotInSync` bytes.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.replication.ha_connection import Binding, HaConnections, ReplicaLink
from rmqkit.broker.roles.role import RoleState
from rmqkit.config import BrokerRole
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import CallFailed, Outcome
from rmqkit.runtime.connection import Address
from rmqkit.store.contract import StorageEngine
from rmqkit.wire.bodies.route import MemberGroupBody
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schemas.nameserver import GetBrokerMemberGroupRequest

ASK_MS = 1000
#: bindings that arrived before their HA connection, kept at most
EARLY_MAX = 64


class ReplicaStatus(NamedTuple):
    """A slave of this master, for status.

    `acked` is the end of its log as it reported it; `gap` is how many bytes it is behind. Both are
    -1 while unknown. `why` says why it is not in sync, "" if it is.
    """

    broker_id: int
    address: str
    acked: int
    gap: int
    in_sync: bool
    state: str
    why: str


class RegistrationFacts(Protocol):
    """What registration knows.

    `nameservers` are all of them. `registered` are those that have registered this broker, with the
    monotonic time in ms since when.
    """

    nameservers: list[Address]
    registered: dict[Address, int]


class ReplicaMembers:
    """The slaves of this master: which connection is bound to which broker id, and which count."""

    def __init__(
        self,
        context: BrokerContext,
        store: StorageEngine,
        role: RoleState,
        registration: RegistrationFacts,
        connections: HaConnections,
        alive: Callable[[], Mapping[int, Address]],
    ) -> None:
        self._context = context
        self._store = store
        self._role = role
        self._registration = registration
        self._links = connections.links
        self._refused = connections.refused
        #: returns the live members of the group by id, as `Roles` knows them
        self._alive = alive
        #: in controller mode: whether the reports of a member are acknowledgements; else None
        self.is_counted: Callable[[int], bool] | None = None
        #: called when the set of links that count may have changed
        self.on_change: Callable[[], None] = lambda: None
        #: links by the broker id that they are bound to
        self.bound: dict[int, ReplicaLink] = {}
        #: addresses of the slaves that the name servers list, by id; None until the first answer
        self.registered: dict[int, str] | None = None
        self._early: dict[Address, Binding] = {}
        context.duties.add("ha-members", self._ask_nameserver, None)

    def start(self) -> None:
        """Start asking the name servers for the members of the group.

        Called at the broker's start if the settings want slaves, and when a slave connects.
        """
        if self._registration.nameservers:
            self._context.duties.wake("ha-members", self._context.clock.mono_ms + ASK_MS)

    @property
    def are_wanted(self) -> bool:
        """Whether the settings ask for slaves."""
        settings = self._context.config.replication
        return max(settings.total_replicas, settings.in_sync_replicas) > 1

    # --- bindings ---------------------------------------------------------------------------------

    def bind(self, peer: Address, binding: Binding) -> str:
        """Bind the HA connection from `peer` to a member. Return why that is refused, or "".

        The connection may not have arrived yet; the binding then waits for it.
        """
        holder = self.bound.get(binding.broker_id)
        if holder is not None and holder.binding is not None and holder.binding.address != binding.address:
            silent_ms = self._context.clock.mono_ms - holder.read_ms
            if not holder.conn.closing and silent_ms <= 2 * self._context.config.ha.heartbeat_ms:
                return f"id {binding.broker_id} belongs to {holder.binding.address}, which is connected"
        for link in self._links.values():
            if link.peer == peer and not link.conn.closing:
                self._bind(link, binding)
                return ""
        # Only the newest binding of a member is kept: its older connections will never arrive.
        self._early = {early: other for early, other in self._early.items() if other.broker_id != binding.broker_id}
        while len(self._early) >= EARLY_MAX:
            del self._early[next(iter(self._early))]
        self._early[peer] = binding
        return ""

    def adopt(self, link: ReplicaLink) -> None:
        """Take a new connection, and bind it if its binding arrived first."""
        self.start()
        binding = self._early.pop(link.peer, None)
        if binding is not None:
            self._bind(link, binding)

    def _bind(self, link: ReplicaLink, binding: Binding) -> None:
        before = self.bound.get(binding.broker_id)
        self._unbind(link)
        link.binding = binding
        self._early = {early: other for early, other in self._early.items() if other.broker_id != binding.broker_id}
        self.bound[binding.broker_id] = link
        self._context.log.info("replica-bound", peer=str(link.peer), broker_id=binding.broker_id, address=binding.address)
        if before is not None and before is not link:
            self._context.outbox.abort(before.conn, f"replaced by a newer connection of slave {binding.broker_id}")

    def claim(self, link: ReplicaLink, binding: Binding) -> None:
        """Bind a connection that itself says whose it is (controller mode).

        If the member has bound it before (906), its address there is kept.
        """
        early = self._early.pop(link.peer, None)
        known = link.binding or early
        if known is not None and known.broker_id == binding.broker_id:
            binding = binding._replace(address=known.address)
        self._bind(link, binding)

    def forget(self, link: ReplicaLink) -> None:
        """Drop a connection that was closed."""
        self._unbind(link)
        self.on_change()

    def _unbind(self, link: ReplicaLink) -> None:
        bound = link.binding
        if bound is not None and self.bound.get(bound.broker_id) is link:
            del self.bound[bound.broker_id]

    # --- which links count ------------------------------------------------------------------------

    def counted(self) -> list[ReplicaLink]:
        """Return the links whose reports are acknowledgements, one for each copy."""
        found = [link for link in self.bound.values() if not link.conn.closing]
        if self.is_counted is not None:
            counts = self.is_counted
            return [link for link in found if link.binding is not None and counts(link.binding.broker_id)]
        if self._context.config.replication.accept_anonymous:
            found += self._anonymous()
        return found

    def _anonymous(self) -> list[ReplicaLink]:
        """Return the unbound links that count: of each host as many as it has unbound slaves."""
        room: dict[str, int] = {}
        if self.registered is not None:
            for broker_id, address in self.registered.items():
                if broker_id not in self.bound:
                    host = address.rpartition(":")[0].strip("[]")
                    room[host] = room.get(host, 0) + 1
        found = []
        for link in self._links.values():
            if link.binding is None and link.acked >= 0 and not link.conn.closing:
                left = room.get(link.peer.host, 1 if self.registered is None else 0)
                if left:
                    room[link.peer.host] = left - 1
                    found.append(link)
        return found

    def in_sync(self) -> list[ReplicaLink]:
        """Return the counted links that lack fewer than `haMaxGapNotInSync` bytes."""
        gap_max = self._context.config.replication.ha_max_gap
        end = self._store.offset_written
        if self.is_counted is not None:
            gap_max = end + 1  # the controllers' set decides
        return [link for link in self.counted() if link.acked >= 0 and end - link.acked < gap_max]

    def seen(self) -> list[ReplicaStatus]:
        """Return every link, and every registered slave without a link, for status."""
        # Status may ask before the store is ready.
        end = self._store.offset_written if self._store.ready else 0
        counted = {link.conn.id for link in self.counted()}
        in_sync = {link.conn.id for link in self.in_sync()}
        found = []
        for link in self._links.values():
            bound = link.binding
            broker_id, address = (-1, str(link.peer)) if bound is None else (bound.broker_id, bound.address)
            gap = end - link.acked if link.acked >= 0 else -1
            why = self._why_not(link, gap, counted, in_sync)
            state = "transfer" if link.acked >= 0 else "connected"
            found.append(ReplicaStatus(broker_id, address, link.acked, gap, link.conn.id in in_sync, state, why))
        for broker_id, address in (self.registered or {}).items():
            if broker_id not in self.bound and not self._is_anonymous(address, found):
                found.append(
                    ReplicaStatus(broker_id, address, -1, -1, False, "absent", self._why_absent(broker_id, address))
                )
        return sorted(found, key=lambda member: (member.broker_id, member.address))

    @staticmethod
    def _is_anonymous(address: str, found: list[ReplicaStatus]) -> bool:
        """Whether the registered slave at `address` may be one of the unbound links."""
        host = address.rpartition(":")[0]
        return any(member.broker_id < 0 and member.address.rpartition(":")[0] == host for member in found)

    def _why_not(self, link: ReplicaLink, gap: int, counted: set[int], in_sync: set[int]) -> str:
        gap_max = self._context.config.replication.ha_max_gap
        if link.acked < 0:
            return "has not reported yet"
        if link.conn.id not in counted:
            if self.is_counted is not None:
                return "is not in the set of in-sync replicas"
            if not self._context.config.replication.accept_anonymous:
                return "did not say who it is, and haAcceptAnonymous is false"
            return "did not say who it is, and the name servers list no unbound slave on that host"
        if link.conn.id not in in_sync:
            return f"is {_mib(gap)} behind, the limit (haMaxGapNotInSync) is {_mib(gap_max)}"
        return ""

    def _why_absent(self, broker_id: int, address: str) -> str:
        for peer, binding in self._early.items():
            if binding.broker_id == broker_id:
                return (
                    f"no HA connection: it says that it comes from {peer}, but no connection from there has arrived "
                    "(does a NAT or a proxy translate addresses?)"
                )
        host = address.rpartition(":")[0].strip("[]")
        reason = self._refused.get(Address(host, 0))
        return f"no HA connection; the last one was closed: {reason}" if reason else "no HA connection"

    # --- the name servers -------------------------------------------------------------------------

    def _ask_nameserver(self, now_ms: int) -> int | None:
        if self._role.is_enabled:
            self._set_registered({broker_id: str(address) for broker_id, address in self._alive().items()})
            return now_ms + ASK_MS
        identity = self._context.config.identity
        address = next(iter(self._registration.registered), None)
        if address is not None and identity.broker_role is not BrokerRole.SLAVE:
            request = GetBrokerMemberGroupRequest(
                cluster_name=identity.broker_cluster_name, broker_name=identity.broker_name
            )
            self._context.remoting.call(
                address, RequestCode.GET_BROKER_MEMBER_GROUP, request, timeout_ms=ASK_MS, then=self._group_answered
            )
        return now_ms + ASK_MS if self.are_wanted or self._links else None

    def _group_answered(self, outcome: Outcome) -> None:
        if isinstance(outcome, CallFailed) or not outcome.is_ok:
            return
        try:
            group = MemberGroupBody.decode(outcome.body).broker_member_group
        except RemoteProtocolError:
            return
        self._set_registered({} if group is None else group.broker_addrs)

    def _set_registered(self, addresses: Mapping[int, str]) -> None:
        known = {broker_id: address for broker_id, address in addresses.items() if broker_id != 0}
        if known != self.registered:
            self.registered = known
            self.on_change()


def _mib(size: int) -> str:
    return f"{size / 1048576:.1f} MiB"
