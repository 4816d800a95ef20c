"""Users (3001 to 3005), access rules (3006 to 3010), and the table of both for slaves (60004).

A change is answered once it is on disk, and takes effect at once. A slave copies the table from its
master. It relays a super user's change to the master, because mqadmin sends one to every broker of
a group, and refuses that of another user.

Deviations: passwords are shown to super users only; an unknown word is an error; what
`rmqkit.access.table` lists as not safe is refused; while authentication is off nothing can be read
or changed, so that nobody can plant a user for later. The inner credentials are in the settings, so
the user of this name cannot be changed here.

Source: `broker/.../processor/AdminBrokerProcessor.{createUser,updateUser,deleteUser,getUser,
listUser,createAcl,updateAcl,deleteAcl,getAcl,listAcl}`.
"""

from typing import TYPE_CHECKING, Any

from rmqkit.access.model import BadAccessText, PolicyType, Resource, read_policies, read_subject, read_word
from rmqkit.access.rules import GET, UPDATE, inner, on_cluster
from rmqkit.access.table import AccessConflict, AccessTable
from rmqkit.broker.handlers.admin.table_saves import answer_when_kept
from rmqkit.runtime.calls import Answer, Call, CallFailed, Handler, Handlers, Outcome, Refused, Response
from rmqkit.wire.bodies import AclInfo, UserInfo
from rmqkit.wire.bodies.access import encode_acls, encode_users
from rmqkit.wire.codes import OwnRequestCode, RequestCode, ResponseCode
from rmqkit.wire.schemas.access import (
    AclRequest,
    DeleteAclRequest,
    GetAccessTableRequest,
    GetAccessTableResponse,
    ListAclsRequest,
    ListUsersRequest,
    UserRequest,
)

if TYPE_CHECKING:
    from rmqkit.broker.view import BrokerView

rows = Handlers()

#: C:u. These handlers note their changes in the audit themselves, with the users and rules in them
CHANGE = on_cluster(UPDATE)._replace(is_change=False)
#: how long a slave waits for its master
RELAY_MS = 2500
_OFF = "authentication is off (authenticationEnabled): users and rules can be neither read nor changed"


def _table(broker: "BrokerView") -> AccessTable:
    table = broker.access.table
    if table is None:
        raise Refused(ResponseCode.SYSTEM_ERROR, _OFF)
    return table


def _changed_table(broker: "BrokerView", name: str | None) -> AccessTable:
    """Return the table, to change a user or its rules. Raises Refused."""
    table = _table(broker)
    if name and name == broker.access.inner_name:
        remark = f"user {name} has the inner credentials (innerClientAuthenticationCredentials), which the settings change"
        raise Refused(ResponseCode.NO_PERMISSION, remark)
    return table


def relayed(handler: Handler) -> Handler:
    """Wrap the handler of a change: a slave relays the request to its master.

    The master sees the inner credentials of the slave, so only super users may cause that.
    """

    def handle(broker: "BrokerView", call: Call[Any]) -> Response:
        if not broker.replication.is_slave:
            return handler(broker, call)
        master = broker.replication.master_address
        if not _is_super(call) or broker.role.is_acting or master is None:
            remark = "users and rules are changed at the master of the group: this slave copies them"
            raise Refused(ResponseCode.SYSTEM_ERROR, remark)
        _table(broker)
        address = master

        def begin(answer: Answer) -> None:
            def ended(outcome: Outcome) -> None:
                if isinstance(outcome, CallFailed):
                    remark = f"the master {outcome.address} gave no answer: {outcome.text}"
                    answer(call.error(ResponseCode.SYSTEM_ERROR, remark))
                else:
                    answer(Response(outcome.code, remark=outcome.remark or None))

            broker.remoting.call(address, call.code, call.args, call.body, timeout_ms=RELAY_MS, then=ended)

        return call.later(begin)

    return handle


def _is_super(call: Call[Any]) -> bool:
    return call.caller is None or call.caller.is_inner


def _kept(broker: "BrokerView", call: Call[Any], table: AccessTable, what: str) -> Response:
    broker.access.audit.changed(call.user, call.conn.peer, RequestCode(call.code).name, what)
    return answer_when_kept(call, table, table.save, "access.json")


def _user(call: Call[UserRequest]) -> UserInfo:
    """Return the user of a request; the name of the header wins. Raises Refused."""
    if not call.args.username:
        raise Refused(ResponseCode.INVALID_PARAMETER, "The username is blank")
    user = UserInfo.decode(call.body)
    user.username = call.args.username
    return user


@rows.handles(RequestCode.AUTH_CREATE_USER, UserRequest, access=CHANGE)
@rows.handles(RequestCode.AUTH_UPDATE_USER, UserRequest, access=CHANGE)
@relayed
def put_user(broker: "BrokerView", call: Call[UserRequest]) -> Response:
    user = _user(call)
    table = _changed_table(broker, user.username)
    change = table.create_user if call.code == RequestCode.AUTH_CREATE_USER else table.update_user
    try:
        change(user, by_super=_is_super(call))
    except (AccessConflict, BadAccessText) as error:
        raise _refusal(error) from None
    return _kept(broker, call, table, repr(user))


