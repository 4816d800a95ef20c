"""The arguments of `rmqkit pipeline`, and the checks that need no Spark."""

from collections.abc import Sequence
from typing import Annotated

import typer

from rmqkit.cli.admin_session import admin_of, check_brokers, known_topic
from rmqkit.cli.cluster_lookup import find_namesrv
from rmqkit.cli.errors import UsageError
from rmqkit.cli.times import time_of

Since = Annotated[str | None, typer.Option("--since", metavar="TIME", help="Only messages stored at this time or later.")]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Only messages stored before this time.")]
Master = Annotated[
    str | None,
    typer.Option(
        "--master",
        metavar="URL",
        help="The Spark cluster: spark://HOST:PORT, yarn, k8s://…, or local[2] for two threads here. By default local[*].",
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting, such as spark.executor.memory=2g; may be repeated."),
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="An option of the data source (docs/spark.md); may be repeated."),
]
StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        metavar="KEY=VALUE",
        help="An option of the object store, such as AWS_ENDPOINT_URL=http://…; may be repeated.",
    ),
]
ProgressJson = Annotated[
    bool, typer.Option("--json", help="Print JSON: one line for each step of progress, and a last line with the result.")
]


def pairs(given: Sequence[str] | None, flag: str) -> dict[str, str]:
    """Return the `KEY=VALUE` words of an option as a dict. Raises UsageError."""
    found = {}
    for word in given or ():
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{flag} {word}: must be KEY=VALUE")
        found[key.strip()] = value
    return found


def check_installed() -> None:
    """Raise SparkMissing unless the extra `spark` is installed."""
    from rmqkit.spark.sessions import check_installed as check

    check()


def known(topics: list[str], namesrv: str | None, *, to_send: bool = False) -> str:
    """Return the name servers, after a check that each topic exists.

    Raises Unreachable if no broker is registered, Failed for an unknown topic. The error suggests
    the closest topic and, with `to_send`, the command that creates the topic.
    """
    check_installed()
    with admin_of(namesrv) as admin:
        check_brokers(admin)
        for topic in topics:
            with known_topic(admin, topic, f"; create it with rmqkit topic create {topic}" if to_send else ""):
                admin.topic_stats(topic)
    return find_namesrv(namesrv)


def package_settings(packages: str | None) -> dict[str, str]:
    """Return the Spark settings of `--packages`."""
    from rmqkit.spark.pipelines import formats

    return formats.conf(packages)


def bounds(since: str | None, until: str | None) -> tuple[int | None, int | None]:
    """Return the Unix milliseconds of `--since` and `--until`. Raises UsageError."""
    begin = None if since is None else time_of("--since", since)
    end = None if until is None else time_of("--until", until)
    if begin is not None and end is not None and begin >= end:
        raise UsageError(f"--since {since} is not before --until {until}")
    return begin, end
