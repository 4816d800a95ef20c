"""`rmqkit nameserver run` and `rmqkit broker run`: a node in the foreground, like Apache's scripts.

This process becomes the node (`execve`): no module of the command line stays in its memory, and
signals reach the node itself. The other commands about brokers are in `brokers.py`.
"""

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from rmqkit.cli.commands import group
from rmqkit.cli.complete import setting_keys
from rmqkit.cli.nodes.brokers import add_write_perm, ha, status, wipe_write_perm

Configs = Annotated[
    list[str] | None,
    typer.Option("-c", "--config", metavar="FILE", help="Settings file: node.toml, or an unchanged Apache .conf."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Set a setting; overrides the files; may be repeated.",
        autocompletion=setting_keys,
    ),
]
LogFormat = Annotated[str, typer.Option("--log-format", metavar="text|json", help="Format of log lines.")]
LogFile = Annotated[
    str | None, typer.Option("--log-file", metavar="FILE", help="Write the log to this file; by default to stderr.")
]

nameserver_app = group("nameserver")
broker_app = group("broker")


@nameserver_app.command("run")
def run_nameserver(
    config: Configs = None, settings: Settings = None, log_format: LogFormat = "text", log_file: LogFile = None
) -> None:
    """Run a name server until Ctrl-C. Without -c it uses Apache's defaults and port 9876."""
    become_node("nameserver", config, settings, log_format, log_file)


@broker_app.command("run")
def run_broker(
    config: Configs = None,
    settings: Settings = None,
    log_format: LogFormat = "text",
    log_file: LogFile = None,
    own_logs: Annotated[
        bool, typer.Option("--own-logs", help="Write the log of each broker to a file `log` beside its settings.")
    ] = False,
    container_port: Annotated[
        str | None,
        typer.Option(
            "--container-port",
            metavar="PORT|off",
            help="Port for `rmqkit container` to add and remove brokers (10811 with several -c, else off).",
        ),
    ] = None,
    container_folder: Annotated[
        str | None,
        typer.Option(
            "--container-folder",
            metavar="FOLDER",
            help="Only files below this folder can be added (the folder of the first -c).",
        ),
    ] = None,
) -> None:
    """Run a broker until Ctrl-C, or one for each -c in this process.

    Without -c: Apache's defaults, port 10911.
    """
    more = ["--own-logs"] if own_logs else []
    more += ["--container-port", container_port] if container_port is not None else []
    more += ["--container-folder", container_folder] if container_folder is not None else []
    become_node("broker", config, settings, log_format, log_file, more)


broker_app.command(name="status")(status)
broker_app.command(name="ha")(ha)
broker_app.command(name="wipe-write-perm")(wipe_write_perm)
broker_app.command(name="add-write-perm")(add_write_perm)


def become_node(
    kind: str,
    configs: Sequence[str] | None,
    settings: Sequence[str] | None,
    log_format: str,
    log_file: str | None,
    more: Sequence[str] = (),
) -> None:
    """Replace this process by the node; never returns. Raises Failed on Windows."""
    words = [sys.executable, "-m", "rmqkit.process", "--kind", kind, "--log-format", log_format, *more]
    if log_file:
        words += ["--log-file", log_file]
    for config in configs or ():
        words += ["-c", config]
    for setting in settings or ():
        words += ["--set", setting]
    sys.stdout.flush()
    if sys.platform == "win32":
        from rmqkit.cli.errors import Failed

        raise Failed("nodes run on Linux and macOS; on Windows rmqkit is a client only")
    from rmqkit.cluster.processes import lifeline_fd, node_environment

    lifeline = lifeline_fd()
    if lifeline is not None:
        os.set_inheritable(lifeline, True)
        words += ["--lifeline", str(lifeline)]
    os.execve(sys.executable, words, node_environment())
