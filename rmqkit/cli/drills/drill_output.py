"""Shows drills on the terminal and as JSON, and writes their reports."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqkit.cli import output
from rmqkit.cli.errors import UsageError

if TYPE_CHECKING:
    from rmqkit.drill.plan import Plan
    from rmqkit.drill.real.runner import DrillResult
    from rmqkit.drill.report.comparison import Median
    from rmqkit.drill.verdict import Verdict

REPORT_WANTS = ("jinja2", "matplotlib")
HOW_TO_REPORT = "HTML reports need more packages: pip install 'rmqkit[report]'"
TOLD_MAX = 5
#: most characters of an event's details
MORE_MAX = 90


def can_report() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in REPORT_WANTS)


def check_report(path: Path | None) -> None:
    """Raises UsageError, before the drill runs, if its report could not be written."""
    if path is None:
        return
    if not can_report():
        raise UsageError(f"--report {path}: {HOW_TO_REPORT}")
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise UsageError(
            f"--report {path}: {'this is a folder, not a file' if path.is_dir() else 'its folder does not exist'}"
        )


def write_report(run: Path, path: Path | None, command: str = "") -> None:
    """Write the report to the run's folder, or to `path`.

    Without the packages for reports, print a note.
    """
    if not can_report():
        output.note(HOW_TO_REPORT)
        return
    from rmqkit.drill import runs
    from rmqkit.drill.report.html import page

    where = path or run / runs.REPORT
    where.write_text(page(run, command or f"rmqkit drill replay {run.name}"), encoding="utf-8")


def defects() -> dict[str, str]:
    """Return the defects that can be planted, with what they do."""
    from rmqkit.drill.defects.table import DEFECTS

    return {name: defect.text for name, defect in DEFECTS.items()}


def loads() -> list[tuple[str, str]]:
    """Return every load that `--load` may name, with what its clients do."""
    from rmqkit.drill.plan import POP, TIMERS, TRANSACTIONS
    from rmqkit.drill.real.services.table import NO_LOAD

    return [
        (TIMERS, "a producer sends messages that are due 1 to 5 s later and recalls some"),
        (TRANSACTIONS, "producers send half messages, commit, roll back, answer checks, and die in between"),
        (POP, "two members of a group pop the drill's messages, ack most of them, and die"),
        (NO_LOAD, "only plain and delayed messages"),
    ]


def modes() -> list[tuple[str, str]]:
    """Return every mode, with the meaning of SEND_OK in it."""
    from rmqkit.drill.plan import Flush, Mode, ReplicationMode
    from rmqkit.drill.promises.table import TABLE

    copies = {
        ReplicationMode.ASYNC: "on the master",
        ReplicationMode.SYNC: "on as many replicas as inSyncReplicas says",
        ReplicationMode.QUORUM: "the same; a send is refused while too few replicas are in sync",
        ReplicationMode.ALL_ACK: "on every member in sync; controllers elect the master",
        ReplicationMode.SOME_ACK: "on as many members in sync as inSyncReplicas says; controllers elect the master",
    }
    disks = {Flush.ASYNC: "in the page cache", Flush.SYNC: "on disk", Flush.POOL: "in the memory of the broker"}
    return [
        (str(Mode(each, flush)), f"{disks[flush]}, {copies[each]}")
        for each in ReplicationMode
        for flush in Flush
        if (each, flush) in TABLE
    ]


def finding_command(name: str) -> str:
    """Return the command of a drill that finds a planted defect."""
    from rmqkit.drill.defects.table import DEFECTS

    defect = DEFECTS[name]
    if defect.plan is None:
        return f"rmqkit drill simulate --break {name}"
    options = {
        "fault": "--fault {}",
        "target": "--target {}",
        "mode": "--mode {}",
        "fault_ms": "--seconds {:g}",
        "send_timeout_ms": "--send-timeout {:g}",
    }
    words = [
        option.format(value / 1000 if key.endswith("_ms") else value)
        for key, option in options.items()
        if (value := defect.plan.get(key, "")) and (key, value) not in (("fault", "kill"), ("target", "master"))
    ]
    return " ".join([f"rmqkit drill run --break {name}", *words])


def may_miss(name: str, plan: Plan) -> str:
    """Return why a drill of that plan may miss the defect, and which one finds it; "" if it should
    find it.
    """
    from rmqkit.drill.defects.table import DEFECTS

    defect = DEFECTS[name]
    wanted = defect.plan or {}
    if defect.plan is not None and all(getattr(plan, key) == value for key, value in wanted.items()):
        return ""
    needs = f" It needs {defect.needs}." if defect.needs else ""
    return f"This drill may not find the defect {name}.{needs} `{finding_command(name)}` finds it."


def judgement_of(run: Path) -> str:
    """Return the judgement of a run, "unfinished" if it has none."""
    from rmqkit.drill import runs
    from rmqkit.errors import RmqkitError

    try:
        return str(runs.load_verdict(run).judgement)
    except RmqkitError:
        return "unfinished"


def document(plan: Plan, verdict: Verdict, run: Path) -> dict[str, Any]:
    """Return what `--json` prints of a drill."""
    return {"run": run.name, "folder": str(run), "plan": plan.as_json(), **verdict.as_json()}


def document_of(done: DrillResult) -> dict[str, Any]:
    return document(done.plan, done.outcome.verdict, done.run)


def show(plan: Plan, verdict: Verdict, run: Path, report: Path | None = None) -> None:
    """Print the verdict of a drill.

    `report` is the path of the report if it is outside the run's folder.
    """
    from rmqkit.drill import runs
    from rmqkit.drill.report import verdict_words

    words = verdict_words.of(plan, verdict)
    print(f"\n{words.headline}\n")
    for line in (words.broke, words.promised, words.seen):
        if line:
            print(f"  {line}")
    print()
    if verdict.promises:
        rows = [
            (each.name, str(each.finding.judgement), each.finding.facts, verdict_words.notes(each))
            for each in verdict.promises
        ]
        output.table(("promise", "verdict", "facts", "counts"), rows)
    for each in verdict.broken:
        print(f"\n{each.name}: {each.text}")
        for broken in each.finding.broken[:TOLD_MAX]:
            print(f"  {f'{broken.key}: ' if broken.key else ''}{broken.what}")
        more = each.finding.counts.get("broken", 0) - TOLD_MAX
        if more > 0:
            print(f"  and {more} more")
    print()
    output.table(
        ("s", "what happened", ""),
        [(f"{e.at_ms / 1000:.2f}", verdict_words.plain(e.what), _cut(e.more)) for e in verdict.timeline],
    )
    print()
    print(f"run     {run}")
    page = report or run / runs.REPORT
    if page.is_file():
        print(f"report  {page}")


def _cut(text: str) -> str:
    return text if len(text) <= MORE_MAX else f"{text[: MORE_MAX - 1]}…"


INTERVALS = (
    "Each figure is the median of a side's runs; the difference is the median over the pairs of runs with one seed."
    " In brackets: from six runs on, an interval that holds the median with 95 % probability; below six, the range."
)


def compared(sides: Sequence[Sequence[DrillResult]]) -> list[tuple[str, ...]]:
    """Return the rows of a table that compares two sides with the same number of drills."""
    from rmqkit.drill.report import verdict_words
    from rmqkit.drill.report.comparison import compare

    if len(sides[0]) > 1:
        rows: list[tuple[str, ...]] = [("verdict", *(_verdicts(side) for side in sides), "")]
        for each in compare(*(_measured(side) for side in sides)):
            cells = [_median(found, len(sides[0])) for found in (*each.sides, each.difference)]
            rows.append((verdict_words.plain(each.name), *cells))
        return rows
    done = [side[0] for side in sides]
    figures = [verdict_words.figures(each.history, each.outcome.verdict) for each in done]
    rows = [("verdict", *(str(each.outcome.verdict.judgement) for each in done))]
    for name in dict.fromkeys(name for each in figures for name in each):
        rows.append((verdict_words.plain(name), *(each.get(name, "-") for each in figures)))
    for name in dict.fromkeys(each.name for one in done for each in one.outcome.verdict.promises):
        rows.append((name, *(_judgement(one, name) for one in done)))
    return rows


def _median(found: Median | None, runs: int) -> str:
    """Return a median as text, with the number of its runs if some runs lack the figure."""
    if found is None:
        return "-"
    return str(found) if found.runs == runs else f"{found} ({found.runs} of {runs} runs)"


def side_names(sides: Sequence[str], without: str) -> list[str]:
    """Return the names of the sides: their settings, or `without` if they have none.

    Equal names get a number.
    """
    found = [side or without for side in sides]
    return found if len(set(found)) == len(found) else [f"{name} ({number})" for number, name in enumerate(found, 1)]


def compared_runs(names: Sequence[str], sides: Sequence[Sequence[DrillResult]]) -> list[tuple[str, ...]]:
    """Return the rows of a table with the folder of each run."""
    return [
        (name, str(done.plan.seed), str(done.outcome.verdict.judgement), str(done.run))
        for name, side in zip(names, sides, strict=True)
        for done in side
    ]


def compared_document(names: Sequence[str], sides: Sequence[Sequence[DrillResult]]) -> dict[str, Any]:
    """Return what `--json` prints of a comparison.

    With one drill per side these are the drills, else the drills and the compared figures.
    """
    from rmqkit.drill.report.comparison import compare

    if len(sides[0]) == 1:
        return {name: document_of(side[0]) for name, side in zip(names, sides, strict=True)}
    figures = [
        {
            "name": each.name,
            "sides": [median._asdict() if median is not None else None for median in each.sides],
            "difference": each.difference._asdict() if each.difference is not None else None,
        }
        for each in compare(*(_measured(side) for side in sides))
    ]
    drills = {name: [document_of(done) for done in side] for name, side in zip(names, sides, strict=True)}
    return {"drills": drills, "figures": figures}


def _measured(side: Sequence[DrillResult]) -> list[dict[str, float]]:
    from rmqkit.drill.report.verdict_words import measured

    return [measured(done.history, done.outcome.verdict) for done in side]


def _verdicts(side: Sequence[DrillResult]) -> str:
    judgements = [str(done.outcome.verdict.judgement) for done in side]
    return ", ".join(f"{judgements.count(each)} {each}" for each in dict.fromkeys(judgements))


def _judgement(done: DrillResult, name: str) -> str:
    promises = done.outcome.verdict.promises
    return next((str(each.finding.judgement) for each in promises if each.name == name), "-")
