"""The root command: a table of sub-commands, imported only when one is used.

`get_command` (what help and completion list) gives a stand-in with the help line of the table; `resolve_command` (what
runs) imports the module. So `rmqkit --help` imports nothing but typer, and `rmqkit send` only `rmqkit.cli.data.send`.
Commands of plug-ins come after the built-in ones and are looked for when a name is not in the table.

A wrong sub-command is answered with the nearest right one, at every level (`CommandGroup`).
"""

import signal
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from rmqkit.cli.errors import Interrupted, ReaderGone, UsageError
from rmqkit.cli.output import note
from rmqkit.errors import RmqkitError
from rmqkit.suggestions import suggest


class Lazy(NamedTuple):
    """A sub-command: the module that has it as `app` (or by another name), and its line in the help."""

    module: str
    help: str
    app: str = "app"


TABLE: dict[str, Lazy] = {
    "cluster": Lazy("rmqkit.cli.nodes.clusters", "Start, look at, break and stop whole clusters on this machine."),
    "send": Lazy("rmqkit.cli.data.send", "Send messages to a topic: one, a file's lines, or made-up ones."),
    "consume": Lazy("rmqkit.cli.data.consume", "Read messages of a topic, once or as they come."),
    "message": Lazy("rmqkit.cli.data.messages", "Find single messages by id, key or place; who has consumed them."),
    "topic": Lazy("rmqkit.cli.data.topics", "List, create, change, delete topics; where their queues are."),
    "group": Lazy("rmqkit.cli.data.groups", "Consumer groups: settings, members, how far they are; move them."),
    "dlq": Lazy("rmqkit.cli.data.dead_letters", "Dead letters of consumer groups: list, show, requeue."),
    "offset": Lazy("rmqkit.cli.data.offsets", "Where a group stands in a topic; move it."),
    "config": Lazy("rmqkit.cli.nodes.settings", "Read and change the settings of running nodes; explain a key."),
    "stats": Lazy("rmqkit.cli.data.stats", "What goes in and out of topics, and how far groups are behind."),
    "nameserver": Lazy("rmqkit.cli.nodes.foreground", "Run a name server in the foreground.", "nameserver_app"),
    "broker": Lazy(
        "rmqkit.cli.nodes.foreground", "Run brokers in the foreground; what running ones say of themselves.", "broker_app"
    ),
    "container": Lazy("rmqkit.cli.nodes.containers", "Several brokers in one process: list, add, remove."),
    "fail-master": Lazy(
        "rmqkit.cli.drills.command", "Break a master on purpose; prove per message what survived.", "fail_master_app"
    ),
    "drill": Lazy("rmqkit.cli.drills.command", "Drills: faults, defects, seeds; run, show, replay, compare."),
    "pipeline": Lazy("rmqkit.cli.pipeline.command", "Spark jobs: topics to files and back, figures, audits of drills."),
    "bench": Lazy("rmqkit.cli.data.bench", "How fast a cluster is: sends, reads, end to end, with percentiles."),
    "plugin": Lazy("rmqkit.cli.plugin", "Plug-ins: what is installed and what it adds."),
    "explain": Lazy("rmqkit.cli.explain.command", "What a code, a text of a log, or a node of the cluster means."),
    "doctor": Lazy("rmqkit.cli.nodes.doctor", "Look for what would keep a cluster from running well here."),
}


class CommandGroup(TyperGroup):
    """A group of commands that answers a wrong name with the nearest right one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None:
            raise UsageError(no_such("command", args[0], self.list_commands(ctx), ctx.command_path))
        return super().resolve_command(ctx, args)


def group(name: str) -> typer.Typer:
    """Return the group of sub-commands of that name in the table, without any yet."""
    app = typer.Typer(
        cls=CommandGroup, no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=TABLE[name].help
    )
    app.callback()(lambda: None)  # else typer would take a group of one command for that command
    return app


class RootGroup(CommandGroup):
    """`rmqkit` itself."""

    def invoke(self, ctx: Any) -> Any:
        """Ctrl-C and a closed pipe, which typer would end in its own way, leave as exceptions that it does not know."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise ReaderGone from None
        except KeyboardInterrupt:
            raise Interrupted(signal.SIGINT) from None

    def list_commands(self, ctx: Any) -> list[str]:
        return [*TABLE, *(name for name in plugin_commands() if name not in TABLE)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name in TABLE:
            return TyperCommand(name=cmd_name, short_help=TABLE[cmd_name].help)
        return plugin_command(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0] if args else ""
        if name not in TABLE:
            if name in _cluster_commands() and self.get_command(ctx, name) is None:
                raise UsageError(f"no such command: {name}; did you mean `{ctx.command_path} cluster {name}`?")
            if self.get_command(ctx, name) is None:
                from rmqkit.cli.explain import mqadmin

                if answer := mqadmin.advice(name, ctx.command_path):
                    raise UsageError(answer)
            return super().resolve_command(ctx, args)
        command = get_command(getattr(import_module(TABLE[name].module), TABLE[name].app))
        command.name = name
        return name, command, args[1:]


def _cluster_commands() -> Mapping[str, Any]:
    """Those that people look for at the top: up, status, kill, ..."""
    cluster = TABLE["cluster"]
    found: Mapping[str, Any] = getattr(get_command(getattr(import_module(cluster.module), cluster.app)), "commands", {})
    return found


@cache
def plugin_commands() -> Mapping[str, Callable[[], Any]]:
    """The commands that installed plug-ins add. A broken plug-in is told of, and takes no other command with it.

    What is built in adds none, so nothing is loaded where nothing else is installed.
    """
    from importlib.metadata import entry_points

    if all(point.value.startswith("rmqkit.") for point in entry_points(group="rmqkit")):
        return {}
    from rmqkit import plugins

    try:
        return plugins.load().commands
    except RmqkitError as error:
        note(f"warning: {error}")
        return {}


def plugin_command(name: str) -> Any:
    """The command of a plug-in, None when no plug-in has it. A factory gives a `typer.Typer`."""
    factory = plugin_commands().get(name)
    if factory is None:
        return None
    command = get_command(factory())
    command.name = name
    return command


def no_such(what: str, given: str, known: Sequence[str], where: str) -> str:
    return f"no such {what}: {given}{suggest(given, known, f'see `{where} --help`')}"
