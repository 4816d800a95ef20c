"""`rmqkit pipeline ...`: Spark jobs between topics and files, and over the histories of drills.

Each command is one function of `rmqkit.spark.pipelines` or `rmqkit.spark.audit`, which programs can call as well. What can
be known without Spark (the cluster, the topic, times, files) is looked at before it starts.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqkit.cli import output
from rmqkit.cli.asking import admin_of, check_brokers, known_topic
from rmqkit.cli.commands import group
from rmqkit.cli.complete import topics as complete_topics
from rmqkit.cli.finding import Json, Namesrv, find_namesrv
from rmqkit.cli.pipeline_run import (
    Conf,
    Ending,
    Master,
    Options,
    ProgressJson,
    Shown,
    builtins,
    count_text,
    pairs,
    running,
)
from rmqkit.cli.times import parse_time
from rmqkit.cli.usage import UsageError

if TYPE_CHECKING:
    from rmqkit.spark.audit import Audited

app = group("Spark jobs: topics to files and back, figures, audits of drills.")

Topic = Annotated[str, typer.Argument(metavar="TOPIC", autocompletion=complete_topics)]
Lake = Annotated[str, typer.Argument(metavar="PATH", help="The lake: a folder, or a URI that Spark knows.")]
Since = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Only what was stored then or later.", show_default=False)
]
Until = Annotated[
    str | None, typer.Option("--until", metavar="TIME", help="Only what was stored before.", show_default=False)
]
TIME_WORDS = "such as 2026-01-31, 2026-01-31T12:30, 10m (ago), or Unix time in ms"
TOLD_MAX = 5


@app.callback()
def pipeline_group() -> None:
    """Spark jobs: topics to files and back, figures, audits of drills."""


@app.command()
def ingest(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", autocompletion=complete_topics)],
    to: Annotated[str, typer.Option("--to", metavar="PATH", help="The lake: a folder, or a URI that Spark knows.")],
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what comes, until Ctrl-C.")] = False,
    trigger: Annotated[str, typer.Option("--trigger", help="How often --follow writes.")] = "10 seconds",
    since: Since = None,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="PATH", help="By default in the lake.", show_default=False)
    ] = None,
    packages: Annotated[
        str | None,
        typer.Option(
            "--packages",
            metavar="MAVEN",
            help="Write Delta or Iceberg, by its Spark package (io.delta:delta-spark_2.13:4.1.0).",
            show_default=False,
        ),
    ] = None,
    options: Options = None,
    namesrv: Namesrv = None,
    master: Master = None,
    conf: Conf = None,
    json: ProgressJson = False,
) -> None:
    """Topics into Parquet files by topic and hour, each message once; what is there now, or as it comes.

    The same command goes on where it ended, also after a crash. The files belong to a log in the folder: read them with
    `rmqkit.spark.pipelines.lake.read`.
    """
    given = pairs(options, "--option")
    if since is not None:
        given["startingTimestamp"] = str(_time(since, "--since"))
    addresses = _known(topics, namesrv)
    more = _packages(packages)
    from rmqkit.spark.pipelines.ingest import ingest as run

    shown = Shown(f"ingest {', '.join(topics)}", json=json)
    with running("rmqkit ingest", master, conf, more) as spark, Ending() as ending, shown as tell:
        done = run(
            spark,
            topics,
            to,
            namesrv=addresses,
            follow=follow,
            options=given,
            checkpoint=checkpoint,
            packages=packages,
            trigger=trigger,
            on_progress=tell,
            stop=ending,
        )
    if json:
        output.line({"done": builtins(done)})
    else:
        files = f" in {count_text(done.files, 'file')}, {_size(done.bytes)}" if done.files else ""
        print(f"{count_text(done.rows, 'message')}{files} → {done.path}")
    ending.check(endless=follow)


@app.command()
def compact(
    path: Lake,
    before: Annotated[
        str | None,
        typer.Option(
            "--before", metavar="TIME", help="Hours before this; those that ended an hour ago.", show_default=False
        ),
    ] = None,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", help="This topic only (repeatable).", show_default=False)
    ] = None,
    master: Master = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Make few large files of the many small ones of hours that are over. Readers see the same rows all the time."""
    before_hour = None
    if before is not None:
        from rmqkit.spark.pipelines.lake import hour_name

        before_hour = hour_name(_time(before, "--before"))
    with running("rmqkit compact", master, conf) as spark:
        from rmqkit.spark.pipelines.compact import compact as run

        done = run(spark, path, before_hour=before_hour, topics=topics)
    if json:
        output.document(builtins(done))
    elif done.hours:
        files = f"{count_text(done.files_before, 'file')} ({_size(done.bytes_before)})"
        print(f"{count_text(done.hours, 'hour')}: {files} are now {done.files_after} ({_size(done.bytes_after)})")
    else:
        print("nothing to do: every closed hour has as few files as it can")


@app.command()
def audit(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Names of runs, their folders, or last.")],
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FOLDER", help="Write the tables and findings there as Parquet.", show_default=False),
    ] = None,
    master: Master = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Judge the promises of drills from their histories, as Spark SQL over all of them at once.

    Exit code: 0 every promise was kept, 1 one is broken, 4 inconclusive.
    """
    from rmqkit.cluster.home import home_folder
    from rmqkit.drill import runs as folders

    found = [folders.find(home_folder(), run) for run in dict.fromkeys(runs)]
    with running("rmqkit audit", master, conf) as spark:
        from rmqkit.spark import audit as audits

        audited = audits.audit(spark, found, to=to)
    if json:
        output.document([_audited(each) for each in audited])
    else:
        _print_audited(audited)
    raise typer.Exit(audits.exit_code(audited))


def _audited(each: Audited) -> dict[str, Any]:
    return {
        "run": each.run,
        "promise": each.promise,
        "judgement": str(each.judgement),
        "facts": each.facts,
        "broken": each.broken,
        "why": each.why,
        "violations": [violation._asdict() for violation in each.violations],
    }


def _print_audited(audited: list[Audited]) -> None:
    rows = [(each.run, each.promise or "-", str(each.judgement), each.facts, each.broken, each.why) for each in audited]
    output.table(("run", "promise", "judgement", "facts", "broken", "why"), rows)
    for each in audited:
        for violation in each.violations[:TOLD_MAX]:
            print(f"{each.run} {each.promise}: {violation.what}")
        if each.broken > TOLD_MAX:
            print(f"{each.run} {each.promise}: and {each.broken - TOLD_MAX} more")


# --- before Spark starts


def _known(topics: list[str], namesrv: str | None) -> str:
    """The name servers, where each topic is known. Raises Unreachable, Failed with the nearest topic."""
    from rmqkit.spark.sessions import check_installed

    check_installed()
    with admin_of(namesrv) as admin:
        check_brokers(admin)
        for topic in topics:
            with known_topic(admin, topic):
                admin.topic_stats(topic)
    return find_namesrv(namesrv)


def _packages(packages: str | None) -> dict[str, str]:
    from rmqkit.spark.pipelines import formats

    return formats.conf(packages)


def _time(text: str, flag: str) -> int:
    found = parse_time(text, round(time.time() * 1000))
    if found is None:
        raise UsageError(f"{flag} {text}: must be a time, {TIME_WORDS}")
    return found


def _size(count: int) -> str:
    from rmqkit.cli.brokers import bytes_text

    return bytes_text(str(count))
