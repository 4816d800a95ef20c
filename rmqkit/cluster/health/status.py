"""What `cluster up --json` and `cluster status --json` print: a cluster and its nodes, as they are now.

A node's `state` is one of

    up       it runs and answers
    silent   it runs and does not answer (it may be starting, or busy recovering)
    paused   it was stopped by a signal (`cluster pause`)
    down     it does not run, and should not
    died     it does not run although it should

`cut_off` is true where a drill holds bytes back (`rmqkit.cluster.health.isolated_nodes`), whether the node answers or not.
`in_sync` is how many brokers a master counts in sync, itself included; null for a slave. `replication` is what a broker
that is up reports of it (`rmqkit.cluster.health.replicas`): `state` (a master is `serving`, a slave `following` when all
is well), `why` in words when it is not, `gap` in bytes, `wanted` copies that a put needs now, and a master's slaves as
`members`.

`container` is the process that a broker shares with others, null when it has its own; those of one have the same `pid`.
`role` is the configured role, `acting` whether the broker acts for its master now. `standing` is what a broker that is up
reports of its role (`rmqkit.cluster.health.roles`): `role` (master, slave, acting), `online` (isolated, pre-online, online)
with its `stage`, `since_ms` (wall time), `why` in words, and the live `members` of its group that it knows. A broker's
`acting_enabled` is its enableSlaveActingMaster, a name server's `acting_supported` its supportActingMaster; null when it
does not answer.
"""

from collections.abc import Mapping
from typing import Any

from rmqkit.cluster import processes
from rmqkit.cluster.cluster import Cluster
from rmqkit.cluster.health import isolated_nodes, readiness
from rmqkit.cluster.health.readiness import NodeStatus, Target
from rmqkit.cluster.layout import nodefile
from rmqkit.cluster.layout.description import METRICS_PORT_KEY, NodePlan
from rmqkit.cluster.layout.home import STORE
from rmqkit.runtime.connection import Address

LOOK_TIMEOUT_S = 1.0
#: every address of this machine, asked for from this machine
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def document(cluster: Cluster, *, timeout_s: float = LOOK_TIMEOUT_S) -> dict[str, Any]:
    """The document; a node has `timeout_s` to answer. Raises NoSuchCluster."""
    description = cluster.description
    plans = description.nodes()
    running = cluster.running(plans)
    paused = {node for node, process in running.items() if processes.is_paused(process)}
    targets = {target.plan.node: target for target in cluster.targets()}
    asked = [target for node, target in targets.items() if node in running and node not in paused]
    seen = readiness.look(asked, timeout_s)
    records = processes.known(cluster.folder).nodes
    nodes = []
    for plan in plans:
        record = records.get(plan.node)
        if plan.node in running:
            now = "paused" if plan.node in paused else "up" if plan.node in seen else "silent"
        else:
            now = "died" if record is not None and record.asked == "up" else "down"
        pid = running[plan.node].pid if plan.node in running else None
        node = _node(cluster, plan, targets.get(plan.node), pid, now, seen.get(plan.node))
        is_cut_off = now in ("up", "silent") and isolated_nodes.is_cut_off(cluster.node_folder(plan.node))
        nodes.append({**node, "cut_off": is_cut_off})
    namesrv = ";".join(target.address for target in targets.values() if not target.plan.is_broker)
    return {"name": cluster.name, "namesrv": namesrv, "home": str(cluster.folder), "nodes": nodes}


def metrics_url(content: Mapping[str, Any]) -> str | None:
    """Where Prometheus scrapes a node that has this `node.toml`."""
    port = nodefile.port_of(content, METRICS_PORT_KEY)
    host = str(content.get("metricsPromExporterHost") or content.get("brokerIP1") or content.get("bindAddress"))
    return None if port is None else f"http://{Address(LOOPBACK.get(host, host), port)}/metrics"


def _node(
    cluster: Cluster, plan: NodePlan, target: Target | None, pid: int | None, now: str, seen: NodeStatus | None
) -> dict[str, Any]:
    address = target.address if target else None
    folder = cluster.node_folder(plan.node)
    metrics = metrics_url(nodefile.load(folder)) if plan.metrics_port else None
    if not plan.is_broker:
        return {
            "node": plan.node,
            "kind": plan.kind,
            "address": address,
            "metrics": metrics,
            "pid": pid,
            "state": now,
            "acting_supported": seen.supports_acting if seen else None,
        }
    said = seen.replication if seen else None
    in_sync = None
    if seen and not plan.is_slave:
        in_sync = said.in_sync if said else 1
    return {
        "node": plan.node,
        "kind": plan.kind,
        "broker_name": plan.broker_name,
        "broker_id": plan.broker_id,
        "role": seen.role if seen else nodefile.load(folder).get("brokerRole", "ASYNC_MASTER"),
        "acting": bool(seen and seen.standing and seen.standing.is_acting),
        "address": address,
        "ha_address": target.ha_address if target else None,
        "metrics": metrics,
        "pid": pid,
        "container": plan.container or None,
        "state": now,
        "store": str(folder / STORE),
        "offset_max": seen.offset_max if seen else None,
        "in_sync": in_sync,
        "replication": said
        and {"state": said.state, "why": said.why, "gap": said.gap, "wanted": said.wanted, "members": list(said.members)},
        "acting_enabled": seen.acting_enabled if seen else None,
        "standing": seen.standing._asdict() if seen and seen.standing else None,
    }
