"""`rmqkit transaction ...`: transactions without an outcome, and why; decides them by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rmqkit.cli import output
from rmqkit.cli.admin_session import admin_of
from rmqkit.cli.cluster_lookup import Json, Namesrv
from rmqkit.cli.commands import group
from rmqkit.cli.errors import Failed, UsageError
from rmqkit.errors import BrokerError

if TYPE_CHECKING:
    from rmqkit import Admin
    from rmqkit.client.admin.transactions import PreparedTransaction

app = group("transaction")

Id = Annotated[str, typer.Argument(metavar="ID", help="The unique id or the offset id, from `rmqkit transaction list`.")]
GivenUp = Annotated[bool, typer.Option("--given-up", help="Those that brokers gave up after too many checks.")]
COLUMNS = {
    "id": "id",
    "broker": "broker",
    "topic": "topic",
    "group": "group",
    "since": "since:time",
    "checks": "checks",
    "why": "why",
}


@app.command("list")
def list_all(
    given_up: GivenUp = False,
    most: Annotated[int, typer.Option("--max", min=1, max=100_000, help="Print at most this many.")] = 100,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """List half messages without an outcome: since when, how often checked, and why.

    An outcome shows up to 3 s after the producer decided (`transactionOpBatchInterval`).
    """
    with admin_of(namesrv) as admin:
        found = admin.prepared_transactions(given_up=given_up, count_max=most)
    none = "no transaction was given up" if given_up else "no transaction is prepared"
    output.report([_fields(each) for each in found], COLUMNS, as_json=json, none=none)


@app.command()
def show(transaction_id: Id, namesrv: Namesrv = None, json: Json = False) -> None:
    """Show one half message without an outcome, with its properties and body."""
    with admin_of(namesrv) as admin:
        found = _find(admin, transaction_id)
    if json:
        from rmqkit.cli.data.message_output import fields_of

        output.document({**_fields(found), "message": fields_of(found.message)})
        return
    from rmqkit.cli.data.messages import print_message

    for name in ("topic", "group", "checks", "producers", "why"):
        print(f"{name:9} {_fields(found)[name]}")
    print()
    print_message(found.message)


@app.command()
def resolve(
    transaction_id: Id,
    commit: Annotated[bool, typer.Option("--commit", help="Deliver the message.")] = False,
    rollback: Annotated[bool, typer.Option("--rollback", help="Drop the message.")] = False,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Commit or roll back a transaction in place of its producer.

    Look into the producer's database first: the broker cannot tell which one is right.
    """
    if commit == rollback:
        raise UsageError("give one of --commit and --rollback")
    with admin_of(namesrv) as admin:
        found = _find(admin, transaction_id)
        try:
            admin.end_transaction(found, commit=commit)
        except BrokerError as error:
            raise Failed(f"{transaction_id} was not resolved: {error}") from None
    outcome = "committed" if commit else "rolled back"
    output.answer(
        {**_fields(found), "outcome": outcome}, f"{transaction_id} of topic {found.topic}: {outcome}", as_json=json
    )


@app.command()
def resume(transaction_id: Id, namesrv: Namesrv = None, json: Json = False) -> None:
    """Let the broker ask again about a transaction that it gave up."""
    with admin_of(namesrv) as admin:
        found = _find(admin, transaction_id, given_up=True)
        admin.resume_transaction(found)
    text = f"{transaction_id} of topic {found.topic}: prepared again, and checked in the next round"
    output.answer(_fields(found), text, as_json=json)


def _find(admin: Admin, transaction_id: str, *, given_up: bool = False) -> PreparedTransaction:
    """Return the newest half with this id. Raises Failed."""
    for each in reversed(admin.prepared_transactions(given_up=given_up, count_max=100_000)):
        if transaction_id.upper() in (each.message.msg_id, each.message.offset_msg_id):
            return each
    which = "was given up" if given_up else "is prepared"
    raise Failed(f"no transaction {transaction_id} {which}; `rmqkit transaction list` shows all")


def _fields(each: PreparedTransaction) -> dict[str, object]:
    return {
        "id": each.message.msg_id,
        "offset_id": each.message.offset_msg_id,
        "broker": each.message.broker_name,
        "topic": each.topic,
        "group": each.group,
        "since": each.message.born_timestamp_ms,
        "checks": each.checks,
        "producers": each.producers,
        "given_up": each.is_given_up,
        "why": each.why,
    }
