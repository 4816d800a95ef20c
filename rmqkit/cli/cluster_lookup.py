"""Which cluster a command talks to: `--namesrv`, else NAMESRV_ADDR, else the running cluster of this
machine: `default`, or the only one that runs."""

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
        help="Name servers of the cluster. Without it: NAMESRV_ADDR, else the cluster that runs here.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=topics)]

HOW_TO_START = "start one with `rmqkit cluster up`, or say where with --namesrv"


def find_namesrv(given: str | None) -> str:
    """Addresses joined by `;`. Raises UsageError for what is no address, Unreachable when there is no cluster."""
    said = _said(given)
    if said is not None:
        return said
    from rmqkit.cluster import Cluster, meant_cluster, running_clusters

    cluster = Cluster(meant_cluster())
    if cluster.exists and (there := cluster.running()):
        nameservers = [plan.node for plan in cluster.description.nodes() if not plan.is_broker]
        if not there.keys() & nameservers:
            raise Unreachable(
                f"{', '.join(nameservers)} of cluster {cluster.name} does not run, so its brokers cannot be found;"
                f" `rmqkit cluster start {cluster.name}`"
            )
        return cluster.namesrv
    if running := running_clusters():
        raise Unreachable(
            f"several clusters run, {', '.join(running)}: choose one with"
            f' `eval "$(rmqkit cluster env {running[0]})"`, or --namesrv'
        )
    raise Unreachable(f"no cluster is running here; {HOW_TO_START}")


def local_cluster(given: str | None) -> "Cluster | None":
    """The cluster of this machine that a command talks to, running or not; None when its name servers are elsewhere.

    Raises UsageError for what is no address, ClusterError for a description that is broken.
    """
    from rmqkit.cluster import Cluster, ClusterError, clusters, meant_cluster

    said = _said(given)
    if said is None:
        return Cluster(meant_cluster())
    for cluster in clusters():
        with contextlib.suppress(ClusterError):
            if set(said.split(";")) & set(cluster.namesrv.split(";")):
                return cluster
    return None


def _said(given: str | None) -> str | None:
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
