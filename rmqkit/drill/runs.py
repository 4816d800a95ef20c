"""Runs: the folders in which drills store their results, and how to find them.

    <home>/<cluster>/drills/<run>/     of a drill on a running cluster
    <home>/drills/<run>/               of a drill that started its own cluster

    plan.json
    verdict.json
    facts.json         the state of the cluster before and after the drill
    history.jsonl
    history.parquet
    logs/<node>.log
    report.html

A run is called `<stamp>-<fault>-<seed>`, followed by a number if that name exists. The plan is
written when the drill starts, the other files at its end. A run without a verdict is still in
progress, or was interrupted.
"""

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rmqkit.drill.contract import DrillError
from rmqkit.drill.engine import Outcome
from rmqkit.drill.history import History, read_lines, write_lines
from rmqkit.drill.plan import Plan, PlanError
from rmqkit.drill.verdict import Verdict
from rmqkit.suggestions import suggest

DRILLS = "drills"
#: held while a drill runs on a cluster
LOCK = "lock"
PLAN, VERDICT, FACTS, LINES, PARQUET, LOGS, REPORT = (
    "plan.json",
    "verdict.json",
    "facts.json",
    "history.jsonl",
    "history.parquet",
    "logs",
    "report.html",
)
#: how many of the last lines of each node's log a run stores
LOG_LINES = 400


def new_run(parent: Path, plan: Plan) -> Path:
    """Create the folder of a new run under `parent` (a cluster's folder, or the home)."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    drills = parent / DRILLS
    drills.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = drills / f"{stamp}-{plan.fault}-{plan.seed}{f'-{number}' if number > 1 else ''}"
        try:
            path.mkdir()
            (path / PLAN).write_text(plan.dumps(), encoding="utf-8")
            return path
        except FileExistsError:
            number += 1


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the drill lock of the cluster in `folder`.

    Two drills on one cluster would see each other's fault. Raises DrillError if another drill runs.
    """
    import fcntl

    (folder / DRILLS).mkdir(parents=True, exist_ok=True)
    with open(folder / DRILLS / LOCK, "a", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DrillError(f"another drill runs on cluster {folder.name}; wait until it ends") from None
        yield


def save(run: Path, plan: Plan, history: History, outcome: Outcome, logs: Mapping[str, Sequence[str]]) -> None:
    """Write all files of the run except the report. Raises OSError.

    Without pyarrow, there is no `history.parquet`.
    """
    (run / PLAN).write_text(plan.dumps(), encoding="utf-8")
    (run / VERDICT).write_text(_json(outcome.verdict.as_json()), encoding="utf-8")
    (run / FACTS).write_text(_json({"before": outcome.facts_before, "after": outcome.facts_after}), encoding="utf-8")
    write_lines(history, run / LINES)
    with contextlib.suppress(ImportError):
        from rmqkit.drill.arrow.rows import write_parquet

        write_parquet(history, run / PARQUET)
    (run / LOGS).mkdir(exist_ok=True)
    for node, lines in logs.items():
        (run / LOGS / f"{node}.log").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _json(content: Any) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def all_runs(home: Path) -> list[Path]:
    """Return every run under a home, the oldest first."""
    found = [*home.glob(f"{DRILLS}/*/{PLAN}"), *home.glob(f"*/{DRILLS}/*/{PLAN}")]
    return sorted((path.parent for path in found), key=lambda run: run.name)


def runs_of(parent: Path) -> list[Path]:
    """Return the runs in a cluster's folder."""
    return sorted(path.parent for path in parent.glob(f"{DRILLS}/*/{PLAN}"))


def find(home: Path, name: str) -> Path:
    """Return the folder of a run by its name, its folder, or `last`. Raises PlanError."""
    if (Path(name) / PLAN).is_file():
        return Path(name)
    runs = all_runs(home)
    if name == "last" and runs:
        return runs[-1]
    found = [run for run in runs if run.name == name]
    if found:
        return found[-1]
    hint = suggest(name, [run.name for run in runs], "`rmqkit drill list` prints all runs")
    raise PlanError(f"there is no run {name!r} in {home}{hint}")


def load_plan(run: Path) -> Plan:
    """Read the plan of a run. Raises PlanError."""
    try:
        return Plan.from_json(json.loads((run / PLAN).read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise PlanError(f"{run / PLAN} cannot be read: {error}") from None


def load_verdict(run: Path) -> Verdict:
    """Read the verdict of a run. Raises PlanError."""
    if not (run / VERDICT).exists():
        raise PlanError(
            f"drill {run.name} has no verdict: it runs or was interrupted; `rmqkit drill replay {run.name}` repeats it"
        )
    try:
        return Verdict.from_json(json.loads((run / VERDICT).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PlanError(f"{run / VERDICT} cannot be read: {error}") from None


def load_history(run: Path) -> History:
    """Read the history of a run. Raises PlanError."""
    try:
        return read_lines(run / LINES)
    except (OSError, ValueError) as error:
        raise PlanError(f"{run / LINES} cannot be read: {error}") from None
