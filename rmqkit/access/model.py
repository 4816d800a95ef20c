"""Users, resources, actions and rules, in the text forms of Apache's ACL 2.0.

A rule (`PolicyEntry`) allows or denies actions on a resource, from all source addresses or some.
The rules of a user form two policies, Custom and Default; `decision.py` evaluates them.

A resource text is `*`, `<Type>:*`, `<Type>:<prefix>*` or `<Type>:<name>`. The name of the type
ignores case, the rest does not.

Deviation: an unknown word of any kind is an error here. Apache drops unknown actions.

Source: `auth/.../authorization/model/*.java`, `auth/.../authentication/model/User.java`,
`common/.../action/Action.java`, `common/.../resource/*.java`.
"""

from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple, TypeVar

from rmqkit.errors import RmqkitError
from rmqkit.wire.bodies.access import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo

#: characters; longer names and passwords are refused
NAME_SIZE_MAX = 255
#: characters; a longer HMAC key is reduced to its digest anyway
PASSWORD_SIZE_MAX = 1024
SOURCES_MAX = 100

Source = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class BadAccessText(RmqkitError):
    """A text that is no user, resource, action, address or rule; the message says why."""


class ResourceType(StrEnum):
    ANY = "Any"
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


class Pattern(StrEnum):
    ANY = "ANY"
    LITERAL = "LITERAL"
    PREFIXED = "PREFIXED"


class Action(StrEnum):
    ALL = "All"
    ANY = "Any"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class Decision(StrEnum):
    ALLOW = "Allow"
    DENY = "Deny"


class PolicyType(StrEnum):
    CUSTOM = "Custom"
    DEFAULT = "Default"


class UserType(StrEnum):
    SUPER = "Super"
    NORMAL = "Normal"


class UserStatus(StrEnum):
    ENABLE = "enable"
    DISABLE = "disable"


W = TypeVar("W", bound=StrEnum)


def read_word(words: type[W], text: str | None, what: str) -> W:
    """Return the member whose text is `text` in any case. Raises BadAccessText."""
    for each in words:
        if text is not None and each.value.lower() == text.lower():
            return each
    raise BadAccessText(f"{what} {text!r} is unknown, one of {', '.join(words)}")


class Resource(NamedTuple):
    """A cluster, namespace, topic or group, all of them, or those with a prefix.

    `name` is "" for the pattern ANY.
    """

    type: ResourceType
    name: str = ""
    pattern: Pattern = Pattern.LITERAL

    @classmethod
    def parse(cls, text: str | None) -> "Resource":
        """Return the resource of a text such as `Topic:orders*`. Raises BadAccessText.

        A name that ends in `*` is cut at its first `*`, as Apache does.
        """
        if not text or not text.strip():
            raise BadAccessText("The resource is null.")
        if text == "*":
            return cls(ResourceType.ANY, "", Pattern.ANY)
        word, _, name = text.partition(":")
        kind = read_word(ResourceType, word, "resource type")
        if kind is ResourceType.ANY:
            raise BadAccessText(f"resource {text!r}: write * for everything")
        if not name:
            raise BadAccessText(f"resource {text!r} has no name: write {kind}:* for all, or {kind}:<name>")
        if len(name) > NAME_SIZE_MAX:
            raise BadAccessText(f"the name of a resource has at most {NAME_SIZE_MAX} characters")
        if name == "*":
            return cls(kind, "", Pattern.ANY)
        if name.endswith("*"):
            return cls(kind, name.partition("*")[0], Pattern.PREFIXED)
        return cls(kind, name)

    def __str__(self) -> str:
        if self.type is ResourceType.ANY:
            return "*"
        star = "" if self.pattern is Pattern.LITERAL else "*"
        return f"{self.type}:{self.name}{star}"

    def covers(self, asked: "Resource") -> bool:
        """Return whether a rule for this resource applies to `asked` (`Resource.isMatch`)."""
        if self.type is ResourceType.ANY:
            return True
        if self.type is not asked.type:
            return False
        if self.pattern is Pattern.ANY:
            return True
        if asked.pattern is Pattern.ANY:
            return False
        return asked.name == self.name if self.pattern is Pattern.LITERAL else asked.name.startswith(self.name)