@rows.handles(RequestCode.AUTH_DELETE_USER, UserRequest, access=CHANGE)
@relayed
def delete_user(broker: "BrokerView", call: Call[UserRequest]) -> Response:
    """Delete a user and its rules; an unknown one is no error."""
    name = call.args.username or ""
    if not name.strip():
        raise Refused(ResponseCode.NO_PERMISSION, "username can not be blank")
    table = _changed_table(broker, name)
    try:
        is_gone = table.delete_user(name, by_super=_is_super(call))
    except AccessConflict as error:
        raise _refusal(error) from None
    return _kept(broker, call, table, f"User:{name}") if is_gone else call.ok()


@rows.handles(RequestCode.AUTH_GET_USER, UserRequest, access=on_cluster(GET))
def get_user(broker: "BrokerView", call: Call[UserRequest]) -> Response:
    name = call.args.username or ""
    if not name.strip():
        raise Refused(ResponseCode.INVALID_PARAMETER, "The username is blank")
    account = _table(broker).accounts.get(name)
    return call.ok() if account is None else call.ok(body=_shown(call, account.user.info()).encode())


@rows.handles(RequestCode.AUTH_LIST_USER, ListUsersRequest, access=on_cluster(GET))
def list_users(broker: "BrokerView", call: Call[ListUsersRequest]) -> Response:
    accounts = _table(broker).accounts
    wanted = call.args.filter or ""
    found = [_shown(call, accounts[name].user.info()) for name in sorted(accounts) if wanted in name]
    return call.ok(body=encode_users(found) if found else b"")


def _shown(call: Call[Any], user: UserInfo) -> UserInfo:
    """Return the user without its password, unless a super user asks: `copyUser` needs it."""
    if not _is_super(call):
        user.password = None
    return user


@rows.handles(RequestCode.AUTH_CREATE_ACL, AclRequest, access=CHANGE)
@rows.handles(RequestCode.AUTH_UPDATE_ACL, AclRequest, access=CHANGE)
@relayed
def put_acl(broker: "BrokerView", call: Call[AclRequest]) -> Response:
    """Merge rules into those of a subject; the subject of the body wins."""
    acl = AclInfo.decode(call.body) if call.body else AclInfo()
    subject = acl.subject or call.args.subject or ""
    try:
        policies = read_policies(acl.policies or ())
        table = _changed_table(broker, read_subject(subject))
        table.put_rules(subject, policies, by_super=_is_super(call))
    except (AccessConflict, BadAccessText) as error:
        raise _refusal(error) from None
    rules = "; ".join(str(each) for entries in policies.values() for each in entries)
    return _kept(broker, call, table, f"{subject}: {rules}")


@rows.handles(RequestCode.AUTH_DELETE_ACL, DeleteAclRequest, access=CHANGE)
@relayed
def delete_acl(broker: "BrokerView", call: Call[DeleteAclRequest]) -> Response:
    """Delete a rule of a subject, those of a type of policy, or all."""
    args = call.args
    subject = args.subject or ""
    try:
        kind = read_word(PolicyType, args.policy_type, "policy type") if args.policy_type else None
        resource = Resource.parse(args.resource) if args.resource else None
        table = _changed_table(broker, read_subject(subject))
        table.delete_rules(subject, kind, resource, by_super=_is_super(call))
    except (AccessConflict, BadAccessText) as error:
        raise _refusal(error) from None
    return _kept(broker, call, table, f"{subject}: {args.policy_type or ''} {args.resource or 'all'}")


@rows.handles(RequestCode.AUTH_GET_ACL, AclRequest, access=on_cluster(GET))
def get_acl(broker: "BrokerView", call: Call[AclRequest]) -> Response:
    try:
        acl = _table(broker).acl(call.args.subject or "")
    except (AccessConflict, BadAccessText) as error:
        raise _refusal(error) from None
    return call.ok() if acl is None else call.ok(body=acl.encode())


@rows.handles(RequestCode.AUTH_LIST_ACL, ListAclsRequest, access=on_cluster(GET))
def list_acls(broker: "BrokerView", call: Call[ListAclsRequest]) -> Response:
    found = _table(broker).acls(call.args.subject_filter or "", call.args.resource_filter or "")
    return call.ok(body=encode_acls(found) if found else b"")


@rows.handles(OwnRequestCode.GET_ACCESS_TABLE, GetAccessTableRequest, access=inner)
def access_table(broker: "BrokerView", call: Call[GetAccessTableRequest]) -> Response:
    """Return the table with its passwords, for slaves."""
    table = _table(broker)
    version = table.version.encode().decode()
    body = b"" if call.args.known_version == version else table.snapshot().encode()
    return call.ok(GetAccessTableResponse(version=version), body)


def _refusal(error: AccessConflict | BadAccessText) -> Refused:
    code = ResponseCode.NO_PERMISSION if isinstance(error, AccessConflict) else ResponseCode.INVALID_PARAMETER
    return Refused(code, str(error))
