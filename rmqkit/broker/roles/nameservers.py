"""Finds wrong settings of name servers and members, from the routes that show an acting master.

While this broker acts, it asks each name server that has it registered for the route of the
broker's own topic, every `PERIOD_MS`:

- With `supportActingMaster`, the route shows this broker as id 0.
- Without it, clients of that name server find only slaves. They read from them if `slaveReadEnable`
  allows it, and lock no queues. The broker acts all the same, since other name servers may show it.
- If the route says that the group has no acting master, the member that registered last has
  `enableSlaveActingMaster` off, so the members' settings differ.

`notes` has the findings by name server. Each is logged once, and shown in status while it lasts.

Source: `namesrv/.../routeinfo/RouteInfoManager.pickupTopicRouteData`.
"""

from functools import partial

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.registration import Registration
from rmqkit.broker.roles.role import MASTER_ID, RoleState
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import CallFailed, Outcome
from rmqkit.runtime.connection import Address
from rmqkit.wire.bodies import TopicRoute
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schemas.nameserver import GetRouteInfoRequest

DUTY = "roles-nameservers"
#: delay of the first check: a name server may need this long to notice that the master is gone
FIRST_MS = 1000
PERIOD_MS = 10_000


class Nameservers:
    """Checks the routes that name servers show while this broker acts for its master."""

    def __init__(self, context: BrokerContext, role: RoleState, registration: Registration) -> None:
        self._context = context
        self._role = role
        self._registration = registration
        self._is_stopped = False
        #: what is wrong, by name server
        self.notes: dict[Address, str] = {}
        self._context.duties.add(DUTY, self._run, None)

    def changed(self) -> None:
        """Start checking if the broker acts now; else drop the findings."""
        if self._role.is_acting:
            self._context.duties.wake(DUTY, self._context.clock.mono_ms + FIRST_MS)
        else:
            self.notes.clear()

    def stop(self) -> None:
        self._is_stopped = True

    def text(self) -> str:
        return "; ".join(f"name server {address} {note}" for address, note in self.notes.items())

    def _run(self, now_ms: int) -> int | None:
        if not self._role.is_acting or self._is_stopped:
            return None
        context = self._context
        request = GetRouteInfoRequest(topic=context.config.identity.broker_name)
        timeout_ms = context.config.acting.heartbeat_timeout_ms
        for address in self._registration.registered:
            then = partial(self._answered, address)
            context.remoting.call(address, RequestCode.GET_ROUTEINFO_BY_TOPIC, request, timeout_ms=timeout_ms, then=then)
        return now_ms + PERIOD_MS

    def _answered(self, address: Address, outcome: Outcome) -> None:
        if not self._role.is_acting or isinstance(outcome, CallFailed) or not outcome.is_ok:
            return
        try:
            groups = TopicRoute.decode(outcome.body).broker_datas
        except RemoteProtocolError:
            return
        name = self._context.config.identity.broker_name
        group = next((each for each in groups if each.broker_name == name), None)
        note = ""
        if group is not None and not group.enable_acting_master:
            note = "knows a member of the group with enableSlaveActingMaster=false: all members must have the same value"
        elif group is not None and MASTER_ID not in group.broker_addrs:
            note = "shows no acting master (supportActingMaster is off): clients read from slaves only with slaveReadEnable"
        if note == self.notes.get(address, ""):
            return
        if note:
            self.notes[address] = note
            self._context.log.warning("nameserver-note", nameserver=str(address), note=note)
        else:
            del self.notes[address]
