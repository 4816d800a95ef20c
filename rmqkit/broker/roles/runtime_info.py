"""What a broker reports about its role: fields of code 28, and a metric.

`cluster status` and drills rely on the names and values.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from rmqkit.broker.roles.role import Online, Role

if TYPE_CHECKING:
    from rmqkit.broker.roles import Roles


def facts(roles: "Roles") -> dict[str, str]:
    """Return the role's fields of code 28.

    `roleSince` is wall time in ms, `roleMembers` a JSON object of addresses by id. `roleHead` is
    the smallest live id, "" while no member is known.
    """
    members = {str(broker_id): str(address) for broker_id, address in roles.members.items()}
    return {
        "role": roles.role,
        "roleOnline": roles.online,
        "roleSince": str(roles.state.since_ms),
        "roleWhy": _why(roles),
        "roleMembers": msgspec.json.encode(members).decode(),
        "roleHead": "" if roles.head is None else str(roles.head[0]),
        "roleStage": roles.stage,
    }


def _why(roles: "Roles") -> str:
    found = [roles.state.why]
    if roles.conflict:
        found.append(f"{roles.conflict} is registered with its brokerId {roles.broker_id}, too")
    if roles.is_cut_off:
        found.append("no name server answers")
    if roles.contact.why:
        found.append(f"what is due waits: {roles.contact.why}")
    is_head = roles.head is not None and roles.head[0] == roles.broker_id
    if roles.role is Role.SLAVE and roles.acting.why_not and is_head:
        found.append(f"does not act yet: {roles.acting.why_not}")
    if roles.nameservers.notes:
        found.append(roles.nameservers.text())
    return "; ".join(found)


def samples(roles: "Roles") -> Iterator[tuple[tuple[str, str], int]]:
    """Yield the role gauge: 1 for the current role and online state, 0 for all other pairs."""
    for role in Role:
        for online in Online:
            yield (role, online), int((role, online) == (roles.role, roles.online))
