"""The arguments of `rmqkit pipeline`, and the checks that need no Spark.

Spark's JVM takes seconds to start. So a command checks before that what can be checked without it:
times, options, folders, packages, topics.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer

from rmqkit.cli.admin_session import admin_of, check_brokers, known_topic
from rmqkit.cli.cluster_lookup import find_namesrv
from rmqkit.cli.errors import Failed, UsageError
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

#: Spark's intervals for triggers: 10 seconds, 1 minute 30 seconds
_UNITS = "(microsecond|millisecond|second|minute|hour|day|week)s?"
TRIGGER = re.compile(rf"(interval\s+)?\d+(\.\d+)?\s+{_UNITS}(\s+\d+(\.\d+)?\s+{_UNITS})*", re.IGNORECASE)
#: Variables with which another program has chosen Spark's settings: Hadoop's, and spark-submit's.
ELSEWHERE = frozenset({"HADOOP_CONF_DIR", "YARN_CONF_DIR", "PYSPARK_GATEWAY_PORT"})
#: Settings that may make Spark find a path without a scheme elsewhere than on this machine.
MOVING = ("spark.hadoop.fs.defaultFS=", "spark.master=")


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


def known(topics: list[str], namesrv: str | None, *, to_send: bool = False, more_advice: str = "") -> str:
    """Return the name servers, after a check that each topic exists.

    Raises Unreachable if no broker is registered, Failed for an unknown topic. The error suggests
    the closest topic and, with `to_send`, the command that creates the topic and `more_advice`.
    """
    check_installed()
    with admin_of(namesrv) as admin:
        check_brokers(admin)
        for topic in topics:
            advice = f"; create it with rmqkit topic create {topic}{more_advice}" if to_send else ""
            with known_topic(admin, topic, advice):
                admin.topic_stats(topic)
    return find_namesrv(namesrv)


def bounds(since: str | None, until: str | None) -> tuple[int | None, int | None]:
    """Return the Unix milliseconds of `--since` and `--until`. Raises UsageError."""
    begin = None if since is None else time_of("--since", since)
    end = None if until is None else time_of("--until", until)
    if begin is not None and end is not None and begin >= end:
        raise UsageError(f"--since {since} is not before --until {until}")
    return begin, end


def check_options(where: str, given: Mapping[str, str], **fixed: str) -> None:
    """Raise ConfigError for options that the data source refuses. `where` is one of its PLACES.

    `fixed` are the options that the command itself sets.
    """
    from rmqkit.spark.options import parse

    parse({**given, **fixed}, where)


def check_trigger(trigger: str) -> None:
    """Raise UsageError unless Spark reads the text as an interval."""
    if not TRIGGER.fullmatch(trigger.strip()):
        raise UsageError(f"--trigger {trigger}: must be an interval, as in '10 seconds' or '1 minute'")


def check_rate(order: str, rate: int | None) -> None:
    """Raise ConfigError for an unknown `--order`, or a `--rate` below 1."""
    check_installed()
    from rmqkit.spark.pipelines import forwarder

    forwarder.check_choices(order, rate)


def local_path(path: str, master: str | None = None, conf: Sequence[str] | None = None) -> Path | None:
    """Return a path on this machine; None if Spark may find it elsewhere.

    A path without a scheme belongs to the default file system, which a cluster or its settings
    choose.
    """
    parts = urlsplit(path)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    is_local = master is None or master.startswith("local")
    if len(parts.scheme) > 1 or not is_local or ELSEWHERE & set(os.environ):
        return None
    return None if any(each.strip().startswith(MOVING) for each in conf or ()) else Path(path)


def check_source(path: str, what: str, master: str | None, conf: Sequence[str] | None) -> None:
    """Raise Failed if the path is one of this machine and does not exist: `what` is missing."""
    local = local_path(path, master, conf)
    if local is not None and not local.exists():
        raise Failed(f"there is no {what} at {path}: the path does not exist")


def check_target(flag: str, path: str, master: str | None, conf: Sequence[str] | None) -> None:
    """Raise UsageError if the path is one of this machine where no folder can be made."""
    local = local_path(path, master, conf)
    if local is None:
        return
    existing = next(each for each in (local.absolute(), *local.absolute().parents) if each.exists())
    if not existing.is_dir():
        raise UsageError(f"{flag} {path}: {existing} is a file, not a folder")
    if not os.access(existing, os.W_OK):
        raise UsageError(f"{flag} {path}: no permission to write to {existing}")
