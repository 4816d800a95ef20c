"""A verdict as text and figures, for the terminal and the report.

The text names the fault, what the mode promises, and what was observed.
"""

from collections.abc import Sequence
from typing import NamedTuple

from rmqkit.drill import history as names
from rmqkit.drill import stages
from rmqkit.drill.history import OK, History, HistoryRow
from rmqkit.drill.plan import Plan, ReplicationMode
from rmqkit.drill.promises.contract import Judgement
from rmqkit.drill.promises.table import FLUSHES, REPLICATIONS, Cell, Harm, cell
from rmqkit.drill.verdict import PromiseResult, Verdict

#: suffix for the name of a rate, after the name of its total
PER_SECOND = " per second"
HEADLINES = {
    Judgement.VALID: "Every promise was kept.",
    Judgement.BROKEN: "A promise was broken.",
    Judgement.INCONCLUSIVE: "Inconclusive: the drill proves nothing.",
}


#: names in histories, verdicts and JSON documents → texts for users; a missing name is its own text
PLAIN = {
    # events of the timeline
    names.STEADY: "steady state",
    names.FAULT_BITES: "fault confirmed",
    names.NOTICED: "a name server removed the node",
    names.ANNOUNCED: "its group knows that it is gone",
    names.ROUTE_CHANGED: "the route changed",
    names.ACTS: "a slave acts as master",
    names.SLAVE_READ: "first read from a slave",
    names.LATE_READ: "a new group reads",
    names.STEP_ENDS: "one fault of the series ends",
    names.NODE_BACK: "the node answers again",
    names.PRE_ONLINE_DONE: "pre-online done",
    names.REGISTERED: "a name server registered the node again",
    # counts of findings
    "broken": "violations",
    "readings": "messages read back",
    "looks": "polls",
    "claims": "observations",
    "places": "offsets",
    "pieces": "pieces compared",
    "unknown, found": "unknown but stored",
    "lost where nothing is promised": "lost without a promise",
    "lost prefix": "lost at the start of a writer's sends",
    "lost middle": "lost in the middle of a writer's sends",
    "lost postfix": "lost at the end of a writer's sends",
    "gone with their places": "lost with their offsets",
    "gone before their answers": "lost before they were acknowledged",
    "place read before the power cut": "skipped: their offset was read before the power cut",
    "given back by a restart": "offsets rolled back by a restart",
    "given back at takeover": "offsets rolled back at takeover",
    "given back at return": "offsets rolled back at return",
    "given again at takeover": "messages redelivered at takeover",
    "given again at return": "messages redelivered at return",
    "changes": "changes of the serving broker",
    "acting ms": "slave acting, ms",
    "master and acting at once, ms": "master and acting slave at once, ms",
    "of these without a fault, ms": "of these outside the fault, ms",
    "without an answer": "unanswered",
    "leases that overlap": "overlapping leases",
    "longest overlap ms": "longest overlap, ms",
    "gap at takeover ms": "time without a lock at takeover, ms",
    "worked on in turns": "alternations of two members on one queue",
    "latest ms": "latest delivery after the due time, ms",
    "of these unexplained": "of these without an explanation",
    "after a clock was set": "not judged after a clock change",
    "longest ms": "slowest send, ms",
    "slowest ms": "slowest writer acknowledged after, ms",
    # figures
    "p50 of a send before the fault, ms": "median send latency before the fault, ms",
    "p99 of a send before the fault, ms": "p99 send latency before the fault, ms",
    "slowest answer of all, ms": "slowest acknowledged send, ms",
    "messages given again at takeover": "messages redelivered at takeover",
    "messages given again at return": "messages redelivered at return",
    "offsets given back at takeover": "offsets rolled back at takeover",
    "offsets given back at return": "offsets rolled back at return",
    "latest timer, ms": "latest delivery of a timer after its due time, ms",
    "latest delayed message, ms": "latest delivery of a delayed message after its due time, ms",
    "longest overlap of leases, ms": "longest overlap of two leases, ms",
    "gap of locks at takeover, ms": "time without a lock at takeover, ms",
}


def plain(name: str) -> str:
    """Return the text that users read for the name of an event, a count or a figure."""
    return PLAIN.get(name, name)


class Words(NamedTuple):
    """The sentences of a verdict; "" for a sentence that does not apply."""

    headline: str
    broke: str
    promised: str
    seen: str


def of(plan: Plan, verdict: Verdict) -> Words:
    """Return the sentences about a verdict."""
    count = verdict.counts
    headline = HEADLINES[verdict.judgement]
    if verdict.broken:
        named = ", ".join(each.name for each in verdict.broken)
        headline = f"{len(verdict.broken)} of {len(verdict.promises)} promises broken: {named}."
    elif verdict.why:
        headline = f"{headline[:-1]}: {verdict.why}."
    fault = "Fault" if verdict.harm else "Planned fault"
    broke = f"{fault}: {plan.fault} of {verdict.node or plan.target}, mode {plan.mode}, seed {plan.seed}."
    if verdict.proof:
        broke += f" Proof: {verdict.proof}."
    if plan.breaks:
        broke += f" Planted defects: {', '.join(plan.breaks)}."
    seen = ""
    if count.get("sends"):
        seen = (
            f"Seen: {count['sends']:,} sends, {count['acknowledged']:,} acknowledged,"
            f" {count['refused']:,} refused, {count['unknown']:,} unknown;"
            f" {count['deliveries']:,} deliveries, {count['readings']:,} messages read back."
        )
    return Words(headline, broke, promised(plan, verdict), seen)


