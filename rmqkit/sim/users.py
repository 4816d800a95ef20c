"""The users of a simulated cluster with access control (`SimCluster(secure=True)`).

- `inner`: the nodes' own credentials.
- `operator`: a super user, which every node has from its start (`initAuthenticationUser`).
- `app`: signs the requests of clients; may send to and consume every topic. A client of the
  operator creates it at the masters, through requests. A master that has lost its disk gets it
  back from its slaves if they may act for it. In other groups the operator creates it again.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from rmqkit.access.model import Action, Decision, PolicyEntry, Resource
from rmqkit.access.signature import Credentials
from rmqkit.access.table import Account
from rmqkit.client.admin import access
from rmqkit.client.admin.groups import AdminCore
from rmqkit.client.client import Client
from rmqkit.client.flow import start
from rmqkit.errors import RmqkitError

INNER, OPERATOR, APP = ("inner", "inner-secret"), ("operator", "operator-secret"), ("app", "app-secret")
#: of brokers and name servers
SETTINGS: dict[str, Any] = {
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": INNER[0], "secretKey": INNER[1]}),
    "initAuthenticationUser": json.dumps({"username": OPERATOR[0], "password": OPERATOR[1]}),
}
RULES = (
    PolicyEntry(Resource.parse("Topic:*"), frozenset((Action.PUB, Action.SUB)), Decision.ALLOW),
    PolicyEntry(Resource.parse("Group:*"), frozenset((Action.SUB,)), Decision.ALLOW),
)
LOOK_MS = 500

sign_as_app = Credentials(*APP).sign
sign_as_operator = Credentials(*OPERATOR).sign


def knows_app(accounts: Mapping[str, Account]) -> bool:
    """Return whether a node has the user `app` and its rules."""
    found = accounts.get(APP[0])
    return found is not None and found.rule_count == len(RULES)


def keep_app(client: Client, broker_names: list[str], *, again: bool) -> None:
    """Create the user `app` at the masters of these groups; with `again`, whenever one lacks it."""

    async def keep() -> None:
        admin = AdminCore(client)
        left = list(broker_names)
        while left:
            for name in tuple(left):
                with suppress(RmqkitError):  # the next round tries again
                    if not await access.users(admin, name, APP[0]):
                        await access.create_user(admin, *APP, broker=name)
                    if not await access.rules(admin, name, APP[0]):
                        await access.put_rules(admin, APP[0], RULES, broker=name)
                    if not again:
                        left.remove(name)
            await client.timers.sleep(LOOK_MS)

    def begin() -> None:
        start(keep())

    client.timers.after(1, begin)
