"""A running cluster's answers about topics, and readers as Spark's processes use them.

No test needs a JVM.
"""

import pickle

import pytest

from rmqkit import Message
from rmqkit.errors import ConfigError, NoRoute, PeerUnreachable
from rmqkit.spark.columns import row_schema, schema_ddl
from rmqkit.spark.data_sources import RocketMQSource
from rmqkit.spark.options import parse
from rmqkit.spark.source.bounds import found_by_time
from rmqkit.spark.source.ranges import OffsetRange, QueueKey, flat
from rmqkit.spark.source.readers import BatchReader, FilteringReader, StreamReader
from rmqkit.spark.source.topics import Topics
from rmqkit.wire.codes import ResponseCode
from tests.spark.stand_in import Node

pytest.importorskip("pyspark")
from pyspark.sql import types
from pyspark.sql.datasource import DataSourceReader, EqualTo, In, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows, ReadMinRows

KINDS = {"string": types.StringType(), "int": types.IntegerType(), "bigint": types.LongType(), "binary": types.BinaryType()}


def schema(ddl):
    """Parse a schema without a JVM, which Spark's own DDL parser needs."""
    fields = [field.replace("`", "").split() for field in ddl.split(", ")]
    return types.StructType([types.StructField(name, KINDS[kind]) for name, kind in fields])


PLACE = schema("broker string, queue int, offset bigint")


@pytest.fixture
def topic(own):
    """A topic with two queues on each of two brokers, which have 3, 2, 1 and 0 messages."""
    name = own.topic(queue_nums=2)
    producer = own.producer()
    queues = sorted(producer.queues(name))
    for place, queue in enumerate(queues):
        for number in range(3 - place):
            tag = "odd" if number % 2 else "even"
            producer.send(Message(name, f'{{"id": {number}}}', tags=tag, keys=f"k{number}"), queue=queue)
    return name


@pytest.fixture
def open_topics(own):
    def opened(where="stream", **given):
        return own.closes(Topics(parse({"namesrv": own.namesrv} | given, where)))

    return opened


def ends_of(own, topic):
    """Return the ends of the topic's queues, in order."""
    return [QueueKey(topic, queue.broker_name, queue.queue_id) for queue in sorted(own.admin.queues(topic))]


def batch(own, topic, schema=PLACE, **given):
    """Return what a batch query reads: planned in one process, read in others."""
    made = RocketMQSource({"namesrv": own.namesrv, "subscribe": topic} | given).reader(schema)
    return rows(made, made.partitions())


def rows(made, partitions):
    worker = pickle.loads(pickle.dumps(made))
    read = [batch for each in partitions for batch in worker.read(pickle.loads(pickle.dumps(each)))]
    return [tuple(row.values()) for each in read for row in each.to_pylist()]


# --- snapshots


def test_a_snapshot_has_queues_ends_masters_and_the_cluster(own, topic, open_topics):
    seen = open_topics(subscribe=topic).look()
    keys = ends_of(own, topic)
    assert list(seen.ends) == keys
    assert list(seen.ends.values()) == [3, 2, 1, 0]
    assert set(seen.begins.values()) == {0}
    assert {broker for _, broker in seen.by_master} == {key.broker for key in keys}
    assert seen.clusters
    assert not seen.silent
    assert [seen.newest_ms[key] > 0 for key in keys] == [True, True, True, False]


def test_a_snapshot_of_topics_that_do_not_exist(own, topic, open_topics):
    assert open_topics(subscribe=f"{topic},{own.name('nothing')}").look().missing == (own.name("nothing"),)
    assert open_topics(subscribePattern=own.prefix + "z.*").look().ends == {}


def test_a_pattern_finds_topics_that_come(own, topic, open_topics):
    topics = open_topics(subscribePattern=own.prefix + ".*")
    assert {key.topic for key in topics.look().ends} == {topic}
    later = own.topic("later", queue_nums=1)
    assert {key.topic for key in topics.look().ends} == {topic, later}


def test_a_pattern_does_not_find_the_topics_of_brokers(own, topic, open_topics):
    broker = ends_of(own, topic)[0].broker
    assert broker in own.admin.topics()
    found = {key.topic for key in open_topics(subscribePattern=".*").look().ends}
    assert topic in found
    assert broker not in found


def test_a_snapshot_of_assigned_queues(own, topic, open_topics):
    key = ends_of(own, topic)[1]
    topics = open_topics(assign=f'{{"{topic}": {{"{key.broker}": [{key.queue}]}}}}')
    assert topics.look().ends == {key: 2}


def test_a_snapshot_after_the_number_of_read_queues_fell(own, topic, open_topics):
    topics = open_topics(subscribe=topic)
    keys = ends_of(own, topic)
    own.admin.create_topic(topic, read_queue_nums=1, write_queue_nums=1)
    seen = topics.look(keys)
    assert {key.queue for key in seen.ends} == {0}
    assert seen.closed == {keys[1]: 2, keys[3]: 0}


