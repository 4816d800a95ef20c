"""The driver of drills on a cluster of real processes on this machine.

Time is that of the machine. The workload runs in threads of this process (`load.py`), which also
watches the brokers (`watch.py`). Nodes are killed, paused and started through `rmqkit.cluster`. The
drill creates its own topics and groups, and deletes them at its end.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rmqkit.api import Admin
from rmqkit.cluster import Cluster, ClusterError
from rmqkit.cluster.health.readiness import Target
from rmqkit.cluster.layout.nodefile import wire_name
from rmqkit.cluster.processes import is_paused
from rmqkit.drill import workload
from rmqkit.drill.contract import DrillError, DrillNode
from rmqkit.drill.history import OK, History, HistoryRow
from rmqkit.drill.plan import LASTS_MS, SEEN, Mode, Plan
from rmqkit.drill.real import final_state, transport
from rmqkit.drill.real.load import RealLoad
from rmqkit.drill.real.node_client import SILENT, NodeClient
from rmqkit.drill.real.services.table import check_load, drain_ms
from rmqkit.drill.real.watch import ClusterWatch
from rmqkit.errors import ClientError, RmqkitError

#: selectors of controllers
LEADER, CONTROLLER = "leader", "controller"
POLL_S = 0.05
ANSWER_S = 0.5
#: in a steady state, sends, deliveries and polls are not older than this
FRESH_MS = 1_500
#: in a steady state, each service has worked in this time: timers are released once a second
SERVICE_FRESH_MS = 3_000
#: limit for brokers to vote on locks: after its start, a broker may wait for one lease (60 s)
VOTES_MAX_MS = 70_000
#: faults that are noticed at once: the kernel closes the connections of the process
KILLS = ("kill", "kill-leader")
#: a slave acts for at least this time
ACTS_MS = 4_000
#: how much longer a fault waits for the takeover (`Plan.hold_ms`)
HOLD_MS = 10_000


class RealDriver:
    """The `Driver` of a real cluster. `name` is the name of the drill's topic."""

    def __init__(self, cluster: Cluster, plan: Plan, name: str) -> None:
        self.cluster = cluster
        self.plan = plan
        self.history = History()
        self.name = name
        self._begin_s = time.monotonic()
        self._load: RealLoad | None = None
        self._watch: ClusterWatch | None = None
        self._broker = plan.group or next(node.broker for node in self.nodes("master"))

    # --- time

    def now_ms(self) -> int:
        return round((time.monotonic() - self._begin_s) * 1000)

    def wait(self, most_ms: int, until: Callable[[], bool] | None = None) -> bool:
        end_s = time.monotonic() + most_ms / 1000
        while until is None or not until():
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                return until is None
            time.sleep(min(POLL_S, left_s))
        return True

    # --- the course

    def nodes(self, selector: str) -> Sequence[DrillNode]:
        elected = self.plan.elected
        try:
            if selector == LEADER:
                leading = [node for node, said in self.cluster.elections().controllers.items() if said.leads]
                plans = [plan for plan in self.cluster.description.nodes() if plan.node in leading]
            elif selector == CONTROLLER:
                plans = [plan for plan in self.cluster.description.nodes() if plan.is_controller]
            else:
                plans = self.cluster.select(selector)
            is_asked = elected and bool(plans) and plans[0].is_broker
            masters = [plan.node for plan in self.cluster.select("master")] if is_asked else []
        except ClusterError as error:
            raise DrillError(str(error)) from None
        at = {target.plan.node: target.address for target in self.cluster.targets()}
        return [
            DrillNode(
                plan.node,
                plan.broker_name,
                plan.broker_id,
                plan.node in masters if elected else None,
                at.get(plan.node, ""),
            )
            for plan in plans
        ]

    def _masters(self) -> set[str]:
        """Return the nodes that are masters, by the newest polls in controller mode."""
        if not self.plan.elected:
            return {target.plan.node for target in self.targets() if target.plan.broker_id == 0}
        last = self._watch.last if self._watch is not None else {}
        return {node for node, row in last.items() if row.outcome == OK and row.extra.get("role") == "master"}

    def targets(self) -> list[Target]:
        """Return the brokers with their addresses."""
        return [target for target in self.cluster.targets() if target.plan.is_broker]

    def facts(self) -> Mapping[str, Any]:
        from rmqkit.cluster.health.status import document

        told = document(self.cluster)
        for target in self.targets():
            with suppress(*SILENT), NodeClient(target.host, target.port, ANSWER_S) as asked:
                told.setdefault("runtime", {})[target.plan.node] = dict(sorted(asked.runtime().items()))
        return told

    def begin_load(self) -> None:
        if self.plan.acting and not self.wait(VOTES_MAX_MS, self._votes):
            raise DrillError(f"the brokers of group {self._broker} do not vote on locks yet after {VOTES_MAX_MS} ms")
        load = RealLoad(
            self.plan,
            self.history,
            self.now_ms,
            namesrv=self.cluster.namesrv,
            name=self.name,
            broker=self._broker,
            nodes={target.address: target.plan.node for target in self.targets()},
            brokers=list(dict.fromkeys(target.plan.broker_name for target in self.targets())),
        )
        try:
            with Admin(self.cluster.namesrv) as admin:
                for topic in (*self._topics(), *load.services.topics()):
                    admin.create_topic(topic, queue_nums=self.plan.queues)
        except ClientError as error:
            raise DrillError(f"the drill's topic cannot be created: {error}") from None
        self._load = load
        nameserver = next(target for target in self.cluster.targets() if target.plan.is_nameserver)
        self._watch = ClusterWatch(
            self.history,
            self.now_ms,
            targets=self.targets(),
            nameserver=nameserver,
            topic=self.name,
            groups=[load.group(kind) for kind in (workload.PULL, workload.PUSH, *self._latecomers())],
            queues=self.plan.queues,
            broker=self._broker,
            cluster=wire_name(self.cluster.name),
        )
        self.history.on_row = self._seen
        try:
            load.start()
        except ClientError as error:
            raise DrillError(f"the workload does not start: {error}") from None
        self._watch.start()

    def _votes(self) -> bool:
        """Return whether every member of the group votes on locks.

        After its start, a broker first has to learn its earlier votes.
        """
        for target in self.targets():
            if target.plan.broker_name == self._broker:
                try:
                    with NodeClient(target.host, target.port, ANSWER_S) as asked:
                        if asked.runtime().get("lockVotesFrom", "0") != "0":
                            return False
                except SILENT:
                    return False
        return True

    def _topics(self) -> list[str]:
        return [self.name, f"{self.name}-{workload.DELAYED}"] if self.plan.acting else [self.name]

    def _latecomers(self) -> Sequence[str]:
        return workload.LATECOMERS if self.plan.acting else (workload.LATE,)

    def _seen(self, row: HistoryRow) -> None:
        for each in (self._watch, self._load):
            if each is not None:
                each.seen(row)

    def lacking(self) -> str:
        load, watch = self._load, self._watch
        if load is None or watch is None:
            return "the load has not started"
        # What was acknowledged before the end of the fault shows no recovery from it.
        since_ms = max(self.now_ms() - FRESH_MS, load.healed_ms)
        for number in range(self.plan.writers):
            name = workload.writer_name(number)
            if load.acked_ms.get(name, -FRESH_MS) < since_ms:
                return f"no send of {name} was acknowledged in the last {FRESH_MS} ms"
        for kind in (workload.PULL, workload.PUSH):
            if load.given_ms.get(kind, -FRESH_MS) < since_ms:
                return f"group {load.group(kind)} received no message in the last {FRESH_MS} ms"
        masters = self._masters()
        for target in self.targets():
            told = watch.last.get(target.plan.node)
            if told is None or told.outcome != OK or told.complete_ms < since_ms:
                return f"{target.plan.node} does not answer"
            if target.address not in watch.route.get(target.plan.broker_name, {}).values():
                return f"no route lists {target.plan.node}"
            in_sync = told.extra.get("in_sync")
            if self.plan.replicas > 1 and target.plan.node in masters and (in_sync or 0) < self.plan.replicas:
                return f"{target.plan.node} has {in_sync or 0} of {self.plan.replicas} replicas in sync"
        lacking = self._roles_lacking(load, watch, since_ms) if self.plan.acting else ""
        if self.plan.elected:
            lacking = self._elections_lacking(watch, masters)
        return lacking or load.services.lacking(max(0, self.now_ms() - SERVICE_FRESH_MS))

    def _roles_lacking(self, load: RealLoad, watch: ClusterWatch, since_ms: int) -> str:
        """Return what is missing in a group whose slaves may act, or ""."""
        for target in self.targets():
            plan = target.plan
            role, state = "master" if plan.broker_id == 0 else "slave", watch.roles.state(plan.node)
            if state != f"{role}/online":
                return f"{plan.node} {f'is {state}' if state else 'does not answer'}; it should be {role}/online"
            if len(watch.roles.members(plan.node)) < self.plan.replicas:
                return f"{plan.node} sees only the broker ids {watch.roles.members(plan.node)} alive"
        master, members, writable = watch.shown
        if master != f"{self._broker}-0" or not writable or len(members) < self.plan.replicas:
            return (
                f"the route of {self._broker} names {master or 'no broker'} as master{'' if writable else ', read-only'},"
                f" and lists the broker ids {members}"
            )
        if load.acked_ms.get(workload.DELAYER, -FRESH_MS) < since_ms:
            return f"no delayed message was acknowledged in the last {FRESH_MS} ms"
        overdue = [key for key, due_ms in list(load.waiting.items()) if due_ms < since_ms]
        if overdue:
            return f"{len(overdue)} delayed messages are due and not delivered; the first is {overdue[0]}"
        takeover = load.takeover
        if takeover is not None and not takeover.locked_ms:
            return "no member of the lock group was granted a lock"
        return ""

    def _elections_lacking(self, watch: ClusterWatch, masters: set[str]) -> str:
        """Return what is missing in groups whose masters are elected, or ""."""
        for name in dict.fromkeys(target.plan.broker_name for target in self.targets()):
            members = [target for target in self.targets() if target.plan.broker_name == name]
            leading = [target for target in members if target.plan.node in masters]
            if len(leading) != 1:
                return f"{name} has {len(leading)} masters"
            if watch.route.get(name, {}).get(0) != leading[0].address:
                return f"the route of {name} does not name {leading[0].plan.node} as master"
            for target in members:
                role, state = "master" if target in leading else "slave", watch.roles.state(target.plan.node)
                if state != f"{role}/online":
                    return f"{target.plan.node} is {state or 'silent'}; it should be {role}/online"
        return ""

    def stop_sending(self) -> None:
        if self._load is not None:
            self._load.stop_sending()

    def caught_up(self) -> bool:
        load = self._load
        if load is None:
            return True
        if load.waiting or load.services.waits_for():
            return False
        ends: dict[tuple[str, int], int] = {}
        try:
            masters = self._masters()
            for target in self.targets():
                if target.plan.node in masters:
                    with NodeClient(target.host, target.port, ANSWER_S) as asked:
                        for queue in range(self.plan.queues):
                            ends[target.plan.broker_name, queue] = asked.offsets(self.name, queue)[1]
        except SILENT:
            return False
        return all(table.get(place, 0) >= end for table in load.given.values() for place, end in ends.items())

    def read_all(self) -> None:
        load, watch = self._load, self._watch
        assert load is not None
        assert watch is not None
        watch.stop()
        load.close()
        targets = self.targets()
        final_state.read_offsets(watch, targets)
        masters = self._masters()
        final_state.read_queues(self.history, self.now_ms, targets, masters, self.name, self.plan.queues)
        ends = {node: int(row.extra["end"]) for node, row in watch.last.items() if row.extra.get("end") is not None}
        stores = [(target, self.cluster.node_folder(target.plan.node) / "store") for target in targets]
        final_state.read_logs(self.history, self.now_ms, stores, masters, ends)

    def close(self) -> None:
        if self._watch is not None:
            self._watch.stop()
        if self._load is not None:
            self._load.close()
            with suppress(RmqkitError):
                remove(self.cluster.namesrv, [self.name])

    # --- what faults do

    def kill(self, node: DrillNode) -> None:
        self._did(self.cluster.kill, node)

    def start(self, node: DrillNode) -> None:
        self._did(lambda name: self.cluster.start(name, timeout_s=self.plan.recover_max_ms / 1000), node)

    def pause(self, node: DrillNode) -> None:
        self._did(self.cluster.pause, node)

    def resume(self, node: DrillNode) -> None:
        self._did(self.cluster.resume, node)

    def _did(self, work: Callable[[str], Any], node: DrillNode) -> None:
        try:
            work(node.name)
        except ClusterError as error:
            raise DrillError(str(error)) from None

    def isolate(self, node: DrillNode, rules: Sequence[Mapping[str, Any]]) -> None:
        folder = self.cluster.node_folder(node.name)
        if rules:
            transport.isolate(folder, rules)
        else:
            transport.heal(folder)

    def seen(self, node: DrillNode) -> Mapping[str, Any]:
        process = self.cluster.running(self.cluster.select(node.name)).get(node.name)
        answers = False
        if process is not None:
            target = next(target for target in self.cluster.targets() if target.plan.node == node.name)
            with suppress(*SILENT), NodeClient(target.host, target.port, ANSWER_S) as asked:
                asked.runtime()
                answers = True
        return {
            "alive": process is not None,
            "pid": process.pid if process is not None else 0,
            "paused": process is not None and is_paused(process),
            "answers": answers,
            "transport": self._held_back(node) if process is not None and not is_paused(process) else {},
        }

    def _held_back(self, node: DrillNode) -> Mapping[str, int]:
        """Return the counters of the transport; {} for a node without a drill socket."""
        with suppress(DrillError):
            return transport.counted(self.cluster.node_folder(node.name))
        return {}


