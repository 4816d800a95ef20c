"""What a broker says about its role: facts of code 28. Names and values are a contract with status and drills."""

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from rmqkit.broker.roles import Roles


def facts(roles: "Roles") -> dict[str, str]:
    """`roleSince` is wall time in ms; `roleMembers` JSON of address by id; `roleHead` an id, "" while nobody is known."""
    members = {str(broker_id): str(address) for broker_id, address in roles.members.items()}
    return {
        "role": roles.role,
        "roleOnline": roles.online,
        "roleSince": str(roles.since_ms),
        "roleWhy": roles.why,
        "roleMembers": msgspec.json.encode(members).decode(),
        "roleHead": "" if roles.head is None else str(roles.head[0]),
        "roleStage": roles.stage,
    }
