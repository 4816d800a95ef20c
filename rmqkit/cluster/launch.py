"""Starts nodes: chooses ports, writes `node.toml` files, spawns processes, waits for readiness.

All processes are spawned at once. Each is recorded in `state.json` as soon as it exists. Then the
nodes are queried with the real protocol until they are ready. On any error, Ctrl-C included, the
processes started here are killed and the state is restored.

Another process may take a port after it was found free and before the node binds it. With
`any_port` all ports are then chosen again and the start is repeated.

The caller holds the cluster's lock.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from rmqkit.cluster import processes, security, users
from rmqkit.cluster.deferred_signals import signals_held
from rmqkit.cluster.errors import ClusterError
from rmqkit.cluster.health import elections, readiness
from rmqkit.cluster.health.readiness import Target
from rmqkit.cluster.layout import nodefile, ports, state
from rmqkit.cluster.layout.description import METRICS_PORT_KEY, Description, NodePlan, Setting
from rmqkit.cluster.layout.home import LOG, NODES, STORE
from rmqkit.shell.listen_errors import TAKEN_ADVICE

#: most attempts to start, if ports turn out to be taken
PORT_TRIES = 5
#: lines of the log of a node that failed to start which the error shows
LAST_LINES = 12
#: where broker containers (processes of several brokers) open their admin port
LOOPBACK = "127.0.0.1"

#: the file with the id of a broker in controller mode
IDENTITY = "brokerIdentity"
ID_POLL_S = 0.05

Note = Callable[[str], None]


def node_folder(folder: Path, node: str) -> Path:
    """Return the folder of a node of the cluster in `folder`."""
    return folder / NODES / node


def targets(folder: Path, description: Description, plans: Sequence[NodePlan]) -> list[Target]:
    """Return the address of each node from its `node.toml`. Skip nodes that never started."""
    found = []
    tls, keys = security.client_file(folder), users.keys_file(folder)
    for plan in plans:
        port = nodefile.port_of(nodefile.load(node_folder(folder, plan.node)))
        if port is not None:
            found.append(Target(plan, description.advertised, port, tls, keys))
    return found


@dataclass(slots=True, eq=False, kw_only=True)
class Launch:
    """One start of the nodes in `plans`, none of which runs.

    With `keep_ports` a node takes the port again that its `node.toml` contains.
    """

    folder: Path
    description: Description
    plans: Sequence[NodePlan]
    lifeline: int | None
    keep_ports: bool
    note: Note
    waiting: Note

    def run(self, timeout_s: float) -> None:
        """Start the nodes. Return once they are ready and the running name servers know them.

        Raises ClusterError; the processes that were started here are killed then.
        """
        deadline_s = time.monotonic() + timeout_s
        for attempt in range(PORT_TRIES):
            self._write_node_files()
            try:
                self._start(deadline_s)
                return
            except readiness.NodeDied as died:
                process = next(plan.process for plan in self.plans if plan.node == died.node)
                own = node_folder(self.folder, process)
                again = self.description.any_port and _port_was_taken(own, died.log_from)
                if not again or attempt == PORT_TRIES - 1:
                    raise _death(own, died.log_from) from None
                self.note(f"a port of {died.node} was taken meanwhile; all ports are chosen again")

    def _write_node_files(self) -> None:
        description, plans = self.description, self.plans
        nodes = description.nodes()
        there = {plan.node: nodefile.load(node_folder(self.folder, plan.node)) for plan in nodes}
        had = {node: nodefile.port_of(content) for node, content in there.items()}
        chosen = {plan.node: port for plan in nodes if plan not in plans and (port := had[plan.node]) is not None}
        reserved = _taken_by(nodes, chosen)
        if self.keep_ports:
            known = [plan.ports(port) for plan in plans if (port := had[plan.node]) is not None]
            ports.wait_free(description.bound, [port for block in known for port in block])

        def wanted(plan: NodePlan) -> int:
            return (had[plan.node] if self.keep_ports or plan.is_controller else None) or plan.port

        # The list of controllers is part of their log, so their ports never change.
        fixed = [plan for plan in plans if plan.is_controller and had[plan.node] is not None]
        chosen |= ports.choose(fixed, wanted, description.bound, any_port=False, reserved=reserved)
        others = [plan for plan in plans if plan not in fixed]
        reserved = _taken_by(nodes, chosen)
        chosen |= ports.choose(others, wanted, description.bound, any_port=description.any_port, reserved=reserved)
        metrics = self._metrics_ports(there, chosen)
        everyone = [Target(plan, description.advertised, chosen[plan.node]) for plan in nodes if plan.node in chosen]
        namesrv = ";".join(target.address for target in everyone if target.plan.is_nameserver)
        controllers = [target.address for target in everyone if target.plan.is_controller]
        secured = security.prepare(self.folder, description) if description.secure else None
        for plan in plans:
            own = node_folder(self.folder, plan.node)
            port, before = chosen[plan.node], had[plan.node]
            if self.keep_ports and before not in (None, port):
                self.note(f"{plan.node} moves to port {port}: one of its ports at {before} is taken")
            content = nodefile.contents(
                description,
                plan,
                own,
                port=port,
                namesrv=namesrv,
                controllers=controllers,
                there=there[plan.node],
                metrics_port=metrics.get(plan.node),
                secured=secured,
            )
            nodefile.save(own, content, private=secured is not None)
            nodefile.check(own, plan.kind)
        self._write_container_files({*metrics.values(), *_taken_by(nodes, chosen)})

    def _write_container_files(self, reserved: set[int]) -> None:
        """Choose the ports of the broker containers and write their `container.toml`.

        The ports must differ from `reserved`, the other ports of the cluster.
        """
        starting, containers = processes_of(self.plans), self.description.containers()
        known = {each.node: nodefile.container_port(node_folder(self.folder, each.node)) for each in containers}
        own = [each for each in containers if each.node in starting]
        if self.keep_ports:
            ports.wait_free(LOOPBACK, [port for each in own if (port := known[each.node])])

        def wanted(plan: NodePlan) -> int:
            return (known[plan.node] if self.keep_ports else None) or plan.port

        taken = reserved | {port for name, port in known.items() if name not in starting and port}
        chosen = ports.choose(own, wanted, LOOPBACK, any_port=self.description.any_port, reserved=taken)
        for name, port in chosen.items():
            nodefile.save_container(node_folder(self.folder, name), port, [plan.node for plan in starting[name]])

    def _metrics_ports(self, there: Mapping[str, Mapping[str, Setting]], chosen: Mapping[str, int]) -> dict[str, int]:
        """Choose the metrics port of each node; return {} if metrics are off.

        The ports must differ from all other ports of the cluster.
        """
        description, plans = self.description, [plan for plan in self.plans if plan.metrics_port]
        if not description.has_metrics:
            return {}
        starting = {plan.node for plan in plans}
        had = {node: nodefile.port_of(content, METRICS_PORT_KEY) or 0 for node, content in there.items()}
        reserved = _taken_by(description.nodes(), chosen)
        reserved.update(port for node, port in had.items() if node not in starting and port)
        if self.keep_ports:
            ports.wait_free(description.bound, [port for plan in plans if (port := had[plan.node])])

        def wanted(plan: NodePlan) -> int:
            return (had[plan.node] if self.keep_ports else 0) or plan.metrics_port

        return ports.choose(
            plans,
            wanted,
            description.bound,
            any_port=description.any_port,
            reserved=reserved,
            block_of=lambda plan, port: (port,),
        )

    def _start(self, deadline_s: float) -> None:
        folder, description = self.folder, self.description
        known = processes.known(folder)
        before = dict(known.nodes)
        made: list[tuple[str, psutil.Process]] = []
        log_from = {plan.node: processes.log_size(node_folder(folder, plan.process)) for plan in self.plans}
        try:
            for process, members in processes_of(self.plans).items():
                self._wait_for_ids(members[0], known, deadline_s, log_from)
                with signals_held():
                    started = self._spawn(process, members)
                    with suppress(psutil.NoSuchProcess):
                        made.append((process, psutil.Process(started.pid)))
                    known.nodes |= {plan.node: started for plan in members}
                    state.save(folder, known)
            stuck = readiness.wait_ready(
                targets(folder, description, self.plans),
                targets(folder, description, description.nodes()),
                alive_of(folder, known),
                lambda node: answers(folder, known, node),
                deadline_s,
                log_from,
                self.waiting,
            )
            if description.secure:
                users.add_application(folder, self._masters())
        except BaseException:
            with signals_held():
                processes.kill(made)
                state.save(folder, state.ClusterState(before))
            raise
        for node, why in stuck.items():
            self.note(f"{node} does not follow its master: {why}; `rmqkit explain {node}`")

    def _masters(self) -> list[Target]:
        """Return the masters among the started brokers; with controllers, all masters of now."""
        description = self.description
        if not description.controllers:
            return [each for each in targets(self.folder, description, self.plans) if each.plan.is_broker]
        everyone = targets(self.folder, description, description.nodes())
        names = list(dict.fromkeys(each.plan.broker_name for each in everyone if each.plan.is_broker))
        controllers = [each for each in everyone if each.plan.is_controller]
        groups = elections.query_elections(controllers, names, readiness.ASK_S).groups
        masters = {group.members.get(group.master) for group in groups.values() if group.master is not None}
        return [each for each in everyone if each.address in masters]

    def _wait_for_ids(
        self, plan: NodePlan, known: state.ClusterState, deadline_s: float, log_from: Mapping[str, int]
    ) -> None:
        """Wait until the earlier brokers of a group have their ids from the controllers.

        So the ids are in the order of the nodes' names. Nodes that have an id do not wait.
        """
        if not plan.is_elected or _has_id(self.folder, plan):
            return
        alive = alive_of(self.folder, known)
        for other in self.plans:
            while other.broker_name == plan.broker_name and other.broker_id < plan.broker_id:
                if _has_id(self.folder, other):
                    break
                if not alive(other.node):
                    raise readiness.NodeDied(other.node, log_from.get(other.node, 0))
                if time.monotonic() > deadline_s:
                    raise ClusterError(f"{other.node} got no id from the controllers in time")
                self.waiting(f"waiting for {other.node}: it has no id from the controllers yet")
                time.sleep(ID_POLL_S)

    def _spawn(self, process: str, members: Sequence[NodePlan]) -> state.ProcessRecord:
        own, log_format = node_folder(self.folder, process), self.description.log_format
        if not members[0].container:
            return processes.spawn(own, members[0].kind, self.lifeline, log_format=log_format)
        brokers = [node_folder(self.folder, plan.node) for plan in members]
        port = nodefile.container_port(own) or members[0].port
        return processes.spawn_container(own, brokers, port, self.lifeline, log_format=log_format)


def _has_id(folder: Path, plan: NodePlan) -> bool:
    """Whether a broker in controller mode has its id."""
    return (node_folder(folder, plan.node) / STORE / IDENTITY).is_file()


def _taken_by(nodes: Sequence[NodePlan], chosen: Mapping[str, int]) -> set[int]:
    return {port for plan in nodes if plan.node in chosen for port in plan.ports(chosen[plan.node])}


def processes_of(plans: Sequence[NodePlan]) -> dict[str, list[NodePlan]]:
    """Group the nodes by the process that runs them."""
    found: dict[str, list[NodePlan]] = {}
    for plan in plans:
        found.setdefault(plan.process, []).append(plan)
    return found


def answers(folder: Path, known: state.ClusterState, node: str) -> bool:
    """Whether the process of a node runs and is not paused."""
    started = known.nodes.get(node)
    process = processes.find(started, node_folder(folder, node)) if started else None
    return process is not None and not processes.is_paused(process)


def alive_of(folder: Path, known: state.ClusterState) -> Callable[[str], bool]:
    """Return a function that says whether the process of a node, by name, exists."""

    def alive(node: str) -> bool:
        started = known.nodes.get(node)
        return started is not None and processes.find(started, node_folder(folder, node)) is not None

    return alive


def _port_was_taken(folder: Path, log_from: int) -> bool:
    """Whether a node ended because a port was taken.

    The port may be free again by now, so this looks in the node's log.
    """
    return any(TAKEN_ADVICE in line for line in processes.last_lines(folder, LAST_LINES, log_from))


def _death(folder: Path, log_from: int) -> ClusterError:
    lines = processes.last_lines(folder, LAST_LINES, log_from)
    return ClusterError(f"{folder.name} ended during its start; see its log {folder / LOG}", *lines)
