"""Users (3001 to 3005), access rules (3006 to 3010), and the table of both (60004, access.json).

Source: `remoting/.../protocol/body/{UserInfo,AclInfo}.java`.
"""

import msgspec
from msgspec import field

from rmqkit.wire import fastjson
from rmqkit.wire.bodies.base import Body
from rmqkit.wire.bodies.versions import DataVersion


class UserInfo(Body, kw_only=True):
    """A user. `user_type` is Super or Normal, `user_status` enable or disable, in any case."""

    password: str | None = None
    user_status: str | None = None
    user_type: str | None = None
    username: str | None = None

    def __repr__(self) -> str:
        return f"UserInfo(username={self.username!r}, user_type={self.user_type!r}, user_status={self.user_status!r})"


class PolicyEntryInfo(Body, kw_only=True):
    """One rule: what may be done (or not) with which resource, from which addresses."""

    actions: list[str] | None = None
    decision: str | None = None
    resource: str | None = None
    source_ips: list[str] | None = None


class PolicyInfo(Body, kw_only=True):
    """The rules of one type: Custom or Default."""

    entries: list[PolicyEntryInfo] | None = None
    policy_type: str | None = None


class AclInfo(Body, kw_only=True):
    """The policies of a subject, `User:<name>`."""

    policies: list[PolicyInfo] | None = None
    subject: str | None = None


class AccessTableBody(Body, kw_only=True):
    """rmqkit's file access.json, and the response to 60004; it has the passwords."""

    acls: list[AclInfo] = field(default_factory=list)
    data_version: DataVersion = DataVersion()
    #: the users whom the files of ACL 1.0 define
    file_users: list[str] = field(default_factory=list)
    users: list[UserInfo] = field(default_factory=list)


def encode_users(users: list[UserInfo]) -> bytes:
    """Return the body of 3005: a plain list."""
    return fastjson.dumps([_present(each) for each in users])


def encode_acls(acls: list[AclInfo]) -> bytes:
    """Return the body of 3010: a plain list."""
    return fastjson.dumps([_present(each) for each in acls])


def decode_users(data: bytes) -> list[UserInfo]:
    """Return the users of 3005; empty bytes are none. Raises RemoteProtocolError."""
    return fastjson.load_as(list[UserInfo], data) if data else []


def decode_acls(data: bytes) -> list[AclInfo]:
    """Return the rules of 3010; empty bytes are none. Raises RemoteProtocolError."""
    return fastjson.load_as(list[AclInfo], data) if data else []


def _present(value: object) -> object:
    """Return builtins without the fields that are None, which fastjson leaves out."""
    return _without_none(msgspec.to_builtins(value))


def _without_none(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_none(item) for item in value]
    return value
