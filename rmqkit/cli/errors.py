"""The errors of commands, their exit codes, and the line that each one prints.

    0 done | 1 the task failed | 2 usage | 3 no such cluster, or not reachable | 4 inconclusive
    130 Ctrl-C, 143 SIGTERM

Depending on its version, typer contains click or depends on it. So its exceptions are recognised by
their attributes, not by their modules.
"""

from rmqkit.errors import ConfigError, InvalidMessage, PeerUnreachable, RmqkitError
from rmqkit.suggestions import suggest

DONE = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
INCONCLUSIVE = 4


class UsageError(RmqkitError):
    """The command line is wrong. The message is one line."""

    exit_code = USAGE


class Failed(RmqkitError):
    """The task failed.

    An empty message prints nothing: the command has already printed the reason.
    """

    exit_code = FAILED


class Unreachable(RmqkitError):
    """No cluster was found, or no node answers."""

    exit_code = UNREACHABLE


class Interrupted(BaseException):
    """Ctrl-C, SIGTERM or SIGHUP; `number` is the signal.

    Unwinds a command like KeyboardInterrupt.
    """

    def __init__(self, number: int) -> None:
        self.number = number


class ReaderGone(Exception):
    """The reader of stdout has closed its pipe: the command ends quietly with exit code 0."""


def exit_code_of(error: RmqkitError) -> int:
    """Return the exit code of an error."""
    code = getattr(error, "exit_code", None)
    if isinstance(code, int):
        return code
    if isinstance(error, ConfigError | InvalidMessage):
        return USAGE
    return UNREACHABLE if isinstance(error, PeerUnreachable) else FAILED


def usage_line(error: Exception) -> str:
    """Return one line for an exception of typer's parser.

    For a mistyped option it names the closest one.
    """
    option = getattr(error, "option_name", None)
    if option and hasattr(error, "possibilities"):
        return _no_such_option(error, str(option))
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    return " ".join(text.split()).rstrip(".")


def _no_such_option(error: Exception, option: str) -> str:
    ctx = getattr(error, "ctx", None)
    flags = []
    if ctx is not None:
        for param in ctx.command.get_params(ctx):
            flags += [flag for flag in (*param.opts, *param.secondary_opts) if flag.startswith("-")]
    where = f"see `{ctx.command_path} --help`" if ctx is not None else ""
    return f"no such option: {option}{suggest(option, flags, where)}"
