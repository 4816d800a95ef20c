"""Finds the cluster that a command talks to.

`--namesrv` comes first, then NAMESRV_ADDR, then the running cluster of this machine: `default`, or
the only one that runs.

Keys come from the environment, else from the settings of a cluster of this machine, else from
mqadmin's `$ROCKETMQ_HOME/conf/tools.yml`.
"""

import contextlib
import os
from typing import TYPE_CHECKING, Annotated

import typer

from rmqkit.cli.complete import topics
from rmqkit.cli.errors import Unreachable, UsageError

if TYPE_CHECKING:
    from rmqkit.cluster import Cluster

Namesrv = Annotated[
    str | None,
    typer.Option(
        "--namesrv",
        "-n",
        metavar="HOST:PORT[;...]",
        help="Name servers of the cluster. By default NAMESRV_ADDR, else the cluster that runs here.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=topics)]

HOW_TO_START = "start one with `rmqkit cluster up`, or name its name servers with --namesrv"


def find_namesrv(given: str | None) -> str:
    """Return the addresses of the name servers, joined by `;`.

    Raises UsageError for an invalid address, Unreachable if no cluster is found.
    """
    addresses = _given_addresses(given)
    if addresses is not None:
        if (found := local_cluster(given)) is not None:
            use_settings_of(found)
        use_tools_file()
        return addresses
    from rmqkit.cluster import Cluster, meant_cluster, running_clusters

    cluster = Cluster(meant_cluster())
    if cluster.exists and (running_nodes := cluster.running()):
        nameservers = [plan.node for plan in cluster.description.nodes() if plan.is_nameserver]
        if not running_nodes.keys() & nameservers:
            raise Unreachable(
                f"no name server of cluster {cluster.name} runs ({', '.join(nameservers)}), so its brokers cannot be"
                f" found; start it with `rmqkit cluster start {cluster.name}`"
            )
        use_settings_of(cluster)
        use_tools_file()
        return cluster.namesrv
    if running := running_clusters():
        raise Unreachable(
            f"several clusters run, {', '.join(running)}: choose one with"
            f' `eval "$(rmqkit cluster env {running[0]})"`, or --namesrv'
        )
    raise Unreachable(f"no cluster is running here; {HOW_TO_START}")


def use_settings_of(cluster: "Cluster") -> None:
    """Let all clients of this process, and of those that it starts, connect as the cluster demands:
    with its TLS, and with the keys of its operator.

    What the user has set in the environment stays.
    """
    from rmqkit import client_keys

    has_keys = any(os.environ.get(name) for name in client_keys.VARIABLES)
    for name, value in cluster.client_variables().items():
        is_set = has_keys if name == client_keys.ACCESS_FILE_VARIABLE else bool(os.environ.get(name))
        if not is_set:
            os.environ[name] = value


def use_tools_file() -> None:
    """Let clients use the keys of mqadmin's tools.yml, if nothing else has set keys."""
    from rmqkit import client_keys

    has_keys = any(os.environ.get(name) for name in client_keys.VARIABLES)
    if not has_keys and (path := client_keys.tools_file(os.environ)):
        os.environ[client_keys.ACCESS_FILE_VARIABLE] = path


def local_cluster(given: str | None) -> "Cluster | None":
    """Return the cluster of this machine that a command talks to, whether it runs or not.

    Return None if the name servers belong to no cluster of this machine. Raises UsageError for an
    invalid address, ClusterError for an unreadable description.
    """
    from rmqkit.cluster import Cluster, ClusterError, clusters, meant_cluster

    addresses = _given_addresses(given)
    if addresses is None:
        return Cluster(meant_cluster())
    for cluster in clusters():
        with contextlib.suppress(ClusterError):
            if set(addresses.split(";")) & set(cluster.namesrv.split(";")):
                return cluster
    return None


def _given_addresses(given: str | None) -> str | None:
    for source, text in (("--namesrv", given), ("NAMESRV_ADDR", os.environ.get("NAMESRV_ADDR"))):
        if text and text.strip():
            return _checked(text, source)
    return None


def _checked(text: str, source: str) -> str:
    from rmqkit.runtime.connection import Address

    parts = [part.strip() for part in text.replace(",", ";").split(";") if part.strip()]
    try:
        return ";".join(str(Address.parse(part)) for part in parts)
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from None
