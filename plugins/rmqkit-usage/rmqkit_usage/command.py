"""`rmqkit usage [TOPIC]`: growth per topic, summed over all masters of the cluster.

The command asks every master. A master that does not answer, or that has no such plug-in, is named
on stderr and left out of the sums. For a whole topic name the command also shows the steps of its
growth. A topic's rate is its growth divided by the time from the begin of the window (at most
`--since` ago, or where the history begins) to the broker's last round.
"""

from __future__ import annotations

import re
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rmqkit.cli import output
from rmqkit.cli.cluster_lookup import Json, Namesrv, find_namesrv
from rmqkit.cli.complete import topics as topic_names
from rmqkit.cli.errors import Failed, Unreachable, UsageError
from rmqkit_usage.protocol import GET_USAGE, TOP_MAX, GetUsageRequest, UsageBody

if TYPE_CHECKING:
    from rmqkit_usage.protocol import TopicUsage

UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
STEPS_SHOWN = 20

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def usage(
    topic: Annotated[
        str | None,
        typer.Argument(metavar="[TOPIC]", help="A topic, or a prefix followed by *.", autocompletion=topic_names),
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", metavar="15m", help="Show the growth of this time: 90s, 15m, 2h, 7d.")
    ] = None,
    top: Annotated[
        int | None, typer.Option("--top", metavar="N", min=1, max=TOP_MAX, help="Show only the N topics that grew most.")
    ] = None,
    system: Annotated[bool, typer.Option("--system", help="Show the brokers' own topics too.")] = False,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Show how much each topic has grown: messages, and about how many bytes.

    Only brokers with `plugins=usage` count this.
    """
    request = GetUsageRequest(
        topic=topic,
        since_millis=None if since is None else milliseconds(since),
        system=system,
        points=is_whole(topic),
    )
    answers, notes = ask_all(find_namesrv(namesrv), request)
    for note in notes:
        output.note(note)
    topics = merged(answers)
    if is_whole(topic) and not topics:
        raise Failed(f"topic {topic}: no broker has counted any message of it")
    left_out = sum(answer.left_out for answer in answers)
    if json:
        brokers = [
            {"broker": each.broker_name, "round_ms": each.round_millis, "left_out": each.left_out} for each in answers
        ]
        output.document({"brokers": brokers, "topics": topics[:top]})
        return
    show(topics[:top])
    if left_out:
        output.note(f"{left_out} topics exceed the brokers' limit (plugin.usage.topicsMax) and are not shown")
    if is_whole(topic):
        show_steps(topics[0]["steps"])


def is_whole(topic: str | None) -> bool:
    return topic is not None and not topic.endswith("*")


def milliseconds(text: str) -> int:
    """Return the milliseconds of a span such as `90s`, `15m`, `2h` or `7d`. Raises UsageError."""
    match = re.fullmatch(r"(\d{1,9})([smhd])", text.strip())
    if match is None or not int(match[1]):
        raise UsageError(f"--since {text}: must be a number and one of s, m, h, d, such as 15m")
    return int(match[1]) * UNITS_MS[match[2]]


def ask_all(namesrv: str, request: GetUsageRequest) -> tuple[list[UsageBody], list[str]]:
    """Ask all masters. Return the bodies of their responses, and a note about each failure.

    Raises Failed or Unreachable if no master has usage.
    """
    from rmqkit import Admin
    from rmqkit.errors import BrokerError, PeerUnreachable
    from rmqkit.wire.codes import ResponseCode

    answers: list[UsageBody] = []
    notes: list[str] = []
    silent = 0
    with Admin(namesrv) as admin:
        masters = admin.masters()
        for name in sorted(masters):
            try:
                answers.append(UsageBody.decode(admin.ask_broker(name, GET_USAGE, request).body))
            except BrokerError as error:
                if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                    raise
                notes.append(f"{name} does not count usage: put `plugins=usage` into its settings and restart it")
            except PeerUnreachable as error:
                silent += 1
                notes.append(f"{name} does not answer: {error}")
    if not answers:
        if not masters:
            raise Unreachable("no master is registered at the name server")
        raise (Unreachable if silent == len(masters) else Failed)("; ".join(notes))
    return answers, notes


def merged(answers: list[UsageBody]) -> list[dict[str, Any]]:
    """Return the topics of all brokers, those that grew most first."""
    topics: dict[str, dict[str, Any]] = {}
    for answer in answers:
        for each in answer.topics:
            known = topics.setdefault(
                each.topic,
                {
                    "topic": each.topic,
                    "queues": 0,
                    "messages": 0,
                    "kept": 0,
                    "added": 0,
                    "added_bytes": 0,
                    "rate_per_s": 0.0,
                },
            )
            known["queues"] += each.queues
            known["messages"] += each.messages
            known["kept"] += each.kept
            known["added"] += each.added
            known["added_bytes"] += each.size_added
            known["rate_per_s"] += rate(each, answer.round_millis)
            known["grown_ms"] = max(each.grown_millis, known.get("grown_ms", 0))
            if each.points is not None:
                known.setdefault("steps", []).extend(steps_of(each, answer.broker_name))
    for known in topics.values():
        known["rate_per_s"] = round(known["rate_per_s"], 3)
        if "steps" in known:
            known["steps"].sort(key=lambda step: (step["at_ms"], step["broker"]))
    return sorted(topics.values(), key=lambda known: (-known["added"], known["topic"]))


def rate(topic: TopicUsage, round_ms: int) -> float:
    """Return the topic's growth in messages per second."""
    span_ms = round_ms - topic.from_millis
    return topic.added * 1000 / span_ms if span_ms > 0 else 0.0


def steps_of(topic: TopicUsage, broker: str) -> list[dict[str, Any]]:
    """Return the growth between each point and the next one."""
    points = topic.points or []
    return [
        {"at_ms": at_ms, "broker": broker, "added": messages - before[1], "added_bytes": size - before[2]}
        for before, (at_ms, messages, size) in pairwise(points)
    ]


def show(topics: list[dict[str, Any]]) -> None:
    rows = [
        (
            each["topic"],
            each["queues"],
            each["kept"],
            each["added"],
            in_units(each["added_bytes"]),
            f"{each['rate_per_s']:.3g}",
            clock(each["grown_ms"]),
        )
        for each in topics
    ]
    output.table(("topic", "queues", "kept", "added", "about", "per second", "last seen growing"), rows)


def show_steps(steps: list[dict[str, Any]]) -> None:
    print()
    rows = [
        (clock(step["at_ms"]), step["broker"], step["added"], in_units(step["added_bytes"]))
        for step in steps[-STEPS_SHOWN:]
    ]
    output.table(("seen at", "broker", "added", "about"), rows)


def in_units(size: float) -> str:
    """Return a size with its unit, such as `1.4 MiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def clock(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000).isoformat(" ", "seconds")