def test_times_groups_sizes_and_single_messages(own, topic, open_topics):
    topics = open_topics(subscribe=topic)
    first, second, third, empty = keys = ends_of(own, topic)
    newest = topics.look().newest_ms
    assert topics.at_time(keys, 1) == dict.fromkeys(keys, 0)
    assert found_by_time(topics, topics.look(), -62_135_596_800_000) == dict.fromkeys(keys, 0)
    assert topics.at_time([first], newest[first] + 1) == {first: 3}
    assert topics.stored_ms(first, 2) == newest[first]
    assert topics.stored_ms(first, 99) is None
    sizes = topics.sizes([OffsetRange(*first, 0, 3), OffsetRange(*empty, 0, 3)])
    assert list(sizes) == [first]
    assert 100 < sizes[first] < 400
    group = own.group()
    assert topics.of_group(group, keys) == {}
    assert topics.commit(group, {first: 2, third: 1}) == []
    assert topics.of_group(group, keys) == {first: 2, third: 1}
    assert topics.commit(group, {first: 3}) == []
    stats = own.admin.consume_stats(group)
    lag = {(queue.broker_name, queue.queue_id): each.broker_offset - each.consumer_offset for queue, each in stats.items()}
    assert lag[first.broker, first.queue] == 0
    assert second not in topics.of_group(group, keys)


def test_a_name_server_that_is_not_ready_counts_as_unreachable(open_topics):
    """Apache's name server answers like this for a while after its start (`needWaitForService`)."""
    node = Node()
    node.answer = lambda code, fields: (int(ResponseCode.SYSTEM_ERROR), {}, b"")
    try:
        with pytest.raises(PeerUnreachable, match="as the test says"):
            open_topics(namesrv=str(node.address), subscribe="T").look()
    finally:
        node.close()


# --- batches


def test_a_batch_reads_what_is_there(own, topic):
    ends = zip(ends_of(own, topic), (3, 2, 1, 0), strict=True)
    expected = [(key.broker, key.queue, offset) for key, end in ends for offset in range(end)]
    assert batch(own, topic) == expected
    assert batch(own, topic, maxMessagesPerPartition="1") == expected
    assert batch(own, topic, startingOffsets="latest") == []


def test_options_of_a_batch_meet_brokers(own, topic):
    first = ends_of(own, topic)[0]
    assert len(batch(own, topic, tags="odd")) == 2
    ends = f'{{"{topic}": {{"{first.broker}": {{"{first.queue}": 1}}}}}}'
    assert len(batch(own, topic, endingOffsets=ends)) == 4
    assert len(batch(own, topic, startingTimestamp="1")) == 6
    with pytest.raises(ConfigError, match="no queue has a message stored at 9999999999999 or later"):
        batch(own, topic, startingTimestamp="9999999999999")
    with pytest.raises(NoRoute, match=rf"there is no topic {topic}x .*did you mean {topic}"):
        batch(own, topic + "x", requestTimeout="1s", maxWaitForBroker="1s")


def test_filters_narrow_what_is_planned(own, topic):
    first = ends_of(own, topic)[0]
    made = RocketMQSource({"namesrv": own.namesrv, "subscribe": topic, "pushdown": "true"}).reader(PLACE)
    assert isinstance(made, FilteringReader)
    filters = [EqualTo(("broker",), first.broker), In(("queue",), [first.queue, 9]), EqualTo(("tags",), "even")]
    assert list(made.pushFilters(filters)) == filters
    planned = made.partitions()
    assert [each.value for each in planned] == [OffsetRange(*first, 0, 3)]
    assert [offset for _, _, offset in rows(made, planned)] == [0, 2]


def test_a_plain_reader_takes_no_filters(own):
    made = RocketMQSource({"subscribe": "T"}).reader(PLACE)
    assert type(made) is BatchReader
    assert type(made).pushFilters is DataSourceReader.pushFilters, "Spark refuses it in a session without the setting"


def test_a_batch_of_nothing_is_one_partition_of_nothing():
    made = RocketMQSource({"subscribe": "T"}).reader(PLACE)
    assert list(made.read(InputPartition(None))) == []


# --- columns


def test_the_schema_of_a_query(own, topic):
    assert schema_ddl(parse({"subscribe": "T", "columns": "offset,topic"}, "batch")) == "`topic` string, `offset` bigint"
    decoded = parse({"subscribe": "T", "decode": "json", "columns": "queue", "decodeSchema": "id bigint"}, "batch")
    assert schema_ddl(decoded) == "`queue` int, id bigint, `_corrupt` string"
    with pytest.raises(ConfigError, match="decode=json needs the fields of the bodies: set decodeSchema"):
        schema_ddl(parse({"subscribe": "T", "decode": "json"}, "batch"))
    everything = schema_ddl(parse({"subscribe": "T", "includeBody": "false"}, "batch"))
    assert "`body`" not in everything
    assert everything.endswith("`read_from` string")


def test_a_schema_of_the_users_own_has_its_own_order(own, topic):
    found = batch(own, topic, schema("offset bigint, body binary, topic string"), columns="keys")
    assert found[0] == (0, b'{"id": 0}', topic)


