"""`rmqkit pipeline stats` and `audit`: Spark jobs whose answer is a table (registered by `pipeline.py`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rmqkit.cli import output
from rmqkit.cli.complete import topics as complete_topics
from rmqkit.cli.finding import Json, Namesrv
from rmqkit.cli.pipeline_given import Conf, Master, Options, Since, Until, bounds, known, pairs
from rmqkit.cli.pipeline_run import Shown, builtins, count_text, running, size
from rmqkit.cli.usage import UsageError

if TYPE_CHECKING:
    from rmqkit.spark.pipelines.stats import Stats


def stats(
    topics: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC...]", autocompletion=complete_topics, show_default=False)
    ] = None,
    path: Annotated[
        str | None, typer.Option("--from", metavar="PATH", help="Of a lake instead of topics.", show_default=False)
    ] = None,
    since: Since = None,
    until: Until = None,
    hot_keys: Annotated[int, typer.Option("--hot-keys", min=0, help="So many keys an hour.")] = 5,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Draw it too: .svg, .png or .pdf.", show_default=False)
    ] = None,
    options: Options = None,
    namesrv: Namesrv = None,
    master: Master = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Messages, rates, sizes, latencies from born to stored, and hot keys, by topic and hour."""
    given = pairs(options, "--option")
    since_ms, until_ms = bounds(since, until)
    if (path is None) == (not topics):
        raise UsageError("name topics, or a lake with --from" + ("" if path is None else ", not both"))
    addresses = known(topics or [], namesrv) if path is None else None
    shown = Shown(f"stats of {path or ', '.join(topics or [])}")
    with running("rmqkit stats", master, conf) as spark, shown as tell:
        from rmqkit.spark.pipelines.stats import stats as run

        found = run(
            spark,
            topics or None,
            namesrv=addresses,
            path=path,
            since=since_ms,
            until=until_ms,
            hot_keys=hot_keys,
            plot=plot,
            options=given,
            on_progress=tell,
        )
    if json:
        output.document(builtins(found))
    else:
        _print_stats(found)


def _print_stats(found: Stats) -> None:
    if not found.hours:
        output.note("no messages")
        return
    columns = (
        "topic",
        "hour",
        "messages",
        "bytes",
        "a second",
        "peak",
        "size p50",
        "size p99",
        "ms p50",
        "ms p99",
        "ms max",
    )
    rows = [
        (
            hour.topic,
            hour.hour,
            hour.messages,
            size(hour.bytes),
            f"{hour.per_s:.1f}",
            hour.peak_per_s,
            f"{hour.size.p50:.0f}",
            f"{hour.size.p99:.0f}",
            f"{hour.latency_ms.p50:.0f}",
            f"{hour.latency_ms.p99:.0f}",
            f"{hour.latency_ms.max:.0f}",
        )
        for hour in found.hours
    ]
    output.table(columns, rows)
    if found.keys:
        keys = [(key.topic, key.hour, key.key, key.messages, f"{key.share:.1%}") for key in found.keys]
        output.table(("topic", "hour", "hot key", "messages", "share"), keys)
    if found.plot:
        output.note(f"plot: {found.plot}")


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
    from rmqkit.spark.sessions import check_installed

    check_installed()
    from rmqkit.spark import audit as audits

    known_runs = audits.found(folders.find(home_folder(), run) for run in dict.fromkeys(runs))
    with running("rmqkit audit", master, conf) as spark, Shown(f"audit of {count_text(len(known_runs), 'run')}"):
        found = audits.audit(spark, known_runs, to=to)
    if json:
        output.document(audits.as_json(found))
    else:
        columns = ("run", "promise", "judgement", "facts", "broken", "what")
        rows = [(each.run, each.promise, str(each.judgement), *each[3:]) for each in audits.lines(found)]
        output.table(columns, rows)
    raise typer.Exit(audits.exit_code(found))
