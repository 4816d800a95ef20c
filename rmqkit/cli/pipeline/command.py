"""`rmqkit pipeline ...`: Spark jobs between topics and files, and over the histories of drills.

Each command calls one function of `rmqkit.spark.pipelines` or `rmqkit.spark.audit`, which programs
can call too. The checks that need no Spark (cluster, topics, times, files) run before Spark starts.
"""

import uuid
from pathlib import Path
from typing import Annotated

import typer

from rmqkit.cli import output
from rmqkit.cli.cluster_lookup import Json, Namesrv, Topic
from rmqkit.cli.commands import group
from rmqkit.cli.complete import topics as complete_topics
from rmqkit.cli.errors import UsageError
from rmqkit.cli.output import count_text, size_text
from rmqkit.cli.pipeline import figures
from rmqkit.cli.pipeline.arguments import (
    Conf,
    Master,
    Options,
    ProgressJson,
    Since,
    StorageOptions,
    Until,
    bounds,
    check_installed,
    check_options,
    check_rate,
    check_source,
    check_target,
    check_trigger,
    known,
    pairs,
)
from rmqkit.cli.pipeline.session_run import ProgressPrinter, StopSignal, builtins, finish, running, serving
from rmqkit.cli.times import time_of

app = group("pipeline")

Lake = Annotated[str, typer.Argument(metavar="PATH", help="The lake: a folder, or a URI of an object store.")]
Rate = Annotated[int | None, typer.Option("--rate", min=1, metavar="N", help="Limit in messages per second, in total.")]
Order = Annotated[
    str, typer.Option("--order", help="Keep the order of each queue (queue), or of each sharding key or key (key).")
]


@app.command()
def ingest(
    topics: Annotated[list[str], typer.Argument(metavar="TOPIC...", autocompletion=complete_topics)],
    to: Annotated[str, typer.Option("--to", metavar="PATH", help="The lake: a folder, or a URI such as s3://…")],
    follow: Annotated[bool, typer.Option("--follow", help="Continue with new messages until Ctrl-C.")] = False,
    trigger: Annotated[str, typer.Option("--trigger", help="Interval at which --follow writes.")] = "10 seconds",
    since: Since = None,
    checkpoint: Annotated[
        str | None, typer.Option("--checkpoint", metavar="PATH", help="Folder of the checkpoint; by default in the lake.")
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option("--metrics", metavar="HOST:PORT", help="Serve the progress to Prometheus at this address."),
    ] = None,
    format_: Annotated[str, typer.Option("--format", help="The format of the table: delta or iceberg.")] = "delta",
    options: Options = None,
    storage_options: StorageOptions = None,
    namesrv: Namesrv = None,
    master: Master = None,
    conf: Conf = None,
    json: ProgressJson = False,
) -> None:
    """Write topics into a Delta or Iceberg table by topic and hour, each message once.

    The command ends at the end of the topics; with --follow it continues until Ctrl-C. Run it again
    to continue where it ended, also after a crash. Read the table with Spark
    (`rmqkit.spark.pipelines.lake.read`, no jar), DuckDB, Polars or any reader of Delta tables.
    """
    given = pairs(options, "--option")
    if since is not None:
        given["startingTimestamp"] = str(time_of("--since", since))
    check_trigger(trigger)
    check_options("stream", given, subscribe=",".join(topics))
    check_target("--to", to, master, conf)
    if checkpoint is not None:
        check_target("--checkpoint", checkpoint, master, conf)
    storage = pairs(storage_options, "--storage-option")
    check_installed()
    from rmqkit.spark.pipelines.ingest import ingest as run
    from rmqkit.spark.pipelines.ingest import table_at

    table_at(to, format_, storage)
    addresses = known(topics, namesrv)
    shown = ProgressPrinter(f"ingest {', '.join(topics)}", json=json)
    served = serving("ingest", metrics, topics, shown)
    with served, running("rmqkit ingest", master, conf) as spark, StopSignal() as ending, shown as tell:
        done = run(
            spark,
            topics,
            to,
            namesrv=addresses,
            follow=follow,
            options=given,
            checkpoint=checkpoint,
            format=format_,
            trigger=trigger,
            storage_options=storage,
            on_progress=tell,
            stop=ending,
        )
    files = f" in {count_text(done.files, 'file')}, {size_text(done.bytes)}" if done.files else ""
    finish(done, f"{count_text(done.rows, 'message')}{files} → {done.path}", json=json)
    ending.check(endless=follow)


