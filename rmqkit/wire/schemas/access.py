"""Users and access rules: 3001 to 3010, 60004 and 60005.

Source: `remoting/.../protocol/header/{CreateUser,DeleteAcl,ListAcls,...}RequestHeader.java`.
"""

from rmqkit.wire.schema import Ext, Int64


class UserRequest(Ext, kw_only=True):
    """3001 to 3004: `CreateUserRequestHeader` and the three like it."""

    username: str | None = None


class ListUsersRequest(Ext, kw_only=True):
    """3005: `filter` is a part of the name."""

    filter: str | None = None


class AclRequest(Ext, kw_only=True):
    """3006, 3007, 3009: `subject` is `User:<name>`."""

    subject: str | None = None


class DeleteAclRequest(Ext, kw_only=True):
    """3008: without a resource, the subject loses all its rules."""

    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


class ListAclsRequest(Ext, kw_only=True):
    """3010: both filters are parts of the texts."""

    subject_filter: str | None = None
    resource_filter: str | None = None


class GetAccessTableRequest(Ext, kw_only=True):
    """60004. The body is empty if `known_version`, a DataVersion as JSON, is the table's."""

    known_version: str | None = None


class PutAccessTableRequest(Ext, kw_only=True):
    """60005, from a broker to a name server; the body is its table."""

    cluster_name: str
    broker_name: str
    broker_id: Int64


class GetAccessTableResponse(Ext, kw_only=True):
    version: str
