"""Tables created by SQL: the options they store for queries, streams, writes and store folders."""

import json

import pytest

from rmqkit import Message
from rmqkit.errors import ConfigError
from rmqkit.spark import tables
from rmqkit.spark.data_sources import RocketMQSource, StoreDataSource
from rmqkit.spark.sink import writer
from tests.spark.logs import log_file

pytest.importorskip("pyspark")
from pyspark.sql import types

SPARKS = {"provider": "rocketmq", "owner": "root"}
KINDS = {"body": types.BinaryType(), "queue": types.IntegerType(), "offset": types.LongType()}
KINDS["properties"] = types.MapType(types.StringType(), types.StringType())
NAMES = ("topic", "broker", "queue", "offset", "keys", "tags", "body", "properties")


def made(source=RocketMQSource, **options):
    """Create a source as Spark does for CREATE TABLE."""
    return source({**SPARKS, **options, **{f"option.{name}": value for name, value in options.items() if name != "path"}})


def schema_of(source, names=NAMES):
    """Return the schema of a table as a query or a write gets it.

    It is built by hand, because Spark's DDL parser needs a JVM.
    """
    ddl = source.schema()
    comment = ddl.partition(" COMMENT '")[2].partition("'")[0].replace('\\"', '"') if " COMMENT '" in ddl else ""
    fields = [types.StructField(name, KINDS.get(name, types.StringType())) for name in names]
    fields[0].metadata = {"comment": comment} if comment else {}
    return types.StructType(fields)


def test_a_table_keeps_options_of_queries_and_of_writes():
    source = made(namesrv="h:1", subscribe="T", tags="a", requiredStatus="any")
    schema = schema_of(source)
    assert tables.options_of({}, schema) == {"namesrv": "h:1", "subscribe": "T", "tags": "a"}
    assert tables.options_of({"Tags": "b"}, schema)["tags"] == "b"
    assert json.loads(schema.fields[0].metadata["comment"].removeprefix(tables.MARK))["requiredStatus"] == "any"
    with pytest.raises(ConfigError, match="option requiredStatu is not known"):
        made(subscribe="T", requiredStatu="any").schema()


def test_other_queries_have_no_options_in_their_schema():
    assert "COMMENT" not in RocketMQSource({"namesrv": "h:1", "subscribe": "T"}).schema()
    assert "COMMENT" not in StoreDataSource({"path": "/nowhere"}).schema()
    assert tables.options_to_write({}, types.StructType([types.StructField("body", types.BinaryType())])) is None


def test_what_is_inserted_goes_to_the_tables_topic():
    schema = schema_of(made(namesrv="h:1", subscribe="T", tags="a", requiredStatus="any"))
    options = writer.BatchWriter({}, schema, False).options
    assert (options.topic, options.namesrv, options.required_status) == ("T", ("h:1",), "any")
    assert writer.StreamWriter({"checkpointLocation": "/c"}, schema, False).options.topic == "T"
    several = schema_of(made(namesrv="h:1", subscribe="T,U", topic="V"))
    assert writer.BatchWriter({}, several, False).options.topic == "V"


def test_rows_that_come_from_a_table_do_not_go_back_to_it():
    schema = schema_of(made(namesrv="h:1", subscribe="T"), ("body", "tags"))
    with pytest.raises(
        ConfigError, match="option namesrv is missing: the rows carry the options of a table of name servers h:1"
    ):
        writer.BatchWriter({"topic": "U"}, schema, False)
    options = writer.BatchWriter({"topic": "U", "namesrv": "other:2"}, schema, False).options
    assert (options.topic, options.namesrv) == ("U", ("other:2",))
    whole = schema_of(made(namesrv="h:1", subscribe="T"))
    with pytest.raises(ConfigError, match="column offset is not known"):
        writer.BatchWriter({"topic": "U", "namesrv": "other:2"}, whole, False)


@pytest.mark.parametrize("path", ["{}", "file:{}", "file://{}"])
def test_a_table_of_a_store_folder_keeps_its_path(tmp_path, path):
    folder = tmp_path / "a store"
    folder.mkdir()
    data, _ = log_file(0, 4096, [b"one", b"two"], blank=False)
    (folder / f"{0:020d}").write_bytes(data)
    given = path.format(str(folder).replace(" ", "%20") if ":" in path else folder)
    schema = schema_of(made(StoreDataSource, path=given, columns="offset,body"), ("offset", "body"))
    reader = StoreDataSource({}).reader(schema)
    rows = [row for each in reader.partitions() for batch in reader.read(each) for row in batch.to_pylist()]
    assert rows == [{"offset": 0, "body": b"one"}, {"offset": 1, "body": b"two"}]


@pytest.mark.long
def test_spark_inserts_reads_and_streams_tables(spark, own, tmp_path):
    topic = own.topic("orders", queue_nums=1)
    own.producer().send(Message(topic, b"one", tags="a"))
    data, _ = log_file(0, 4096, [b"one", b"two"], blank=False)
    (tmp_path / f"{0:020d}").write_bytes(data)
    given = f"namesrv '{own.namesrv}', subscribe '{topic}', startingOffsets 'earliest', requiredStatus 'any'"
    spark.sql(f"CREATE TABLE orders USING rocketmq OPTIONS ({given})")
    spark.sql(f"CREATE TABLE old_log USING `rocketmq-store` OPTIONS (path '{tmp_path}', columns 'offset,topic')")
    try:
        spark.sql("INSERT INTO orders (body, tags) VALUES (CAST('two' AS BINARY), 'b')")
        expected = [("one", "a"), ("two", "b")]
        query = "SELECT CAST(body AS STRING), tags FROM {} ORDER BY 1"
        assert [tuple(row) for row in spark.sql(query.format("orders")).collect()] == expected
        stream = spark.readStream.table("orders").writeStream.format("memory").queryName("streamed")
        stream = stream.trigger(availableNow=True).option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        assert stream.awaitTermination(60)
        assert [tuple(row) for row in spark.sql(query.format("streamed")).collect()] == expected
        assert [row.offset for row in spark.table("old_log").collect()] == [0, 1]
    finally:
        spark.sql("DROP TABLE orders")
        spark.sql("DROP TABLE old_log")
