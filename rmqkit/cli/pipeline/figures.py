"""`rmqkit pipeline stats` and `audit`: Spark jobs that print a table.

`command.py` registers both.
"""

from pathlib import Path
from typing import Annotated

import typer

from rmqkit.cli import output
from rmqkit.cli.cluster_lookup import Json, Namesrv
from rmqkit.cli.complete import topics as complete_topics
from rmqkit.cli.drills.drill_output import check_report
from rmqkit.cli.errors import UsageError
from rmqkit.cli.output import count_text, size_text
from rmqkit.cli.pipeline.arguments import (
    Conf,
    Master,
    Options,
    Since,
    StorageOptions,
    Until,
    bounds,
    check_installed,
    check_options,
    check_source,
    known,
    pairs,
)
from rmqkit.cli.pipeline.session_run import ProgressPrinter, StopSignal, builtins, running

HOURS: output.Columns = {
    "topic": "topic",
    "hour": "hour",
    "messages": "messages",
    "bytes": lambda row: size_text(row["bytes"]),
    "a second": "per_s:.1f",
    "peak": "peak_per_s",
    "size p50": lambda row: f"{row['size']['p50']:.0f}",
    "size p99": lambda row: f"{row['size']['p99']:.0f}",
    "ms p50": lambda row: f"{row['latency_ms']['p50']:.0f}",
    "ms p99": lambda row: f"{row['latency_ms']['p99']:.0f}",
    "ms max": lambda row: f"{row['latency_ms']['max']:.0f}",
}
KEYS: output.Columns = {
    "topic": "topic",
    "hour": "hour",
    "hot key": "key",
    "messages": "messages",
    "share": "share:.1%",
}


def stats(
    topics: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC...]", autocompletion=complete_topics)] = None,
    path: Annotated[str | None, typer.Option("--from", metavar="PATH", help="Read a lake instead of topics.")] = None,
    since: Since = None,
    until: Until = None,
    hot_keys: Annotated[int, typer.Option("--hot-keys", min=0, help="Number of hot keys to show for each hour.")] = 5,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE", help="Also draw a plot to this file: .svg, .png or .pdf.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Also write an HTML page to this file, with the plot.")
    ] = None,
    options: Options = None,
    storage_options: StorageOptions = None,
    namesrv: Namesrv = None,
    master: Master = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Show messages, rates, sizes, latencies (birth to storage) and hot keys, by topic and hour."""
    given = pairs(options, "--option")
    since_ms, until_ms = bounds(since, until)
    if (path is None) == (not topics):
        raise UsageError("give topics, or a lake with --from" + ("" if path is None else ", not both"))
    check_figures(plot, report)
    if path is None:
        check_options("batch", given, subscribe=",".join(topics or []))
    else:
        check_source(path, "lake", master, conf)
    addresses = known(topics or [], namesrv) if path is None else None
    source = path or ", ".join(topics or [])
    storage = pairs(storage_options, "--storage-option")
    shown = ProgressPrinter(f"stats of {source}")

    def unfinished() -> str:
        return f"no figures: {shown.tasks or 'no task'} of the current step had ended, and nothing was written"

    with running("rmqkit stats", master, conf) as spark, StopSignal(spark, unfinished) as ending, shown as tell:
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
            storage_options=storage,
            on_progress=tell,
        )
    ending.check(endless=False)
    if report is not None:
        from rmqkit.spark.pipelines.stats import page

        report.write_text(page(found, source), encoding="utf-8")
        output.note(f"report: {report}")
    value = builtins(found)
    output.report(value, HOURS, value["hours"], as_json=json, none="no messages")
    if found.hours and not json:
        if found.keys:
            output.report(value["keys"], KEYS)
        if found.plot:
            output.note(f"plot: {found.plot}")


def check_figures(plot: Path | None, report: Path | None) -> None:
    """Raise ConfigError or UsageError if no plot, or no page, can be written to its file."""
    check_installed()
    if plot is not None:
        from rmqkit.spark.pipelines.stats import check_plot

        check_plot(plot)
    check_report(report)


def audit(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="Names or folders of runs, or last.")],
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FOLDER", help="Also write the tables and findings to this folder as Parquet."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Also write an HTML page about the runs to this file.")
    ] = None,
    master: Master = None,
    conf: Conf = None,
    json: Json = False,
) -> None:
    """Judge the promises of drills from their histories, one Spark task a run.

    Exit code: 0 every promise was kept, 1 a promise is broken, 4 inconclusive.
    """
    from rmqkit.cluster.layout.home import home_folder
    from rmqkit.drill import runs as folders

    check_installed()
    check_report(report)
    from rmqkit.spark import audit as audits

    known_runs = audits.found(folders.find(home_folder(), run) for run in dict.fromkeys(runs))
    shown = ProgressPrinter(f"audit of {count_text(len(known_runs), 'run')}")

    def unfinished() -> str:
        return f"no verdict: {shown.tasks or 'no task'} had ended"

    with running("rmqkit audit", master, conf) as spark, StopSignal(spark, unfinished) as ending, shown as tell:
        found = audits.audit(spark, known_runs, to=to, on_progress=tell)
    ending.check(endless=False)
    if report is not None:
        report.write_text(audits.page(found, known_runs), encoding="utf-8")
        output.note(f"report: {report}")
    if json:
        output.document(audits.as_json(found))
    else:
        output.table(audits.COLUMNS, audits.lines(found))
    raise typer.Exit(audits.exit_code(found))
