"""The HTML page of `stats`: topics, a plot, hours and hot keys (`rmqkit[report]`)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqkit import html_page
from rmqkit.spark.pipelines.stats_report import plot

if TYPE_CHECKING:
    from rmqkit.spark.pipelines.stats import Hour, Stats

TEMPLATE = "stats.html.j2"


class TopicFigures(NamedTuple):
    """A topic's hours in one row. `bytes` are those of bodies, `latency_ms` the longest one."""

    topic: str
    first: str
    last: str
    messages: int
    bytes: int
    peak_per_s: int
    latency_ms: float


def page(found: "Stats", source: str) -> str:
    """Return the page. `source` says what was measured: topics, or the path of a lake.

    Raises ImportError without jinja2 or matplotlib.
    """
    topics = list(_topics(found.hours))
    messages = f"{found.messages:,} message{'' if found.messages == 1 else 's'}"
    content: dict[str, Any] = {
        "topics": topics,
        "before_born": sum(hour.before_born for hour in found.hours),
        "plot": plot.svg(found) if found.hours else "",
        "drawn": min(len(topics), plot.TOPICS_MAX),
        "omitted": max(0, len(topics) - plot.TOPICS_MAX),
        "hours": found.hours,
        "keys": found.keys,
    }
    return html_page.render(
        "rmqkit.spark.pipelines.stats_report",
        TEMPLATE,
        content,
        title=f"stats of {source}",
        headline=f"{messages} of {source}",
        subject="figures by topic and hour",
    )


def _topics(hours: "list[Hour]") -> Iterator[TopicFigures]:
    by_topic: dict[str, list[Hour]] = {}
    for hour in hours:
        by_topic.setdefault(hour.topic, []).append(hour)
    for topic, each in by_topic.items():
        yield TopicFigures(
            topic,
            min(hour.hour for hour in each),
            max(hour.hour for hour in each),
            sum(hour.messages for hour in each),
            sum(hour.bytes for hour in each),
            max(hour.peak_per_s for hour in each),
            max(hour.latency_ms.max for hour in each),
        )
