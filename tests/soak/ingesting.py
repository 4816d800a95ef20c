"""Two ways to run the same ingest: the command as a process, which can be killed, or this process.

Both report each micro-batch (`on_batch`, with the rows so far). While they follow, they poll
`stop`.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from pyspark.sql import SparkSession

RMQKIT = str(Path(sys.executable).with_name("rmqkit"))


class Ingest(Protocol):
    def __call__(
        self,
        topic: str,
        path: Path,
        *,
        follow: bool,
        options: Mapping[str, str],
        on_batch: Callable[[int], None],
        stop: Callable[[], bool],
    ) -> None: ...


def by_session(spark: SparkSession, namesrv: str, trigger: str) -> Ingest:
    """Return an ingest in this process; `trigger` is the interval of batches with `follow`."""

    def run(topic: str, path: Path, *, follow, options, on_batch, stop) -> None:
        from rmqkit.spark.pipelines.ingest import ingest

        ingest(
            spark,
            topic,
            path,
            namesrv=namesrv,
            follow=follow,
            options=options,
            trigger=trigger,
            on_progress=lambda progress: on_batch(progress.rows),
            stop=stop if follow else None,
        )

    return run


class Command:
    """`rmqkit pipeline ingest` as a process, in one process group with its JVM and workers."""

    def __init__(
        self,
        topic: str,
        path: Path,
        *,
        namesrv: str,
        follow: bool,
        options: Mapping[str, str],
        conf: Mapping[str, str],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        command = [RMQKIT, "pipeline", "ingest", topic, "--to", str(path), "--namesrv", namesrv, "--json"]
        command += ["--follow"] if follow else []
        for key, value in options.items():
            command += ["--option", f"{key}={value}"]
        for key, value in conf.items():
            command += ["--conf", f"{key}={value}"]
        self._log = path.with_suffix(".log").open("a+")
        self._process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            start_new_session=True,
            cwd=path.parent,
            env=None if environment is None else dict(environment),
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def __enter__(self) -> "Command":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for file in (self._process.stdout, self._log):
            if file is not None:
                file.close()

    def progress(self):
        """Yield each JSON document when the process prints it, until the process ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield json.loads(line)

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def kill(self, *, alone: bool = False) -> None:
        """Send SIGKILL to the driver and, unless `alone`, to its JVM and workers with it."""
        if alone:
            self._process.kill()
        else:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self._process.wait()

    def wait(self) -> None:
        """Wait for the process. Raises RuntimeError with the end of its output if it failed."""
        code = self._process.wait()
        if code:
            self._log.seek(0)
            raise RuntimeError(f"ingest ended with {code}: {self._log.read()[-3000:]}")


def by_command(namesrv: str, conf: Mapping[str, str]) -> Ingest:
    """Return an ingest that runs as a separate process each time."""

    def run(topic: str, path: Path, *, follow, options, on_batch, stop) -> None:
        with Command(topic, path, namesrv=namesrv, follow=follow, options=options, conf=conf) as command:
            watch = threading.Thread(target=_interrupt_when, args=(command, stop), daemon=True)
            if follow:
                watch.start()
            for told in command.progress():
                rows = rows_of(told)
                if rows is not None:
                    on_batch(rows)
            command.wait()

    return run


def _interrupt_when(command: Command, stop: Callable[[], bool]) -> None:
    while command.is_running:
        if stop():
            command.interrupt()
            return
        time.sleep(0.5)


def rows_of(told: Any) -> int | None:
    """Return the rows so far if the document reports a micro-batch, else None."""
    return int(told["progress"]["rows"]) if "progress" in told else None
