"""`rmqkit controller`: runs a controller, shows broker sets and their masters, elects and cleans.

All commands but `run` work with any controller, rmqkit's or Apache's. They ask the one that
`--controller` names for the leader of its group, and the leader for the rest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqkit.cli import output
from rmqkit.cli.admin_session import admin_of
from rmqkit.cli.cluster_lookup import Json, Namesrv
from rmqkit.cli.commands import group
from rmqkit.cli.errors import Failed, Unreachable, UsageError
from rmqkit.cli.nodes.foreground import Configs, LogFile, LogFormat, Settings, become_node
from rmqkit.errors import BrokerError, ClientError, PeerUnreachable, RmqkitError

if TYPE_CHECKING:
    from rmqkit import Admin
    from rmqkit.wire.bodies import ReplicasInfo

DEFAULT_AT = "127.0.0.1:19876"
SET_COLUMNS: output.Columns = {
    "broker name": "broker_name",
    "master": "master_id",
    "address": "master_address",
    "epoch": "master_epoch",
    "in sync": lambda row: " ".join(map(str, row["in_sync"])),
    "others": lambda row: " ".join(map(str, row["others"])) or "-",
    "dead": lambda row: " ".join(map(str, row["dead"])) or "-",
}
MEMBER_COLUMNS: output.Columns = {
    "broker": "broker_id",
    "address": "address",
    "role": "role",
    "in sync": "in_sync",
    "alive": "alive",
}

app = group("controller")

At = Annotated[
    str | None,
    typer.Option(
        "--controller",
        "-a",
        metavar="HOST:PORT[;...]",
        help=f"A controller of the group, or several; by default those of the local cluster, else {DEFAULT_AT}.",
    ),
]
BrokerName = Annotated[str, typer.Argument(metavar="NAME", help="Broker name, such as broker-a.")]
ClusterName = Annotated[str, typer.Option("--cluster", help="Cluster of the brokers; Apache's controllers require it.")]


@app.command()
def run(
    config: Configs = None, settings: Settings = None, log_format: LogFormat = "text", log_file: LogFile = None
) -> None:
    """Run a controller until Ctrl-C. Without -c it is alone, at port 19876 of this machine."""
    become_node("controller", config, settings, log_format, log_file)


@app.command()
def status(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME]...", help="Broker names; by default those at the name server.")
    ] = None,
    at: At = None,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Show the controllers of a group, and the broker sets that they know."""
    with _admin(at, namesrv) as admin:
        controllers = _controllers(admin, _addresses(at))
        wanted = list(names) if names else _registered_names(admin)
        sets = _known(admin, at, wanted)
    rows = [_set_row(name, info) for name, info in sorted(sets.items())]
    if json:
        output.document({"controllers": controllers, "sets": rows})
        return
    output.report(controllers, {"controller": "id", "address": "address", "state": "state", "term": "term"})
    output.report(rows, SET_COLUMNS, none="no broker set is known here; name it: `rmqkit controller status broker-a`")


@app.command()
def members(name: BrokerName, at: At = None, json: Json = False) -> None:
    """Show the brokers of a set: address, role, whether they are alive and in sync."""
    with _admin(at, None) as admin:
        info = _known(admin, at, [name]).get(name)
    if info is None:
        raise Failed(f"the controllers do not know the broker set {name}")
    rows = list(_member_rows(info))
    value = {
        "broker_name": name,
        "master_epoch": info.master_epoch,
        "set_epoch": info.sync_state_set_epoch,
        "members": rows,
    }
    below = f"epoch of the master: {info.master_epoch}, of the set: {info.sync_state_set_epoch}"
    output.report(value, MEMBER_COLUMNS, rows, as_json=json, below=below)


@app.command()
def elect(
    name: BrokerName,
    broker_id: Annotated[int, typer.Argument(metavar="ID", min=1, help="Id of the broker, as `members` shows it.")],
    cluster: ClusterName = "DefaultCluster",
    at: At = None,
    json: Json = False,
) -> None:
    """Make a broker the master of its set. It must be alive and in sync."""
    with _admin(at, None) as admin, _explained():
        before = _known(admin, at, [name]).get(name)
        answer = admin.elect_master(_addresses(at), name, broker_id, cluster=cluster)
    was_master = before is not None and before.master_broker_id == broker_id
    value = {
        "broker_name": name,
        "master_id": broker_id,
        "master_address": answer.master_address,
        "master_epoch": answer.master_epoch,
        "changed": not was_master,
    }
    verb = "is master already" if was_master else "is master now"
    output.answer(
        value, f"{name}: broker {broker_id} at {answer.master_address} {verb}, epoch {answer.master_epoch}", as_json=json
    )


