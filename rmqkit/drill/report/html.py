"""The report of a drill: one self-contained HTML file, made from a run folder (`rmqkit[report]`).

    rmqkit drill show RUN --report out.html

From top to bottom it shows:

- the verdict in a sentence: the fault, the promise of the mode, and what was observed;
- the promises with their counts;
- the violations, each with the rows of its message;
- the stages of takeover and return, if a slave acted;
- rates, latencies and roles over time, with a band for the fault;
- the timeline, the figures and the settings;
- the command that repeats the drill.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rmqkit import html_page
from rmqkit.drill import runs
from rmqkit.drill.history import FAULT_BEGINS, History
from rmqkit.drill.plan import Plan
from rmqkit.drill.report import verdict_words
from rmqkit.drill.report.plot import plot, stage_plot
from rmqkit.drill.report.row_lines import line
from rmqkit.drill.stages import TAKEOVER, stages
from rmqkit.drill.verdict import PromiseResult, Verdict

TEMPLATE = "report.html.j2"
STORIES_MAX = 20
#: fields of the plan that the report shows unless they are empty → their names for users
SHOWN = {
    "fault": "fault",
    "target": "target",
    "group": "broken group",
    "mode": "mode",
    "seed": "seed",
    "groups": "broker groups",
    "replicas": "brokers in a group",
    "nameservers": "name servers",
    "writers": "writers",
    "rate": "sends per second of one writer",
    "queues": "queues of a topic",
    "body_size": "size of a body, bytes",
    "fault_ms": "length of the fault, ms",
    "services": "loads",
}


def page(run: Path, command: str) -> str:
    """Return the HTML page of a run. `command` repeats the drill.

    Raises PlanError if the folder is not a run, and ImportError without jinja2 or matplotlib.
    """
    plan, verdict, history = runs.load_plan(run), runs.load_verdict(run), runs.load_history(run)
    judgement = str(verdict.judgement)
    return html_page.render(
        "rmqkit.drill.report",
        TEMPLATE,
        content(plan, verdict, history, command),
        title=f"{judgement} · {run.name}",
        headline=verdict_words.of(plan, verdict).headline,
        subject=f"drill {run.name}",
        mark=judgement,
    )


def content(plan: Plan, verdict: Verdict, history: History, command: str) -> dict[str, Any]:
    """Return the variables of the template."""
    return {
        "command": command,
        "words": verdict_words.of(plan, verdict),
        "verdict": verdict,
        "promises": [(each, verdict_words.notes(each)) for each in verdict.promises],
        "figures": {verdict_words.plain(name): value for name, value in verdict_words.figures(history, verdict).items()},
        "timeline": [(event, verdict_words.plain(event.what), _since(event.at_ms, history)) for event in verdict.timeline],
        "stages": stage_plot(history),
        "stage_rows": [(stage, stage.part == TAKEOVER) for stage in stages(history)],
        "stories": [(each, stories_of(each, history)) for each in verdict.broken],
        "plot": plot(history) if history.sends else "",
        "settings": _settings(plan),
        "rows": len(history),
    }


def _since(at_ms: int, history: History) -> str:
    """Return the seconds since the fault began as text, "" before it."""
    begin_ms = history.event_ms(FAULT_BEGINS)
    return f"+{(at_ms - begin_ms) / 1000:.2f}" if begin_ms is not None and at_ms > begin_ms else ""


def _settings(plan: Plan) -> Mapping[str, str]:
    told = plan.as_json()
    told["services"] = ", ".join(plan.services)
    shown = {name: str(told[key]) for key, name in SHOWN.items() if told[key] not in ("", ())}
    if plan.breaks:
        shown["planted defects"] = ", ".join(plan.breaks)
    return {**shown, **plan.settings, **plan.seen}


def stories_of(each: PromiseResult, history: History | None) -> list[tuple[str, str, list[tuple[str, str]]]]:
    """Return (key, violation, rows as (time, text)) for the first violations.

    Without a history, there are no rows.
    """
    told = []
    for broken in each.finding.broken[:STORIES_MAX]:
        rows = history.story(broken.key) if broken.key and history is not None else []
        told.append((broken.key, broken.what, [(f"{row.complete_ms / 1000:.3f}", line(row)) for row in rows]))
    return told
