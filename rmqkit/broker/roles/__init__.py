"""Roles: what this broker is in its group, whether it is online, and what follows from both.

    role        Role, Online, and the table of duties
    pre_online  what a broker does before it is online
    shown       what it says about itself

`Roles` is the only place that knows: others ask `does`, `is_master`, `is_acting`, or put themselves into `on_change`.

    isolated ──who else is there is known──► pre-online ──took over what they know──► online
        ▲                                                                              │
        └──────────── was away, or a name server has taken it out (`isolate`) ◄────────┘

Without `enableSlaveActingMaster`, or without a name server, a broker is online from its start and its role is that of its
`brokerRole`.

Source: `broker/.../BrokerController.java`, RIP-32.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from rmqkit.broker.roles import shown
from rmqkit.broker.roles.pre_online import PreOnline
from rmqkit.broker.roles.role import CLIENT_CODES, Duty, Online, Role, does
from rmqkit.config import BrokerRole
from rmqkit.runtime.connection import Address

if TYPE_CHECKING:
    from rmqkit.broker.node import Broker

__all__ = ["CLIENT_CODES", "Duty", "Online", "Role", "Roles"]


class Roles:
    def __init__(self, broker: "Broker") -> None:
        config = broker.config
        self._broker = broker
        #: whether roles can change at all
        self.is_enabled = config.acting.enable and bool(config.network.namesrv_addrs)
        self.role = Role.SLAVE if config.identity.broker_role is BrokerRole.SLAVE else Role.MASTER
        starts_isolated = self.is_enabled and config.replication.total_replicas > 1 and not config.acting.skip_pre_online
        self.online = Online.ISOLATED if starts_isolated else Online.ONLINE
        #: wall time of the last change, and why it is so, for people
        self.since_ms = broker.clock.wall_ms
        self.why = (
            "it has started, and does not know who else of its group is alive" if starts_isolated else "as configured"
        )
        #: alive members of the group by id, this broker included once it is registered
        self.members: Mapping[int, Address] = {}
        self.pre_online = PreOnline(broker)
        #: called after each change of role or online
        self.on_change: list[Callable[[], None]] = []
        self._running = False

    # --- asked by others ----------------------------------------------------------------------------------------------

    @property
    def is_master(self) -> bool:
        """Whether it may append to its log on its own account."""
        return self.does(Duty.PUT)

    @property
    def is_acting(self) -> bool:
        return self.role is Role.ACTING

    def does(self, duty: Duty) -> bool:
        return does(duty, self.role, self.online)

    @property
    def head(self) -> tuple[int, Address] | None:
        """The smallest id alive: the master, or who acts for it."""
        return min(self.members.items(), default=None)

    @property
    def stage(self) -> str:
        """What is done on the way to being online."""
        return self.pre_online.stage

    @property
    def refusal(self) -> str:
        """Why clients are refused, "" while they are not."""
        return "" if self.online is Online.ONLINE else f"the broker is {self.online}: {self.why}"

    def facts(self) -> dict[str, str]:
        return shown.facts(self)

    # --- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """The broker serves: its store is ready, replication has begun."""
        self._running = True
        if self.online is Online.ISOLATED:
            self._begin_pre_online()
        else:
            self._apply()

    def stop(self) -> None:
        self._running = False
        self.pre_online.stop()

    def settle(self) -> None:
        """The turn is over."""

    # --- changes ------------------------------------------------------------------------------------------------------

    def isolate(self, why: str) -> None:
        """Out of the routes, clients refused, special duties off; then find out who is there, and pre-online."""
        if not self._running or not self.is_enabled:
            return
        self.pre_online.stop()
        role = Role.SLAVE if self.role is Role.ACTING else self.role
        self._change(role, Online.ISOLATED, why)
        self._begin_pre_online()

    def _begin_pre_online(self) -> None:
        self._change(self.role, Online.PRE_ONLINE, self.why)
        self.pre_online.start(self._is_online)

    def _is_online(self, how: str) -> None:
        self._change(self.role, Online.ONLINE, how or "it has taken over what the others of its group knew better")

    def _change(self, role: Role, online: Online, why: str) -> None:
        if (role, online) == (self.role, self.online):
            self.why = why
            return
        self.role, self.online, self.why = role, online, why
        self.since_ms = self._broker.clock.wall_ms
        self._broker.log.info("role", role=role, online=online, why=why)
        self._apply()

    def _apply(self) -> None:
        """Everything that depends on the role is brought into line with it."""
        broker = self._broker
        broker.derive_blocked()
        schedule = broker.schedule
        if self.does(Duty.DELIVER_DELAYED) != schedule.is_on:
            if schedule.is_on:
                schedule.stop()
                schedule.offsets.save()
            else:
                schedule.start()
        if self.does(Duty.REGISTER):
            broker.registration.start()
        else:
            broker.registration.leave()
        for changed in list(self.on_change):
            changed()
        if self._running:
            broker.release_pulls()