@app.command()
def compact(
    path: Lake,
    before: Annotated[
        str | None,
        typer.Option(
            "--before",
            metavar="TIME",
            help="Compact hours before this time; by default those that ended at least an hour ago.",
        ),
    ] = None,
    topics: Annotated[list[str] | None, typer.Option("--topic", help="Only this topic; may be repeated.")] = None,
    storage_options: StorageOptions = None,
    json: Json = False,
) -> None:
    """Merge the many small files of past hours into few large ones. Needs no Java.

    Readers see the same rows before, during and after it.
    """
    check_installed()
    from rmqkit.spark.pipelines.compact import compact as run
    from rmqkit.spark.pipelines.lake import hour_name

    before_hour = None if before is None else hour_name(time_of("--before", before))
    options = pairs(storage_options, "--storage-option")
    check_source(path, "lake", None, None)
    done = run(path, before_hour=before_hour, topics=topics, storage_options=options)
    text = "nothing to do: the files of every past hour are merged already"
    if done.hours:
        files = f"{count_text(done.files_before, 'file')} ({size_text(done.bytes_before)})"
        text = f"{count_text(done.hours, 'hour')}: {files} merged into {done.files_after} ({size_text(done.bytes_after)})"
    output.answer(builtins(done), text, as_json=json)


@app.command()
def migrate(
    path: Annotated[str, typer.Argument(metavar="PATH", help="The folder of a lake that rmqkit 0.2 made.")],
    json: Json = False,
) -> None:
    """Turn a lake of rmqkit 0.2 into a Delta table, in place. Needs no Java.

    Data files stay where they are, and ingests continue at their checkpoints. Run it again if it
    was interrupted. A lake with a missing file or entry is refused, and nothing is changed.
    """
    check_installed()
    from rmqkit.spark.pipelines.migrate import migrate as run

    done = run(path)
    rows = f"{count_text(done.rows, 'row')} in {count_text(done.files, 'file')}"
    text = f"{rows}: {done.path} {'is' if done.is_new else 'was already'} a Delta table"
    output.answer(builtins(done), text, as_json=json)


@app.command()
def replay(
    path: Annotated[str, typer.Argument(metavar="PATH", help="A lake, or Parquet files with the columns of messages.")],
    to: Annotated[str, typer.Option("--to", metavar="TOPIC", help="The topic to send to.", autocompletion=complete_topics)],
    since: Since = None,
    until: Until = None,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", help="Only messages of this topic; may be repeated.")
    ] = None,
    rate: Rate = None,
    order: Order = "queue",
    create: Annotated[
        bool, typer.Option("--create", help="Create the topic if it is missing, with the queues of the source.")
    ] = False,
    run_id: Annotated[
        str | None, typer.Option("--run-id", help="Run id of a failed replay, to repeat it with the same DEDUP_KEYs.")
    ] = None,
    options: Options = None,
    storage_options: StorageOptions = None,
    namesrv: Namesrv = None,
    master: Master = None,
    conf: Conf = None,
    json: ProgressJson = False,
) -> None:
    """Send the messages of a lake to a topic again, in their order.

    Each message is sent at least once. It carries DEDUP_KEY (docs/spark.md), and its origin in
    REPLAY_OF.
    """
    given = pairs(options, "--option")
    since_ms, until_ms = bounds(since, until)
    check_rate(order, rate)
    check_options("sink", given, topic=to)
    check_source(path, "lake", master, conf)
    hint = ", or with the queues of the source: --create"
    addresses = known([] if create else [to], namesrv, to_send=True, more_advice=hint)
    storage = pairs(storage_options, "--storage-option")
    run_id = run_id or uuid.uuid4().hex
    shown = ProgressPrinter(f"replay to {to}", json=json)

    def unfinished() -> str:
        return f"messages may have been sent to {to}: --run-id {run_id} repeats the replay with the same DEDUP_KEYs"

    with running("rmqkit replay", master, conf) as spark, StopSignal(spark, unfinished) as ending, shown as tell:
        from rmqkit.spark.pipelines.replay import replay as run

        done = run(
            spark,
            path,
            to,
            namesrv=addresses,
            rate=rate,
            since=since_ms,
            until=until_ms,
            topics=topics,
            order=order,
            create=create,
            run_id=run_id,
            options=given,
            storage_options=storage,
            on_progress=tell,
        )
    queues = count_text(done.queues, "queue")
    finish(done, f"{count_text(done.rows, 'message')} of {queues} → {to} (run id {done.run_id})", json=json)
    ending.check(endless=False)