def test_bodies_of_json(own, topic):
    asked = schema("_corrupt string, id bigint, queue int")
    assert batch(own, topic, asked, decode="json")[:3] == [(None, 0, 0), (None, 1, 0), (None, 2, 0)]


def test_a_schema_that_messages_cannot_have():
    plain = parse({"subscribe": "T"}, "batch")
    with pytest.raises(ConfigError, match="the column offset is bigint, not string: cast it in the query"):
        row_schema(plain, schema("offset string"))
    with pytest.raises(ConfigError, match=r"id is not a column of a message; use topic, broker, .*decode=json"):
        row_schema(plain, schema("id bigint"))
    with pytest.raises(ConfigError, match="the column queue occurs twice: leave the message's own column out"):
        row_schema(plain, schema("queue int, queue bigint"))
    with pytest.raises(ConfigError, match="decode=json needs the fields"):
        row_schema(parse({"subscribe": "T", "decode": "json"}, "batch"), schema("queue int"))


def test_columns_that_may_not_be_null_are_taken(own, topic):
    strict = types.StructType([types.StructField("topic", types.StringType(), nullable=False)])
    assert batch(own, topic, strict)[0] == (topic,)


NAME = types.StringType()


@pytest.mark.parametrize(
    ("column", "kind", "decode"),
    [
        ("keys", NAME, "none"),
        ("tags", NAME, "none"),
        ("id", types.LongType(), "json"),
        ("_corrupt", NAME, "json"),
    ],
)
def test_columns_that_may_be_null_are_not_promised_to_be_none(column, kind, decode):
    """For a NOT NULL column Spark would read nulls as zeros and drop filters for nulls."""
    fields = [types.StructField("x", NAME), types.StructField(column, kind, nullable=False)]
    asked = types.StructType(fields if decode == "json" else fields[1:])
    with pytest.raises(ConfigError, match=f"the column {column} can be null: remove NOT NULL"):
        row_schema(parse({"subscribe": "T", "decode": decode}, "batch"), asked)


@pytest.mark.parametrize(
    "kind",
    [
        types.ArrayType(NAME, containsNull=False),
        types.MapType(NAME, NAME, valueContainsNull=False),
        types.StructType([types.StructField("a", NAME, nullable=False)]),
        types.ArrayType(types.StructType([types.StructField("a", NAME, nullable=False)])),
    ],
)
def test_nor_are_parts_of_json_columns(kind):
    asked = types.StructType([types.StructField("id", kind)])
    with pytest.raises(ConfigError, match="the column id can be null: remove NOT NULL"):
        row_schema(parse({"subscribe": "T", "decode": "json"}, "batch"), asked)


# --- streams


def test_a_stream_as_spark_drives_it(own, topic):
    group = own.group()
    given = {"namesrv": own.namesrv, "subscribe": topic, "startingOffsets": "earliest", "commitGroup": group}
    made = StreamReader(parse(given, "stream"), PLACE)
    start = made.initialOffset()
    end = made.latestOffset(start, made.getDefaultReadLimit())
    assert sorted(flat(end).values()) == [0, 1, 2, 3]
    assert len(rows(made, made.partitions(start, end))) == 6
    made.commit(end)
    assert made.reportLatestOffset()[topic] == end[topic]
    assert sum(each.consumer_offset for each in own.admin.consume_stats(group, topic).values()) == 6
    made.stop()
    again = StreamReader(parse(given, "stream"), PLACE)
    again.prepareForTriggerAvailableNow()
    assert again.latestOffset(end, ReadAllAvailable()) == end
    again.stop()


def test_a_checkpoint_of_a_topic_that_was_made_anew(own, topic):
    given = {"namesrv": own.namesrv, "subscribe": topic, "startingOffsets": "earliest"}
    made = StreamReader(parse(given, "stream"), PLACE)
    end = made.latestOffset(made.initialOffset(), ReadAllAvailable())
    made.stop()
    own.admin.delete_topic(topic)
    own.admin.create_topic(topic, queue_nums=2)
    producer = own.producer(own.name("other"))
    for queue in sorted(producer.queues(topic)):
        for _ in range(4):
            producer.send(Message(topic, b"anew"), queue=queue)
    again = StreamReader(parse(given, "stream"), PLACE)
    with pytest.raises(ConfigError, match="or of a topic that was deleted and recreated: the message at offset 2 of"):
        again.latestOffset(end, ReadAllAvailable())
    again.stop()


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({}, ReadAllAvailable()),
        ({"maxMessagesPerTrigger": "5", "maxBytesPerTrigger": "1m"}, ReadMaxRows(5)),
        ({"maxBytesPerTrigger": "1m"}, ReadMaxBytes(1 << 20)),
        ({"minMessagesPerTrigger": "7"}, ReadMinRows(7)),
    ],
)
def test_spark_gets_one_read_limit(given, limit):
    assert StreamReader(parse({"subscribe": "T"} | given, "stream"), PLACE).getDefaultReadLimit() == limit
