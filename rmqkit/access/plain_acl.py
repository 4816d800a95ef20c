"""Reads the users and permissions of ACL 1.0: `conf/plain_acl.yml` and the files of `conf/acl`.

    accounts:
      - accessKey: orders-app
        secretKey: "12345678"
        admin: false
        defaultTopicPerm: DENY
        defaultGroupPerm: SUB
        topicPerms: [orders=PUB|SUB, audit=DENY]
        groupPerms: [billing=SUB]

An account becomes a user, `admin: true` a super user. Its permissions become rules: those of
`topicPerms` and `groupPerms` Custom, the two defaults Default on `Topic:*` and `Group:*`. DENY
denies everything.

What RocketMQ reads as a yes, or overlooks, is an error here that names file and account:

- A permission other than DENY, PUB, SUB and PUB|SUB. The migration of 5.x allows everything for it.
- White lists of addresses. They let requests in without a signature, and every request is verified.
- An account, a key of YAML or a resource that is named twice, and unknown keys.
- A name with `*`: ACL 1.0 has no patterns, but a rule would be one.

No error shows a secret. YAML is read without types, since SnakeYAML reads `secretKey: 0123` as the
text "0123".

Source: `acl/.../plain/PlainPermissionManager.java` and `acl/.../common/Permission.java` of 4.9.8,
`auth/.../migration/AuthMigrator.java` of 5.5.0.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

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
)
from rmqkit.access.table import RULES_MAX, RULES_TOTAL_MAX, USERS_MAX
from rmqkit.errors import RmqkitError
from rmqkit.wire.bodies.access import UserInfo
from rmqkit.wire.topic_names import RETRY_PREFIX

#: bytes of all files together
SIZE_MAX = 1 << 20
#: characters; access keys and secrets have more than these
KEY_SIZE_MIN = 6
#: the characters of YAML that open a collection; PyYAML recurses once for each level
NESTING_MAX = 50

_ALL = frozenset((Action.ALL,))
_PUB_SUB = frozenset((Action.PUB, Action.SUB))
PERMISSIONS = {
    "DENY": (Decision.DENY, _ALL),
    "PUB": (Decision.ALLOW, frozenset((Action.PUB,))),
    "SUB": (Decision.ALLOW, frozenset((Action.SUB,))),
    "PUB|SUB": (Decision.ALLOW, _PUB_SUB),
    "SUB|PUB": (Decision.ALLOW, _PUB_SUB),
}
FILE_KEYS = ("accounts", "globalWhiteRemoteAddresses", "dataVersion")
TEXT_KEYS = ("accessKey", "secretKey", "whiteRemoteAddress", "admin", "defaultTopicPerm", "defaultGroupPerm")
LIST_KEYS = ("topicPerms", "groupPerms")
#: YAML 1.1
_TRUE = ("true", "yes", "on")
_FALSE = ("false", "no", "off", "")
_NULL = ("", "~", "null", "Null", "NULL")


class PlainAclError(RmqkitError):
    """A file of ACL 1.0 that cannot be used; the message names the file, and no secret."""


class FileUser(NamedTuple):
    """A user that a file defines, with its rules."""

    user: AclUser
    policies: Policies


def read_plain_acl(files: Mapping[str, bytes]) -> dict[str, FileUser]:
    """Return the users by name of the files, path -> content. Raises PlainAclError."""
    if sum(map(len, files.values())) > SIZE_MAX:
        raise PlainAclError(f"the files of ACL 1.0 have more than {SIZE_MAX} bytes: {', '.join(sorted(files))}")
    users: dict[str, FileUser] = {}
    places: dict[str, str] = {}
    for path, content in files.items():
        for place, found in _users_of(path, content):
            name = found.user.name
            if name in users:
                raise PlainAclError(f"{place}: account {name} is also in {places[name]}")
            users[name], places[name] = found, place
    if len(users) > USERS_MAX:
        raise PlainAclError(f"the files of ACL 1.0 have more than {USERS_MAX} accounts")
    if sum(len(rules) for each in users.values() for rules in each.policies.values()) > RULES_TOTAL_MAX:
        raise PlainAclError(f"the files of ACL 1.0 have more than {RULES_TOTAL_MAX} permissions")
    return users


def _users_of(path: str, content: bytes) -> Iterator[tuple[str, FileUser]]:
    """Yield place and user of each account. Raises PlainAclError."""
    root = _compose(path, content)
    if root is None:
        return
    top = _mapping(root, path, FILE_KEYS)
    white = top.get("globalWhiteRemoteAddresses")
    if white is not None and _texts(white, path, "globalWhiteRemoteAddresses"):
        raise PlainAclError(f"{_at(path, white)}: globalWhiteRemoteAddresses {_WHITE}")
    for node in _items(top.get("accounts"), path, "accounts"):
        place = _at(path, node)
        try:
            yield place, _user(node, path)
        except BadAccessText as error:
            raise PlainAclError(f"{place}: {error}") from None


_WHITE = (
    "is refused: requests from these addresses would need no signature. Remove the list, and give the clients"
    " an access key and a secret"
)


def _user(node: Any, path: str) -> FileUser:
    """Return the user of an account. Raises PlainAclError, BadAccessText."""
    found = _mapping(node, path, TEXT_KEYS + LIST_KEYS)
    texts = {key: _text(found.get(key), path, key) for key in TEXT_KEYS}
    name, secret = texts["accessKey"] or "", texts["secretKey"] or ""
    place = f"{_at(path, node)}: account {name or '(without accessKey)'}"
    for key, text in (("accessKey", name), ("secretKey", secret)):
        if len(text) <= KEY_SIZE_MIN:
            raise PlainAclError(f"{place}: {key} must have more than {KEY_SIZE_MIN} characters")
    if texts["whiteRemoteAddress"]:
        raise PlainAclError(f"{place}: whiteRemoteAddress {_WHITE}")
    admin = (texts["admin"] or "").lower()
    if admin not in _TRUE + _FALSE:
        raise PlainAclError(f"{place}: admin must be true or false")
    kind = "Super" if admin in _TRUE else "Normal"
    user = AclUser.read(UserInfo(username=name, password=secret, user_type=kind))
    custom = [
        *_named(ResourceType.TOPIC, _texts(found.get("topicPerms"), path, "topicPerms"), place),
        *_named(ResourceType.GROUP, _texts(found.get("groupPerms"), path, "groupPerms"), place),
    ]
    seen: set[Resource] = set()
    for each in custom:
        if each.resource in seen:
            raise PlainAclError(f"{place}: {each.resource} has two permissions")
        seen.add(each.resource)
    default = [
        _entry(Resource(type_, "", Pattern.ANY), texts[key] or "", f"{place}: {key}")
        for key, type_ in (("defaultTopicPerm", ResourceType.TOPIC), ("defaultGroupPerm", ResourceType.GROUP))
        if texts[key]
    ]
    if len(custom) + len(default) > RULES_MAX:
        raise PlainAclError(f"{place}: more than {RULES_MAX} permissions")
    policies = {PolicyType.CUSTOM: tuple(custom), PolicyType.DEFAULT: tuple(default)}
    return FileUser(user, {each: entries for each, entries in policies.items() if entries})


def _named(kind: ResourceType, texts: list[str], place: str) -> Iterator[PolicyEntry]:
    """Yield the rules of `name=PERMISSION` texts. Raises PlainAclError, BadAccessText."""
    for text in texts:
        name, equals, word = (each.strip() for each in text.partition("="))
        if not name or not equals:
            raise PlainAclError(f"{place}: {text!r} is not of the form name=PERMISSION")
        if "*" in name:
            raise PlainAclError(f"{place}: {text!r}: ACL 1.0 has no patterns, write each name")
        type_ = kind
        if name.startswith(RETRY_PREFIX):  # as in Resource.ofGroup: a retry topic means its group
            type_, name = ResourceType.GROUP, name.removeprefix(RETRY_PREFIX)
        yield _entry(Resource.parse(f"{type_}:{name}"), word, f"{place}: {text!r}")


def _entry(resource: Resource, word: str, place: str) -> PolicyEntry:
    found = PERMISSIONS.get(word.strip())
    if found is None:
        raise PlainAclError(f"{place}: permission {word.strip()!r} is unknown, one of DENY, PUB, SUB, PUB|SUB")
    decision, actions = found
    return PolicyEntry(resource, actions, decision)


# --- YAML: nodes instead of values, for duplicate keys, line numbers, and texts as they are written


def _compose(path: str, content: bytes) -> Any:
    """Return the root node of a file, None for an empty one. Raises PlainAclError."""
    try:
        import yaml  # of the extra [acl]
    except ImportError:
        raise PlainAclError(f"{path} needs PyYAML: pip install 'rmqkit[acl]'") from None
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    try:
        level = 0
        for event in yaml.parse(content, Loader=loader):
            level += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if level > NESTING_MAX:
                raise PlainAclError(f"{path}: more than {NESTING_MAX} levels")
        return yaml.compose(content, Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else path
        raise PlainAclError(f"{where}: no valid YAML") from None  # the error's own text quotes the file


def _mapping(node: Any, path: str, known: tuple[str, ...]) -> dict[str, Any]:
    """Return the values of a mapping by key. Raises PlainAclError."""
    if node.id != "mapping":
        raise PlainAclError(f"{_at(path, node)}: must have the keys {', '.join(known)}")
    found: dict[str, Any] = {}
    for key, value in node.value:
        if key.id != "scalar" or key.value not in known:  # not shown: it may be a secret in the wrong place
            raise PlainAclError(f"{_at(path, key)}: unknown key, known are {', '.join(known)}")
        if key.value in found:
            raise PlainAclError(f"{_at(path, key)}: {key.value} is there twice")
        found[key.value] = value
    return found


def _items(node: Any, path: str, key: str) -> list[Any]:
    """Return the nodes of a list, none if the key is missing. Raises PlainAclError."""
    if node is None or (node.id == "scalar" and _text(node, path, key) is None):
        return []
    if node.id != "sequence":
        raise PlainAclError(f"{_at(path, node)}: {key} must be a list")
    return list(node.value)


def _texts(node: Any, path: str, key: str) -> list[str]:
    return [_text(each, path, key) or "" for each in _items(node, path, key)]


def _text(node: Any, path: str, key: str) -> str | None:
    """Return the text of a scalar as it is written, None if it is null or missing."""
    if node is None:
        return None
    if node.id != "scalar":
        raise PlainAclError(f"{_at(path, node)}: {key} must be a text")
    is_plain = node.style is None or node.style == ""
    return None if is_plain and node.value in _NULL else str(node.value)


def _at(path: str, node: Any) -> str:
    return f"{path}:{node.start_mark.line + 1}"
