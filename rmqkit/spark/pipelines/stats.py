"""Statistics of messages by topic and hour: counts, sizes, latency and the most frequent keys.

    found = stats(spark, "orders", namesrv="127.0.0.1:9876", plot="orders.svg")
    found = stats(spark, path="/data/orders", since=…)

Hours are those of store time, in UTC. Latency is store time minus born time: the time from the
client to the log. It includes the delay of a delayed message and the retries of one that was sent
back. The two times come from different clocks; `before_born` counts messages with a negative
latency. Percentiles of more than ACCURACY values are approximate (Spark's `percentile_approx`).

`draw` makes a plot of rates, sizes and latencies by hour, `page` an HTML page with tables and plot.
"""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from rmqkit import html_page
from rmqkit.errors import ConfigError
from rmqkit.spark.pipelines import lake
from rmqkit.spark.pipelines.progress import PipelineProgress, jobs
from rmqkit.spark.pipelines.topic_query import FORMAT, query_options

ACCURACY = 10_000
SHARES = (0.5, 0.95, 0.99)
NEEDED = ("topic", "keys", "body", "born_time", "store_time")
#: file suffixes of the supported plot formats
PLOT_TYPES = (".svg", ".png", ".pdf")
WIDTH_IN, HEIGHT_IN = 11.6, 8.0
#: maximum number of topics drawn: those with the most messages
TOPICS_MAX = 8
#: maximum number of hour labels on the x axis
LABELS_MAX = 24


class Spread(msgspec.Struct, frozen=True):
    """Percentiles and maximum of a set of values."""

    p50: float
    p95: float
    p99: float
    max: float


class Hour(msgspec.Struct, frozen=True):
    """The statistics of one hour of one topic.

    `per_s` is the mean rate over the whole hour, `peak_per_s` the count of the busiest second.
    `bytes` is the sum of body sizes, `size` their distribution in bytes. `latency_ms` is in ms.
    """

    topic: str
    hour: str
    messages: int
    bytes: int
    per_s: float
    peak_per_s: int
    size: Spread
    latency_ms: Spread
    before_born: int


class HotKey(msgspec.Struct, frozen=True):
    """A key, and its share (0 to 1) of the messages of a topic in an hour."""

    topic: str
    hour: str
    key: str
    messages: int
    share: float


class Stats(msgspec.Struct, frozen=True):
    """The result of `stats`.

    `hours` is sorted by topic and hour. `keys` has the most frequent keys of each, most messages
    first. `plot` is the path of the plot, None if none was drawn.
    """

    hours: list[Hour]
    keys: list[HotKey]
    plot: str | None = None

    @property
    def messages(self) -> int:
        return sum(hour.messages for hour in self.hours)


def stats(
    spark: SparkSession,
    topic: str | Sequence[str] | None = None,
    *,
    namesrv: str | None = None,
    path: str | os.PathLike[str] | None = None,
    since: lake.Time | None = None,
    until: lake.Time | None = None,
    hot_keys: int = 5,
    plot: str | os.PathLike[str] | None = None,
    options: Mapping[str, str] | None = None,
    storage_options: lake.Options = None,
    on_progress: Callable[[PipelineProgress], None] | None = None,
) -> Stats:
    """Compute the statistics of messages with a store time in [since, until).

    The messages are those of one or more topics, or of a lake at `path`. `hot_keys` is the number
    of keys per topic and hour. `options` are those of the data source (docs/spark.md). `plot` is
    the path of a plot to draw (SVG, PNG or PDF; needs matplotlib). Raises ConfigError, LakeMissing,
    LakeDamaged, and the exception of the query.
    """
    if plot is not None:
        check_plot(Path(plot))
    topics = [topic] if isinstance(topic, str) else topic
    if path is not None:
        rows = lake.read(spark, path, topics=topics, since=since, until=until, storage_options=storage_options)
    elif topics:
        asked = {"subscribe": ",".join(topics), "columns": ",".join(NEEDED)}
        if since is not None:
            asked |= {"startingTimestamp": str(lake.millis(since)), "startingOffsetsByTimestampStrategy": "latest"}
        if until is not None:
            asked["endingTimestamp"] = str(lake.millis(until))
        given = query_options("batch", options, namesrv, **asked)
        rows = lake.stored_in(spark.read.format(FORMAT).options(**given).load(), since, until)
    else:
        raise ConfigError("name a topic, or the path of a lake")
    with jobs(spark, on_progress):
        found = stats_of(rows, hot_keys=hot_keys)
    if plot is None:
        return found
    draw(found, Path(plot))
    return msgspec.structs.replace(found, plot=os.fspath(plot))


def check_plot(path: Path) -> None:
    """Raise ConfigError if no plot can be drawn to this path. Needs no Spark."""
    if path.suffix.lower() not in PLOT_TYPES:
        raise ConfigError(f"{path}: a plot is one of {', '.join(PLOT_TYPES)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("a plot needs matplotlib: pip install 'rmqkit[report]'")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{path}: the folder {path.parent} does not exist")


