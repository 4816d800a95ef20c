"""Shared by the commands for users and rules: they ask and change every master of the cluster.

Each broker group keeps its own users and rules, and a client meets all groups. So a command that
reached only some masters says which, and fails. A group without a master is read from its slave
with the smallest id, which has a copy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from rmqkit.cli import output
from rmqkit.cli.admin_session import ask_each, check_brokers, end_with
from rmqkit.cli.errors import Failed, UsageError

if TYPE_CHECKING:
    from rmqkit import Admin
    from rmqkit.wire.bodies.access import UserInfo

T = TypeVar("T")

Broker = Annotated[
    str | None, typer.Option("--broker", "-b", help="Only this broker, instead of every master of the cluster.")
]
User = Annotated[str, typer.Argument(metavar="USER", help="The user's name, the access key of clients.")]


def masters_of(admin: Admin, broker: str | None) -> list[str]:
    """Return the broker, or all masters, to change them. Raises Failed if a group has none."""
    brokers = readers_of(admin, broker)
    slaves = [each for each in brokers if broker is None and ":" in each]
    if slaves:
        names = ", ".join(each.partition(":")[0] for each in slaves)
        raise Failed(f"{names} has no master now, so users and rules cannot be changed there; nothing was changed")
    return brokers


def readers_of(admin: Admin, broker: str | None) -> list[str]:
    """Return the broker, or of each group the one with the smallest id: its master, if it is up."""
    if broker is not None:
        return [broker]
    check_brokers(admin)
    groups = admin.cluster_info().broker_addr_table
    first = {name: min(groups[name].broker_addrs) for name in sorted(groups) if groups[name].broker_addrs}
    return [f"{name}:{broker_id}" if broker_id else name for name, broker_id in first.items()]


def change_each(
    brokers: list[str], change: Callable[[str], object], fields: Mapping[str, Any], done: str, *, as_json: bool
) -> None:
    """Make a change at each broker, and print where. Raises an error if one of them failed."""
    answers, errors = ask_each(brokers, change)
    if answers:
        output.answer({**fields, "brokers": list(answers)}, f"{done} at {', '.join(answers)}", as_json=as_json)
    end_with(answers, errors, "not changed")


def asked_of_each(brokers: list[str], ask: Callable[[str], T]) -> dict[str, T]:
    """Return the answers by broker; a broker that fails is named on stderr.

    Raises an error if none answers.
    """
    answers, errors = ask_each(brokers, ask)
    if not answers:
        end_with(answers, errors, "no answer")
    for broker, error in errors.items():
        output.note(f"{broker}: no answer: {error}")
    return answers


def where(brokers: list[str], every: list[str]) -> str:
    """Return `all` if these are all brokers that answered, else their names."""
    return "all" if brokers == every else ", ".join(brokers)


def user_at(admin: Admin, broker: str, name: str) -> UserInfo | None:
    """Return a user of a broker, None if it does not exist."""
    return next((each for each in admin.users(broker, name) if each.username == name), None)


def word(known: type[Any], text: str, what: str) -> Any:
    """Return the member of an enum with this text in any case. Raises UsageError."""
    from rmqkit.access.model import BadAccessText, read_word

    try:
        return read_word(known, text, what)
    except BadAccessText as error:
        raise UsageError(str(error)) from None
