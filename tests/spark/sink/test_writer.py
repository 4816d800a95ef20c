"""The sink with real brokers: rows become messages; a repeated task or batch uses the same keys."""

import json
import os
import pickle
import re
import time
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest

from rmqkit.errors import ConfigError
from rmqkit.spark.options import parse
from rmqkit.spark.sink import row_sender, writer
from rmqkit.spark.sink.row_sender import WriteFailed
from tests.spark.lakes import stored


def close_kept():
    """Close the producers of this process, which continues without Spark."""
    for key in [key for key in row_sender._KEPT if key[0] == os.getpid()]:
        row_sender._KEPT.pop(key).producer.close()


@pytest.fixture(scope="module", autouse=True)
def producers_end():
    """Close the producers of tests that act as a worker in this process."""
    yield
    close_kept()


def schema(ddl):
    """Parse a schema without a JVM, which Spark's own DDL parser needs."""
    from pyspark.sql import types

    kinds = {"string": types.StringType(), "int": types.IntegerType()}
    fields = [field.split() for field in ddl.split(", ")]
    return types.StructType([types.StructField(name, kinds[kind]) for name, kind in fields])


def wait_for(own, topic, count, timeout_s=30):
    """Return the messages of a topic as soon as there are that many."""
    deadline_s = time.monotonic() + timeout_s
    while len(found := stored(own, topic)) < count:
        assert time.monotonic() < deadline_s, found
    return found


def of_keys(message):
    return message.properties[writer.DEDUP_KEY]


# --- without Spark


@pytest.mark.parametrize(
    ("ddl", "options", "said"),
    [
        ("body string, tag string", {"topic": "T"}, "column tag is not known; did you mean tags?"),
        ("body string, what int", {"topic": "T"}, "column what is not known; select only columns of topic, body"),
        ("body string, delay int", {"topic": "T"}, "column delay is not known: use delay_ms, deliver_at, or delay_level"),
        ("body string, delay_ms string", {"topic": "T"}, "column delay_ms is string, but must be integer or long"),
        ("body string, deliver_at int", {"topic": "T"}, "column deliver_at is integer, but must be timestamp or long"),
        ("body int", {"topic": "T"}, "column body is integer, but must be binary or string: cast it"),
        ("keys string", {"topic": "T"}, "column body is missing"),
        ("body string", {}, "option topic is missing, and there is no column topic"),
        ("body string, queue int, ordering_key string", {"topic": "T"}, "queue and ordering_key exclude each other"),
        ("body string, broker string", {"topic": "T"}, "column broker needs the column queue"),
        (
            "body string",
            {"topic": "T", "requireStatus": "any"},
            "option requireStatus is not known; did you mean requiredStatus?",
        ),
        ("body string", {"topic": "T", "requiredStatus": "OK"}, "option requiredStatus: 'OK' is not one of send_ok, any"),
        ("body string", {"topic": "T", "subscribe": "T"}, "option subscribe"),
    ],
)
def test_rows_that_cannot_be_sent_are_refused_before_any_send(ddl, options, said):
    for make in (writer.BatchWriter, writer.StreamWriter):
        with pytest.raises(ConfigError, match=re.escape(said)):
            make(options, schema(ddl), False)


def test_nothing_can_be_overwritten():
    with pytest.raises(ConfigError, match="mode overwrite: a topic keeps its messages"):
        writer.BatchWriter({"topic": "T"}, schema("body string"), True)
    with pytest.raises(ConfigError, match=r"output mode complete: .* use output mode update or append"):
        writer.StreamWriter({"topic": "T"}, schema("body string"), True)


def test_an_abort_says_what_stays(capsys):
    made = writer.BatchWriter({"topic": "T", "runId": "r"}, schema("body string"), False)
    made.abort([None, None])
    assert capsys.readouterr().err == ""
    messages = [writer.Sent(4), None, writer.Sent(3)]
    made.abort(messages)
    said = capsys.readouterr().err
    assert said.endswith("If sent again, they have the same DEDUP_KEY\n")
    assert said.startswith("rmqkit: run r failed after 7 rows of 2 other tasks had been sent; these messages remain")
    writer.StreamWriter({"topic": "T"}, schema("body string"), False).abort(messages, 8)
    assert capsys.readouterr().err.startswith("rmqkit: batch 8 failed after 7 rows")


def sink_options(own):
    given = {"namesrv": own.namesrv, "producerGroup": "mine", "maxWaitForBroker": "1000", "requestTimeout": "1000"}
    return parse(given, "sink")


def test_options_reach_the_tasks():
    given = {"topic": "T", "namesrv": "a:1;b:2", "producerGroup": "mine", "requiredStatus": "any", "messagesPerSecond": "9"}
    made = writer.BatchWriter({**given, "maxWaitForBroker": "3s", "requestTimeout": "500ms"}, schema("body string"), False)
    assert (made.options.namesrv, made.options.producer_group) == (("a:1", "b:2"), "mine")
    assert (made.options.required_status, made.options.messages_per_second) == ("any", 9)
    assert (made.options.max_wait_for_broker, made.options.request_timeout) == (3000, 500)
    plain = writer.BatchWriter({"topic": "T"}, schema("body string"), False).options
    assert (plain.producer_group, plain.required_status, plain.messages_per_second) == ("rmqkit-spark", "send_ok", 0)
    assert (plain.max_wait_for_broker, plain.request_timeout) == (120_000, 5000)


