"""Replay: order by queue and by key, preserved fields, bounds, pace, bad input."""

from datetime import timedelta

import pytest

pytest.importorskip("pyspark")

from rmqkit.errors import ConfigError
from rmqkit.spark.delta.lake_table import LakeTable
from rmqkit.spark.delta.storage import LakeStorage
from rmqkit.spark.pipelines import forwarder
from rmqkit.spark.pipelines.forwarder import ID, OF, ordered, placed
from rmqkit.spark.pipelines.ingest import add_batch
from rmqkit.spark.pipelines.replay import replay, rows_of
from rmqkit.spark.sink.pace import serve_pace
from rmqkit.spark.source.ranges import QueueKey
from rmqkit.wire.fastjson import MessageQueue
from tests.spark.lakes import HOUR_MS, NOON, NOON_MS, QUERY, batch_offsets, message, part, queue_rows, rows, stored


class TestPlaces:
    TARGETS = tuple(MessageQueue("to", broker, queue) for broker in ("broker-a", "broker-b") for queue in range(2))

    def test_the_same_queue_where_there_is_one(self):
        sources = [QueueKey("T", "broker-b", 0), QueueKey("T", "broker-a", 1)]
        found = placed(sources, self.TARGETS)
        assert [(found[each].broker_name, found[each].queue_id) for each in sources] == [("broker-b", 0), ("broker-a", 1)]

    def test_the_same_number_on_other_brokers(self):
        sources = [QueueKey("T", broker, 1) for broker in ("x", "y", "z")]
        found = placed(sources, self.TARGETS)
        assert [(found[each].broker_name, found[each].queue_id) for each in sources] == [
            ("broker-a", 1),
            ("broker-b", 1),
            ("broker-a", 1),
        ]

    def test_some_queue_where_there_are_fewer(self):
        sources = [QueueKey("T", "broker-a", queue) for queue in range(10)]
        found = placed(sources, self.TARGETS)
        assert len(found) == 10
        assert set(found.values()) == set(self.TARGETS)

    @pytest.mark.parametrize(("queues", "expected"), [(8, 4), (1, 1), (0, 1)])
    def test_a_queue_has_at_most_one_task(self, spark, queues, expected):
        frame = queue_rows(spark, part("T", 0, 0, 1))
        assert ordered(frame, [QueueKey("T", "broker-a", 0)] * queues, "key", {})[1] == expected


def clock_back(spark, topic="T"):
    """Return mixed rows of two queues; the broker's clock goes back in the middle."""
    at = {0: NOON, 1: NOON + timedelta(seconds=5), 2: NOON - timedelta(seconds=30), 3: NOON - timedelta(seconds=20)}
    made = [message(topic, queue, offset, at=at[offset % 4]) for offset in (3, 0, 2, 1, 7, 5, 6, 4) for queue in (1, 0)]
    return rows(spark, made).repartition(3)


@pytest.mark.long
def test_queues_keep_their_order(spark, own):
    topic = own.topic()
    done = replay(spark, clock_back(spark), topic, namesrv=own.namesrv, run_id="bad-day", rate=1000)
    assert serve_pace(spark).pace("bad-day", 1000).rows >= 16
    assert (done.rows, done.queues, done.run_id) == (16, 2, "bad-day")
    found = stored(own, topic)
    for queue in (0, 1):
        there = [each for each in found if each.queue.queue_id == queue]
        # the target cluster also has a broker named broker-a
        assert {each.queue.broker_name for each in there} == {"broker-a"}
        assert [each.properties[OF] for each in there] == [f"T/broker-a/{queue}/{offset}" for offset in range(8)]
    first = found[0]
    assert (first.body, first.keys, first.tags) == (b"body 0", "key-0", "tag")
    assert first.properties["user"] == "u"
    assert first.properties[ID] == "a-T-0-0"
    assert first.properties["UNIQ_KEY"] != "x"
    assert first.properties["DEDUP_KEY"].startswith("bad-day//")


@pytest.mark.long
def test_keys_keep_their_order(spark, own):
    """The messages of a key are in several queues.

    One message was replayed before; its origin properties are replaced.
    """
    topic = own.topic()
    made = []
    for number in range(12):
        at = NOON + timedelta(seconds=number)
        made.append((*message("T", number % 4, number, at=at)[:5], f"key-{number % 2}", "tag", b"%d" % number))
    frame = spark.createDataFrame(
        [
            (
                *row[:8],
                {"REPLAY_ID": "old", "__SHARDINGKEY": "" if row[3] % 4 else "mine"},
                NOON + timedelta(seconds=row[3]),
            )
            for row in made
        ],
        "topic string, broker string, queue int, offset bigint, message_id string, keys string, tags string, body binary, "
        "properties map<string,string>, store_time timestamp",
    )
    done = replay(spark, frame.repartition(3), topic, namesrv=own.namesrv, order="key")
    assert done.rows == 12
    by_key = {}
    for each in stored(own, topic):
        number = int(each.body)
        by_key.setdefault("mine" if number % 4 == 0 else number % 2, []).append((each.queue, number))
        assert each.properties[ID] == f"a-T-{number % 4}-{number}"
    assert {key: [number for _, number in each] for key, each in by_key.items()} == {
        "mine": [0, 4, 8],
        0: [2, 6, 10],
        1: [1, 3, 5, 7, 9, 11],
    }
    assert all(len({queue for queue, _ in each}) == 1 for each in by_key.values())