def remove_left(cluster: Cluster, names: Sequence[str]) -> None:
    """Delete the topics and groups that earlier drills left behind.

    Those drills were killed, or found no master at their end. Errors are ignored.
    """
    if names:
        with suppress(RmqkitError):
            remove(cluster.namesrv, names)


def remove(namesrv: str, names: Sequence[str]) -> None:
    """Delete the topics and groups with these prefixes. Raises ClientError.

    Topics first: a pull that still waits at a broker ends with its topic. If its group were deleted
    first, the pull would create the group again.
    """
    prefixes = tuple(names)
    with Admin(namesrv) as admin:
        for topic in [topic for topic in admin.topics() if topic.rpartition("%")[2].startswith(prefixes)]:
            with suppress(ClientError):
                admin.delete_topic(topic)
        for group in admin.groups():
            if group.startswith(prefixes):
                with suppress(ClientError):
                    admin.delete_group(group, clean_offset=True)


def settings_seen(cluster: Cluster, group: str = "") -> dict[str, str]:
    """Return the settings (`SEEN`) that the master of a group reports; "" is the first group.

    Raises DrillError.
    """
    try:
        masters = [plan.node for plan in cluster.select("master")]
    except ClusterError as error:
        raise DrillError(str(error)) from None
    for target in cluster.targets():
        if target.plan.node in masters and group in ("", target.plan.broker_name):
            try:
                with NodeClient(target.host, target.port, 2.0) as asked:
                    config = asked.config()
            except SILENT as error:
                raise DrillError(
                    f"{target.plan.node} does not answer when asked for its settings: {error}; see `rmqkit cluster status`"
                ) from None
            return {key: config[key] for key in SEEN if key in config}
    raise DrillError(f"there is no group {group}" if group else "the cluster has no broker")


def plan_as_recorded(plan: Plan, seen: Mapping[str, str]) -> Plan:
    """Return the plan with its master's settings and the times that follow from them.

    A plan from a record already has its times, so they do not change. Raises PlanError if the
    brokers refuse a load of the plan.
    """
    plan = plan.changed(mode=Mode.of(seen), seen=seen)
    check_load(plan)
    plan = plan.changed(drain_max_ms=max(plan.drain_max_ms, drain_ms(plan)))
    if plan.fault_ms:
        return plan
    # The name server removes a silent broker after `not_active_ms`. The fault must last longer.
    if plan.elected and plan.fault not in KILLS:
        return plan.changed(fault_ms=plan.heartbeat_timeout_ms + ACTS_MS)
    is_noticed_at_once = plan.fault in KILLS or not plan.acting or plan.target != "master"
    if is_noticed_at_once:
        return plan.changed(fault_ms=LASTS_MS)
    fault_ms = plan.not_active_ms + ACTS_MS
    # With strict locks and two replicas, no lock can be granted while one of them is away.
    can_lock = plan.replicas > 2 or not plan.strict_locks
    return plan.changed(fault_ms=fault_ms, hold_ms=HOLD_MS if plan.escapes and can_lock else 0)
