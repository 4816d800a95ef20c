"""Batch queries in Spark: the format's name, SQL, filters, schemas, and error messages."""

import pytest

from rmqkit import Message

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


@pytest.fixture
def orders(own):
    """A topic with one queue per broker and ten messages; all bodies but one are JSON."""
    topic = own.topic("orders", queue_nums=1)
    producer = own.producer()
    for number in range(10):
        body = f'{{"id": {number}, "price": {number}.5}}' if number != 7 else "not JSON"
        producer.send(Message(topic, body, tags=("even", "odd")[number // 2 % 2], keys=f"k{number}"))
    return topic


def load(spark, own, topic, schema=None, **given):
    reading = spark.read.format("rocketmq").options(namesrv=own.namesrv, subscribe=topic, **given)
    return (reading.schema(schema) if schema else reading).load()


def test_a_topic_is_a_table(spark, own, orders):
    rows = load(spark, own, orders, columns="keys,tags,offset,body", minPartitions="3").collect()
    assert sorted(row.keys for row in rows) == [f"k{number}" for number in range(10)]
    assert {row.tags for row in rows} == {"odd", "even"}
    assert rows[0].body.startswith(b"{")


@pytest.mark.long
def test_sql_knows_the_format(spark, own, orders):
    made = f"USING rocketmq OPTIONS (namesrv '{own.namesrv}', subscribe '{orders}', decode 'json', decodeSchema 'id INT')"
    query = "SELECT tags, count(*) AS many, count(id) AS ids FROM {} GROUP BY tags ORDER BY tags"
    expected = [("even", 6, 6), ("odd", 4, 3)]
    spark.sql(f"CREATE TABLE orders {made}")
    try:
        assert [tuple(row) for row in spark.sql(query.format("orders")).collect()] == expected
        narrower = "SELECT DISTINCT tags FROM orders WITH (tags = 'odd')"
        assert [tuple(row) for row in spark.sql(narrower).collect()] == [("odd",)]
    finally:
        spark.sql("DROP TABLE orders")
    spark.sql(f"CREATE TEMPORARY VIEW orders_view {made}")
    try:
        assert [tuple(row) for row in spark.sql(query.format("orders_view")).collect()] == expected
    finally:
        spark.catalog.dropTempView("orders_view")


@pytest.mark.long
def test_filters_reach_the_source_only_when_both_say_so(spark, own, orders):
    broker = own.admin.queues(orders)[0].broker_name
    condition = f"broker = '{broker}' AND tags = 'odd' AND offset >= 1 AND queue IN (0, 5)"
    condition += " AND store_time > timestamp'2020-01-01 00:00:00'"
    narrowed = load(spark, own, orders, pushdown="true").where(condition)
    assert narrowed.rdd.getNumPartitions() == 1, "queue 0 of one broker, of two"
    plain = spark.newSession()
    plain.conf.set(PUSHDOWN, "false")
    expected = load(plain, own, orders).where(condition).select("keys").collect()
    assert sorted(narrowed.select("keys").collect()) == sorted(expected) != []
    with pytest.raises(Exception, match=PUSHDOWN):
        load(plain, own, orders, pushdown="true").where(condition).collect()


def test_json_bodies_are_columns(spark, own, orders):
    given = {"decode": "json", "columns": "keys", "decodeSchema": "id BIGINT, price DOUBLE"}
    frame = load(spark, own, orders, **given)
    assert frame.columns == ["keys", "id", "price", "_corrupt"]
    rows = {row.id: row for row in frame.collect()}
    assert rows[3].price == 3.5
    assert rows[None].keys == "k7"
    assert "not JSON" in rows[None]._corrupt
    named = load(spark, own, orders, "id INT, offset BIGINT, tags STRING", decode="json")
    assert sorted(row.id for row in named.collect() if row.id is not None) == [0, 1, 2, 3, 4, 5, 6, 8, 9]


def test_mistakes_have_readable_messages(spark, own, orders):
    with pytest.raises(Exception, match="option subscribee is not known; did you mean subscribe"):
        load(spark, own, orders, subscribee="x")
    with pytest.raises(Exception, match="there is no topic nothing-at-all"):
        load(spark, own, "nothing-at-all").collect()
