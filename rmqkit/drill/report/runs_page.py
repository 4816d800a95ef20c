"""The page of many drills: which run kept which promise, and details of the worst runs.

    rmqkit pipeline audit RUN... --report out.html

A table has a row per run and a column per promise. For at most `SHOWN_MAX` runs, those with broken
promises first, the page also has what the report of a drill has: the fault, the promises, the
violations with the rows of their messages, and rates, latencies and roles over time.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rmqkit import html_page
from rmqkit.drill.history import FAULT_BEGINS, FAULT_BITES, History
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises import PROMISES
from rmqkit.drill.promises.contract import Judgement
from rmqkit.drill.report import verdict_words
from rmqkit.drill.report.html import stories_of
from rmqkit.drill.report.plot import plot
from rmqkit.drill.verdict import PromiseResult, verdict_of

#: the number of runs with details
SHOWN_MAX = 20
#: what the page shows first
WORST_FIRST = (Judgement.BROKEN, Judgement.INCONCLUSIVE, Judgement.VALID)


class JudgedRun(NamedTuple):
    """One run of the page."""

    name: str
    plan: Plan
    judgement: Judgement
    promises: Sequence[PromiseResult]
    #: why the drill itself proved nothing, "" if it proved something
    why: str
    #: returns the history; None if it is too large to be drawn
    load: Callable[[], History | None]


def page(runs: Sequence[JudgedRun]) -> str:
    """Return the HTML page. Raises what `load` raises, ImportError without jinja2 or matplotlib."""
    made = dict.fromkeys(each.name for run in runs for each in run.promises)
    names = [name for name in dict.fromkeys((*PROMISES, *made)) if name in made]
    worst = sorted(runs, key=lambda run: WORST_FIRST.index(run.judgement))
    judgement = worst[0].judgement if worst else Judgement.INCONCLUSIVE
    number = {each: sum(run.judgement is each for run in runs) for each in WORST_FIRST}
    shown = {run.name: _details(run) for run in worst[:SHOWN_MAX]}
    content = {
        "counts": f"{_runs(len(runs))}: " + ", ".join(f"{count} {name}" for name, count in number.items() if count) + ".",
        "names": names,
        "matrix": [(run.name, str(run.judgement), _cells(run, names)) for run in runs],
        "shown": shown,
        "left_out": len(runs) - len(shown),
    }
    headlines = {
        Judgement.BROKEN: f"{number[Judgement.BROKEN]} of {_runs(len(runs))} broke a promise.",
        Judgement.INCONCLUSIVE: f"{number[Judgement.INCONCLUSIVE]} of {_runs(len(runs))} inconclusive.",
        Judgement.VALID: "Every promise was kept in every run.",
    }
    return html_page.render(
        "rmqkit.drill.report",
        "runs.html.j2",
        content,
        title=f"{judgement} · audit of {_runs(len(runs))}",
        headline=headlines[judgement],
        subject="audit of drills",
        mark=str(judgement),
    )


def _runs(number: int) -> str:
    return f"{number} run{'s' if number != 1 else ''}"


def _cells(run: JudgedRun, names: Sequence[str]) -> list[Any]:
    findings = {each.name: each.finding for each in run.promises}
    return [findings.get(name) for name in names]


def _details(run: JudgedRun) -> dict[str, Any]:
    history = run.load()
    words = _words(run, history or History())
    told = [words.broke, words.promised, words.seen] if history is not None else []
    if history is None:
        told.append("The history is too large to be drawn here; its violations come without their rows.")
    return {
        "name": run.name,
        "headline": words.headline,
        "lines": [line for line in told if line],
        "promises": [(each, verdict_words.notes(each)) for each in run.promises],
        "stories": [
            (each, stories_of(each, history)) for each in run.promises if each.finding.judgement is Judgement.BROKEN
        ],
        "plot": plot(history) if history is not None and history.sends else "",
    }


def _words(run: JudgedRun, history: History) -> verdict_words.Words:
    events = {row.key: row for row in reversed(history.events)}
    node = str(events[FAULT_BEGINS].extra.get("node", "")) if FAULT_BEGINS in events else ""
    proof = events[FAULT_BITES].value if FAULT_BITES in events else ""
    return verdict_words.of(run.plan, verdict_of(history, run.promises, node=node, proof=proof, why=run.why))
