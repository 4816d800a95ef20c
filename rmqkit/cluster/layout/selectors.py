"""Selectors: the nodes of a cluster that a command applies to.

    all                       every node
    ns, nameserver            every name server
    ns-0                      one name server
    controller                every controller
    controller-0              one controller
    master                    every broker with id 0; with controllers, those elected now
    slave                     every other broker
    broker-a                  every broker of that group
    broker-a:0, broker-a-0    one broker
    container-0               every broker of that process

Several selectors may be joined by commas. With controllers, `Cluster.select` replaces master and
slave by the nodes that have this role now.
"""

from collections.abc import Sequence

from rmqkit.cluster.errors import UsageProblem
from rmqkit.cluster.layout.description import NodePlan
from rmqkit.suggestions import suggest

MASTER, SLAVE = "master", "slave"
ROLES = (MASTER, SLAVE)


def select(plans: Sequence[NodePlan], selector: str) -> list[NodePlan]:
    """Return the selected nodes, in the cluster's order, each once.

    Raises UsageProblem if a part of the selector matches no node.
    """
    chosen: dict[str, NodePlan] = {}
    for part in selector.split(","):
        found = [plan for plan in plans if _matches(plan, part.strip())]
        if not found:
            raise UsageProblem(_nothing_matches(plans, part.strip()))
        chosen.update((plan.node, plan) for plan in found)
    return [plan for plan in plans if plan.node in chosen]


def possible(plans: Sequence[NodePlan]) -> list[str]:
    """Return every selector that matches a node, for shell completion and error texts."""
    names = ["all", "master", "ns"]
    if any(plan.is_broker and plan.broker_id for plan in plans):
        names.append("slave")
    if any(plan.is_controller for plan in plans):
        names.append("controller")
    names += dict.fromkeys(plan.broker_name for plan in plans if plan.is_broker)
    names += dict.fromkeys(plan.container for plan in plans if plan.container)
    return names + [plan.node for plan in plans]


def _matches(plan: NodePlan, part: str) -> bool:
    if part in ("all", plan.process, plan.node):
        return True
    if plan.is_controller:
        return part == "controller"
    if not plan.is_broker:
        return part in ("ns", "nameserver")
    if part in ROLES:
        # Before a role is known, each elected broker may have it.
        return plan.is_elected or (plan.broker_id == 0) == (part == MASTER)
    return part in (plan.broker_name, f"{plan.broker_name}:{plan.broker_id}")


def _nothing_matches(plans: Sequence[NodePlan], part: str) -> str:
    return f"no node matches {part!r}{suggest(part, possible(plans), 'there are {known}')}"
