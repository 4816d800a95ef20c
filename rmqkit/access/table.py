"""AccessTable: the users of a cluster and their rules, and the file access.json.

The table is a broker's. A slave's is a copy of its master's (`follow`). A name server keeps one for
each broker group that registers with it (`nameserver/access.py`).

The file has the passwords in plain text, because HMAC needs the secret itself. So the shell creates
it with mode 0600 (`ports.PRIVATE_FILES`).

What a change does follows Apache: create merges with what exists, an update replaces only what it
names, and a rule replaces the rule for an equal resource. What Apache permits and is not safe is
refused here:

- The last enabled super user cannot be deleted, disabled or made a normal one.
- A user that is no super user can neither make one nor change one.
- No request changes a user that a file of ACL 1.0 defines (`follow_files`): the file would win
  later.
- A user that exists as asked, and rules that are gone already, are no error: mqadmin sends a change
  to each broker of a group, and slaves relay it to their master.
- Deleting rules needs a readable resource; an unreadable one deletes nothing. A type of policy
  without a resource deletes the rules of that type only.

Source: `auth/.../authentication/manager/AuthenticationMetadataManagerImpl.java`,
`auth/.../authorization/manager/AuthorizationMetadataManagerImpl.java`.
"""

from collections.abc import Callable, Iterable, Mapping

from rmqkit.access.decision import AccessDecision, decide
from rmqkit.access.model import (
    AclUser,
    Action,
    BadAccessText,
    Pattern,
    Policies,
    PolicyType,
    Resource,
    ResourceType,
    Source,
    UserStatus,
    UserType,
    acl_info,
    merge,
    read_policies,
    read_subject,
    read_word,
)
from rmqkit.access.signature import Key
from rmqkit.errors import RemoteProtocolError, RmqkitError
from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.runtime.ports import Clock, Disk
from rmqkit.wire.bodies.access import AccessTableBody, AclInfo, UserInfo
from rmqkit.wire.bodies.versions import DataVersion

FILE = "access.json"
USERS_MAX = 10_000
#: decisions that an account keeps
DECISIONS_MAX = 4096
#: rules of one user, of both types
RULES_MAX = 1_000
#: rules of all users
RULES_TOTAL_MAX = 20_000


class AccessConflict(RmqkitError):
    """A change that the state of the table forbids; the message says why."""


class Account:
    """A user, its key for signatures, and its rules. A change creates another account.

    So decisions can be kept until the account goes: at most `DECISIONS_MAX`, then none are.
    """

    __slots__ = ("_by_source", "_decisions", "is_from_file", "key", "policies", "user")

    def __init__(
        self, user: AclUser, policies: Policies | None = None, key: Key | None = None, *, is_from_file: bool = False
    ) -> None:
        self.user = user
        #: whether a file of ACL 1.0 defines it
        self.is_from_file = is_from_file
        self.key = key or Key(user.password)
        self.policies: Policies = policies or {}
        self._by_source = any(each.sources for entries in self.policies.values() for each in entries)
        self._decisions: dict[tuple[object, ...], AccessDecision] = {}

    @property
    def rule_count(self) -> int:
        return sum(map(len, self.policies.values()))

    def decide(self, kind: ResourceType, name: str, actions: frozenset[Action], source: Source | None) -> AccessDecision:
        """Return whether one of the actions is allowed. Without a name, on all of the type."""
        asked = (kind, name, actions, source if self._by_source else None)
        verdict = self._decisions.get(asked)
        if verdict is None:
            pattern = Pattern.LITERAL if name else Pattern.ANY
            verdict = decide(self.policies, Resource(kind, name, pattern), actions, source)
            if len(self._decisions) >= DECISIONS_MAX:
                self._decisions.clear()
            self._decisions[asked] = verdict
        return verdict


class Accounts:
    """The accounts of one cluster by user name, and the version of the table they come from."""

    def __init__(self, cluster: str) -> None:
        #: the name of the resource Cluster that the rules mean
        self.cluster = cluster
        self.accounts: dict[str, Account] = {}
        self.version = DataVersion()

    def take(self, told: AccessTableBody) -> None:
        """Replace the accounts. Raises RemoteProtocolError, and then changes nothing."""
        self.version, self.accounts = _accounts(told)


