"""`rmqkit stats ...`: message rates from the brokers' counters (code 315)."""

from typing import Annotated, Any

import typer

from rmqkit.cli import output
from rmqkit.cli.admin_session import admin_of, check_brokers, is_system_topic, known_topic, system_topics
from rmqkit.cli.cluster_lookup import Json, Namesrv
from rmqkit.cli.commands import group
from rmqkit.cli.complete import topics
from rmqkit.errors import NoRoute

app = group("stats")

RATES: output.Columns = {
    "topic": "topic",
    "group": "group",
    "behind": "behind",
    "in/s": "in_tps:.2f",
    "out/s": "out_tps:.2f",
    "in 24 h": "in_24h",
    "out 24 h": "out_24h",
}


@app.command(name="all")
def all_stats(
    topic: Annotated[str | None, typer.Option("--topic", help="Only this topic.", autocompletion=topics)] = None,
    active: Annotated[
        bool, typer.Option("--active", help="Only topics and groups with messages in the last 24 hours.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Include system topics.")] = False,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Show each topic and group: rates of the last minute, totals of 24 hours, the group's lag."""
    rows: list[dict[str, Any]] = []
    with admin_of(namesrv) as admin:
        check_brokers(admin)
        if topic is not None:
            with known_topic(admin, topic):
                rows = rate_rows(admin.topic_rates(topic))
        else:
            fixed = system_topics(admin)
            for name in admin.topics():
                if everything or not is_system_topic(name, fixed):
                    try:
                        rows += rate_rows(admin.topic_rates(name))
                    except NoRoute:  # deleted meanwhile
                        continue
    if active:
        rows = [row for row in rows if row["in_24h"] or row["out_24h"]]
    output.report(rows, RATES, as_json=json, none="no topic with messages" if active else "no topics")


def rate_rows(rates: Any) -> list[dict[str, Any]]:
    """Return one row per group, or one row for a topic without consumers."""
    row = {"topic": rates.topic, "in_tps": rates.into.tps, "in_24h": rates.into.today}
    if not rates.out:
        return [{**row, "group": None, "behind": None, "out_tps": None, "out_24h": None}]
    return [
        {**row, "group": name, "behind": rates.behind[name], "out_tps": each.tps, "out_24h": each.today}
        for name, each in rates.out.items()
    ]


TIMERS: output.Columns = {
    "broker": "broker",
    "waiting": "waiting",
    "late": "late",
    "behind s": "behind_s",
    "unread": "unread",
    "in/s": "in_tps",
    "out/s": "out_tps",
}


@app.command()
def timers(
    by_topic: Annotated[bool, typer.Option("--topics", help="Count by topic.")] = False,
    namesrv: Namesrv = None,
    json: Json = False,
) -> None:
    """Show the messages that wait for their delivery time (`rmqkit send --at`) at each master.

    `late` messages are due and could not be delivered yet. `behind s` is how far the delivery is
    behind the clock. `unread` messages are stored and not in the timer yet.
    """
    rows: list[dict[str, Any]] = []
    with admin_of(namesrv) as admin:
        check_brokers(admin)
        for name in admin.masters():
            rows += topic_rows(admin, name) if by_topic else [timer_row(name, admin.broker_runtime(name))]
    columns: output.Columns = {"broker": "broker", "topic": "topic", "waiting": "waiting"} if by_topic else TIMERS
    output.report(rows, columns, as_json=json, none="no timer waits" if by_topic else "no brokers")


def timer_row(name: str, facts: dict[str, str]) -> dict[str, Any]:
    return {
        "broker": name,
        "waiting": int(facts.get("timerCongestNum", 0)),
        # Only rmqkit's brokers know late timers.
        "late": int(facts["timerLate"]) if "timerLate" in facts else None,
        "behind_s": int(facts.get("timerReadBehind", 0)),
        "unread": int(facts.get("timerOffsetBehind", 0)),
        "in_tps": float(facts.get("timerEnqueueTps", 0)),
        "out_tps": float(facts.get("timerDequeueTps", 0)),
    }


def topic_rows(admin: Any, name: str) -> list[dict[str, Any]]:
    """One row per topic that has timers at this broker."""
    counts = admin.timer_counts(name)
    return [{"broker": name, "topic": topic, "waiting": count} for topic, count in sorted(counts.items()) if count]
