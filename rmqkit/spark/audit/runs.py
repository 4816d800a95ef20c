"""The runs of an audit: drill folders, or histories in memory."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from rmqkit.drill import runs as folders
from rmqkit.drill.arrow.rows import write_parquet
from rmqkit.drill.history import History
from rmqkit.drill.plan import Plan
from rmqkit.errors import RmqkitError
from rmqkit.spark.audit.run_check import RunTask

#: approximate bytes of a row of JSON lines
LINE_BYTES = 250


class AuditError(RmqkitError):
    """Raised when a run cannot be read, or two runs have the same name. The message is one line."""

    exit_code = 2


class AuditRun(NamedTuple):
    """One run to be audited: its history in memory, or in a file."""

    name: str
    plan: Plan
    history: History | None = None
    path: Path | None = None
    #: why the drill itself proved nothing, so that there is nothing to judge; "" if it proved
    #: something
    why: str = ""

    def rows(self) -> int:
        """Return the number of rows; of JSON lines, about as many. Raises AuditError."""
        if self.path is None:
            return len(self.history or ())
        if self.path.suffix != ".parquet":
            return self.path.stat().st_size // LINE_BYTES
        import pyarrow.dataset as ds

        try:
            return int(ds.dataset(self.path, format="parquet").count_rows())
        except (OSError, ValueError) as error:
            raise AuditError(f"{self.path} is not a history: {error}") from None

    def task(self, process_rows: int) -> RunTask:
        """Return the task that checks this run. Raises AuditError."""
        source: Path | bytes | None = self.path
        if source is None:
            stored = io.BytesIO()
            write_parquet(self.history or History(), stored)
            source = stored.getvalue()
        rows = self.rows()
        return RunTask(self.name, self.plan, source, rows, rows > process_rows)


Given = Path | str | AuditRun | tuple[str, History] | tuple[str, History, Plan]


def found(runs: Iterable[Given]) -> list[AuditRun]:
    """Return the runs of folders and of histories in memory, in the given order.

    A history without a plan is judged by a plan with default values. Raises AuditError if two runs
    have the same name, and AuditError or PlanError if a folder cannot be read.
    """
    made = [_run(each) for each in runs]
    names: set[str] = set()
    for run in made:
        if run.name in names:
            raise AuditError(f"two runs are called {run.name!r}; give one of them another name")
        names.add(run.name)
    return made


def _run(given: Given) -> AuditRun:
    if isinstance(given, AuditRun):
        return given
    if not isinstance(given, str | Path):
        return AuditRun(given[0], given[2] if len(given) == 3 else Plan(), given[1])
    folder = Path(given).resolve()
    plan = folders.load_plan(folder)
    path = next((folder / name for name in (folders.PARQUET, folders.LINES) if (folder / name).exists()), None)
    if path is None:
        raise AuditError(f"{folder} has no {folders.LINES}: the drill still runs, or was stopped early")
    why = ""
    if (folder / folders.VERDICT).exists():
        verdict = folders.load_verdict(folder)
        why = verdict.why if not verdict.promises else ""
    return AuditRun(folder.name, plan, path=path, why=why)
