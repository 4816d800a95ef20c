"""The HTML page of `stats`: topics, a plot, hours and hot keys (`rmqkit[report]`)."""

from typing import TYPE_CHECKING

from rmqkit import html_page
from rmqkit.spark.pipelines.stats_report import plot

if TYPE_CHECKING:
    from rmqkit.spark.pipelines.stats import Stats


def page(found: "Stats", source: str) -> str:
    """Return the page. `source` says what was measured: topics, or the path of a lake.

    Raises ImportError without jinja2 or matplotlib.
    """
    messages = f"{found.messages:,} message{'' if found.messages == 1 else 's'}"
    return html_page.render(
        "rmqkit.spark.pipelines.stats_report",
        "stats.html.j2",
        {
            "hours": found.hours,
            "keys": found.keys,
            "plot": plot.svg(found) if found.hours else "",
            "drawn_max": plot.TOPICS_MAX,
        },
        title=f"stats of {source}",
        headline=f"{messages} of {source}",
        subject="figures by topic and hour",
    )
