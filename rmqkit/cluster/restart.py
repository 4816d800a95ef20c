"""The checks before a restart, and the order of a rolling restart.

A node that would not start again must not be stopped. `check_start` checks what can be checked
while the old nodes run:

    settings    the current `node.toml` and `cluster.toml`, combined as the start will combine them
    plug-ins    a process of `rmqkit.process --check` loads those of all brokers, and ends
    ports       free, or taken by nodes that the restart stops
    disk        the state of the cluster can be written

It cannot check whether the store is readable, or whether another process takes a port in the
meantime.

A rolling restart takes one process at a time (`batches`): controllers and name servers first, then
group after group, the slaves before the master (in controller mode by their ids). Between processes
the caller waits until all slaves are in sync, so that a complete copy of each group remains while a
process is down.
"""

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from rmqkit.cluster import processes
from rmqkit.cluster.errors import ClusterError, UsageProblem
from rmqkit.cluster.launch import node_folder, processes_of, targets
from rmqkit.cluster.layout import nodefile, ports, state
from rmqkit.cluster.layout.description import METRICS_PORT_KEY, Description, NodePlan
from rmqkit.cluster.layout.home import NODE_FILE

CHECK_TIMEOUT_S = 30.0


def batches(plans: Sequence[NodePlan]) -> list[list[NodePlan]]:
    """Return the nodes of each process, in the order of a rolling restart."""
    ordered = sorted(plans, key=lambda plan: (plan.is_broker, plan.broker_name, -plan.broker_id, plan.node))
    return list(processes_of(ordered).values())


def check_start(
    folder: Path, description: Description, plans: Sequence[NodePlan], running: Mapping[str, psutil.Process]
) -> None:
    """Check that the nodes would start again. `running` are the processes to be stopped.

    Raises ClusterError with the reason of each node that would not, or if the disk is full.
    """
    state.save(folder, processes.known(folder))
    lacks = _check_ports(folder, description, plans, {process.pid for process in running.values()})
    lacks |= _check_settings(folder, description, plans)
    if lacks:
        first, *others = (f"{node} would not start again: {why}" for node, why in lacks.items())
        raise ClusterError(f"nothing was stopped; {first}", *others)


def _check_ports(folder: Path, description: Description, plans: Sequence[NodePlan], own: set[int]) -> dict[str, str]:
    if description.any_port:
        return {}
    listeners = ports.listeners()
    lacks = {}
    for plan in plans:
        content = nodefile.load(node_folder(folder, plan.node))
        wanted = [*plan.ports(nodefile.port_of(content) or plan.port)]
        if description.has_metrics:
            wanted.append(nodefile.port_of(content, METRICS_PORT_KEY) or plan.metrics_port)
        for port in wanted:
            if listeners.get(port, set()) - own and not ports.is_free(description.bound, port):
                lacks[plan.node] = ports.taken_text(plan.node, port)
    return lacks


def _check_settings(folder: Path, description: Description, plans: Sequence[NodePlan]) -> dict[str, str]:
    """Return why nodes would reject the files that the start will write, by node.

    The files are written to a temporary folder, to check them.
    """
    everyone = targets(folder, description, description.nodes())
    nameservers = [each.address for each in everyone if each.plan.is_nameserver]
    lacks = {}
    with tempfile.TemporaryDirectory(prefix="rmqkit-check-") as checked:
        files = {}
        for plan in plans:
            own = node_folder(folder, plan.node)
            there = nodefile.load(own)
            metrics = nodefile.port_of(there, METRICS_PORT_KEY) or plan.metrics_port
            content = nodefile.contents(
                description,
                plan,
                own,
                port=nodefile.port_of(there) or plan.port,
                namesrv=";".join(nameservers),
                controllers=[each.address for each in everyone if each.plan.is_controller],
                there=there,
                metrics_port=metrics if description.has_metrics else None,
            )
            nodefile.save(Path(checked, plan.node), content)
            try:
                nodefile.check(Path(checked, plan.node), plan.kind)
            except UsageProblem as error:
                lacks[plan.node] = str(error)
            if plan.is_broker:
                files[plan.node] = str(Path(checked, plan.node, NODE_FILE))
        lacks = {**_check_plugins(files), **lacks}
    return {node: why.replace(str(Path(checked, node)), str(node_folder(folder, node))) for node, why in lacks.items()}


def _check_plugins(files: Mapping[str, str]) -> dict[str, str]:
    """Return why brokers would not start with these files, by node, using `rmqkit.process`."""
    if not files:
        return {}
    words = [sys.executable, "-m", "rmqkit.process", "--check", *(word for file in files.values() for word in ("-c", file))]
    try:
        done = subprocess.run(
            words,
            env=processes.node_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CHECK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {", ".join(files): f"settings and plug-ins could not be checked within {CHECK_TIMEOUT_S:g} s"}
    lacks = {}
    for line in done.stderr.splitlines():
        for node, file in files.items():
            if line.startswith(f"error: {file}: "):
                lacks[node] = line.removeprefix(f"error: {file}: ")
    if done.returncode and not lacks:  # for instance, the interpreter does not find rmqkit
        lacks[", ".join(files)] = (done.stderr.splitlines() or [f"exit code {done.returncode}"])[-1]
    return lacks