def stats_of(rows: DataFrame, *, hot_keys: int = 5) -> Stats:
    """Compute the statistics of any rows with the columns NEEDED."""
    slim = rows.select(
        "topic",
        lake.hour_column(F.col("store_time")).alias("hour"),
        F.floor(F.unix_millis("store_time") / 1000).alias("second"),
        F.octet_length("body").alias("size"),
        (F.unix_millis("store_time") - F.unix_millis("born_time")).alias("latency_ms"),
        "keys",
    ).persist()
    try:
        hours = msgspec.convert([row.asDict(True) for row in _hours(slim).collect()], list[Hour])
        counts = {(hour.topic, hour.hour): hour.messages for hour in hours}
        keys = [
            HotKey(topic, hour, key, messages, messages / counts[topic, hour])
            for topic, hour, key, messages in _hot(slim, hot_keys).collect()
        ]
    finally:
        slim.unpersist()
    return Stats(hours, keys)


def _hours(slim: DataFrame) -> DataFrame:
    """Return a row for each `Hour`, with its fields."""
    seconds = slim.groupBy("topic", "hour", "second").agg(F.count("*").alias("messages"))
    peaks = seconds.groupBy("topic", "hour").agg(F.max("messages").alias("peak_per_s"))
    figures = slim.groupBy("topic", "hour").agg(
        F.count("*").alias("messages"),
        F.coalesce(F.sum("size"), F.lit(0)).alias("bytes"),
        (F.count("*") / 3600).alias("per_s"),
        _spread("size"),
        _spread("latency_ms"),
        F.count_if(F.col("latency_ms") < 0).alias("before_born"),
    )
    return figures.join(peaks, ["topic", "hour"]).orderBy("topic", "hour")


def _spread(name: str) -> Column:
    """Return the `Spread` of a column; all zeros if no message has a value."""
    shares = F.percentile_approx(name, list(SHARES), ACCURACY)
    values = [*[F.get(shares, F.lit(place)) for place in range(len(SHARES))], F.max(name)]
    fields = zip(Spread.__struct_fields__, values, strict=True)
    return F.struct(*[F.coalesce(value.cast("double"), F.lit(0.0)).alias(field) for field, value in fields]).alias(name)


def _hot(slim: DataFrame, count: int) -> DataFrame:
    """Return the most frequent keys of each hour; a message with several keys counts for each."""
    each = slim.select("topic", "hour", F.explode(F.split("keys", " ")).alias("key")).where("key <> ''")
    counted = each.groupBy("topic", "hour", "key").agg(F.count("*").alias("messages"))
    place = Window.partitionBy("topic", "hour").orderBy(F.desc("messages"), "key")
    ranked = counted.withColumn("place", F.row_number().over(place)).where(F.col("place") <= count)
    return ranked.orderBy("topic", "hour", "place").select("topic", "hour", "key", "messages")


def draw(found: Stats, path: Path) -> None:
    """Write the plot in the format of the path's suffix. Raises ImportError without matplotlib."""
    html_page.save_plot(path, WIDTH_IN, HEIGHT_IN, lambda figure: _draw_hours(figure, found))


def page(found: Stats, source: str) -> str:
    """Return an HTML page of the statistics. Its title names `source`: topics, or a lake's path.

    Raises ImportError without jinja2 or matplotlib.
    """
    plot = html_page.svg(WIDTH_IN, HEIGHT_IN, lambda figure: _draw_hours(figure, found)) if found.hours else ""
    return html_page.render(
        "rmqkit.spark.pipelines",
        "stats.html.j2",
        {"hours": found.hours, "keys": found.keys, "plot": plot, "drawn_max": TOPICS_MAX},
        title=f"stats of {source}",
        headline=f"{found.messages:,} message{'' if found.messages == 1 else 's'} of {source}",
        subject="figures by topic and hour",
    )


def _draw_hours(figure: Any, found: Stats) -> None:
    names = sorted({hour.hour for hour in found.hours})
    rates, sizes, latencies = figure.subplots(3, 1, sharex=True)
    messages: Counter[str] = Counter()
    for hour in found.hours:
        messages[hour.topic] += hour.messages
    for topic, _ in messages.most_common(TOPICS_MAX):
        hours = [hour for hour in found.hours if hour.topic == topic]
        places = [names.index(hour.hour) for hour in hours]
        [line] = rates.plot(places, [hour.per_s for hour in hours], marker="o", markersize=3, label=topic)
        colour = line.get_color()
        rates.plot(places, [hour.peak_per_s for hour in hours], ":", color=colour)
        for share, style in (("p50", "-"), ("p95", "--"), ("p99", ":")):
            sizes.plot(places, [getattr(hour.size, share) for hour in hours], style, color=colour)
            latencies.plot(places, [getattr(hour.latency_ms, share) for hour in hours], style, color=colour)
    rates.set_ylabel("messages a second\n(mean, dotted: peak)")
    sizes.set_ylabel("bytes of a body\n(p50, dashed p95, dotted p99)")
    latencies.set_ylabel("ms from born time to store time\n(p50, dashed p95, dotted p99)")
    for axes in (rates, sizes, latencies):
        axes.set_ylim(bottom=0)
        axes.grid(True, alpha=0.3)
    if found.hours:
        rates.legend(loc="upper left", ncols=4)
    step = max(1, -(-len(names) // LABELS_MAX))
    latencies.set_xticks(range(0, len(names), step), names[::step], rotation=60, ha="right")
    latencies.set_xlabel("hour of store time (UTC)")
