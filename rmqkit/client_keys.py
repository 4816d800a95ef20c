"""Finds the keys with which a client signs its requests.

1. The arguments `access_key`, `secret_key` and `security_token` of a client.
2. RMQKIT_ACCESS_KEY, RMQKIT_SECRET_KEY and RMQKIT_SECURITY_TOKEN in the environment.
3. The file that RMQKIT_ACCESS_FILE names. It has the form of RocketMQ's `conf/tools.yml`, which
   mqadmin reads:

       accessKey: orders
       secretKey: "8f3b41"

Without any of them requests are not signed. No text of an error contains a secret.

Source: `client/.../acl/common/AclUtils.java` (`getAclRPCHook`),
`tools/.../command/MQAdminStartup.java`.
"""

import os
from collections.abc import Mapping
from typing import NamedTuple

from rmqkit.errors import ConfigError

ACCESS_KEY_VARIABLE = "RMQKIT_ACCESS_KEY"
SECRET_KEY_VARIABLE = "RMQKIT_SECRET_KEY"
SECURITY_TOKEN_VARIABLE = "RMQKIT_SECURITY_TOKEN"
ACCESS_FILE_VARIABLE = "RMQKIT_ACCESS_FILE"
#: any of them means that the user has chosen keys
VARIABLES = (ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE, ACCESS_FILE_VARIABLE)


class ClientKeys(NamedTuple):
    """The keys of one user, the arguments of `Credentials`. Its text shows no secret."""

    access_key: str
    secret_key: str
    security_token: str = ""

    def __repr__(self) -> str:
        return f"ClientKeys({self.access_key!r})"


def choose_keys(
    access_key: str | None = None, secret_key: str | None = None, security_token: str | None = None
) -> ClientKeys | None:
    """Return the keys that a client uses, None to send its requests unsigned.

    Raises ConfigError if one of the two keys is missing, or if a file cannot be used.
    """
    if access_key is not None or secret_key is not None or security_token is not None:
        return _checked("access_key", access_key, "secret_key", secret_key, security_token)
    environ = os.environ
    names = ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE, SECURITY_TOKEN_VARIABLE
    access_key, secret_key, security_token = (environ.get(name, "").strip() for name in names)
    if access_key or secret_key:
        return _checked(ACCESS_KEY_VARIABLE, access_key, SECRET_KEY_VARIABLE, secret_key, security_token)
    path = environ.get(ACCESS_FILE_VARIABLE, "").strip()
    return keys_of_file(path) if path else None


def keys_of_file(path: str | os.PathLike[str]) -> ClientKeys:
    """Return the keys of a file like `tools.yml`. Raises ConfigError if it has none."""
    try:
        with open(path, encoding="utf-8") as file:
            found = _pairs(file.read())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"keys: cannot read {os.fspath(path)}: {reason}") from None
    access_key, secret_key = found.get("accessKey", ""), found.get("secretKey", "")
    if not access_key or not secret_key:
        raise ConfigError(f"keys: {os.fspath(path)} needs a line `accessKey: NAME` and a line `secretKey: SECRET`")
    return ClientKeys(access_key, secret_key, found.get("securityToken", ""))


def tools_file(environ: Mapping[str, str]) -> str:
    """Return the path of mqadmin's `tools.yml` if it has keys, else "".

    Like mqadmin, ignore a missing file and one without keys.
    """
    home = environ.get("ROCKETMQ_HOME", "").strip()
    path = os.path.join(home, "conf", "tools.yml")
    if not home or not os.path.isfile(path):
        return ""
    try:
        keys_of_file(path)
    except ConfigError:
        return ""
    return path


def _checked(
    key_name: str, access_key: str | None, secret_name: str, secret_key: str | None, token: str | None
) -> ClientKeys:
    if not access_key or not secret_key:
        lacking, given = (secret_name, key_name) if access_key else (key_name, secret_name)
        raise ConfigError(f"keys: {lacking} is missing: a client that has {given} needs both")
    return ClientKeys(access_key, secret_key, token or "")


def _pairs(text: str) -> dict[str, str]:
    """Return the `name: value` lines of a flat YAML file."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon and not line.lstrip().startswith("#"):
            found[name.strip()] = _scalar(value.strip())
    return found


def _scalar(value: str) -> str:
    """Return a YAML scalar without its quotes, or without the comment after it."""
    if value[:1] in ("'", '"'):
        return value[1:].partition(value[0])[0]
    return value.partition(" #")[0].rstrip()