@app.command()
def clean(
    name: BrokerName,
    ids: Annotated[list[int] | None, typer.Option("--id", help="Remove only this broker; may be repeated.")] = None,
    living: Annotated[bool, typer.Option("--living", help="Also remove brokers that are alive.")] = False,
    cluster: ClusterName = "DefaultCluster",
    at: At = None,
    json: Json = False,
) -> None:
    """Remove dead brokers from a set for good, or the whole set."""
    with _admin(at, None) as admin, _explained():
        info = _known(admin, at, [name]).get(name)
        if info is None:
            raise Failed(f"the controllers do not know the broker set {name}")
        known = [each.broker_id for each in (*info.in_sync_replicas, *info.not_in_sync_replicas)]
        unknown = [each for each in ids or () if each not in known]
        if unknown:
            raise UsageError(f"{name} has no broker {unknown[0]}; there are: {', '.join(map(str, known))}")
        admin.clean_brokers(_addresses(at), name, ids or (), cluster=cluster, living=living)
    what = f"{name}: {', '.join(map(str, ids))}" if ids else name
    output.answer({"broker_name": name, "broker_ids": ids or None}, f"removed: {what}", as_json=json)


# --- what the commands share


def _addresses(at: str | None) -> list[str]:
    """Return the controllers of `--controller`, else of the local cluster. Raises UsageError."""
    from rmqkit.runtime.connection import Address

    at = at or _local_controllers() or DEFAULT_AT
    texts = [text.strip() for text in at.replace(",", ";").split(";") if text.strip()]
    try:
        return [str(Address.parse(text if ":" in text else f"127.0.0.1:{text}")) for text in texts]
    except ValueError as error:
        raise UsageError(f"--controller: {error}") from None


def _local_controllers() -> str:
    """Return the controllers of the local cluster, joined by `;`; "" if it has none."""
    from rmqkit.cli.cluster_lookup import local_cluster

    with contextlib.suppress(RmqkitError):
        cluster = local_cluster(None)
        return ";".join(cluster.controllers) if cluster is not None else ""
    return ""


@contextlib.contextmanager
def _admin(at: str | None, namesrv: str | None) -> Iterator[Admin]:
    """Open an Admin; without a cluster here its name server is not used.

    Raises Unreachable if no controller answers.
    """
    from rmqkit.cli.cluster_lookup import find_namesrv

    _addresses(at)
    try:
        found: str | None = find_namesrv(namesrv)
    except RmqkitError:
        if namesrv is not None:
            raise
        found = None
    with admin_of(found or "127.0.0.1:9876") as admin:
        try:
            yield admin
        except PeerUnreachable as error:
            advice = "name one with --controller, or start a cluster that has some: `rmqkit cluster up --preset controller`"
            if at is None and _local_controllers():
                advice = "start those of the cluster here: `rmqkit cluster start`"
            raise Unreachable(f"no controller answers: {error}; {advice}") from None


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Replace the answer of a controller that refuses by its text. Raises Failed."""
    try:
        yield
    except BrokerError as error:
        raise Failed(f"the controller at {error.address} refused: {error.remark or error}") from None


def _known(admin: Admin, at: str | None, names: Sequence[str]) -> Mapping[str, ReplicasInfo]:
    return admin.broker_sets(_addresses(at), names) if names else {}


def _registered_names(admin: Admin) -> list[str]:
    """Return the broker names at the name server, [] without one."""
    try:
        return sorted(admin.cluster_info().broker_addr_table)
    except ClientError:
        return []


def _controllers(admin: Admin, addresses: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each controller of the group: the peers of the first one that answers.

    Raises the error of the last one if none answers.
    """
    last: ClientError | None = None
    for each in addresses:
        try:
            found = admin.controller_metadata(each)
        except ClientError as error:
            last = error
            continue
        peers = dict(_peers(found.peers or "")) or {found.controller_leader_id or "": each}
        return [{"id": peer_id, "address": address, **_state(admin, address)} for peer_id, address in peers.items()]
    assert last is not None
    raise last


def _peers(text: str) -> Iterator[tuple[str, str]]:
    """Yield id and address of `n0:host:port;...`; jRaft's entries have no id."""
    for part in filter(None, text.split(";")):
        first, _, rest = part.partition(":")
        yield (first, rest) if ":" in rest else (part, part)


def _state(admin: Admin, address: str) -> dict[str, Any]:
    """Return state and term of a controller; the term is None at Apache's."""
    try:
        found = admin.controller_metadata(address)
    except ClientError:
        return {"state": "silent", "term": None}
    state = "follower" if found.controller_leader_address else "without a leader"
    if found.is_leader:
        state = "leader"
    return {"state": f"{state}: {found.problem}" if found.problem else state, "term": found.term}


def _set_row(name: str, info: ReplicasInfo) -> dict[str, Any]:
    everyone = [*info.in_sync_replicas, *info.not_in_sync_replicas]
    return {
        "broker_name": name,
        "master_id": info.master_broker_id,
        "master_address": info.master_address,
        "master_epoch": info.master_epoch,
        "set_epoch": info.sync_state_set_epoch,
        "in_sync": [each.broker_id for each in info.in_sync_replicas],
        "others": [each.broker_id for each in info.not_in_sync_replicas],
        "dead": [each.broker_id for each in everyone if not each.alive],
    }


def _member_rows(info: ReplicasInfo) -> Iterator[dict[str, Any]]:
    sides = [(each, True) for each in info.in_sync_replicas] + [(each, False) for each in info.not_in_sync_replicas]
    for each, in_sync in sorted(sides, key=lambda side: side[0].broker_id or 0):
        yield {
            "broker_id": each.broker_id,
            "address": each.broker_address,
            "role": "master" if each.broker_id == info.master_broker_id else "slave",
            "in_sync": in_sync,
            "alive": bool(each.alive),
        }
