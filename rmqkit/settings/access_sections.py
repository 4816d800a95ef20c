"""Section of both kinds of node for access control, and for the node's own credentials.

The keys are those of Apache's `AuthConfig`. If only authorization is on, Apache trusts user names
without verifying them; rmqkit refuses this combination. Whitelists are lists of request codes;
rmqkit refuses any other text in them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rmqkit.errors import ConfigError
from rmqkit.settings.declaration import key, parts
from rmqkit.settings.table import Type, Value

PLAIN_ACL_FILE = "rocketmq.acl.plain.file"
_CODES = r"(?:[0-9]+(?:\s*,\s*[0-9]+)*)?"


class NameAndSecret(NamedTuple):
    """A user's name and password. Its text does not show the password."""

    name: str
    secret: str

    def __repr__(self) -> str:
        return f"NameAndSecret({self.name!r})"


def _user(value: Value) -> NameAndSecret | None:
    return _pair(value, "username", "password")


def _credentials(value: Value) -> NameAndSecret | None:
    return _pair(value, "accessKey", "secretKey")


def _pair(value: Value, name: str, secret: str) -> NameAndSecret | None:
    """Return the two texts of a JSON object, None for an empty text. Raises ValueError."""
    if not str(value).strip():
        return None
    found = json.loads(str(value))
    if not isinstance(found, dict) or not all(isinstance(found.get(each), str) and found[each] for each in (name, secret)):
        raise ValueError
    return NameAndSecret(found[name], found[secret])


def _numbers(value: Value) -> frozenset[int]:
    return frozenset(map(int, parts(value)))


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Authentication, authorization, and what is refused without them."""

    authentication: bool = key(
        "authenticationEnabled",
        False,
        "every request must be signed by a known user; needs innerClientAuthenticationCredentials",
    )
    authorization: bool = key(
        "authorizationEnabled", False, "users may do only what their rules allow; needs authenticationEnabled"
    )
    init_user: NameAndSecret | None = key(
        "initAuthenticationUser",
        None,
        'super user to create at the start unless it exists, `{"username":"…","password":"…"}`',
        convert=_user,
        unset=None,
        secret=True,
    )
    inner: NameAndSecret | None = key(
        "innerClientAuthenticationCredentials",
        None,
        "credentials with which the nodes of a cluster sign their requests, the same on all of them,"
        ' `{"accessKey":"…","secretKey":"…"}`',
        convert=_credentials,
        unset=None,
        secret=True,
    )
    unsigned_codes: frozenset[int] = key(
        "authenticationWhitelist",
        None,
        "request codes that need no signature, `a,b`",
        convert=_numbers,
        unset=frozenset(),
        pattern=_CODES,
        allowed="request codes separated by commas",
    )
    free_codes: frozenset[int] = key(
        "authorizationWhitelist",
        None,
        "request codes that every user may send, `a,b`",
        convert=_numbers,
        unset=frozenset(),
        pattern=_CODES,
        allowed="request codes separated by commas",
    )
    plain_acl: bool = key(
        "aclEnable",
        False,
        "access control 1.0: authentication and authorization with the users of plain_acl.yml, which a master reads again"
        " when it changes, and those of access control 2.0; needs innerClientAuthenticationCredentials",
        only="broker",
    )
    plain_acl_migration: bool = key(
        "migrateAuthFromV1Enabled",
        False,
        "at its start a master creates the users of plain_acl.yml that are missing, with their rules",
        only="broker",
    )
    plain_acl_path: str = key(
        PLAIN_ACL_FILE,
        None,
        "file with the users of aclEnable; the YAML files in the folder `acl` beside it belong to it. Unset:"
        " `${ROCKETMQ_HOME}/conf/plain_acl.yml`",
        type=Type.PATH,
        unset="",
        only="broker",
    )
    failures_max: int = key(
        "authFailuresMax",
        100,
        "requests without a right signature that one address may send in a minute; each further one costs its connection",
        low=1,
    )
    replica_addresses: tuple[str, ...] = key(
        "haSlaveAddresses",
        "",
        "addresses and CIDR ranges of Apache's slaves, `a,b`; with authenticationEnabled, other HA connections must be"
        " claimed by a signed request, as rmqkit's slaves do",
        convert=parts,
        only="broker",
    )
    metrics_addresses: tuple[str, ...] = key(
        "metricsSourceAddresses",
        "127.0.0.0/8,::1",
        "addresses and CIDR ranges that may read the metrics while authenticationEnabled is true, `a,b`",
        convert=parts,
    )

    @property
    def is_on(self) -> bool:
        """Whether requests are checked."""
        return self.authentication or self.plain_acl

    @property
    def has_rules(self) -> bool:
        """Whether users may do only what their rules allow."""
        return self.authorization or self.plain_acl


def check_access(written: Mapping[str, tuple[Value, str]]) -> None:
    """Check the keys of access control that are set, each with its value and its place.

    Raises ConfigError, which shows no secret.
    """
    for name, convert in (("initAuthenticationUser", _user), ("innerClientAuthenticationCredentials", _credentials)):
        value, place = written.get(name, ("", ""))
        try:
            convert(value)
        except (ValueError, RecursionError):
            fields = '{"username":"…","password":"…"}' if convert is _user else '{"accessKey":"…","secretKey":"…"}'
            raise ConfigError(f"config: {name}{place}: must be {fields}, with both texts not empty") from None
    names = ("authenticationEnabled", "authorizationEnabled", "aclEnable")
    is_on = {name for name in names if written.get(name, (False, ""))[0] is True}
    if is_on == {"authorizationEnabled"}:
        raise ConfigError(
            "config: authorizationEnabled = true without authenticationEnabled is refused: anyone could claim to be any"
            " user"
        )
    if is_on and not written.get("innerClientAuthenticationCredentials", ("", ""))[0]:
        raise ConfigError(
            f"config: {min(is_on)} = true is refused: set innerClientAuthenticationCredentials, without which brokers can"
            " neither register nor follow their masters"
        )
    for name in ("haSlaveAddresses", "metricsSourceAddresses"):
        value, place = written.get(name, ("", ""))
        for each in parts(value):
            _check_address(name, each, place)


def _check_address(name: str, text: str, place: str) -> None:
    from ipaddress import ip_network  # only nodes with such a key need it

    try:
        ip_network(text, strict=False)
    except ValueError:
        raise ConfigError(f"config: {name} = {text}{place}: is no address and no CIDR range") from None
