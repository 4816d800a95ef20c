"""What the commands of `rmqkit pipeline` are given, and what of it can be looked at before Spark starts."""

from collections.abc import Sequence
from typing import Annotated

import typer

from rmqkit.cli.admin_session import admin_of, check_brokers, known_topic
from rmqkit.cli.cluster_lookup import find_namesrv
from rmqkit.cli.errors import UsageError
from rmqkit.cli.times import time_of

Since = Annotated[str | None, typer.Option("--since", metavar="TIME", help="Only what was stored then or later.")]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only what was stored before.")]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="The Spark cluster: spark://HOST:PORT, yarn, k8s://…, or local[2] for two threads here. All threads else.",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark (spark.executor.memory=2g)."),
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="An option of the data source: see docs/spark.md."),
]
ProgressJson = Annotated[
    bool, typer.Option("--json", help="Print JSON: an object a line as Spark goes on, the last one says what was done.")
]


def pairs(given: Sequence[str] | None, flag: str) -> dict[str, str]:
    """`KEY=VALUE` words. Raises UsageError."""
    found = {}
    for word in given or ():
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{flag} {word}: must be KEY=VALUE")
        found[key.strip()] = value
    return found


def known(topics: list[str], namesrv: str | None, *, to_send: bool = False) -> str:
    """The name servers, where each topic is known. Raises Unreachable, Failed with the nearest topic; of one that is to
    be sent to it says how it is made."""
    from rmqkit.spark.sessions import check_installed

    check_installed()
    with admin_of(namesrv) as admin:
        check_brokers(admin)
        for topic in topics:
            with known_topic(admin, topic, f"; to make it: rmqkit topic create {topic}" if to_send else ""):
                admin.topic_stats(topic)
    return find_namesrv(namesrv)


def package_settings(packages: str | None) -> dict[str, str]:
    from rmqkit.spark.pipelines import formats

    return formats.conf(packages)


def bounds(since: str | None, until: str | None) -> tuple[int | None, int | None]:
    begin = None if since is None else time_of("--since", since)
    end = None if until is None else time_of("--until", until)
    if begin is not None and end is not None and begin >= end:
        raise UsageError(f"--since {since} is not before --until {until}")
    return begin, end
