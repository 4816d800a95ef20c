"""Errors on the way to one line: what a command raises, what typer raises, and the exit code of each.

    0 done | 1 the thing asked for failed | 2 usage | 3 no such cluster, or not reachable | 4 inconclusive
    130 Ctrl-C, 143 SIGTERM

typer carries click inside or depends on it, by version; its exceptions are told apart by their fields, not their modules.
"""

from rmqkit.errors import ConfigError, InvalidMessage, PeerUnreachable, RmqkitError
from rmqkit.suggestions import suggest

DONE = 0
FAILED = 1
USAGE = 2
UNREACHABLE = 3
INCONCLUSIVE = 4


class UsageError(RmqkitError):
    """The command line makes no sense. One line."""

    exit_code = USAGE


class Failed(RmqkitError):
    """The thing asked for failed; the command may have printed why already (an empty text prints nothing)."""

    exit_code = FAILED


class Unreachable(RmqkitError):
    """No cluster was found, or nothing answers."""

    exit_code = UNREACHABLE


class Interrupted(BaseException):
    """Ctrl-C, SIGTERM or SIGHUP; `number` is the signal. Unwinds a command as KeyboardInterrupt would."""

    def __init__(self, number: int) -> None:
        self.number = number


class ReaderGone(Exception):
    """Nobody reads stdout any more: the command ends, quietly and well."""


def exit_code_of(error: RmqkitError) -> int:
    code = getattr(error, "exit_code", None)
    if isinstance(code, int):
        return code
    if isinstance(error, ConfigError | InvalidMessage):
        return USAGE
    return UNREACHABLE if isinstance(error, PeerUnreachable) else FAILED


def usage_line(error: Exception) -> str:
    """One line for an exception of typer's parser, with the nearest valid flag when one was mistyped."""
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