@app.command()
def copy(
    topic: Topic,
    to: Annotated[
        str, typer.Option("--to", metavar="TOPIC", help="The target topic; in another cluster it may have the same name.")
    ],
    to_namesrv: Annotated[
        str | None,
        typer.Option(
            "--to-namesrv",
            metavar="HOST:PORT[;...]",
            help="Name servers of the target cluster; by default the same cluster.",
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Continue with new messages until Ctrl-C.")] = False,
    trigger: Annotated[str, typer.Option("--trigger", help="Interval at which --follow copies.")] = "5 seconds",
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", metavar="PATH", help="Folder that records how far the copy is."),
    ] = None,
    rate: Rate = None,
    order: Order = "queue",
    options: Options = None,
    namesrv: Namesrv = None,
    master: Master = None,
    conf: Conf = None,
    json: ProgressJson = False,
) -> None:
    """Copy a topic to another topic of this or another cluster, in order.

    The command ends at the end of the topic, or with --follow continues until Ctrl-C. With
    --checkpoint the next copy continues where this one ends; --follow needs a checkpoint.
    """
    given = pairs(options, "--option")
    if follow and checkpoint is None:
        raise UsageError("--follow needs --checkpoint: a folder that records how far the copy is")
    if to == topic and to_namesrv in (None, namesrv):
        raise UsageError(f"{topic} cannot be copied into itself: give another topic, or another cluster with --to-namesrv")
    check_rate(order, rate)
    check_trigger(trigger)
    check_options("stream", given, subscribe=topic)
    if checkpoint is not None:
        check_target("--checkpoint", checkpoint, master, conf)
    addresses = known([topic], namesrv)
    to_addresses = known([to], to_namesrv if to_namesrv is not None else addresses, to_send=True)
    from rmqkit.spark.pipelines.topic_copy import copy as run

    shown = ProgressPrinter(f"copy {topic} to {to}", json=json)
    with running("rmqkit copy", master, conf) as spark, StopSignal() as ending, shown as tell:
        done = run(
            spark,
            topic,
            to,
            namesrv=addresses,
            to_namesrv=to_addresses,
            follow=follow,
            checkpoint=checkpoint,
            order=order,
            rate=rate,
            options=given,
            trigger=trigger,
            on_progress=tell,
            stop=ending,
        )
    finish(done, f"{count_text(done.rows, 'message')} of {topic} → {to}", json=json)
    ending.check(endless=follow)


@app.command()
def package(
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="The file; by default rmqkit-package-….tar.gz in this folder."),
    ] = None,
    json: Json = False,
) -> None:
    """Pack rmqkit and its packages for the workers of a Spark cluster that do not have them.

    Pass the file to the other commands with --conf spark.rmqkit.package=FILE. It fits workers with
    this minor version of Python on this platform.
    """
    check_installed()
    from rmqkit.spark import package as packages

    target = to or Path(packages.file_name())
    if not target.absolute().parent.is_dir():
        raise UsageError(f"--to {target}: the folder {target.parent} does not exist")
    done = packages.build(target)
    if json:
        output.document(builtins(done))
        return
    print(f"{done.path}: {size_text(done.bytes)}, Python {done.python} on {done.platform}")
    output.note(f"use it with --master … --conf {packages.PACKAGE_KEY}={target}")
    settings = " ".join(f"--conf {key}={value}" for key, value in done.settings.items())
    output.note(f"or with spark-submit: PYSPARK_PYTHON={packages.python_name()} spark-submit {settings} …")


app.command()(figures.stats)
app.command()(figures.audit)
