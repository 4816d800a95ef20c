"""Admin: users and access rules (3001 to 3010).

Every broker group keeps its users and rules itself; slaves of rmqkit copy them from their master.
So a change goes to every master, and an answer is given per broker. A slave of Apache's copies
nothing: name it as `broker` to change it.

Source: `tools/.../command/auth/*.java`.
"""

from collections.abc import Sequence

from rmqkit.access.model import Policies, PolicyEntry, PolicyType, UserStatus, UserType, read_policies
from rmqkit.client.admin.groups import AdminCore
from rmqkit.client.client import decoded
from rmqkit.errors import ClientError
from rmqkit.wire.bodies.access import AclInfo, PolicyInfo, UserInfo, decode_acls, decode_users
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schema import Ext
from rmqkit.wire.schemas.access import (
    AclRequest,
    DeleteAclRequest,
    ListAclsRequest,
    ListUsersRequest,
    UserRequest,
)


async def create_user(
    admin: AdminCore, name: str, password: str, *, user_type: str = UserType.NORMAL, broker: str | None = None
) -> list[str]:
    """Create a user at every master.

    A user that exists is an error: stops at the first broker that has it.

    Args:
        name: The user's name, the access key of clients.
        password: The secret key of clients. Brokers keep it as it is, because signatures need it.
        user_type: `Normal`, or `Super`: may do everything without rules.
        broker: Only this broker.

    Returns:
        The names of the brokers that now have the user.
    """
    body = UserInfo(username=name, password=password, user_type=user_type, user_status=UserStatus.ENABLE)
    return await _change(admin, RequestCode.AUTH_CREATE_USER, UserRequest(username=name), body.encode(), broker)


async def update_user(
    admin: AdminCore,
    name: str,
    *,
    password: str | None = None,
    user_type: str | None = None,
    user_status: str | None = None,
    broker: str | None = None,
) -> list[str]:
    """Change a user at every master. What is None stays.

    Args:
        name: The user's name.
        password: A new password.
        user_type: `Normal` or `Super`.
        user_status: `enable` or `disable`. A disabled user is refused everything.
        broker: Only this broker.

    Returns:
        The names of the brokers that have the change.
    """
    body = UserInfo(username=name, password=password, user_type=user_type, user_status=user_status)
    return await _change(admin, RequestCode.AUTH_UPDATE_USER, UserRequest(username=name), body.encode(), broker)


async def delete_user(admin: AdminCore, name: str, *, broker: str | None = None) -> list[str]:
    """Delete a user and its rules at every master. An unknown user is no error.

    Args:
        name: The user's name.
        broker: Only this broker.

    Returns:
        The names of these brokers.
    """
    return await _change(admin, RequestCode.AUTH_DELETE_USER, UserRequest(username=name), b"", broker)


async def users(admin: AdminCore, broker: str, name_part: str = "") -> list[UserInfo]:
    """Return the users of a broker, sorted by name.

    Args:
        broker: As in `broker_address`.
        name_part: Only users whose name contains this text.
    """
    reply = await admin.ask_broker(broker, RequestCode.AUTH_LIST_USER, ListUsersRequest(filter=name_part or None))
    return sorted(decoded(reply, decode_users), key=lambda each: each.username or "")


async def put_rules(
    admin: AdminCore,
    user: str,
    rules: Sequence[PolicyEntry],
    *,
    policy: PolicyType = PolicyType.CUSTOM,
    broker: str | None = None,
) -> list[str]:
    """Add rules to a user at every master. A rule replaces the one for an equal resource.

    Args:
        user: The user's name.
        rules: The rules (`rmqkit.access.model.PolicyEntry`).
        policy: `Custom`, or `Default`: counts only where no custom rule applies.
        broker: Only this broker.

    Returns:
        The names of the brokers that have the rules.
    """
    subject = f"User:{user}"
    info = PolicyInfo(policy_type=policy, entries=[each.info() for each in rules])
    body = AclInfo(subject=subject, policies=[info]).encode()
    return await _change(admin, RequestCode.AUTH_CREATE_ACL, AclRequest(subject=subject), body, broker)


async def delete_rules(
    admin: AdminCore,
    user: str,
    resource: str | None = None,
    *,
    policy: PolicyType | None = None,
    broker: str | None = None,
) -> list[str]:
    """Delete the rule of a user for a resource at every master, or all its rules.

    Args:
        user: The user's name.
        resource: The resource, written as in the rule. None: all rules of the user.
        policy: `Custom` or `Default`. None: custom rules if there is a resource, else both.
        broker: Only this broker.

    Returns:
        The names of these brokers.
    """
    request = DeleteAclRequest(subject=f"User:{user}", policy_type=policy, resource=resource)
    return await _change(admin, RequestCode.AUTH_DELETE_ACL, request, b"", broker)


async def rules(admin: AdminCore, broker: str, user: str) -> Policies:
    """Return the rules of a user at a broker, by policy; {} if it has none.

    Args:
        broker: As in `broker_address`.
        user: The user's name.
    """
    reply = await admin.ask_broker(broker, RequestCode.AUTH_GET_ACL, AclRequest(subject=f"User:{user}"))
    if not reply.body:
        return {}
    return decoded(reply, lambda body: _policies(AclInfo.decode(body)))


async def all_rules(admin: AdminCore, broker: str, user_part: str = "", resource_part: str = "") -> dict[str, Policies]:
    """Return the rules of all users at a broker, by user and policy.

    Args:
        broker: As in `broker_address`.
        user_part: Only users whose name contains this text.
        resource_part: Only rules whose resource contains this text.
    """
    request = ListAclsRequest(subject_filter=user_part or None, resource_filter=resource_part or None)
    reply = await admin.ask_broker(broker, RequestCode.AUTH_LIST_ACL, request)
    found = decoded(reply, lambda body: [(each.subject or "", _policies(each)) for each in decode_acls(body)])
    return {subject.partition(":")[2]: policies for subject, policies in sorted(found, key=lambda each: each[0])}


def _policies(info: AclInfo) -> Policies:
    return read_policies(info.policies) if info.policies else {}


async def _change(admin: AdminCore, code: int, request: Ext, body: bytes, broker: str | None) -> list[str]:
    """Send a request to a broker, or to every master. Return their names."""
    targets = [broker] if broker is not None else sorted(await admin.masters())
    if not targets:
        raise ClientError("no master is registered, so users and rules cannot be changed")
    for each in targets:
        await admin.ask_broker(each, code, request, body)
    return targets
