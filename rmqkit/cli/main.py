"""`rmqkit`: where the command line begins and where every error ends as one line.

`run` is the console entry. Signals: Ctrl-C and SIGTERM both unwind the command (so that `cluster up` takes back what it
started) and give 130 and 143. A closed pipe at the other end of stdout ends the command quietly.
"""

import os
import signal
import sys
from types import FrameType
from typing import Annotated, Any

import typer
from typer.main import get_command

from rmqkit import __version__
from rmqkit.cli.commands import RootGroup
from rmqkit.cli.errors import DONE, FAILED, USAGE, Interrupted, ReaderGone, exit_code_of, usage_line
from rmqkit.errors import RmqkitError

app = typer.Typer(
    cls=RootGroup,
    name="rmqkit",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say_version(asked: bool) -> None:
    if asked:
        print(f"rmqkit {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Say the version.", is_eager=True, callback=_say_version)
    ] = False,
) -> None:
    """A RocketMQ-compatible message queue: clusters, messages, topics, groups.

    Begin with `rmqkit cluster up`, `rmqkit send hello "first message"`, `rmqkit consume hello`.
    Commands find the cluster by --namesrv, else by NAMESRV_ADDR, else they take the cluster that runs here.
    """


def run(argv: list[str] | None = None) -> None:
    """Run a command and exit with its code. A signal that is ignored already (`nohup`) stays ignored."""
    for number in (signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _terminated)
    code = run_command(sys.argv[1:] if argv is None else argv)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_stdout()
    sys.exit(code)


def _terminated(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise Interrupted(number)


def run_command(argv: list[str]) -> int:
    """Run a command in this process; its exit code."""
    try:
        done: Any = get_command(app).main(args=argv, prog_name="rmqkit", standalone_mode=False)
    except RmqkitError as error:
        return _tell(error)
    except ReaderGone:
        _forget_stdout()
        return DONE
    except KeyboardInterrupt:
        return _interrupted(signal.SIGINT)
    except Interrupted as end:
        return _interrupted(end.number)
    except OSError as error:
        print(f"error: {error.filename or ''}{': ' if error.filename else ''}{error.strerror or error}", file=sys.stderr)
        return FAILED
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        return _tell_usage(error)
    return done if isinstance(done, int) else 0


def _tell(error: RmqkitError) -> int:
    if str(error):
        print(f"error: {error}", file=sys.stderr)
    for line in getattr(error, "details", ()):
        print(f"  {line}", file=sys.stderr)
    return exit_code_of(error)


def _tell_usage(error: Exception) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message())  # type: ignore[attr-defined]  # click is typer's own copy or not
    else:
        print(f"error: {usage_line(error)}", file=sys.stderr)
    return USAGE


def _interrupted(number: int) -> int:
    print("interrupted", file=sys.stderr)
    return 128 + number


def _forget_stdout() -> None:
    """Nobody reads any more: keep the interpreter from complaining when it flushes at the end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


if __name__ == "__main__":
    run()
