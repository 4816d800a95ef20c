"""The entry of the `rmqkit` command line; every error ends here as one line on stderr.

`run` is the console entry point.

- Ctrl-C and SIGTERM both unwind the command, so that `cluster up` removes what it started. The exit
  codes are 130 and 143.
- If the reader of stdout closes its pipe, the command ends quietly.
- A standard stream that the caller has closed (`>&-`) is the null device.
- On a terminal or in a file that is not UTF-8, a character that it does not have is escaped.
"""

import io
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


def _print_version(asked: bool) -> None:
    if asked:
        print(f"rmqkit {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Run RocketMQ-compatible clusters; send, read and inspect messages.

    Begin with `rmqkit cluster up`, `rmqkit send hello "first message"`, `rmqkit consume hello`.
    Commands find the cluster by --namesrv, else by NAMESRV_ADDR, else they use the cluster that
    runs here.
    """


def run(argv: list[str] | None = None) -> None:
    """Run a command and exit with its code.

    A signal that is already ignored (`nohup`) stays ignored.
    """
    for number in (signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _terminated)
    _open_streams()
    code = run_command(sys.argv[1:] if argv is None else argv)
    sys.exit(_end_output(code))


def _open_streams() -> None:
    """Open the null device for each closed standard stream, and let stdout escape characters.

    In this order each stream gets its own number again. Otherwise the next file or socket would get
    the number, and receive the output.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  # until the end
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _end_output(code: int) -> int:
    """Write the buffered output. Return the exit code, FAILED if the output cannot be written."""
    try:
        sys.stdout.flush()
    except OSError as error:
        _forget_stdout()
        if code == DONE and not isinstance(error, BrokenPipeError):
            print(f"error: cannot write the output: {error.strerror}", file=sys.stderr)
            return FAILED
    return code


def _terminated(number: int, _frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise Interrupted(number)


def run_command(argv: list[str]) -> int:
    """Run a command in this process and return its exit code."""
    try:
        done: Any = get_command(app).main(args=argv, prog_name="rmqkit", standalone_mode=False)
    except RmqkitError as error:
        return _print_error(error)
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
        return _print_usage_error(error)
    return done if isinstance(done, int) else 0


def _print_error(error: RmqkitError) -> int:
    if str(error):
        print(f"error: {error}", file=sys.stderr)
    for line in getattr(error, "details", ()):
        print(f"  {line}", file=sys.stderr)
    return exit_code_of(error)


def _print_usage_error(error: Exception) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        print(error.format_message())  # type: ignore[attr-defined]  # click is typer's own copy or not
    else:
        print(f"error: {usage_line(error)}", file=sys.stderr)
    return USAGE


def _interrupted(number: int) -> int:
    print("interrupted", file=sys.stderr)
    return 128 + number


def _forget_stdout() -> None:
    """Replace the closed stdout, so that the interpreter's last flush does not fail."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


if __name__ == "__main__":
    run()