def test_a_process_keeps_one_producer_of_its_own(own, monkeypatch):
    settings = sink_options(own)
    first = row_sender.kept(settings)
    assert row_sender.kept(replace(settings, max_wait_for_broker=5)) is first
    assert row_sender.kept(replace(settings, producer_group="other")) is not first
    # As in a forked process, which inherits the module's state.
    monkeypatch.setattr(row_sender.os, "getpid", lambda: -1)
    child = row_sender.kept(settings)
    assert child is not first
    close_kept()
    monkeypatch.undo()
    assert row_sender.kept(settings) is first
    close_kept()


def batch(*columns, names):
    return pa.record_batch([pa.array(column) for column in columns], names=names)


def test_a_task_that_is_run_again_sends_the_same_keys(own):
    """As in Spark, the writer is pickled once, and each attempt of a task uses a copy."""
    topic = own.topic()
    made = writer.BatchWriter({"topic": topic, "namesrv": own.namesrv}, schema("body string, queue int"), False)
    pickled = pickle.dumps(made)
    rows = [batch(["a", "b"], [0, 0], names=["body", "queue"]), batch(["c"], [0], names=["body", "queue"])]
    for _ in range(2):
        sent = pickle.loads(pickled).write(iter(rows))
        assert sent.rows == 3
    found = [(message.body, of_keys(message)) for message in stored(own, topic)]
    assert found == 2 * [(b"a", f"{made.run_id}//0/0"), (b"b", f"{made.run_id}//0/1"), (b"c", f"{made.run_id}//0/2")]
    assert writer.BatchWriter({"topic": topic}, schema("body string"), False).run_id != made.run_id


def test_a_row_that_cannot_be_sent_is_named(own):
    topic = own.topic()
    made = writer.BatchWriter({"topic": topic, "namesrv": own.namesrv}, schema("topic string, body string"), False)
    for bad, said in (
        ((topic, None), "body is null"),
        ((topic, ""), "has an empty body"),
        (("no topic", "x"), "is not a name"),
    ):
        rows = batch([topic, bad[0]], ["fine", bad[1]], names=["topic", "body"])
        with pytest.raises(WriteFailed, match=f"^partition 0, row 1.*{said}"):
            made.write(iter([rows]))
    made = writer.BatchWriter({"namesrv": own.namesrv}, schema("topic string, body string"), False)
    with pytest.raises(WriteFailed, match="row 0: topic is null, and option topic is not set"):
        made.write(iter([batch(pa.array([None], pa.string()), ["x"], names=["topic", "body"])]))


DUE_MS = 1_900_000_000_000


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"delay_ms": -5}, "row 0 to {}: delay_ms -5 of a message is no number of ms above 0"),
        ({"deliver_at": 0}, "row 0 to {}: deliver_at 0 of a message is neither a datetime nor Unix time in ms"),
        ({"delay_ms": 5, "deliver_at": DUE_MS}, "row 0 to {}: a message has one of delay_level, delay_ms and deliver_at"),
        ({"delay_ms": 5, "delay_level": 1}, "row 0 to {}: a message has one of delay_level, delay_ms and deliver_at"),
    ],
)
def test_a_bad_delay_names_its_row_and_column(own, row, said):
    topic = own.topic()
    options = replace(sink_options(own), topic=topic)
    with pytest.raises(WriteFailed, match=f"^partition 0, {said.format(topic)}"):
        writer._send(options, "run/", iter([batch(["x"], *[[each] for each in row.values()], names=["body", *row])]))


def test_delays_become_the_properties_of_timers():
    due = datetime.fromtimestamp(DUE_MS / 1000, UTC)
    made = [
        writer._message({"body": b"x", **row}, "T", "key")
        for row in ({"deliver_at": due}, {"deliver_at": DUE_MS}, {"delay_ms": 7, "deliver_at": None}, {"delay_ms": 0})
    ]
    assert [(each.deliver_at_ms, each.delay_ms) for each in made] == [(DUE_MS, 0), (DUE_MS, 0), (None, 7), (None, 0)]


def test_properties_of_a_message_that_was_read_are_sent_on_but_for_rocketmqs_own():
    given = [("UNIQ_KEY", "id"), ("KEYS", "k1 k2"), ("TAGS", "A"), ("mine", "1"), ("gone", None), ("DEDUP_KEY", "old")]
    made = writer._message({"body": b"x", "properties": given}, "T", "new")
    assert (made.keys, made.tags) == ("k1 k2", "A")
    assert made.properties == {"mine": "1", "DEDUP_KEY": "new", "KEYS": "k1 k2", "TAGS": "A"}
    made = writer._message({"body": b"x", "properties": given, "keys": ["a", "b"], "tags": None}, "T", "new")
    assert (made.keys, made.tags) == ("a b", None)
    made = writer._message({"body": b"x", "keys": ["a", None, "", "b"]}, "T", "new")
    assert made.keys == "a b", "no key is none, as in array_join"


