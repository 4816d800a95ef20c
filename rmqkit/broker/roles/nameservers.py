"""What is wrong with the name servers, as far as an acting master can see it from the routes that they show.

A name server that has this broker registered is asked for the route of the broker's own topic, while it acts, every
`PERIOD_MS`. With `supportActingMaster` this broker stands there as id 0. Without, clients find slaves alone: they read from
them where `slaveReadEnable` lets them, and lock nothing; the broker acts all the same, as other name servers may show it.
Where the route says that the group has no acting master, the member that registered last has `enableSlaveActingMaster`
off: the settings of the group are mixed.

`notes` has what was found, by name server; it is told in the log once, and in the status as long as it is so.

Source: `namesrv/.../routeinfo/RouteInfoManager.pickupTopicRouteData`.
"""

from functools import partial
from typing import TYPE_CHECKING

from rmqkit.broker.roles.role import MASTER_ID
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.calls import CallFailed, Outcome
from rmqkit.runtime.connection import Address
from rmqkit.wire.bodies import TopicRoute
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schemas.nameserver import GetRouteInfoRequest

if TYPE_CHECKING:
    from rmqkit.broker.roles import Roles

DUTY = "roles-nameservers"
#: until the first look: a name server may take a moment to see that the master is gone
FIRST_MS = 1000
PERIOD_MS = 10_000


class Nameservers:
    def __init__(self, roles: "Roles") -> None:
        self._roles = roles
        self._broker = roles.broker
        self.notes: dict[Address, str] = {}
        self._broker.duties.add(DUTY, self._run, None)

    def changed(self) -> None:
        """Role or online has changed."""
        if self._roles.is_acting:
            self._broker.duties.wake(DUTY, self._broker.clock.mono_ms + FIRST_MS)
        else:
            self.notes.clear()

    def text(self) -> str:
        return "; ".join(f"name server {address} {note}" for address, note in self.notes.items())

    def _run(self, now_ms: int) -> int | None:
        if not self._roles.is_acting or not self._roles.is_running:
            return None
        broker = self._broker
        request = GetRouteInfoRequest(topic=broker.config.identity.broker_name)
        timeout_ms = broker.config.acting.heartbeat_timeout_ms
        for address in broker.registration.registered:
            then = partial(self._answered, address)
            broker.remoting.call(address, RequestCode.GET_ROUTEINFO_BY_TOPIC, request, timeout_ms=timeout_ms, then=then)
        return now_ms + PERIOD_MS

    def _answered(self, address: Address, outcome: Outcome) -> None:
        if not self._roles.is_acting or isinstance(outcome, CallFailed) or not outcome.is_ok:
            return
        try:
            groups = TopicRoute.decode(outcome.body).broker_datas
        except RemoteProtocolError:
            return
        name = self._broker.config.identity.broker_name
        group = next((each for each in groups if each.broker_name == name), None)
        note = ""
        if group is not None and not group.enable_acting_master:
            note = "knows a member of the group with enableSlaveActingMaster=false: it must be the same in the group"
        elif group is not None and MASTER_ID not in group.broker_addrs:
            note = "shows no acting master (supportActingMaster is off there): clients read from slaves where they may"
        if note == self.notes.get(address, ""):
            return
        if note:
            self.notes[address] = note
            self._broker.log.warning("nameserver-note", nameserver=str(address), note=note)
        else:
            del self.notes[address]