def promised(plan: Plan, verdict: Verdict) -> str:
    """Return what the mode promises for an acknowledged message under this fault, by the table."""
    try:
        harm = Harm(verdict.harm)
    except ValueError:
        return ""
    hits_master = verdict.role == "master"
    told = _plain(cell(plan.mode, harm, copies=1 if plan.replicas < 2 else 2, hits_master=hits_master))
    replication = "one replica" if plan.replicas < 2 else REPLICATIONS[plan.mode.replication].replace("`", "")
    mode = f"{replication} and {FLUSHES[plan.mode.flush].strip('`')}"
    text = f"Promised: under this fault, with {mode}, a message that was answered SEND_OK {told}."
    alone = _plain(cell(plan.mode, harm, copies=1, hits_master=hits_master))
    if plan.mode.replication is ReplicationMode.QUORUM and plan.replicas > 1 and alone != told:
        text += " The promise is weaker while only the master is in sync."
    return text


def _plain(told: Cell) -> str:
    """Return the text of a cell without its Markdown."""
    return told.text.replace("*", "").replace("`", "")


def notes(each: PromiseResult) -> str:
    """Return the remark and the counts of a finding in one line, without counts that are 0."""
    counts = [f"{plain(name)}: {count:,}" for name, count in each.finding.counts.items() if count]
    return "; ".join([*([each.finding.why] if each.finding.why else []), *counts])


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value at this share (0 to 1) of the sorted values; 0 for no values."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def figures(history: History, verdict: Verdict) -> dict[str, str]:
    """Return the figures that compare drills, as text (see `measured`)."""
    return {name: figure(name, value) for name, value in measured(history, verdict).items()}


def figure(name: str, value: float) -> str:
    """Return a figure as text: seconds to 10 ms, rates to a tenth, whole numbers unchanged."""
    if name.endswith(", s"):
        return f"{value:.2f}"
    if name.endswith(PER_SECOND):
        return f"{value:,.1f}"
    return f"{value:,.0f}" if value == round(value) else f"{value:g}"


def measured(history: History, verdict: Verdict) -> dict[str, float]:
    """Return the figures that compare drills, as numbers.

    These are counts and rates, latencies before the fault, and the times of the stages. Two drills
    may have loads of different length, for instance because one cluster takes longer to recover. So
    each total also has its rate.
    """
    begin_ms = history.event_ms(names.FAULT_BEGINS)
    whole = [row for row in history.acknowledged if begin_ms is None or row.complete_ms < begin_ms]
    took = [row.complete_ms - row.invoke_ms for row in whole]
    slowest_ms = max((row.complete_ms - row.invoke_ms for row in history.acknowledged), default=0)
    load_s = (max(row.complete_ms for row in history.sends) - history.sends[0].invoke_ms) / 1000 if history.sends else 0.0
    totals: dict[str, float] = {}
    for name in ("acknowledged", "refused", "unknown"):
        totals[name] = float(verdict.counts.get(name, 0))
        if load_s:
            totals[f"{name}{PER_SECOND}"] = totals[name] / load_s
    return {
        "length of the load, s": load_s,
        **totals,
        "p50 of a send before the fault, ms": float(percentile(took, 0.5)),
        "p99 of a send before the fault, ms": float(percentile(took, 0.99)),
        "slowest answer of all, ms": float(slowest_ms),
        **stages.measured(history, verdict),
    }


def rates(history: History, bucket_ms: int) -> tuple[list[float], dict[str, list[float]]]:
    """Return the middles of the time buckets in seconds, and the rates per second in each bucket.

    The rates are those of sends by outcome, and of deliveries (`delivered`).
    """
    rows: list[HistoryRow] = [*history.sends, *history.deliveries]
    last = max((row.complete_ms for row in rows), default=0) // bucket_ms + 1
    table = {name: [0.0] * last for name in ("ok", "fail", "unknown", "delivered")}
    for row in rows:
        name = row.outcome if row.kind == "send" else "delivered"
        table[name][row.complete_ms // bucket_ms] += 1000 / bucket_ms
    return [(number + 0.5) * bucket_ms / 1000 for number in range(last)], table


def latencies(history: History) -> tuple[list[float], list[float]]:
    """Return when the acknowledged sends ended (s), and how long they took (ms)."""
    rows = [row for row in history.sends if row.outcome == OK]
    return [row.complete_ms / 1000 for row in rows], [float(row.complete_ms - row.invoke_ms) for row in rows]