class PolicyEntry(NamedTuple):
    """One rule. Without `sources` it applies to every address."""

    resource: Resource
    actions: frozenset[Action]
    decision: Decision
    sources: tuple[Network, ...] = ()

    def covers(self, asked: Resource, actions: frozenset[Action], source: Source | None) -> bool:
        """Return whether the rule applies; one of the asked actions is enough."""
        return (
            self.resource.covers(asked)
            and (Action.ALL in self.actions or not self.actions.isdisjoint(actions))
            and self.is_for(source)
        )

    def is_for(self, source: Source | None) -> bool:
        if not self.sources:
            return True
        return source is not None and any(source.version == each.version and source in each for each in self.sources)

    def __str__(self) -> str:
        words = ",".join(sorted(self.actions))
        sources = f" from {','.join(map(_source_text, self.sources))}" if self.sources else ""
        return f"{self.decision} {words} on {self.resource}{sources}"

    @classmethod
    def read(cls, info: PolicyEntryInfo) -> "PolicyEntry":
        """Return the rule of a request or file. Raises BadAccessText with upstream's remarks."""
        resource = Resource.parse(info.resource)
        if not info.actions:
            raise BadAccessText("The actions is empty.")
        actions = frozenset(read_word(Action, each, "action") for each in info.actions)
        if Action.ANY in actions:
            raise BadAccessText("The actions can not be Any.")
        sources = info.source_ips or []
        if len(sources) > SOURCES_MAX:
            raise BadAccessText(f"a rule has at most {SOURCES_MAX} source addresses")
        if not info.decision:
            raise BadAccessText("The decision is null or illegal.")
        decision = read_word(Decision, info.decision, "decision")
        return cls(resource, actions, decision, tuple(map(read_network, sources)))

    def info(self) -> PolicyEntryInfo:
        return PolicyEntryInfo(
            actions=[each.value for each in Action if each in self.actions],
            decision=self.decision.value,
            resource=str(self.resource),
            source_ips=[_source_text(each) for each in self.sources] or None,
        )


class AclUser(NamedTuple):
    """A user. Its text does not show the password."""

    name: str
    password: str
    type: UserType = UserType.NORMAL
    status: UserStatus = UserStatus.ENABLE

    @property
    def is_super(self) -> bool:
        return self.type is UserType.SUPER

    @property
    def is_enabled(self) -> bool:
        return self.status is UserStatus.ENABLE

    def __repr__(self) -> str:
        return f"AclUser({self.name!r}, {self.type}, {self.status})"

    @classmethod
    def read(cls, info: UserInfo) -> "AclUser":
        """Return a user with all fields. Raises BadAccessText."""
        if not info.password or not info.password.strip():
            raise BadAccessText("password can not be blank")
        if len(info.password) > PASSWORD_SIZE_MAX:
            raise BadAccessText(f"a password has at most {PASSWORD_SIZE_MAX} characters")
        if not info.password.isprintable():
            raise BadAccessText("a password has printable characters only")
        kind = read_word(UserType, info.user_type, "user type") if info.user_type else UserType.NORMAL
        status = read_word(UserStatus, info.user_status, "user status") if info.user_status else UserStatus.ENABLE
        return cls(check_user_name(info.username), info.password, kind, status)

    def info(self) -> UserInfo:
        return UserInfo(
            password=self.password, user_status=self.status.value, user_type=self.type.value, username=self.name
        )


#: the rules of one user by type of policy
Policies = dict[PolicyType, tuple[PolicyEntry, ...]]


def check_user_name(name: str | None) -> str:
    """Return the name. Raises BadAccessText."""
    if not name or not name.strip():
        raise BadAccessText("The username is blank")
    if len(name) > NAME_SIZE_MAX:
        raise BadAccessText(f"a username has at most {NAME_SIZE_MAX} characters")
    if not name.isprintable():
        raise BadAccessText("a username has printable characters only")
    return name


def read_subject(text: str | None) -> str:
    """Return the user name of `User:<name>`. Raises BadAccessText."""
    kind, colon, name = (text or "").partition(":")
    if not colon or kind.lower() != "user":
        raise BadAccessText(f"subject {text!r} is not of the form User:<name>")
    return check_user_name(name)


def read_policies(infos: Iterable[PolicyInfo]) -> Policies:
    """Return the rules of a request or file. Raises BadAccessText."""
    policies: Policies = {}
    for info in infos:
        kind = read_word(PolicyType, info.policy_type, "policy type") if info.policy_type else PolicyType.CUSTOM
        entries = tuple(map(PolicyEntry.read, info.entries or ()))
        if not entries:
            raise BadAccessText("The policy entries is empty.")
        policies[kind] = merge(policies.get(kind, ()), entries)
    if not policies:
        raise BadAccessText("The policies is empty.")
    return policies


def merge(entries: tuple[PolicyEntry, ...], changes: Iterable[PolicyEntry]) -> tuple[PolicyEntry, ...]:
    """Return the rules after a change; each replaces one for an equal resource.

    Source: `Policy.updateEntry`.
    """
    merged = {each.resource: each for each in entries}
    merged.update((each.resource, each) for each in changes)
    return tuple(merged.values())


def acl_info(name: str, policies: Policies) -> AclInfo:
    """Return the rules of a user in their text form."""
    return AclInfo(
        policies=[
            PolicyInfo(entries=[each.info() for each in entries], policy_type=kind.value)
            for kind, entries in policies.items()
        ],
        subject=f"User:{name}",
    )


def read_network(text: str) -> Network:
    """Return the network of an address or CIDR text. Raises BadAccessText; a host name is none."""
    if not text.strip():
        raise BadAccessText("The source ip is empty.")
    try:
        return ip_network(text, strict=False)
    except ValueError:
        raise BadAccessText(f"The source ip is invalid: {text!r} is no address and no CIDR range") from None


@lru_cache(maxsize=4096)
def read_source(text: str) -> Source | None:
    """Return the address of a peer; None if it is no IP. An IPv4 address in IPv6 form is IPv4."""
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def _source_text(network: Network) -> str:
    """Return the text of a range, or of an address for a range of one."""
    return str(network.network_address) if network.prefixlen == network.max_prefixlen else str(network)
