"""Shows `stats`: a plot in a file, and an HTML page with tables and the plot (`rmqkit[report]`).

The plot has messages, sizes and latencies by hour, one colour per topic.
"""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rmqkit import html_page

if TYPE_CHECKING:
    from rmqkit.spark.pipelines.stats import Hour, Stats

WIDTH_IN, HEIGHT_IN = 11.6, 8.0
#: maximum number of topics drawn: those with the most messages
TOPICS_MAX = 8
#: maximum number of hour labels on the x axis
LABELS_MAX = 24


def draw(found: "Stats", path: Path) -> None:
    """Write the plot in the format of the path's suffix. Raises ImportError without matplotlib."""
    html_page.save_plot(path, WIDTH_IN, HEIGHT_IN, lambda figure: _fill(figure, found))


def page(found: "Stats", source: str) -> str:
    """Return the page. `source` says what was measured: topics, or the path of a lake.

    Raises ImportError without jinja2 or matplotlib.
    """
    plot = html_page.svg(WIDTH_IN, HEIGHT_IN, lambda figure: _fill(figure, found)) if found.hours else ""
    return html_page.render(
        "rmqkit.spark.pipelines",
        "stats.html.j2",
        {"hours": found.hours, "keys": found.keys, "plot": plot, "drawn_max": TOPICS_MAX},
        title=f"stats of {source}",
        headline=f"{found.messages:,} message{'' if found.messages == 1 else 's'} of {source}",
        subject="figures by topic and hour",
    )


def _fill(figure: Any, found: "Stats") -> None:
    names = sorted({hour.hour for hour in found.hours})
    rates, sizes, latencies = figure.subplots(3, 1, sharex=True)
    for topic, hours in _by_topic(found).items():
        places = [names.index(hour.hour) for hour in hours]
        [line] = rates.plot(places, [hour.per_s for hour in hours], marker="o", markersize=3, label=topic)
        colour = line.get_color()
        rates.plot(places, [hour.peak_per_s for hour in hours], ":", color=colour)
        _spread(sizes, places, hours, "size", colour)
        _spread(latencies, places, hours, "latency_ms", colour)
    rates.set_ylabel("messages a second\n(mean, dotted: peak)")
    sizes.set_ylabel("bytes of a body\n(p50, dashed p95, dotted p99)")
    latencies.set_ylabel("ms from born to stored\n(p50, dashed p95, dotted p99)")
    for axes in (rates, sizes, latencies):
        axes.set_ylim(bottom=0)
        axes.grid(True, alpha=0.3)
    if found.hours:
        rates.legend(loc="upper left", ncols=4)
    step = max(1, -(-len(names) // LABELS_MAX))
    latencies.set_xticks(range(0, len(names), step), names[::step], rotation=60, ha="right")
    latencies.set_xlabel("hour of store time (UTC)")


def _by_topic(found: "Stats") -> "dict[str, list[Hour]]":
    messages: Counter[str] = Counter()
    for hour in found.hours:
        messages[hour.topic] += hour.messages
    return {topic: [hour for hour in found.hours if hour.topic == topic] for topic, _ in messages.most_common(TOPICS_MAX)}


def _spread(axes: Any, places: list[int], hours: "list[Hour]", name: str, colour: str) -> None:
    for share, style in (("p50", "-"), ("p95", "--"), ("p99", ":")):
        axes.plot(places, [getattr(getattr(hour, name), share) for hour in hours], style, color=colour)
