"""The driver of simulated drills whose slaves act for their masters: `driver.py`, and roles.

`RoleDriver` records roles every `look_ms` and at each change of a role, so no state is too short to
be seen. Drills of elections use it as well (`elections/driver.py`).
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

from rmqkit.broker.node import Broker
from rmqkit.broker.roles import Online
from rmqkit.drill import workload
from rmqkit.drill.plan import Plan
from rmqkit.drill.roles import RoleRows
from rmqkit.drill.sim.acting_load import APPS, ActingLoad
from rmqkit.drill.sim.acting_plans import ActingExtras
from rmqkit.drill.sim.driver import TOPIC, SimDriver
from rmqkit.drill.sim.load import SimLoad
from rmqkit.sim.cluster import SimCluster
from rmqkit.sim.process import TurnTimes

#: About what turns of real processes take: input that arrives within that time shares a turn. All
#: processes wake for their timers at the same times (`ActingExtras.timer_ms`), so their requests
#: share turns too.
TURNS = TurnTimes(turn_us=(50, 300), wake_us=(50, 400))
#: the family `replicas` has more frames in pieces
CUT_CHANCE = 0.05
#: how often clients send heartbeats to brokers
CLIENT_HEARTBEAT_MS = 4_000


class RoleDriver(SimDriver):
    """As `SimDriver`, with the roles of the brokers in the history."""

    def __init__(self, plan: Plan, *, keep_trace: bool = False) -> None:
        self._rows: RoleRows | None = None
        super().__init__(plan, keep_trace=keep_trace)
        self._rows = RoleRows(self.history)

    def _prepared(self, broker: Broker) -> None:
        super()._prepared(broker)
        broker.roles.state.on_change.append(partial(self._role_changed, broker.name))

    def close(self) -> None:
        if self._rows is not None:
            self._rows.flush()
        super().close()

    def _record_state(self, name: str, **more: Any) -> None:
        super()._record_state(name, **more)
        self._record_role(name)

    def _role_changed(self, name: str) -> None:
        if self._is_watching:
            self._record_state(name)

    def _more_of_role(self, name: str) -> dict[str, Any]:
        """Return further fields of a broker's role."""
        return {}

    def _record_role(self, name: str) -> None:
        if self._rows is None:
            return
        process = self.world.process(name)
        group, _, number = name.rpartition("-")
        if not process.is_alive or process.is_paused:
            self._rows.silent(name, group, self.now_ms())
            return
        roles = self.cluster.broker(name).roles
        self._rows.told(
            name,
            group,
            int(number),
            role=str(roles.role),
            online=str(roles.online),
            members=roles.members,
            invoke_ms=self.now_ms(),
            why=roles.state.why,
            boot=str(process.incarnation),
            **self._more_of_role(name),
        )


class ActingDriver(RoleDriver):
    """As `RoleDriver`, with name servers and locks."""

    observer = APPS[0]
    look_ms = 200
    cut_chance = CUT_CHANCE

    def __init__(self, plan: Plan, *, keep_trace: bool = False) -> None:
        self.acting = ActingExtras.of(plan)
        self.turns = TURNS._replace(timer_us=self.acting.timer_ms * 1000)
        super().__init__(plan, keep_trace=keep_trace)

    def _drawn(self, plan: Plan) -> Any:
        return self.acting

    def _made_cluster(self, settings: Mapping[str, Any]) -> SimCluster:
        plan, extras = self.plan, self.acting
        return SimCluster(
            self.world,
            nameservers=extras.nameservers,
            groups=plan.groups,
            replicas=plan.replicas,
            settings=settings,
            nameserver_settings=extras.of_nameservers(),
            client_settings={"route_refresh_ms": extras.route_ms, "heartbeat_ms": CLIENT_HEARTBEAT_MS},
            prepared=self._prepared,
            secure=plan.secure,
            tls=self._tls(),
        )

    def _made_load(self) -> SimLoad:
        load = ActingLoad(
            self.cluster, self.plan, self.history, self.now_ms, name=TOPIC, broker=self._broker, extras=self.acting
        )
        load.world_ms = self.world_ms
        return load

    def _prepared(self, broker: Broker) -> None:
        super()._prepared(broker)
        broker.locks.table.live_ms = self.acting.lease_ms  # type: ignore[attr-defined]  # of the loose mode only

    # --- the course

    def _is_up(self) -> bool:
        wanted = self.acting.nameservers
        return self.cluster.is_in_sync() and all(
            self._is_online(name) and len(self.cluster.broker(name).registration.registered) == wanted
            for name in self.cluster.brokers
        )

    def _is_online(self, name: str) -> bool:
        return self._serves(name) and self.cluster.broker(name).roles.online is Online.ONLINE

    def lacking(self) -> str:
        lacks = super().lacking()
        if lacks:
            return lacks
        for name in self.cluster.brokers:
            roles = self.cluster.broker(name).roles
            if roles.online is not Online.ONLINE:
                return f"{name} is {roles.online}: {roles.state.why}"
            if roles.is_acting:
                return f"{name} acts for its master: {roles.state.why}"
            if len(roles.members) != self.plan.replicas:
                return f"{name} sees only the broker ids {sorted(roles.members)} alive"
        return self._load_lacks()

    def _load_lacks(self) -> str:
        """Return what the load lacks in addition to sends and deliveries, "" if nothing."""
        since_ms = self.now_ms() - 1_500
        if workload.levels_ms(self.plan) and self._load.acked_ms.get(workload.DELAYER, -1_500) < since_ms:
            return "no delayed message was acknowledged"
        if self._load.healed_ms and not self._load.has_locked:
            # Brokers vote only when a lease has passed since their start, and groups without a
            # majority lock nothing. In a short drill that may be the whole time before the return.
            return "no lock was granted"
        return ""

    def caught_up(self) -> bool:
        return not self._load.waiting and super().caught_up()
