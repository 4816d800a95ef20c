"""`rmqkit user`: users of a cluster with access control.

A password comes from the terminal, where it is not shown, or from stdin: arguments of a command can
be read by other users of the machine. No command prints a password, except one that it has made
itself.
"""

from __future__ import annotations

import secrets
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from rmqkit.cli import output
from rmqkit.cli.access.masters import Broker, User, asked_of_each, change_each, masters_of, readers_of, user_at, where
from rmqkit.cli.admin_session import admin_of
from rmqkit.cli.cluster_lookup import Json, Namesrv
from rmqkit.cli.commands import group
from rmqkit.cli.errors import Failed, UsageError

if TYPE_CHECKING:
    from rmqkit.wire.bodies.access import UserInfo

app = group("user")

COLUMNS: output.Columns = {"user": "user", "type": "type", "status": "status", "at": "at"}
#: bytes of randomness in a generated password
PASSWORD_BYTES = 24

Generate = Annotated[bool, typer.Option("--generate", help="Make a random password and print it.")]


@app.command("add")
def add(
    name: User,
    super_user: Annotated[bool, typer.Option("--super", help="May do everything, without any rule.")] = False,
    generate: Generate = False,
    broker: Broker = None,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Add a user at every master.

    The password is asked for on the terminal, else it is the first line of stdin. A new user may do
    nothing until `rmqkit acl allow` gives it rights.
    """
    kind = "Super" if super_user else "Normal"
    with admin_of(namesrv) as admin:
        brokers = masters_of(admin, broker)
        password = _password(generate)
        fields = {"user": name, "type": kind, **({"password": password} if generate else {})}
        made = f"{'super user' if super_user else 'user'} {name}{f' with password {password}' if generate else ''}"
        change_each(
            brokers,
            lambda each: admin.create_user(name, password, user_type=kind, broker=each),
            fields,
            f"added {made}",
            as_json=json,
        )


@app.command("list")
def list_users(
    part: Annotated[str, typer.Argument(metavar="[TEXT]", help="Only users whose name contains it.")] = "",
    broker: Broker = None,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """List the users, and at which masters each one exists."""
    with admin_of(namesrv) as admin:
        found = asked_of_each(readers_of(admin, broker), lambda each: admin.users(each, part))
    rows = _rows(found)
    output.report(rows, COLUMNS, as_json=json, none=f"no user{f' has {part} in its name' if part else ''}")


@app.command("show")
def show(name: User, broker: Broker = None, namesrv: Namesrv = None, json: Json = False) -> None:
    """Show a user and its rules at each master."""
    from rmqkit.cli.access.rules import RULE_COLUMNS, rule_rows

    with admin_of(namesrv) as admin:
        brokers = readers_of(admin, broker)
        found = asked_of_each(brokers, lambda each: user_at(admin, each, name))
        there = {each: [info] for each, info in found.items() if info is not None}
        if not there:
            raise Failed(f"there is no user {name} at {', '.join(found)}")
        rules = asked_of_each(list(there), lambda each: {name: admin.rules(each, name)})
    rows, ruled = _rows(there, list(found)), rule_rows(rules)
    if json:
        output.document({"user": name, "users": rows, "rules": ruled})
        return
    output.report(rows, COLUMNS)
    none = "it may do everything" if rows[0]["type"] == "Super" else "it has no rules, so it may do nothing"
    output.report(ruled, RULE_COLUMNS, none=f"user {name}: {none}")


@app.command("password")
def password(
    name: User, generate: Generate = False, broker: Broker = None, namesrv: Namesrv = None, json: Json = False
) -> None:
    """Change a user's password at every master.

    Requests with the old one are refused from then on, also on open connections.
    """
    with admin_of(namesrv) as admin:
        brokers = masters_of(admin, broker)
        secret = _password(generate)
        fields = {"user": name, **({"password": secret} if generate else {})}
        text = f"changed the password of user {name}{f' to {secret}' if generate else ''}"
        change_each(brokers, lambda each: admin.update_user(name, password=secret, broker=each), fields, text, as_json=json)


@app.command("disable")
def disable(name: User, broker: Broker = None, namesrv: Namesrv = None, json: Json = False) -> None:
    """Refuse every request of a user, at every master; its rules stay."""
    _set_status(name, "disable", broker, namesrv, json)


@app.command("enable")
def enable(name: User, broker: Broker = None, namesrv: Namesrv = None, json: Json = False) -> None:
    """Serve a disabled user again, at every master."""
    _set_status(name, "enable", broker, namesrv, json)


@app.command("delete")
def delete(name: User, broker: Broker = None, namesrv: Namesrv = None, json: Json = False) -> None:
    """Delete a user and its rules at every master."""
    with admin_of(namesrv) as admin:
        brokers = masters_of(admin, broker)
        found = asked_of_each(brokers, lambda each: user_at(admin, each, name))
        there = [each for each, info in found.items() if info is not None]
        if not there:
            raise Failed(f"there is no user {name} at {', '.join(found)}")
        change_each(
            there, lambda each: admin.delete_user(name, broker=each), {"user": name}, f"deleted user {name}", as_json=json
        )


def _set_status(name: str, status: str, broker: str | None, namesrv: str | None, json: bool) -> None:
    with admin_of(namesrv) as admin:
        change_each(
            masters_of(admin, broker),
            lambda each: admin.update_user(name, user_status=status, broker=each),
            {"user": name, "status": status},
            f"{status}d user {name}",
            as_json=json,
        )


def _rows(found: dict[str, list[UserInfo]], asked: list[str] | None = None) -> list[dict[str, object]]:
    """Return a row for each user; several if the brokers that have it differ."""
    by_look: dict[tuple[str, str, str], list[str]] = {}
    for broker, users in found.items():
        for each in users:
            look = each.username or "", each.user_type or "Normal", each.user_status or "enable"
            by_look.setdefault(look, []).append(broker)
    every = asked or list(found)
    return [
        {"user": user, "type": kind, "status": status, "brokers": brokers, "at": where(brokers, every)}
        for (user, kind, status), brokers in sorted(by_look.items())
    ]


def _password(generate: bool) -> str:
    """Return a password: a new one, from the terminal, or from stdin. Raises UsageError."""
    if generate:
        return secrets.token_urlsafe(PASSWORD_BYTES)
    if sys.stdin.isatty():
        found = str(typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True))
    else:
        found = sys.stdin.readline().rstrip("\r\n")
    if not found.strip():
        raise UsageError("the password is empty: type it, pipe one line to stdin, or use --generate")
    return found