@pytest.mark.long
def test_a_bad_hour_of_a_lake(spark, own, tmp_path):
    table = LakeTable(LakeStorage(tmp_path))
    for number in range(3):
        each = part("T", 0, 4 * number, 4 * number + 4)
        made = queue_rows(spark, each, at=NOON + timedelta(hours=number))
        add_batch(table, made, query=QUERY, batch=number, offsets=batch_offsets(each))
    topic, told = own.topic(), []
    since, until = NOON_MS + HOUR_MS, NOON_MS + 2 * HOUR_MS
    done = replay(spark, tmp_path, topic, namesrv=own.namesrv, since=since, until=until, on_progress=told.append)
    assert done.rows == 4
    assert [each.properties[OF] for each in stored(own, topic)] == [f"T/broker-a/0/{offset}" for offset in range(4, 8)]
    assert all(0 <= each.tasks_done <= each.tasks for each in told)
    assert rows_of(spark, tmp_path, topics=["other"]).count() == 0


def test_a_frame_says_when_to_deliver_and_a_read_message_does_not(spark):
    """A field `delay_ms` of a JSON body is not meant for the sink."""
    frame = queue_rows(spark, part("T", 0, 0, 1)).selectExpr("*", "5L AS delay_ms")
    for made in (forwarder.in_key_order(frame, 1), forwarder.in_queue_order(frame, {}, 1)):
        assert [row.delay_ms for row in made.collect()] == [5]
    assert "delay_ms" not in forwarder.in_key_order(frame.drop(*forwarder.DELAYS), 1).columns


def test_any_parquet(spark, tmp_path):
    queue_rows(spark, part("T", 0, 0, 3), part("U", 0, 0, 2)).write.parquet(str(tmp_path / "some"))
    assert rows_of(spark, tmp_path / "some", topics=["U"], since=NOON_MS, until=NOON_MS + 1).count() == 2
    assert rows_of(spark, tmp_path / "some", until=NOON_MS).count() == 0


@pytest.mark.long
def test_a_missing_topic_is_created_with_the_queues_of_the_source(spark, own):
    """An empty source creates none, and a topic that exists stays as it is."""
    topic, there = own.name("made"), own.topic()
    frame = queue_rows(spark, part("T", 1, 0, 3), part("T", 4, 0, 2))
    assert replay(spark, frame.where("offset < 0"), topic, namesrv=own.namesrv, create=True).rows == 0
    assert topic not in own.admin.topics()
    assert replay(spark, frame, topic, namesrv=own.namesrv, create=True).rows == 5
    queues = forwarder.target_queues(topic, own.namesrv)
    assert [(each.broker_name, each.queue_id) for each in queues] == [("broker-a", number) for number in range(5)]
    assert {each.queue.queue_id for each in stored(own, topic)} == {1, 4}
    before = forwarder.target_queues(there, own.namesrv)
    assert replay(spark, frame, there, namesrv=own.namesrv, create=True).rows == 5
    assert forwarder.target_queues(there, own.namesrv) == before


@pytest.mark.parametrize(
    ("sources", "expected"),
    [
        ({"a": 2, "b": 3}, {"a": 3, "b": 4}),
        ({"a": 2}, {"a": 3}),
        ({"x": 5}, {"a": 6, "b": 6}),
        ({"a": 2, "x": 5}, {"a": 6}),
        ({"b": 9, "x": 5}, {"b": 10}),
        ({}, {}),
    ],
)
def test_the_queues_of_a_topic_to_create(sources, expected):
    keys = [QueueKey("T", broker, queue) for broker, last in sources.items() for queue in (0, last)]
    assert forwarder.queue_counts(keys, ["a", "b"]) == expected


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"order": "time"}, "order time: choose from queue, key"),
        ({"rate": 0}, "rate 0: must be 1 message a second or more"),
        ({"options": {"requireStatus": "any"}}, "requireStatus is not known"),
        ({"since": 0}, "since and until need the column store_time"),
        ({"topics": ["T"], "source": "SELECT 1 AS body"}, "topics need the column topic"),
        ({"source": "SELECT 'x' AS body"}, "columns topic, broker, queue, offset are missing"),
    ],
)
def test_invalid_replays_are_refused(spark, own, change, said):
    sql = "SELECT 'T' AS topic, 'b' AS broker, 0 AS queue, 0L AS offset, 'x' AS body"
    given = {"source": spark.sql(change.pop("source", sql)), **change}
    with pytest.raises(ConfigError, match=said):
        replay(spark, topic="to", namesrv=own.namesrv, **given)
    assert forwarder.ORDERS == ("queue", "key")
