"""What a broker says about its role: facts of code 28. Names and values are a contract with status and drills."""

from typing import TYPE_CHECKING

import msgspec

from rmqkit.broker.roles.role import Role

if TYPE_CHECKING:
    from rmqkit.broker.roles import Roles


def facts(roles: "Roles") -> dict[str, str]:
    """`roleSince` is wall time in ms; `roleMembers` JSON of address by id; `roleHead` an id, "" while nobody is known."""
    members = {str(broker_id): str(address) for broker_id, address in roles.members.items()}
    return {
        "role": roles.role,
        "roleOnline": roles.online,
        "roleSince": str(roles.since_ms),
        "roleWhy": _why(roles),
        "roleMembers": msgspec.json.encode(members).decode(),
        "roleHead": "" if roles.head is None else str(roles.head[0]),
        "roleStage": roles.stage,
    }


def _why(roles: "Roles") -> str:
    if roles.conflict:
        return f"{roles.why}; {roles.conflict} is registered with its brokerId {roles.broker_id}, too"
    if roles.is_cut_off:
        return f"{roles.why}; no name server answers"
    is_head = roles.head is not None and roles.head[0] == roles.broker_id
    if roles.role is Role.SLAVE and roles.acting.why_not and is_head:
        return f"{roles.why}; does not act yet: {roles.acting.why_not}"
    return roles.why