# --- with Spark


def test_rows_become_messages(spark, own):
    topic, other = own.topic(), own.topic("other")
    rows = spark.sql(
        f"""SELECT IF(id = 9, '{other}', NULL) AS topic, encode(concat('body ', id), 'utf-8') AS body,
        array(concat('k', id), 'all') AS keys, IF(id % 2 = 0, 'even', NULL) AS tags, map('number', string(id)) AS properties
        FROM range(10)"""
    )
    writer = rows.write.format("rocketmq").option("namesrv", own.namesrv).option("topic", topic).option("runId", "run-1")
    writer.mode("append").save()
    found = {message.body: message for message in stored(own, topic)}
    assert sorted(found) == [b"body %d" % number for number in range(9)]
    assert [message.body for message in stored(own, other)] == [b"body 9"]
    message = found[b"body 4"]
    assert (message.keys, message.tags, message.properties["number"]) == ("k4 all", "even", "4")
    assert found[b"body 5"].tags is None
    assert len({of_keys(message) for message in found.values()}) == 9
    assert all(re.fullmatch(r"run-1//[01]/\d", of_keys(message)) for message in found.values())


def test_rows_are_delivered_when_they_are_due(spark, own):
    """Rows that are due long ago, in 1 ms, and at once. No broker takes one for the next year."""
    topic = own.topic()
    rows = spark.sql(
        """SELECT * FROM VALUES ('past', TIMESTAMP '2020-01-01 00:00:00', CAST(NULL AS BIGINT)), ('soon', NULL, 1L),
        ('now', NULL, NULL) AS t(body, deliver_at, delay_ms)"""
    )
    rows.write.format("rocketmq").option("namesrv", own.namesrv).option("topic", topic).mode("append").save()
    found = {message.body: message.properties for message in wait_for(own, topic, 3)}
    assert found[b"past"]["TIMER_DELIVER_MS"] == "1577836800000"
    assert found[b"soon"]["TIMER_DELAY_MS"] == "1"
    assert not {"TIMER_DELIVER_MS", "TIMER_DELAY_MS"} & set(found[b"now"])
    from pyspark.errors import PySparkException

    far = spark.sql("SELECT 'far' AS body, current_timestamp() + INTERVAL 365 DAYS AS deliver_at")
    with pytest.raises(PySparkException, match=f"partition 0, row 0 to {topic}: "):
        far.write.format("rocketmq").option("namesrv", own.namesrv).option("topic", topic).mode("append").save()


def test_an_ordering_key_keeps_its_rows_in_order_in_one_queue(spark, own):
    topic = own.topic()
    rows = spark.range(0, 600, 1, 1).selectExpr("concat('key ', id % 5) AS ordering_key", "string(id) AS body")
    rows.write.format("rocketmq").option("namesrv", own.namesrv).option("topic", topic).mode("append").save()
    by_key = {}
    for message in stored(own, topic):
        by_key.setdefault(int(message.body) % 5, []).append(message)
    assert sorted(by_key) == [0, 1, 2, 3, 4]
    for key, messages in by_key.items():
        assert [int(message.body) for message in messages] == list(range(key, 600, 5))
        assert len({message.queue for message in messages}) == 1


def test_a_failing_row_fails_the_query_by_name(spark, own):
    from pyspark.errors import PySparkException

    topic = own.topic()
    rows = spark.sql("SELECT IF(id = 3, '', 'x') AS body FROM range(0, 5, 1, 1)")
    writer = rows.write.format("rocketmq").option("namesrv", own.namesrv).option("topic", topic)
    with pytest.raises(PySparkException, match=f"partition 0, row 3 to {topic}: .* has an empty body"):
        writer.mode("append").save()
    with pytest.raises(PySparkException, match="mode overwrite: a topic keeps its messages"):
        writer.mode("overwrite").save()


@pytest.mark.long
def test_a_batch_of_a_stream_that_is_run_again_sends_the_same_keys(spark, own, tmp_path):
    """The first attempt fails at its second row.

    The second attempt starts from the same checkpoint with a valid row in its place.
    """
    from pyspark.errors import StreamingQueryException

    topic = own.topic()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "rows.json").write_text("\n".join(json.dumps({"body": body}) for body in ("first", "", "third")))

    def run(expression):
        rows = spark.readStream.schema("body string").json(str(tmp_path / "in")).selectExpr(expression, "0 AS queue")
        writer = rows.writeStream.format("rocketmq").option("namesrv", own.namesrv).option("topic", topic)
        query = writer.option("checkpointLocation", str(tmp_path / "state")).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    with pytest.raises(StreamingQueryException, match=r"row 1 to .* has an empty body"):
        run("body")
    query = run("IF(body = '', 'second', body) AS body")
    keys = [f"{query.id}/0/0/{row}" for row in (0, 0, 1, 2)]
    assert [(m.body, of_keys(m)) for m in stored(own, topic)] == list(
        zip([b"first", b"first", b"second", b"third"], keys, strict=True)
    )
