"""Lakes on an S3-compatible server, over HTTP: ingest, read, compact, two writers at once."""

import logging

import polars
import pytest

pytest.importorskip("pyspark")

from rmqkit import Message
from rmqkit.spark.delta.lake_table import LakeTable
from rmqkit.spark.delta.storage import LakeMissing, LakeStorage
from rmqkit.spark.pipelines import lake
from rmqkit.spark.pipelines.compact import compact
from rmqkit.spark.pipelines.ingest import ingest
from rmqkit.spark.source.ranges import QueueKey
from tests.spark import s3_server
from tests.spark.lakes import batch_of, expected, ingested, part, places

KEY = QueueKey("T", "broker-a", 0)


@pytest.fixture(scope="module")
def options():
    with s3_server.running() as made:
        yield made


@pytest.fixture
def storage(options, request):
    return LakeStorage(f"s3://{s3_server.BUCKET}/{request.node.name}", options)


def test_a_lake_in_a_bucket(storage, options):
    with pytest.raises(LakeMissing):
        lake.describe(storage.uri, storage_options=options)
    batches = [((part("T", 0, n, n + 5), part("%RETRY%g", 1, n, n + 5)), {}) for n in range(0, 15, 5)]
    ingested(storage, *batches)
    done = compact(storage.uri, before_hour="2026-11-22-13", grace_ms=0, storage_options=options)
    assert (done.hours, done.files_before, done.files_after, done.vacuumed) == (2, 6, 2, 6)
    described = lake.describe(storage.uri, storage_options=options)
    assert (described.rows, described.covered["T"]["broker-a"]["0"]) == (30, [[0, 15]])
    rows = polars.scan_delta(storage.uri, storage_options=options).select("topic", "queue", "offset").collect()
    assert sorted(rows.rows()) == expected(part("T", 0, 0, 15), part("%RETRY%g", 1, 0, 15))


def test_two_writers_at_once(storage, options):
    one, two = ingested(storage, ((part("T", 0, 0, 5),), {})), LakeTable(storage)
    mine, seen = batch_of(storage, 0, part("T", 0, 5, 9), query="other"), []

    def make(state):
        seen.append(state.covered[KEY])
        if len(seen) == 1:
            theirs = batch_of(storage, 1, part("T", 0, 5, 7))
            one.commit(lambda state: theirs)
            return mine
        return None

    two.commit(make)
    assert seen == [[[0, 5]], [[0, 7]]]
    assert lake.describe(storage.uri, storage_options=options).rows == 7


@pytest.mark.long
@pytest.mark.xdist_group("spark")
def test_an_ingest_needs_no_jar(spark, own, storage, options, caplog, capfd):
    """Each run begins where the lake ends, without a checkpoint; credentials are in no output."""
    caplog.set_level(logging.DEBUG)
    topic = own.topic()
    for last in (5, 8):
        for number in range(last - 3, last):
            own.producer().send(Message(topic, str(number)))
        done = ingest(spark, topic, storage.uri, namesrv=own.namesrv, storage_options=options)
        assert (done.rows, done.repeated) == (3, 0)
    rows = lake.read(spark, storage.uri, storage_options=options)
    assert sorted(bytes(row[0]) for row in rows.select("body").collect()) == [b"%d" % number for number in range(2, 8)]
    assert len(places(rows)) == 6
    rows.explain(extended=True)
    said = capfd.readouterr()
    assert s3_server.SECRET not in caplog.text + said.out + said.err
