"""`rmqkit container`: lists, adds and removes brokers of a running process with several brokers.

Requests go to the container's own port (10811, RIP-31), as with Apache's container: codes 902 and
903. An rmqkit container lists its brokers in code 28 under `containerBrokers`; Apache's does not.
"""

from __future__ import annotations

import json as jsons
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqkit.cli import output
from rmqkit.cli.cluster_lookup import Json, use_settings_of
from rmqkit.cli.commands import group
from rmqkit.cli.errors import Failed, Unreachable, UsageError

if TYPE_CHECKING:
    from rmqkit.cluster.health.caller import NodeReply
    from rmqkit.runtime.connection import Address
    from rmqkit.wire.schema import Ext

DEFAULT_AT = "127.0.0.1:10811"
ASK_S = 10.0
COLUMNS: output.Columns = {
    "broker": lambda row: f"{row['name']}:{row['broker_id']}",
    "cluster": "cluster",
    "state": "state",
    "address": "address",
    "configuration": "config",
}

app = group("container")

At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="WHERE",
        help="The container: its port, HOST:PORT, or container-0 of the cluster that runs here. By default that"
        " cluster's only container, else 127.0.0.1:10811.",
    ),
]


@app.command(name="list")
def list_brokers(at: At = None, json: Json = False) -> None:
    """List the brokers of a container, with address and state."""
    address = _address(at)
    found = _brokers(address)
    if found is None:
        raise Failed(f"the container at {address} cannot list its brokers: it is not an rmqkit container")
    output.report({"address": str(address), "brokers": found}, COLUMNS, found, as_json=json)


@app.command()
def add(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", help="Settings file of the broker, as for `broker run -c`; the container reads it."),
    ],
    at: At = None,
    json: Json = False,
) -> None:
    """Start another broker in a container.

    The container reads only settings files below its own folder, and those it was started with.
    """
    from rmqkit.wire.codes import RequestCode
    from rmqkit.wire.schemas.admin import AddBrokerRequest

    address = _address(at)
    path = str(file.absolute())
    answer = _ask(address, RequestCode.ADD_BROKER, AddBrokerRequest(config_path=path))
    if answer.head.code:
        raise Failed(f"the container at {address} did not add {file}: {answer.head.remark or answer.head.code}")
    _done(json, address, "added", path, answer.head.remark)


@app.command()
def remove(
    broker: Annotated[str, typer.Argument(metavar="BROKER", help="Name and id of the broker: broker-a:0 or broker-a-0.")],
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="Cluster of the broker, if brokers of two clusters have this name.")
    ] = None,
    at: At = None,
    json: Json = False,
) -> None:
    """Stop one broker of a container cleanly.

    Its data stays, and the other brokers keep running.
    """
    from rmqkit.wire.codes import RequestCode, ResponseCode
    from rmqkit.wire.schemas.admin import RemoveBrokerRequest

    address = _address(at)
    name, broker_id, its_cluster = _named(broker, cluster, _brokers(address))
    request = RemoveBrokerRequest(broker_name=name, broker_cluster_name=its_cluster, broker_id=broker_id)
    answer = _ask(address, RequestCode.REMOVE_BROKER, request)
    if answer.head.code == ResponseCode.BROKER_NOT_EXIST:
        raise Failed(f"the container at {address} has no broker {name}:{broker_id} of cluster {its_cluster}")
    if answer.head.code:
        raise Failed(f"the container at {address} did not remove {broker}: {answer.head.remark or answer.head.code}")
    _done(json, address, "removed", f"{name}:{broker_id}", answer.head.remark)


def _done(json: bool, address: Address, verb: str, what: str, remark: str | None) -> None:
    value = {"address": str(address), "action": verb, "broker": what, "remark": remark or ""}
    output.answer(value, f"{verb}: {what}", as_json=json)
    if remark and not json:
        output.note(remark)


def _named(broker: str, cluster: str | None, known: list[dict[str, Any]] | None) -> tuple[str, int, str]:
    """Return (name, id, cluster) of the broker that the user named. Raises UsageError."""
    found = [
        each
        for each in known or ()
        if broker in (f"{each['name']}:{each['broker_id']}", f"{each['name']}-{each['broker_id']}")
        and cluster in (None, each["cluster"])
    ]
    if len(found) > 1:
        raise UsageError(
            f"{broker} is in clusters {', '.join(each['cluster'] for each in found)}; choose one with --cluster"
        )
    if found:
        return found[0]["name"], found[0]["broker_id"], found[0]["cluster"]
    name, colon, number = broker.rpartition(":")
    if not colon:
        name, colon, number = broker.rpartition("-")
    if not name or not number.isdigit():
        raise UsageError(f"{broker} is not the name of a broker; give name and id, such as broker-a:0")
    return name, int(number), cluster or "DefaultCluster"


def _brokers(address: Address) -> list[dict[str, Any]] | None:
    """Return the brokers that a container reports, None for an Apache container.

    Raises Unreachable if it does not answer, Failed if it answers with an error or is a broker.
    """
    from rmqkit.wire.bodies import KVTable
    from rmqkit.wire.codes import RequestCode, ResponseCode

    answer = _ask(address, RequestCode.GET_BROKER_RUNTIME_INFO)
    if answer.head.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return None
    if answer.head.code:
        raise Failed(f"the container at {address} says {answer.head.remark or answer.head.code}")
    facts = KVTable.decode(answer.body).table
    if "containerBrokers" not in facts:
        raise Failed(f"{address} is a broker, not a container; a container has its own port (--container-port)")
    return list(jsons.loads(facts["containerBrokers"]))


def _ask(address: Address, code: int, ext: Ext | None = None) -> NodeReply:
    """Send a request to a container. Raises Unreachable if it does not answer."""
    from rmqkit.cluster.health.caller import Caller, NoAnswer

    try:
        with Caller(address.host, address.port, time.monotonic() + ASK_S) as container:
            return container.call(code, ext)
    except NoAnswer as error:
        raise Unreachable(
            f"no container answers at {address}: {error}; `rmqkit cluster up --container` starts one"
        ) from None


def _address(at: str | None) -> Address:
    """Return the address of the container that `--at` names. Raises UsageError, NoSuchCluster."""
    from rmqkit.cluster import meant_cluster
    from rmqkit.runtime.connection import Address

    name = meant_cluster()
    ports = _ports_of(name)
    if at is None:
        if len(ports) > 1:
            raise UsageError(f"cluster {name} has several containers; choose one with --at: {', '.join(ports)}")
        return next(iter(ports.values()), Address.parse(DEFAULT_AT))
    if at in ports:
        return ports[at]
    if at.startswith("container-"):
        there = f"these run: {', '.join(ports)}" if ports else "none runs; see `rmqkit cluster up --layout`"
        raise UsageError(f"cluster {name} has no running {at}: {there}")
    try:
        return Address.parse(at if ":" in at else f"127.0.0.1:{at}")
    except ValueError as error:
        raise UsageError(f"--at: {error}") from None


def _ports_of(name: str) -> dict[str, Address]:
    """Return the addresses of the running containers of a cluster, by name."""
    from rmqkit.cluster import Cluster
    from rmqkit.cluster.layout import nodefile
    from rmqkit.runtime.connection import Address

    cluster = Cluster(name)
    if not cluster.exists:
        return {}
    use_settings_of(cluster)
    running = cluster.running()
    found = {}
    for plan in cluster.description.nodes():
        if plan.container and plan.node in running:
            port = nodefile.container_port(cluster.node_folder(plan.container))
            if port is not None:
                found[plan.container] = Address("127.0.0.1", port)
    return found
