"""ACL 1.0: users and rules of the file plain_acl.yml, as accounts of the model of ACL 2.0.

    accounts:
    - accessKey: producer
      secretKey: a-long-secret
      admin: false
      defaultTopicPerm: DENY
      defaultGroupPerm: SUB
      topicPerms:
      - orders=PUB
      groupPerms:
      - billing=SUB

An account with `admin` is a super user. `topicPerms` and `groupPerms` become the Custom policy,
`defaultTopicPerm` and `defaultGroupPerm` the Default policy on `Topic:*` and `Group:*`. PUB, SUB
and `PUB|SUB` allow these actions, DENY denies all.

Any other word is an error, as are unknown keys: Apache's migration reads an unknown word as a
permission to do everything. Lists of addresses that need no signature
(`globalWhiteRemoteAddresses`, `whiteRemoteAddress`) are refused, because an address is no identity.

Source: `auth/.../migration/v1/PlainPermissionManager.java`, `auth/.../migration/AuthMigrator.java`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from rmqkit.access.model import (
    AclUser,
    Action,
    BadAccessText,
    Decision,
    Pattern,
    Policies,
    PolicyEntry,
    PolicyType,
    Resource,
    ResourceType,
    UserType,
    merge,
)
from rmqkit.access.table import RULES_MAX, USERS_MAX, Account
from rmqkit.wire.bodies.access import UserInfo

#: bytes of the file
SIZE_MAX = 1024 * 1024
PERMISSIONS: Mapping[str, tuple[frozenset[Action], Decision]] = {
    "PUB": (frozenset((Action.PUB,)), Decision.ALLOW),
    "SUB": (frozenset((Action.SUB,)), Decision.ALLOW),
    "PUB|SUB": (frozenset((Action.PUB, Action.SUB)), Decision.ALLOW),
    "SUB|PUB": (frozenset((Action.PUB, Action.SUB)), Decision.ALLOW),
    "DENY": (frozenset((Action.ALL,)), Decision.DENY),
}
KEYS = frozenset(
    ("accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm", "defaultGroupPerm", "topicPerms")
) | {"groupPerms"}


def read_plain_acl(data: bytes) -> dict[str, Account]:
    """Return the accounts of a file by access key. Raises BadAccessText, without secrets."""
    whole = _load(data)
    unknown = sorted(map(str, whole.keys() - {"accounts", "globalWhiteRemoteAddresses", "dataVersion"}))
    if unknown:
        raise BadAccessText(f"unknown key {', '.join(unknown)}")
    if whole.get("globalWhiteRemoteAddresses"):
        raise BadAccessText("globalWhiteRemoteAddresses is refused: an address is no identity, so remove the list")
    accounts: dict[str, Account] = {}
    rows = whole.get("accounts") or []
    if not isinstance(rows, list) or len(rows) > USERS_MAX:
        raise BadAccessText(f"accounts must be a list of at most {USERS_MAX} accounts")
    for number, row in enumerate(rows, 1):
        account = _account(number, row)
        if account.user.name in accounts:
            raise BadAccessText(f"two accounts have the accessKey {account.user.name}")
        accounts[account.user.name] = account
    return accounts


def _load(data: bytes) -> dict[Any, Any]:
    try:
        import yaml  # only nodes with ACL 1.0 need it
    except ImportError:
        raise BadAccessText("it needs PyYAML: pip install 'rmqkit[secure]'") from None
    if len(data) > SIZE_MAX:
        raise BadAccessText(f"it has more than {SIZE_MAX} bytes")
    try:
        # Every scalar stays the text that was written: YAML would read the secret 0123 as 83. The
        # loader creates texts, lists and mappings only.
        whole = yaml.BaseLoader(data).get_single_data()
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f" in line {mark.line + 1}" if mark is not None else ""
        raise BadAccessText(f"it is no YAML{where}") from None  # the error may quote a secret
    if not isinstance(whole, dict):
        raise BadAccessText("it has no list `accounts`")
    return whole


def _account(number: int, row: Any) -> Account:
    if not isinstance(row, dict):
        raise BadAccessText(f"account {number} is no object")
    name = _text(row.get("accessKey"))
    try:
        unknown = sorted(map(str, row.keys() - KEYS))
        if unknown:
            raise BadAccessText(f"unknown key {', '.join(unknown)}")
        if row.get("whiteRemoteAddress"):
            raise BadAccessText("whiteRemoteAddress is refused: an address is no identity, so leave it empty")
        admin = _text(row.get("admin")).lower() or "false"
        if admin not in ("true", "false"):
            raise BadAccessText("admin must be true or false")
        kind = UserType.SUPER if admin == "true" else UserType.NORMAL
        user = AclUser.read(UserInfo(username=name, password=_text(row.get("secretKey")), user_type=kind.value))
        return Account(user, _policies(row))
    except BadAccessText as error:
        raise BadAccessText(f"account {number} ({name or 'without accessKey'}): {error}") from None


def _policies(row: Mapping[Any, Any]) -> Policies:
    custom = [
        *_entries(ResourceType.TOPIC, row.get("topicPerms"), "topicPerms"),
        *_entries(ResourceType.GROUP, row.get("groupPerms"), "groupPerms"),
    ]
    default = []
    for kind, key in ((ResourceType.TOPIC, "defaultTopicPerm"), (ResourceType.GROUP, "defaultGroupPerm")):
        if row.get(key):
            default.append(_entry(Resource(kind, "", Pattern.ANY), _text(row[key]), key))
    if len(custom) > RULES_MAX:
        raise BadAccessText(f"an account has at most {RULES_MAX} permissions")
    found = {PolicyType.CUSTOM: merge((), custom), PolicyType.DEFAULT: merge((), default)}
    return {kind: entries for kind, entries in found.items() if entries}


def _entries(kind: ResourceType, rows: Any, key: str) -> Iterable[PolicyEntry]:
    if not rows:
        return
    if not isinstance(rows, list):
        raise BadAccessText(f"{key} must be a list")
    for row in rows:
        name, equals, permission = _text(row).partition("=")
        if not equals or not name.strip():
            raise BadAccessText(f"{key}: {row!r} is not of the form name=PERMISSION")
        yield _entry(Resource(kind, name.strip()), permission, key)


def _entry(resource: Resource, permission: str, key: str) -> PolicyEntry:
    known = PERMISSIONS.get(permission.strip())
    if known is None:
        raise BadAccessText(f"{key}: permission {permission!r} is unknown, one of {', '.join(PERMISSIONS)}")
    return PolicyEntry(resource, *known)


def _text(value: Any) -> str:
    """Return a text, "" for anything else."""
    return value if isinstance(value, str) else ""
