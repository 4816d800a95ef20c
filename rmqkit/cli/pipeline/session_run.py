"""Shared by the commands of `rmqkit pipeline`: the Spark session, progress, signals, errors.

- A pipeline that loops polls its `stop` (`StopSignal`). Ctrl-C and SIGTERM only set a flag, and the
  loop ends at its next poll. A pipeline without a loop is a sequence of Spark jobs, which are
  cancelled. Both print one line with the work that is complete. A second Ctrl-C ends them at once.
- The error of a query is a text of Spark's with the traceback of a Python worker inside. `plain`
  extracts the message that rmqkit raised there.
"""

import contextlib
import logging
import re
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
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

#: a traceback line with an rmqkit error: its class and message
OURS = re.compile(r"^\s*(?:pyspark\.[\w.]+: )?(rmqkit(?:\.\w+)+): (.+)$", re.MULTILINE)
#: the beginning of py4j's line before an error of the JVM
CALLING = "An error occurred while calling"
#: the causes below an error of the JVM; the last one is the root cause
CAUSED = re.compile(r"^Caused by: (?!.*Traceback)(.+)$", re.MULTILINE)
#: Spark's message when a Python worker has not connected in time; Spark does not know why
NO_WORKER = "Python worker failed to connect back"
#: Spark's own first line: [CLASS_OF_ERROR] text. SQLSTATE: 12345
SQLSTATE = re.compile(r" SQLSTATE: \w+")
#: after a signal, jobs that have begun meanwhile are cancelled at this interval, in seconds
CANCEL_S = 0.25


@contextlib.contextmanager
def running(app: str, master: str | None, conf: Sequence[str] | None) -> "Iterator[SparkSession]":
    """Open a Spark session; stop it at the end unless it already ran before.

    Raises SparkFailed, with one line, for an error of Spark inside the block.
    """
    from rmqkit.spark.sessions import LEAN_KEY, check_installed, session

    settings = {LEAN_KEY: "true", **pairs(conf, "--conf")}
    check_installed()
    from py4j.protocol import Py4JJavaError
    from pyspark.core.context import SparkContext
    from pyspark.errors import PySparkException

    # py4j logs each error with a stack trace, and the error is raised anyway.
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
    """A query failed; `exit_code` is that of the rmqkit error inside it."""


def plain(error: Exception) -> SparkFailed:
    """Return a query's error as one line.

    This is the message that rmqkit raised in a worker or planner, else Spark's first line and its
    cause.
    """
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
    """Ctrl-C and SIGTERM as a flag while the context lasts. A call returns whether one has arrived.

    A signal that is already ignored stays ignored. `check` then ends as an interrupted command
    does, except that Ctrl-C is the regular end of an `endless` command.

    `jobs` is the session of a pipeline that does not poll. A signal cancels its jobs, and Spark
    raises an error. Then the line that `done` returns is printed, and Interrupted is raised.
    """

    def __init__(self, jobs: "SparkSession | None" = None, done: Callable[[], str] = str) -> None:
        self.number = 0
        self._before: dict[int, Any] = {}
        self._jobs = jobs
        self._done = done
        self._is_over = threading.Event()
        self._canceller: threading.Thread | None = None

    def __call__(self) -> bool:
        return self.number != 0

    def __enter__(self) -> "StopSignal":
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is signal.SIG_IGN:
                continue
            # ValueError: this is not the main thread. A handler of None was set outside Python.
            with contextlib.suppress(ValueError):
                self._before[number] = signal.signal(number, self._asked)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._is_over.set()
        if self._canceller is not None:
            self._canceller.join()  # before the session ends
        for number, handler in self._before.items():
            if handler is not None:
                signal.signal(number, handler)
        if self.number and self._jobs is not None and isinstance(error, Exception):
            output.note(self._done())
            raise Interrupted(self.number) from None

    def _asked(self, number: int, _frame: FrameType | None) -> None:
        if self.number:
            raise KeyboardInterrupt
        self.number = number
        output.note("stopping")
        if self._jobs is not None:
            # In a thread: the main one may hold the connection to the JVM, and waits for the job.
            self._canceller = threading.Thread(target=self._cancel, args=(self._jobs,), daemon=True, name="cancel")
            self._canceller.start()

    def _cancel(self, spark: "SparkSession") -> None:
        while True:
            spark.sparkContext.cancelAllJobs()
            if self._is_over.wait(CANCEL_S):
                return

    def check(self, *, endless: bool) -> None:
        """Raises Interrupted after a signal, except after Ctrl-C in an `endless` command."""
        if self.number and not (endless and self.number == signal.SIGINT):
            raise Interrupted(self.number)


@contextlib.contextmanager
def serving(pipeline: str, address: str | None, topics: Sequence[str], shown: "ProgressPrinter") -> Iterator[None]:
    """Serve what `shown` is told at `--metrics` as well, if that is given. Raises ConfigError."""
    if address is None:
        yield
        return
    from rmqkit.spark.pipelines.progress import ProgressMetrics

    with ProgressMetrics(pipeline, address, topics=",".join(topics)) as served:
        output.note(f"metrics: http://{served.address}/metrics")
        shown.also = served.update
        yield


class ProgressPrinter:
    """Prints progress: a bar on a terminal's stderr, with --json a line of JSON, else nothing."""

    def __init__(self, what: str, *, json: bool = False) -> None:
        #: Gets the progress as well, if set.
        self.also: Callable[[PipelineProgress], None] | None = None
        #: The tasks of the last progress, as `3 of 8 tasks`; "" before the first.
        self.tasks = ""
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
                TextColumn("{task.fields[state]}", markup=False),
                TimeElapsedColumn(),
            )
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task(self._what, total=None, state="")
            self._bar.start()
        return self._tell

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _tell(self, progress: "PipelineProgress") -> None:
        if self._json:
            output.line({"progress": builtins(progress)})
        if self.also is not None:
            self.also(progress)
        if progress.tasks:
            self.tasks = f"{progress.tasks_done} of {count_text(progress.tasks, 'task')}"
        if self._bar is None:
            return
        if progress.tasks:
            self._bar.update(self._task, completed=progress.tasks_done, total=progress.tasks, state=self.tasks)
            return
        behind = f", {progress.lag} to go" if progress.lag is not None else ""
        total = None if progress.lag is None else progress.rows + progress.lag
        state = f"{progress.rows} rows, {progress.rows_per_s:.0f}/s{behind}"
        self._bar.update(self._task, completed=progress.rows, total=total, state=state)


def finish(done: Any, text: str, *, json: bool) -> None:
    """Print the result of a pipeline with progress: the last line of JSON, or `text`."""
    output.line({"done": builtins(done)}) if json else print(text)


def builtins(value: Any) -> Any:
    """Return a pipeline's result as JSON types."""
    import msgspec

    return msgspec.to_builtins(value)
