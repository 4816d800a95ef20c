"""The status document of a cluster and its nodes.

`cluster up --json` and `cluster status --json` print it. A node's `state` is one of

    up       it runs and answers
    silent   it runs and does not answer (it may be starting, or busy recovering)
    paused   it was stopped by a signal (`cluster pause`)
    down     it does not run, and should not
    died     it does not run although it should

Fields of every node:

- `cut_off`: whether a drill isolates the node (`rmqkit.cluster.health.isolated_nodes`); independent
  of whether it answers.

Fields of a broker:

- `in_sync`: how many brokers a master counts in sync, including itself; null for a slave.
- `replication`: the replication report of a broker that is up (`rmqkit.cluster.health.replicas`):
  `state` (if all is well, `serving` for a master and `following` for a slave), `why` (text, if it
  is not well), `gap` in bytes, `wanted` copies that a put needs now, and a master's slaves as
  `members`.
- `container`: the process that a broker shares with other brokers, which then have the same `pid`;
  null if it has its own.
- `role`: the configured role. `acting`: whether the broker acts for its master now.
- `standing`: the role report of a broker that is up (`rmqkit.cluster.health.roles`): `role`
  (master, slave, acting), `online` (isolated, pre-online, online) with its `stage`, `since_ms`
  (wall time), `why` (text), the live `members` of its group that it knows, and `head`, the smallest
  id of them.
- `acting_enabled`: its enableSlaveActingMaster; null if it does not answer.

- `election`: in controller mode, the report of a broker that is up
  (`rmqkit.cluster.health.elections`): `state`, `epoch`, `broker_id` (its own id), `why`, `leader`
  (of the controllers), and a master's `in_sync` ids and `confirm_offset`. `in_set`: whether the
  controllers count it in sync, so that it can be elected; null if no leader answers. `fenced`:
  whether it refuses clients until it has a role.

A controller has `leads`, the `leader` that it knows (an address), and its `term`. With controllers
the document has `groups`: for each broker group, what the leader knows of it: `master` (an id, null
if there is none), `epoch`, and the ids `in_sync` and `alive`.

A name server has `acting_supported`, its supportActingMaster; null if it does not answer.
"""

from collections.abc import Mapping
from typing import Any

from rmqkit.cluster import processes
from rmqkit.cluster.cluster import Cluster
from rmqkit.cluster.health import elections, isolated_nodes, readiness
from rmqkit.cluster.health.elections import ElectionsStatus
from rmqkit.cluster.health.readiness import NodeStatus, Target
from rmqkit.cluster.layout import nodefile
from rmqkit.cluster.layout.description import METRICS_PORT_KEY, NodePlan
from rmqkit.cluster.layout.home import STORE
from rmqkit.runtime.connection import Address

LOOK_TIMEOUT_S = 1.0
#: the loopback address to use instead of a wildcard address
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def document(cluster: Cluster) -> dict[str, Any]:
    """Return the status document. Raises NoSuchCluster."""
    description = cluster.description
    plans = description.nodes()
    running = cluster.running(plans)
    paused = {node for node, process in running.items() if processes.is_paused(process)}
    targets = {target.plan.node: target for target in cluster.targets()}
    asked = [target for node, target in targets.items() if node in running and node not in paused]
    seen = readiness.query_all([target for target in asked if not target.plan.is_controller], LOOK_TIMEOUT_S)
    names = list(dict.fromkeys(plan.broker_name for plan in plans if plan.is_broker))
    elected = elections.query_elections([target for target in asked if target.plan.is_controller], names, LOOK_TIMEOUT_S)
    answered = {*seen, *elected.controllers}
    records = processes.known(cluster.folder).nodes
    nodes = []
    for plan in plans:
        record = records.get(plan.node)
        if plan.node in running:
            now = "paused" if plan.node in paused else "up" if plan.node in answered else "silent"
        else:
            now = "died" if record is not None and record.asked == "up" else "down"
        pid = running[plan.node].pid if plan.node in running else None
        node = _node(cluster, plan, targets.get(plan.node), pid, now, seen.get(plan.node), elected)
        is_cut_off = now in ("up", "silent") and isolated_nodes.is_cut_off(cluster.node_folder(plan.node))
        nodes.append({**node, "cut_off": is_cut_off})
    namesrv = ";".join(target.address for target in targets.values() if target.plan.is_nameserver)
    told: dict[str, Any] = {"name": cluster.name, "namesrv": namesrv, "home": str(cluster.folder), "nodes": nodes}
    if description.controllers:
        told["groups"] = {name: group.as_document() for name, group in sorted(elected.groups.items())}
    return told


def metrics_url(content: Mapping[str, Any]) -> str | None:
    """Return the URL of the Prometheus metrics of a node with this `node.toml`, or None."""
    port = nodefile.port_of(content, METRICS_PORT_KEY)
    host = str(content.get("metricsPromExporterHost") or content.get("brokerIP1") or content.get("bindAddress"))
    scheme = "https" if content.get("tls.server.mode") == "enforcing" else "http"
    return None if port is None else f"{scheme}://{Address(LOOPBACK.get(host, host), port)}/metrics"


def _node(
    cluster: Cluster,
    plan: NodePlan,
    target: Target | None,
    pid: int | None,
    now: str,
    seen: NodeStatus | None,
    elected: ElectionsStatus,
) -> dict[str, Any]:
    address = target.address if target else None
    folder = cluster.node_folder(plan.node)
    metrics = metrics_url(nodefile.load(folder)) if plan.metrics_port else None
    told = {"node": plan.node, "kind": plan.kind, "address": address, "metrics": metrics, "pid": pid, "state": now}
    if plan.is_nameserver:
        return {**told, "acting_supported": seen.supports_acting if seen else None}
    if plan.is_controller:
        leader = elected.controllers.get(plan.node)
        return {
            **told,
            "leads": leader.leads if leader else None,
            "leader": leader.leader if leader else None,
            "term": leader.term if leader else None,
            "problem": leader.problem if leader else "",
        }
    said = seen.replication if seen else None
    election = seen.election if seen else None
    in_sync = None
    if seen and (election.is_master if election else not plan.is_slave):
        in_sync = said.in_sync if said else 1
    role = None if plan.is_elected else nodefile.load(folder).get("brokerRole", "ASYNC_MASTER")
    return {
        "node": plan.node,
        "kind": plan.kind,
        "broker_name": plan.broker_name,
        "broker_id": plan.broker_id,
        "role": seen.role if seen else role,
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
        "election": _election(plan, address, seen, elected),
    }


def _election(
    plan: NodePlan, address: str | None, seen: NodeStatus | None, elected: ElectionsStatus
) -> dict[str, Any] | None:
    """Return the `election` of a broker; None if it is silent, or no controller elects it."""
    said = seen.election if seen else None
    if seen is None or said is None:
        return None
    group = elected.groups.get(plan.broker_name)
    own_id = group.id_of(address) if group is not None and address is not None else None
    return {
        **said._asdict(),
        "in_set": None if group is None else own_id in group.in_sync,
        "fenced": seen.standing is not None and not seen.standing.is_online,
    }
