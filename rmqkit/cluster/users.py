"""The users of a secure cluster, and the files with their keys.

    <cluster>/access/           mode 0700, the files 0600
        operator.yml            a super user for the commands of `rmqkit` and for mqadmin
        inner.yml               the nodes' own user, with which they call each other
        app.yml                 a user for applications: may send to and consume every topic
        groups                  broker groups that have the user `app`, one per line

Files with keys have the form of RocketMQ's `tools.yml`. The nodes create the first two users
themselves (`initAuthenticationUser`, `innerClientAuthenticationCredentials`). The user `app` is
created through requests, once per broker group: if the operator deletes it later, it stays deleted.
"""

import json
import secrets
import time
from collections.abc import Iterable
from pathlib import Path

from rmqkit.client_keys import ClientKeys, keys_of_file
from rmqkit.cluster.errors import ClusterError
from rmqkit.cluster.health.caller import Caller, NoAnswer
from rmqkit.cluster.health.readiness import Target
from rmqkit.cluster.layout.description import Setting
from rmqkit.cluster.layout.home import ACCESS, write_whole
from rmqkit.wire.bodies.access import AclInfo, PolicyEntryInfo, PolicyInfo, UserInfo
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schemas.access import AclRequest, ListUsersRequest, UserRequest

OPERATOR, INNER, APP = "operator", "inner", "app"
GROUPS_FILE = "groups"
FOLDER_MODE = 0o700
#: bytes of randomness in a password
PASSWORD_BYTES = 24
#: stands for the settings of `prepare` while a description is checked, before keys exist
ASSUMED: dict[str, Setting] = {
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "innerClientAuthenticationCredentials": '{"accessKey":"inner","secretKey":"unknown"}',
}
#: what the user `app` may do
APP_RULES = (("Topic:*", ["Pub", "Sub"]), ("Group:*", ["Sub"]))
CREATE_TIMEOUT_S = 20.0


def keys_file(folder: Path, user: str = OPERATOR) -> str:
    """Return the path of a user's keys, "" if the cluster has no access control of its own."""
    path = folder / ACCESS / f"{user}.yml"
    return str(path) if path.is_file() else ""


def prepare(folder: Path) -> dict[str, Setting]:
    """Make the keys that are missing. Return the settings that all nodes get.

    Raises ClusterError if a file cannot be written, ConfigError if one is damaged.
    """
    own = folder / ACCESS
    try:
        own.mkdir(mode=FOLDER_MODE, exist_ok=True)
    except OSError as error:
        raise ClusterError(f"cannot create {own}: {error.strerror}") from None
    operator, inner = _keys(own, OPERATOR), _keys(own, INNER)
    return {
        "authenticationEnabled": True,
        "authorizationEnabled": True,
        "initAuthenticationUser": json.dumps({"username": operator.access_key, "password": operator.secret_key}),
        "innerClientAuthenticationCredentials": json.dumps({"accessKey": inner.access_key, "secretKey": inner.secret_key}),
    }


def add_application(folder: Path, targets: Iterable[Target]) -> None:
    """Create the user for applications at each master whose group never had it.

    Raises ClusterError if a master refuses.
    """
    own = folder / ACCESS
    done = _groups_done(own)
    masters = [each for each in targets if each.plan.is_broker and not each.plan.is_slave]
    new = [each for each in masters if each.plan.broker_name not in done]
    if not new:
        return
    keys = _keys(own, APP)
    for target in new:
        try:
            with target.call(time.monotonic() + CREATE_TIMEOUT_S) as master:
                _create(master, keys)
        except NoAnswer as error:
            raise ClusterError(f"cannot create the user {keys.access_key} at {target.plan.node}: {error}") from None
        done.append(target.plan.broker_name)
        write_whole(own / GROUPS_FILE, "\n".join(done))


def _create(master: Caller, keys: ClientKeys) -> None:
    name = keys.access_key
    known = master.ask(RequestCode.AUTH_LIST_USER, ListUsersRequest(filter=name)).body
    exists = f'"{name}"'.encode() in known
    code = RequestCode.AUTH_UPDATE_USER if exists else RequestCode.AUTH_CREATE_USER
    user = UserInfo(username=name, password=keys.secret_key, user_type="Normal", user_status="enable")
    master.ask(code, UserRequest(username=name), user.encode())
    entries = [PolicyEntryInfo(resource=resource, actions=actions, decision="Allow") for resource, actions in APP_RULES]
    subject = f"User:{name}"
    acl = AclInfo(subject=subject, policies=[PolicyInfo(policy_type="Custom", entries=entries)])
    master.ask(RequestCode.AUTH_CREATE_ACL, AclRequest(subject=subject), acl.encode())


def _keys(own: Path, user: str) -> ClientKeys:
    """Return the keys of a user; make them if there is no file."""
    path = own / f"{user}.yml"
    if not path.is_file():
        text = f"# keys of user {user}, in the form of RocketMQ's tools.yml\n"
        # Without quotes, YAML could read the secret as a number.
        text += f'accessKey: {user}\nsecretKey: "{secrets.token_hex(PASSWORD_BYTES)}"\n'
        write_whole(path, text, private=True)
    return keys_of_file(path)


def _groups_done(own: Path) -> list[str]:
    try:
        return (own / GROUPS_FILE).read_text(encoding="utf-8").split()
    except OSError:
        return []
