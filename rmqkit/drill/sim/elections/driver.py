"""The driver of simulated drills in which controllers elect the master: `driver.py`, and elections.

It records roles with their epochs every `look_ms` and at each change of a role, so no master is too
short to be seen. With the same polls it records each epoch of each log (`epoch` rows): where it
starts and ends, and the checksum of its bytes.
"""

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any
from zlib import crc32

from rmqkit.broker.election.election import MASTER, SLAVE
from rmqkit.broker.node import Broker
from rmqkit.broker.roles import Online
from rmqkit.client.client import Client
from rmqkit.drill.contract import DrillNode
from rmqkit.drill.plan import Plan
from rmqkit.drill.sim.acting_driver import RoleDriver
from rmqkit.drill.sim.driver import TOPIC
from rmqkit.drill.sim.elections.load import ElectionLoad
from rmqkit.drill.sim.elections.plans import ElectionExtras
from rmqkit.drill.sim.load import SimLoad
from rmqkit.runtime.connection import Address
from rmqkit.sim.cluster import BROKER_PORT, SimCluster
from rmqkit.sim.elected_cluster import ElectedCluster
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schemas.controller import NotifyBrokerRoleChangedRequest

#: how often clients send heartbeats to brokers
CLIENT_HEARTBEAT_MS = 1_000
#: with slow links, how often data that is sent at once arrives in pieces
CUT_CHANCE = 0.8
#: how often a stranger sends a forged notice
FORGE_MS = 700


class ElectionDriver(RoleDriver):
    """As `RoleDriver`, with controllers. Masters and slaves are those of the moment."""

    def __init__(self, plan: Plan, *, keep_trace: bool = False) -> None:
        self.elections = ElectionExtras.of(plan)
        #: (node, boot, epoch, start, end) whose checksum is recorded
        self._epochs: set[tuple[str, int, int, int, int]] = set()
        super().__init__(plan, keep_trace=keep_trace)

    def _drawn(self, plan: Plan) -> Any:
        return self.elections

    def _made_cluster(self, settings: Mapping[str, Any]) -> SimCluster:
        plan, extras = self.plan, self.elections
        made = ElectedCluster(
            self.world,
            controllers=plan.controllers,
            replicas=plan.replicas,
            settings=settings,
            controller_settings=extras.of_controllers(),
            client_settings={"route_refresh_ms": extras.route_ms, "heartbeat_ms": CLIENT_HEARTBEAT_MS},
            prepared=self._prepared,
            keeps_epochs=extras.keeps_epochs,
            secure=plan.secure,
            tls=self._tls(),
            sync_us=extras.sync_us,
        )
        if extras.member_bytes_per_s:
            self.world.net.cut_chance = CUT_CHANCE
            for one, other in permutations(made.brokers, 2):
                self.world.net.edge(one, other).bytes_per_s = extras.member_bytes_per_s
        return made

    def _made_load(self) -> SimLoad:
        return ElectionLoad(self.cluster, self.plan, self.history, self.now_ms, name=TOPIC, broker=self._broker)

    # --- the course

    def nodes(self, selector: str) -> Sequence[DrillNode]:
        if selector == "leader":
            return [DrillNode(self.cluster.leader)]
        if selector == "follower":  # no slave is one that is elected and does not know it yet
            slaves = [each for each in super().nodes("slave") if each.name != self.cluster.named_master]
            return slaves or super().nodes("master")
        return super().nodes(selector) or [DrillNode(name) for name in self.cluster.controllers if selector == name]

    def all_nodes(self) -> list[DrillNode]:
        masters = self.cluster.masters
        return [node._replace(is_master=node.name in masters) for node in super().all_nodes()]

    def begin_load(self) -> None:
        super().begin_load()
        if self.elections.is_forged:
            self.cluster.client("forger", self._forge)

    def _forge(self, client: Client) -> None:
        """Send notices of elections that nobody has decided, as anybody can."""
        chance = client.ports.entropy

        def send() -> None:
            if not self._is_watching:
                return
            masters = [self.world.process(name) for name in self.cluster.brokers]
            target, named = masters[chance.randrange(len(masters))], masters[chance.randrange(len(masters))]
            notice = NotifyBrokerRoleChangedRequest(
                master_address=str(Address(named.host, BROKER_PORT)),
                master_broker_id=1 + chance.randrange(len(masters)),
                master_epoch=1 + chance.randrange(999),
            )
            where = Address(target.host, BROKER_PORT)
            client.remoting.oneway(where, RequestCode.NOTIFY_BROKER_ROLE_CHANGED, notice)
            client.timers.after(FORGE_MS, send)

        client.timers.after(FORGE_MS, send)

    def lacking(self) -> str:
        lacks = super().lacking()
        if lacks:
            return lacks
        for name in self.cluster.brokers:
            election, roles = self.cluster.election(name), self.cluster.broker(name).roles
            is_settled = election.state in (MASTER, SLAVE) and not election.is_lease_over
            if not is_settled or roles.online is not Online.ONLINE:
                return f"{name} is {election.state}, {roles.online}: {election.facts()['electionWhy']}"
        return ""

    def _halted(self) -> list[str]:
        return []  # a slave is ahead only until it has cut its log

    # --- watching

    def _record_state(self, name: str, **more: Any) -> None:
        super()._record_state(name, **more)
        self._record_epochs(name)

    def _elected(self, broker: Broker) -> dict[str, Any]:
        election, states = self.cluster.election(broker.name), broker.replication.sync_states
        assert states is not None
        takes = election.state is MASTER and not broker.view.send_blocked
        told: dict[str, Any] = {
            "epoch": election.epoch,
            "in_sync": self.cluster.in_sync_count(broker.name),
            "takes": takes,
        }
        return {**told, "confirm": election.confirmed_whole} if states.is_on else told

    def _role_changed(self, name: str) -> None:
        if self._is_watching:
            self._record_role(name)

    def _more_of_role(self, name: str) -> dict[str, Any]:
        return {"epoch": self.cluster.election(name).epoch}

    def _record_epochs(self, name: str) -> None:
        """Record each epoch of a log that has an end, or a new one."""
        if not self._serves(name):
            return
        boot, store = self.world.process(name).incarnation, self.cluster.broker(name).store
        entries = self.cluster.election(name).epochs.entries
        if not entries:
            return  # nothing is left of a log that was cut
        ends = [each.start for each in entries[1:]] + [store.offset_written]
        for (epoch, start), end in zip(entries, ends, strict=True):
            begin = max(start, store.offset_min)
            key = (name, boot, epoch, start, end)
            if begin >= end or end > store.offset_written or key in self._epochs:
                continue
            self._epochs.add(key)
            value, position = 0, begin
            while position < end:
                data = bytes(store.read_log(position, end - position))
                if not data:
                    break
                value, position = crc32(data, value), position + len(data)
            if position == end:
                told: dict[str, Any] = {"begin": begin, "end": end, "boot": str(boot)}
                group = name.rpartition("-")[0]
                self.history.add(
                    "epoch",
                    client=name,
                    broker=group,
                    key=str(epoch),
                    offset=start,
                    value=f"{value:08x}",
                    invoke_ms=self.now_ms(),
                    **told,
                )