class AccessTable(Accounts):
    """The users and rules of a broker, and their file."""

    def __init__(
        self, disk: Disk, clock: Clock, folder: str, *, cluster: str = "DefaultCluster", is_copy: bool = False
    ) -> None:
        super().__init__(cluster)
        self.is_copy = is_copy
        #: called after each change, also by `follow`: held calls have to be checked again
        self.on_change: list[Callable[[], None]] = []
        self._clock = clock
        self._file = AtomicFile(disk, f"{folder}/{FILE}")

    # --- the file

    def load(self) -> None:
        """Read the file. Raises AtomicFileDamaged if no copy of it can be read."""
        loaded = self._file.load(_read)
        if loaded is not None:
            self.version, self.accounts = loaded

    def ensure_super(self, name: str, password: str) -> bool:
        """Create a super user unless the name exists. Return whether it was created.

        On a copy it is there until the master's table comes, so that the node can be reached.
        """
        if name in self.accounts:
            return False
        self.accounts[name] = Account(AclUser(name, password, UserType.SUPER))
        self._changed()
        return True

    @property
    def save_error(self) -> OSError | None:
        """The error of the last save; None if it succeeded."""
        return self._file.error

    def save(self, then: Callable[[], None] | None = None) -> None:
        self._file.save(lambda: self.snapshot().pretty().encode(), then)

    def snapshot(self) -> AccessTableBody:
        accounts = self.accounts.values()
        return AccessTableBody(
            acls=[acl_info(each.user.name, each.policies) for each in accounts if each.policies],
            data_version=self.version,
            file_users=[each.user.name for each in accounts if each.is_from_file],
            users=[each.user.info() for each in accounts],
        )

    def follow(self, told: AccessTableBody) -> None:
        """Replace this table by another's. Raises RemoteProtocolError, and then changes nothing."""
        self.take(told)
        self.save()
        self._tell()

    # --- the files of ACL 1.0

    def follow_files(self, users: Mapping[str, tuple[AclUser, Policies]]) -> list[str]:
        """Make `users` the users that come from files: add, replace and delete them.

        Return the names that are skipped, because a request has created such a user. Raises
        AccessConflict above a limit, and then changes nothing.
        """
        kept = {name: each for name, each in self.accounts.items() if not each.is_from_file}
        after = kept | {
            name: Account(user, policies, is_from_file=True) for name, (user, policies) in users.items() if name not in kept
        }
        self._take(after)
        return [name for name in users if name in kept]

    def adopt_files(self, users: Mapping[str, tuple[AclUser, Policies]]) -> None:
        """Add the users that are missing. From now on requests may change those from files.

        Raises AccessConflict above a limit, and then changes nothing.
        """
        added = {name: each for name, each in users.items() if name not in self.accounts}
        after = {name: Account(each.user, each.policies, each.key) for name, each in self.accounts.items()}
        self._take(after | {name: Account(user, policies) for name, (user, policies) in added.items()})

    def _take(self, accounts: dict[str, Account]) -> None:
        if len(accounts) > USERS_MAX:
            raise AccessConflict(f"this broker holds at most {USERS_MAX} users")
        if sum(each.rule_count for each in accounts.values()) > RULES_TOTAL_MAX:
            raise AccessConflict(f"this broker holds at most {RULES_TOTAL_MAX} rules")
        before, self.accounts = self.accounts, accounts
        if list(map(_content, before.values())) != list(map(_content, accounts.values())):
            self._changed()

    # --- users

    def create_user(self, info: UserInfo, *, by_super: bool) -> None:
        """Add a user. One that is there as asked is no error.

        Raises BadAccessText or AccessConflict.
        """
        user = AclUser.read(info)
        if user.is_super and not by_super:
            raise AccessConflict("The super user can only be create by super user")
        known = self.accounts.get(user.name)
        if known is not None:
            if known.user == user:
                return  # mqadmin sends the same to each broker of a group, and slaves relay it
            raise AccessConflict("The user is existed")
        if len(self.accounts) >= USERS_MAX:
            raise AccessConflict(f"this broker holds {USERS_MAX} users already")
        self.accounts[user.name] = Account(user)
        self._changed()

    def update_user(self, info: UserInfo, *, by_super: bool) -> None:
        """Change what `info` names of a user. Raises BadAccessText or AccessConflict."""
        account = self.accounts.get(info.username or "")
        if account is None:
            raise AccessConflict("The user is not exist")
        before = account.user
        kind = read_word(UserType, info.user_type, "user type") if info.user_type else before.type
        status = read_word(UserStatus, info.user_status, "user status") if info.user_status else before.status
        password = info.password if info.password and info.password.strip() else before.password
        asked = UserInfo(username=before.name, password=password, user_type=kind.value, user_status=status.value)
        user = AclUser.read(asked)
        if (before.is_super or user.is_super) and not by_super:
            raise AccessConflict("The super user can only be update by super user")
        _check_not_from_file(account)
        if not (user.is_super and user.is_enabled):
            self._check_not_last(before, "disabled or made a normal user")
        self.accounts[user.name] = Account(user, account.policies)
        self._changed()

    def delete_user(self, name: str, *, by_super: bool) -> bool:
        """Delete a user and its rules. Return whether it existed. Raises AccessConflict."""
        account = self.accounts.get(name)
        if account is None:
            return False
        if account.user.is_super and not by_super:
            raise AccessConflict("The super user can only be update by super user")
        _check_not_from_file(account)
        self._check_not_last(account.user, "deleted")
        del self.accounts[name]
        self._changed()
        return True

    def _check_not_last(self, user: AclUser, what: str) -> None:
        """Raise AccessConflict if `user` is the only enabled super user."""
        if user.is_super and user.is_enabled:
            others = (each.user for each in self.accounts.values() if each.user.name != user.name)
            if not any(each.is_super and each.is_enabled for each in others):
                raise AccessConflict(f"user {user.name} is the last enabled super user, which cannot be {what}")

    # --- rules

    def put_rules(self, subject: str, policies: Policies, *, by_super: bool) -> None:
        """Add rules to a subject, `User:<name>`; one for an equal resource is replaced.

        Raises BadAccessText or AccessConflict.
        """
        account = self._of(subject, by_super=by_super)
        _check_not_from_file(account)
        after = dict(account.policies)
        for kind, entries in policies.items():
            after[kind] = merge(after.get(kind, ()), entries)
        count = sum(map(len, after.values()))
        if count > RULES_MAX:
            raise AccessConflict(f"a user has at most {RULES_MAX} rules")
        if sum(each.rule_count for each in self.accounts.values()) - account.rule_count + count > RULES_TOTAL_MAX:
            raise AccessConflict(f"this broker holds at most {RULES_TOTAL_MAX} rules")
        self._use(account, after)

    def delete_rules(self, subject: str, kind: PolicyType | None, resource: Resource | None, *, by_super: bool) -> None:
        """Delete a subject's rule for a resource, those of one type, or all. None is no error.

        With a resource the type is Custom unless given. Raises BadAccessText or AccessConflict.
        """
        account = self._of(subject, by_super=by_super)
        _check_not_from_file(account)
        after = dict(account.policies)
        if resource is not None:
            kind = kind or PolicyType.CUSTOM
            after[kind] = tuple(each for each in after.get(kind, ()) if each.resource != resource)
        elif kind is not None:
            after[kind] = ()
        else:
            after = {}
        self._use(account, {each: entries for each, entries in after.items() if entries})

    def acl(self, subject: str) -> AclInfo | None:
        """Return a subject's rules, None if it has none. Raises BadAccessText or AccessConflict."""
        account = self._of(subject, by_super=True)
        return acl_info(account.user.name, account.policies) if account.policies else None

    def acls(self, subject_filter: str, resource_filter: str) -> list[AclInfo]:
        """Return the rules whose subject and resource contain the filters."""
        found: list[AclInfo] = []
        for name, account in sorted(self.accounts.items()):
            kept = {
                kind: tuple(each for each in entries if resource_filter in str(each.resource))
                for kind, entries in account.policies.items()
            }
            kept = {kind: entries for kind, entries in kept.items() if entries}
            if kept and subject_filter in f"User:{name}":
                found.append(acl_info(name, kept))
        return found

    def _of(self, subject: str, *, by_super: bool) -> Account:
        account = self.accounts.get(read_subject(subject))
        if account is None:
            raise AccessConflict(f"The subject of {subject} is not exist.")
        if account.user.is_super and not by_super:
            raise AccessConflict("The super user can only be update by super user")
        return account

    def _use(self, account: Account, policies: Policies) -> None:
        self.accounts[account.user.name] = Account(account.user, policies, account.key)
        self._changed()

    def _changed(self) -> None:
        if not self.is_copy:
            self.version = self.version.next_version(self._clock.wall_ms)
        self.save()
        self._tell()

    def _tell(self) -> None:
        for each in self.on_change:
            each()


def _check_not_from_file(account: Account) -> None:
    if account.is_from_file:
        raise AccessConflict(f"user {account.user.name} comes from a file of ACL 1.0 (plain_acl.yml): change that file")


def _content(account: Account) -> tuple[AclUser, Policies, bool]:
    return account.user, account.policies, account.is_from_file


def _read(data: bytes) -> tuple[DataVersion, dict[str, Account]]:
    return _accounts(AccessTableBody.decode(data))


def _accounts(body: AccessTableBody) -> tuple[DataVersion, dict[str, Account]]:
    """Return version and accounts. Raises RemoteProtocolError if the body is no valid table."""
    try:
        policies = _policies(body.acls)
        from_files = frozenset(body.file_users)
        accounts = {
            user.name: Account(user, policies.get(user.name), is_from_file=user.name in from_files)
            for user in map(AclUser.read, body.users)
        }
    except BadAccessText as error:
        raise RemoteProtocolError(f"access table: {error}") from None
    return body.data_version, accounts


def _policies(acls: Iterable[AclInfo]) -> Mapping[str, Policies]:
    return {read_subject(each.subject): read_policies(each.policies or ()) for each in acls}
