"""Selectors: which nodes of a cluster a command is about.

`all` | `ns` or `nameserver` every name server | `ns-0` | `master` every broker with id 0 | `slave` every other broker |
`broker-a` every broker of that group | `broker-a:0` or `broker-a-0` one broker | `container-0` every broker of that
process. Several may be joined by commas.
"""

from collections.abc import Sequence

from rmqkit.cluster.errors import UsageProblem
from rmqkit.cluster.layout.description import NodePlan
from rmqkit.suggestions import suggest


def select(plans: Sequence[NodePlan], selector: str) -> list[NodePlan]:
    """The nodes meant, in the cluster's order, each once. Raises UsageProblem when a part matches no node."""
    chosen: dict[str, NodePlan] = {}
    for part in selector.split(","):
        found = [plan for plan in plans if _matches(plan, part.strip())]
        if not found:
            raise UsageProblem(_nothing_matches(plans, part.strip()))
        chosen.update((plan.node, plan) for plan in found)
    return [plan for plan in plans if plan.node in chosen]


def possible(plans: Sequence[NodePlan]) -> list[str]:
    """Every selector that names something, for completion and for error texts."""
    names = ["all", "master", "ns"]
    if any(plan.is_broker and plan.broker_id for plan in plans):
        names.append("slave")
    names += dict.fromkeys(plan.broker_name for plan in plans if plan.is_broker)
    names += dict.fromkeys(plan.container for plan in plans if plan.container)
    return names + [plan.node for plan in plans]


def _matches(plan: NodePlan, part: str) -> bool:
    if part in ("all", plan.process, plan.node):
        return True
    if not plan.is_broker:
        return part in ("ns", "nameserver")
    if part == "master":
        return plan.broker_id == 0
    if part == "slave":
        return plan.broker_id != 0
    return part in (plan.broker_name, f"{plan.broker_name}:{plan.broker_id}")


def _nothing_matches(plans: Sequence[NodePlan], part: str) -> str:
    return f"no node is meant by {part!r}{suggest(part, possible(plans), 'there are {known}')}"
