"""The root command: a table of sub-commands, each imported only when it is used.

- `get_command`, which help and completion use, returns a stand-in with the help line of the table.
- `resolve_command`, which runs a command, imports its module.

So `rmqkit --help` imports only typer, and `rmqkit send` imports only `rmqkit.cli.data.send`.
Commands of plug-ins come after the built-in ones; plug-ins are loaded only if a name is not in the
table.

For an unknown sub-command, at every level, the error suggests the closest name (`CommandGroup`).
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

#: characters of a command's line in the help of its group
HELP_MAX = 200


class Lazy(NamedTuple):
    """A sub-command: its module, its line in the help, and the module's name for its typer app."""

    module: str
    help: str
    app: str = "app"


TABLE: dict[str, Lazy] = {
    "cluster": Lazy("rmqkit.cli.nodes.clusters", "Start, inspect, break and stop clusters on this machine."),
    "send": Lazy("rmqkit.cli.data.send", "Send one message, the lines of a file, or generated messages."),
    "consume": Lazy("rmqkit.cli.data.consume", "Read the messages of a topic, once or continuously."),
    "message": Lazy("rmqkit.cli.data.messages", "Find messages by id, key or offset; show who consumed them."),
    "topic": Lazy("rmqkit.cli.data.topics", "List, create, change and delete topics; show their queues."),
    "group": Lazy("rmqkit.cli.data.groups", "Manage consumer groups: settings, members, progress, offsets."),
    "dlq": Lazy("rmqkit.cli.data.dead_letters", "List, show and requeue the dead letters of consumer groups."),
    "transaction": Lazy("rmqkit.cli.data.transactions", "List transactions without an outcome, and why; decide them."),
    "offset": Lazy("rmqkit.cli.data.offsets", "Show and set the offsets of a group in a topic."),
    "config": Lazy("rmqkit.cli.nodes.settings", "Show and change settings of running nodes; explain a setting."),
    "user": Lazy("rmqkit.cli.access.users", "Manage users: add, list, disable and delete them; change passwords."),
    "acl": Lazy("rmqkit.cli.access.rules", "Allow and deny users what they may do; explain a decision."),
    "stats": Lazy("rmqkit.cli.data.stats", "Show message rates of topics, and how far groups are behind."),
    "nameserver": Lazy("rmqkit.cli.nodes.foreground", "Run a name server in the foreground.", "nameserver_app"),
    "broker": Lazy(
        "rmqkit.cli.nodes.foreground", "Run brokers in the foreground; show the status of running ones.", "broker_app"
    ),
    "controller": Lazy(
        "rmqkit.cli.nodes.controllers", "Run a controller; show and change which broker of a set is master."
    ),
    "container": Lazy("rmqkit.cli.nodes.containers", "List, add and remove brokers that share one process."),
    "fail-master": Lazy(
        "rmqkit.cli.drills.command",
        "Break a master; prove for each message whether it survived.",
        "fail_master_app",
    ),
    "drill": Lazy("rmqkit.cli.drills.command", "Run, show, replay and compare drills: faults, defects, seeds."),
    "pipeline": Lazy("rmqkit.cli.pipeline.command", "Run Spark jobs: topics to files and back, statistics, audits."),
    "bench": Lazy("rmqkit.cli.data.bench", "Measure rate and latency of sends and reads, and end to end."),
    "plugin": Lazy("rmqkit.cli.plugin", "List plug-ins and what they add; create a plug-in project."),
    "explain": Lazy("rmqkit.cli.explain.command", "Explain a code, a message of a log, or a node of the cluster."),
    "doctor": Lazy("rmqkit.cli.nodes.doctor", "Check this machine and its clusters for problems."),
}


class CommandGroup(TyperGroup):
    """A group of commands that suggests the closest name for an unknown one."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None:
            raise UsageError(no_such("command", args[0], self.list_commands(ctx), ctx.command_path))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List each command with its whole first sentence; typer would cut it off."""
        found = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, each.get_short_help_str(limit=HELP_MAX)) for name, each in found if each and not each.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def group(name: str) -> typer.Typer:
    """Return an empty group of sub-commands with the help line of the table."""
    app = typer.Typer(
        cls=CommandGroup, no_args_is_help=True, add_completion=False, rich_markup_mode=None, help=TABLE[name].help
    )
    app.callback()(lambda: None)  # without it, typer would turn a group of one command into that command
    return app


class RootGroup(CommandGroup):
    """The `rmqkit` command itself."""

    def invoke(self, ctx: Any) -> Any:
        """Raise Ctrl-C and a closed pipe as exceptions that typer does not handle itself."""
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
    """Return the commands of `rmqkit cluster`, which users also try without `cluster`."""
    cluster = TABLE["cluster"]
    found: Mapping[str, Any] = getattr(get_command(getattr(import_module(cluster.module), cluster.app)), "commands", {})
    return found


@cache
def plugin_commands() -> Mapping[str, Callable[[], Any]]:
    """Return the commands that installed plug-ins add.

    A broken plug-in gives a warning and does not affect other commands. The built-in plug-ins add
    no commands, so nothing is loaded if nothing else is installed.
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
    """Return the command of a plug-in, None if no plug-in has it.

    The factory returns a `typer.Typer`.
    """
    factory = plugin_commands().get(name)
    if factory is None:
        return None
    command = get_command(factory())
    command.name = name
    return command


def no_such(what: str, given: str, known: Sequence[str], where: str) -> str:
    return f"no such {what}: {given}{suggest(given, known, f'see `{where} --help`')}"
