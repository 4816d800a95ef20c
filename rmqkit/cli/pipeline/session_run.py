"""What the commands of `rmqkit pipeline` share: a session, progress, how the end is asked for, errors in one line.

A pipeline that loops is ended by its `stop` (`StopSignal`): Ctrl-C and SIGTERM only set a flag, and it ends between two
looks at Spark. A second Ctrl-C does not wait for that. Where no loop asks, Spark's own handler cancels its jobs.

Errors of a query come as a text of Spark's with the traceback of a Python worker inside. `plain` finds what rmqkit said
there.
"""

import contextlib
import logging
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any

from rmqkit.cli import output
from rmqkit.cli.errors import Failed, Interrupted, exit_code_of
from rmqkit.cli.output import count_text
from rmqkit.cli.pipeline.arguments import pairs

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmqkit.spark.pipelines.progress import PipelineProgress

#: a line of a traceback that names an error of ours: its class, what it says
OURS = re.compile(r"^\s*(?:pyspark\.[\w.]+: )?(rmqkit(?:\.\w+)+): (.+)$", re.MULTILINE)
#: what py4j puts before an error of the JVM
CALLING = "An error occurred while calling"
#: what lies below an error of the JVM; the last one of the outermost is why it all failed
CAUSED = re.compile(r"^Caused by: (?!.*Traceback)(.+)$", re.MULTILINE)
#: what Spark says when its worker has not reported within seconds, the why of which it does not know
NO_WORKER = "Python worker failed to connect back"
#: Spark's own first line: [CLASS_OF_ERROR] text. SQLSTATE: 12345
SQLSTATE = re.compile(r" SQLSTATE: \w+")


@contextlib.contextmanager
def running(
    app: str, master: str | None, conf: Sequence[str] | None, more: Mapping[str, str] | None = None
) -> "Iterator[SparkSession]":
    """A session, stopped at the end unless it ran before. What Spark raises within leaves as one line."""
    from rmqkit.spark.sessions import check_installed, session

    settings = {**(more or {}), **pairs(conf, "--conf")}
    check_installed()
    from py4j.protocol import Py4JJavaError
    from pyspark.core.context import SparkContext
    from pyspark.errors import PySparkException

    # It logs what is raised anyway, with a stack.
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    was_running = SparkContext._active_spark_context is not None
    waiting = output.WaitNote(after_s=0.0)
    waiting.tell("starting Spark")
    try:
        spark = session(app, master=master, conf=settings)
    finally:
        waiting.clear()
    try:
        yield spark
    except (PySparkException, Py4JJavaError) as error:
        raise plain(error) from None
    finally:
        if not was_running:
            spark.stop()


class SparkFailed(Failed):
    """A query ended with an error; `exit_code` is that of what rmqkit raised inside it."""


def plain(error: Exception) -> SparkFailed:
    """A query's error as one line: what rmqkit raised in a worker or planner, else Spark's first line and its cause."""
    text = str(error)
    ours = OURS.findall(text)
    if ours:
        failed = SparkFailed(ours[-1][1].strip())
        failed.exit_code = _exit_code(ours[-1][0])
        return failed
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith(CALLING)]
    first = lines[0] if lines else type(error).__name__
    said = SQLSTATE.sub("", first).lstrip(": ").strip()
    causes = CAUSED.findall(text)
    if causes and causes[-1] not in said:
        said = f"{said.removesuffix('.')}: {causes[-1].strip()}"
    if NO_WORKER in said:
        said = f"{said.removesuffix('.')}: the machine was too busy to start one in time; run it again"
    return SparkFailed(said)


def _exit_code(path: str) -> int:
    module, _dot, name = path.rpartition(".")
    try:
        kind = getattr(import_module(module), name)
        return exit_code_of(kind.__new__(kind))
    except (ImportError, AttributeError, TypeError):
        return Failed.exit_code


class StopSignal:
    """Ctrl-C and SIGTERM as a flag while the context lasts. Calling it returns whether one has arrived.

    A signal that is ignored already stays ignored. `check` then ends as an interrupted command
    does, except that Ctrl-C is the regular end of an `endless` command.
    """

    def __init__(self) -> None:
        self.number = 0
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        return self.number != 0

    def __enter__(self) -> "StopSignal":
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is signal.SIG_IGN:
                continue
            # None: not the main thread, or set by somebody outside Python
            with contextlib.suppress(ValueError):
                self._before[number] = signal.signal(number, self._asked)
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in self._before.items():
            if handler is not None:
                signal.signal(number, handler)

    def _asked(self, number: int, _frame: FrameType | None) -> None:
        if self.number:
            raise KeyboardInterrupt
        self.number = number
        output.note("ending")

    def check(self, *, endless: bool) -> None:
        """Raises Interrupted; not for Ctrl-C where nothing else ends a command."""
        if self.number and not (endless and self.number == signal.SIGINT):
            raise Interrupted(self.number)


class ProgressPrinter:
    """Progress: a bar on a terminal's stderr, an object a line with --json, silent elsewhere."""

    def __init__(self, what: str, *, json: bool = False) -> None:
        self._json = json
        self._what = what
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> "Callable[[PipelineProgress], None]":
        import sys

        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as Bar

            columns = (
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                TextColumn("{task.fields[told]}", markup=False),
                TimeElapsedColumn(),
            )
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self._what, total=None, told="")
            self._bar.start()
        return self._tell

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _tell(self, progress: "PipelineProgress") -> None:
        if self._json:
            output.line({"progress": builtins(progress)})
        if self._bar is None:
            return
        if progress.tasks:
            told = f"{progress.tasks_done} of {count_text(progress.tasks, 'task')}"
            self._bar.update(self._task, completed=progress.tasks_done, total=progress.tasks, told=told)
            return
        behind = f", {progress.lag} to go" if progress.lag is not None else ""
        total = None if progress.lag is None else progress.rows + progress.lag
        told = f"{progress.rows} rows, {progress.rows_per_s:.0f}/s{behind}"
        self._bar.update(self._task, completed=progress.rows, total=total, told=told)


def builtins(value: Any) -> Any:
    """A pipeline's answer as JSON has it."""
    import msgspec

    return msgspec.to_builtins(value)
