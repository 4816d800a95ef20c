"""Statistics by the hour, compared with a count in Python; the plot; bad input."""

import json
from datetime import timedelta

import msgspec
import pytest

pytest.importorskip("pyspark")

from rmqkit import Message
from rmqkit.errors import ConfigError
from rmqkit.spark.delta.lake_table import LakeTable
from rmqkit.spark.delta.storage import LakeStorage
from rmqkit.spark.pipelines.ingest import add_batch
from rmqkit.spark.pipelines.stats import LABELS_MAX, TOPICS_MAX, Hour, Spread, Stats, draw, stats, stats_of
from tests.spark.lakes import NOON, QUERY, batch_offsets, part, queue_rows

TABLE = "topic string, keys string, body binary, born_time timestamp, store_time timestamp"


def nearest(values, share):
    """Return the smallest value that at least `share` of all values does not exceed.

    Spark computes percentiles this way.
    """
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * round(share * 100) // 100) - 1)]


@pytest.mark.long
def test_hours_are_counted(spark):
    made = []
    for number in range(200):
        at = NOON + timedelta(minutes=45, seconds=10 * (number // 4))
        late = timedelta(milliseconds=number if number else -7)
        made.append(("T", f"k{number % 3} all", b"x" * number, at - late, at))
    made += [("U", None, b"", NOON, NOON), ("U", "", b"", NOON, NOON)]
    found = stats_of(spark.createDataFrame(made, TABLE), hot_keys=2)
    assert [(hour.topic, hour.hour) for hour in found.hours] == [
        ("T", "2026-11-22-12"),
        ("U", "2026-11-22-12"),
    ]
    of_t, of_u = found.hours
    assert (of_t.messages, of_t.bytes, of_t.peak_per_s, of_t.before_born) == (200, sum(range(200)), 4, 1)
    assert of_t.per_s == pytest.approx(200 / 3600)
    sizes = list(range(200))
    assert of_t.size == Spread(*(nearest(sizes, share) for share in (0.5, 0.95, 0.99)), 199)
    lates = [number or -7 for number in range(200)]
    assert of_t.latency_ms == Spread(*(nearest(lates, share) for share in (0.5, 0.95, 0.99)), 199)
    assert (of_u.messages, of_u.size) == (2, Spread(0, 0, 0, 0))
    assert [(key.key, key.messages, key.share) for key in found.keys] == [("all", 200, 1.0), ("k0", 67, 67 / 200)]
    assert found.messages == 202


@pytest.mark.long
def test_of_a_lake(spark, tmp_path):
    table = LakeTable(LakeStorage(tmp_path / "lake"))
    for number in range(2):
        each = part("T", 0, 10 * number, 10 * number + 10)
        made = queue_rows(spark, each, at=NOON + timedelta(hours=number))
        add_batch(table, made, query=QUERY, batch=number, offsets=batch_offsets(each))
    found = stats(spark, path=tmp_path / "lake", since=NOON + timedelta(hours=1))
    assert [(hour.hour, hour.messages) for hour in found.hours] == [("2026-11-22-13", 10)]
    assert found.hours[0].latency_ms.max == 20


@pytest.mark.long
def test_of_a_topic_with_a_plot(spark, own, tmp_path):
    pytest.importorskip("matplotlib")
    topic = own.topic()
    producer = own.producer()
    for number in range(12):
        producer.send(Message(topic, b"x" * 100, keys="hot" if number % 4 else f"k{number}"))
    told = []
    plot = tmp_path / "stats.svg"
    found = stats(spark, topic, namesrv=own.namesrv, plot=plot, on_progress=told.append)
    assert found.messages == 12
    assert {hour.size for hour in found.hours} == {Spread(100, 100, 100, 100)}
    assert found.keys[0].key == "hot"
    assert found.plot == str(plot)
    drawn = plot.read_text()
    assert topic in drawn
    assert found.hours[0].hour in drawn
    assert json.loads(msgspec.json.encode(found))["hours"][0]["topic"] == topic


@pytest.mark.long
def test_a_plot_of_many_hours(tmp_path):
    pytest.importorskip("matplotlib")
    spread = Spread(1, 2, 3, 4)
    hours = [
        Hour(f"topic-{topic:02}", f"2026-11-{day:02}-12", 10 + topic, 1, 0.1, 2, spread, spread, 0)
        for topic in range(TOPICS_MAX + 2)
        for day in range(1, 31)
    ]
    draw(Stats(hours, []), tmp_path / "many.svg")
    drawn = (tmp_path / "many.svg").read_text()
    assert "topic-09" in drawn
    assert "topic-00" not in drawn
    assert drawn.count(">2026-11-") <= LABELS_MAX
    draw(Stats([], []), tmp_path / "none.png")
    assert (tmp_path / "none.png").stat().st_size


def test_invalid_arguments_are_refused(spark, own):
    with pytest.raises(ConfigError, match="name a topic, or the path of a lake"):
        stats(spark, namesrv=own.namesrv)
    with pytest.raises(ConfigError, match=r"a\.txt: a plot is one of \.svg, \.png, \.pdf"):
        stats(spark, "T", namesrv=own.namesrv, plot="a.txt")
