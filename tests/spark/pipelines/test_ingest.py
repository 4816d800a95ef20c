"""Ingest: each offset is in the lake exactly once.

The tests repeat batches, kill drivers, and lose or restore checkpoints.
"""

import json
import shutil
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from rmqkit import Message
from rmqkit.errors import ConfigError
from rmqkit.spark.delta import data_files
from rmqkit.spark.delta.iceberg_table import IcebergTable
from rmqkit.spark.delta.lake_table import LakeTable
from rmqkit.spark.delta.storage import LakeConflict, LakeDamaged, LakeError, LakeStorage
from rmqkit.spark.pipelines import lake
from rmqkit.spark.pipelines.compact import compact
from rmqkit.spark.pipelines.ingest import add_batch, default_checkpoint, ingest, unread
from rmqkit.spark.pipelines.topic_query import Offsets, QueryCheckpoint, of_query
from rmqkit.spark.source import ranges
from rmqkit.spark.source.ranges import QueueKey
from tests.spark.lakes import QUERY, batch_offsets, expected, part, places, queue_rows

pytestmark = pytest.mark.xdist_group("spark")

OTHER = "3c1d4b0e-0000-4000-8000-000000000002"


# --- without Spark


class TestCheckpoint:
    @pytest.fixture
    def checkpoint(self, tmp_path):
        (tmp_path / "offsets").mkdir()
        (tmp_path / "metadata").write_bytes(b'{"id":"abc"}')
        for batch, ends in enumerate(('{"0":5,"1":0}', '{"0":9,"1":3}')):
            offsets = f'v1\n{{"batchWatermarkMs":0}}\n{{"@clusters":{{"c":{{}}}},"T":{{"broker-a":{ends}}}}}'
            (tmp_path / "offsets" / str(batch)).write_text(offsets)
        return QueryCheckpoint(str(tmp_path))

    def test_offsets_of_a_batch(self, checkpoint):
        assert checkpoint.query_id() == "abc"
        found = checkpoint.offsets_of(1)
        assert ranges.between(*found) == [part("T", 0, 5, 9), part("T", 1, 0, 3)]
        assert ranges.clusters(found.end) == ("c",)

    def test_the_first_batch_begins_at_the_given_offsets(self, checkpoint):
        assert checkpoint.offsets_of(0).begin == {}
        starts = {QueueKey("T", "broker-a", 0): 2, QueueKey("T", "broker-a", 1): 7, QueueKey("T", "broker-b", 0): 1}
        assert checkpoint.offsets_of(0, starts).begin == {"T": {"broker-a": {"0": 2, "1": 0}}}

    def test_missing_and_invalid_checkpoint_files_are_named(self, checkpoint, tmp_path):
        assert QueryCheckpoint(str(tmp_path / "new")).query_id() is None
        with pytest.raises(LakeDamaged, match="offsets/2 is missing"):
            checkpoint.offsets_of(2)
        (tmp_path / "offsets" / "2").write_bytes(b"v1\n{}\n{}\n{}")
        with pytest.raises(LakeDamaged, match="offsets/2 does not have Spark's format"):
            checkpoint.offsets_of(2)

    def test_elsewhere_the_jvm_reads_it(self, spark, tmp_path):
        (tmp_path / "metadata").write_bytes(b'{"id":"abc"}')
        checkpoint = QueryCheckpoint(str(tmp_path), spark)
        checkpoint._local = None
        assert checkpoint.query_id() == "abc"
        assert QueryCheckpoint("hdfs://127.0.0.1:1/x", spark).uri == "hdfs://127.0.0.1:1/x"


def test_every_set_of_topics_has_its_checkpoint():
    assert default_checkpoint(["a", "b"]) != default_checkpoint(["a-b"]) != default_checkpoint(["a+b"])
    assert "%" not in default_checkpoint(["%RETRY%g"])
    assert len(default_checkpoint(["t" * 120])) < 120


def test_progress_of_a_batch():
    told = {
        "batchId": 4,
        "numInputRows": 10,
        "processedRowsPerSecond": 2.5,
        "sources": [
            {
                "endOffset": {"T": {"b": {"0": 7}}},
                "latestOffset": '{"T": {"b": {"0": 9, "1": 100}}}',
            }
        ],
    }
    progress = of_query(told, 30)
    assert (progress.rows, progress.batch, progress.batch_rows, progress.rows_per_s, progress.lag) == (30, 4, 10, 2.5, 2)
    assert progress.offsets == {"T": {"b": {"0": 7}}}
    assert of_query({"batchId": 0, "numInputRows": 0, "sources": []}, 0).lag is None


# --- batches, without a broker


class TestBatches:
    @pytest.fixture
    def table(self, tmp_path):
        return LakeTable(LakeStorage(tmp_path / "lake"))

    @staticmethod
    def bring(spark, table, batch, *parts, query=QUERY, epoch="a", clusters=(), offsets=None):
        rows = queue_rows(spark, *parts, epoch=epoch)
        offsets = offsets or batch_offsets(*parts, clusters=clusters)
        return add_batch(table, rows, query=query, batch=batch, offsets=offsets)

    @staticmethod
    def data(table):
        """Return the data files in the folder, committed or not."""
        return {str(path) for path in Path(table.storage.uri).rglob("*.parquet") if "_delta_log" not in path.parts}

    def test_a_batch_that_runs_again_is_there_once(self, spark, table):
        """The driver is killed after the lake's entry, before Spark records the batch as done."""
        first = self.bring(spark, table, 0, part("T", 0, 0, 10))
        assert first.rows == 10
        assert self.bring(spark, LakeTable(table.storage), 0, part("T", 0, 0, 10)) is None
        assert places(lake.read(spark, table.storage.uri)) == expected(part("T", 0, 0, 10))
        assert self.data(table) == set(lake.files(table.storage.uri))

    @pytest.mark.long
    def test_a_checkpoint_that_was_put_back(self, spark, table):
        """After an old checkpoint is restored, batch 1 is planned again with more messages."""
        self.bring(spark, table, 0, part("T", 0, 0, 10))
        self.bring(spark, table, 1, part("T", 0, 10, 15))
        added = self.bring(spark, table, 1, part("T", 0, 10, 20))
        assert (added.rows, added.repeated) == (5, 5)
        assert self.bring(spark, table, 1, part("T", 0, 10, 20)) is None
        assert places(lake.read(spark, table.storage.uri)) == expected(part("T", 0, 0, 20))
        assert self.data(table) == set(lake.files(table.storage.uri))

    def test_killed_between_files_and_entry(self, spark, table, monkeypatch):
        self.bring(spark, table, 0, part("T", 0, 0, 10))

        def die(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(LakeTable, "commit", die)
            with pytest.raises(KeyboardInterrupt):
                self.bring(spark, table, 1, part("T", 0, 10, 20))
        assert places(lake.read(spark, table.storage.uri)) == expected(part("T", 0, 0, 10))
        left = self.data(table) - set(lake.files(table.storage.uri))
        assert left
        self.bring(spark, LakeTable(table.storage), 1, part("T", 0, 10, 20))
        assert places(lake.read(spark, table.storage.uri)) == expected(part("T", 0, 0, 20))
        # vacuum removes the leftovers of the killed driver
        assert lake.vacuum(table.storage.uri, grace_ms=0) == len(left)
        assert self.data(table) == set(lake.files(table.storage.uri))

    @pytest.mark.long
    def test_a_driver_that_commits_second_finds_the_batch_done(self, spark, table, monkeypatch):
        """Two drivers run the same batch; the second to commit finds it done."""
        commit = LakeTable.commit

        def other_first(self_, make):
            monkeypatch.setattr(LakeTable, "commit", commit)
            self.bring(spark, LakeTable(table.storage), 0, part("T", 0, 0, 10))
            return commit(self_, make)

        monkeypatch.setattr(LakeTable, "commit", other_first)
        assert self.bring(spark, table, 0, part("T", 0, 0, 10)) is None
        assert places(lake.read(spark, table.storage.uri)) == expected(part("T", 0, 0, 10))

    @pytest.mark.long
    def test_a_lost_checkpoint_brings_nothing_twice(self, spark, table):
        self.bring(spark, table, 0, part("T", 0, 0, 10), part("T", 1, 0, 4))
        compact(table.storage.uri, before_hour="2026-11-22-13")
        assert json.loads(unread(table.state(), ["T"])) == {"T": {"broker-a": {"0": 10, "1": 4}}}
        assert unread(table.state(), ["other"]) == "earliest"
        # a new query that begins at the earliest offsets anyway
        added = self.bring(spark, table, 0, part("T", 0, 0, 15), part("T", 1, 2, 6), query=OTHER)
        assert (added.rows, added.repeated) == (5 + 2, 10 + 2)
        assert places(lake.read(spark, table.storage.uri)) == expected(part("T", 0, 0, 15), part("T", 1, 0, 6))

    @pytest.mark.long
    def test_a_first_batch_that_does_not_say_where_it_began(self, spark, table):
        end = batch_offsets(part("T", 0, 0, 9), part("T", 1, 0, 50)).end
        self.bring(spark, table, 0, part("T", 0, 3, 9), offsets=Offsets({}, end))
        assert table.state().covered == {QueueKey("T", "broker-a", 0): [[3, 9]]}
        end = batch_offsets(part("T", 0, 0, 12)).end
        added = self.bring(spark, table, 0, part("T", 0, 1, 12), query=OTHER, offsets=Offsets({}, end))
        assert (added.rows, added.repeated) == (5, 6)
        assert places(lake.read(spark, table.storage.uri)) == expected(part("T", 0, 1, 12))

    def test_a_recreated_topic_is_refused(self, spark, table):
        self.bring(spark, table, 0, part("T", 0, 0, 10))
        with pytest.raises(LakeConflict, match="T broker-a:0 0 is message b-T-0-0, the lake has a-T-0-0 there"):
            self.bring(spark, table, 0, part("T", 0, 0, 12), query=OTHER, epoch="b")
        assert table.state().version == 0

    def test_a_second_query_without_the_filter_of_the_first_is_refused(self, spark, table):
        """The first query filters by tags, the second does not.

        The lake counts the filtered offsets as covered, but has no rows for them.
        """
        add_batch(
            table,
            queue_rows(spark, part("T", 0, 0, 3)),
            query=QUERY,
            batch=0,
            offsets=batch_offsets(part("T", 0, 0, 10)),
        )
        with pytest.raises(LakeConflict, match="T broker-a:0 3 is message a-T-0-3, the lake has no such row"):
            self.bring(spark, table, 0, part("T", 0, 0, 10), query=OTHER)

    def test_another_cluster_is_refused(self, spark, table):
        self.bring(spark, table, 0, part("T", 0, 0, 3), clusters=["east"])
        with pytest.raises(LakeConflict, match="the lake has topic T of cluster east, this is west"):
            self.bring(spark, table, 1, part("T", 0, 3, 6), clusters=["west"])
        self.bring(spark, table, 1, part("U", 0, 3, 6), clusters=["west"])

    @pytest.mark.long
    def test_two_ingests_at_once(self, spark, table, monkeypatch):
        """Another ingest commits some of the same offsets while this one writes its files.

        This one fails; a second try adds only the new offsets.
        """
        commit = LakeTable.commit

        def other_first(self_, make):
            monkeypatch.setattr(LakeTable, "commit", commit)
            self.bring(spark, LakeTable(table.storage), 0, part("T", 0, 0, 10), query=OTHER)
            return commit(self_, make)

        monkeypatch.setattr(LakeTable, "commit", other_first)
        with pytest.raises(LakeConflict, match="another ingest has committed T broker-a:0 5 to 10"):
            self.bring(spark, table, 0, part("T", 0, 5, 12))
        added = self.bring(spark, table, 0, part("T", 0, 5, 12))
        assert (added.rows, added.repeated) == (2, 5)
        assert places(lake.read(spark, table.storage.uri)) == expected(part("T", 0, 0, 12))

    def test_a_batch_without_rows_counts(self, spark, table):
        """A batch has no rows if a filter drops all, or if only a new queue appeared."""
        added = add_batch(
            table,
            queue_rows(spark),
            query=QUERY,
            batch=0,
            offsets=batch_offsets(part("T", 0, 0, 10)),
        )
        assert (added.rows, added.files) == (0, 0)
        assert table.state().has(QUERY, 0)
        assert lake.read(spark, table.storage.uri).count() == 0

    def test_files_that_executors_wrote_elsewhere(self, spark, table, tmp_path, monkeypatch):
        """With a local path on a Spark cluster, each machine has its own folder of that name."""
        elsewhere = data_files.write
        other = LakeStorage(tmp_path / "other")
        monkeypatch.setattr(data_files, "write", lambda rows, storage, **named: elsewhere(rows, other, **named))
        with pytest.raises(LakeError, match=r"10 rows were written to .*, and 0 are there: do all executors see"):
            self.bring(spark, table, 0, part("T", 0, 0, 10))
        monkeypatch.undo()
        assert table.state().version == -1

    def test_columns_that_a_lake_needs(self, spark, table):
        rows = queue_rows(spark, part("T", 0, 0, 1)).drop("store_time")
        with pytest.raises(ConfigError, match="needs the columns store_time too"):
            add_batch(table, rows, query=QUERY, batch=0, offsets=batch_offsets(part("T", 0, 0, 1)))

    @pytest.mark.long
    def test_columns_may_come_and_not_change(self, spark, table):
        self.bring(spark, table, 0, part("T", 0, 0, 2))
        more = queue_rows(spark, part("T", 0, 2, 4)).selectExpr("*", "offset AS id")
        add_batch(table, more, query=QUERY, batch=1, offsets=batch_offsets(part("T", 0, 2, 4)))
        found = lake.read(spark, table.storage.uri).orderBy("offset").select("id").collect()
        assert [row[0] for row in found] == [None, None, 2, 3]
        other = queue_rows(spark, part("T", 0, 4, 5)).selectExpr("*", "'x' AS id")
        with pytest.raises(LakeConflict, match="column id is long in the lake, string in new rows"):
            add_batch(table, other, query=QUERY, batch=2, offsets=batch_offsets(part("T", 0, 4, 5)))


class TestIcebergBatches:
    """The same batches into an Iceberg table."""

    @pytest.mark.long
    def test_each_message_once(self, spark, tmp_path):
        table = IcebergTable(LakeStorage(tmp_path / "lake"))
        bring = TestBatches.bring
        assert bring(spark, table, 0, part("T", 0, 0, 10), part("%RETRY%g", 1, 0, 4)).rows == 14
        # the driver died before Spark recorded the batch as done
        assert bring(spark, IcebergTable(table.storage), 0, part("T", 0, 0, 10), part("%RETRY%g", 1, 0, 4)) is None
        # an old checkpoint, and then none at all
        added = bring(spark, table, 0, part("T", 0, 0, 15))
        assert (added.rows, added.repeated) == (5, 10)
        added = bring(spark, table, 0, part("T", 0, 5, 20), query=OTHER)
        assert (added.rows, added.repeated) == (5, 10)
        with pytest.raises(LakeConflict, match="T broker-a:0 0 is message b-T-0-0, the lake has a-T-0-0 there"):
            bring(spark, table, 1, part("T", 0, 0, 22), query=OTHER, epoch="b")
        more = queue_rows(spark, part("T", 0, 20, 22)).selectExpr("*", "offset AS id")
        add_batch(table, more, query=OTHER, batch=1, offsets=batch_offsets(part("T", 0, 20, 22)))
        assert places(table.rows(spark, ["T"], [])) == expected(part("T", 0, 0, 22))
        rows = table.opened().scan().to_arrow()
        assert sorted(rows["id"].drop_null().to_pylist()) == [20, 21]
        assert rows.num_rows == 26


# --- from a topic


def send(own, topic, begin, end, **properties):
    producer = own.producer()
    for number in range(begin, end):
        producer.send(Message(topic, json.dumps({"number": number}), keys=f"k{number % 5}", properties=properties))


def numbers(frame):
    return sorted(json.loads(bytes(row[0]))["number"] for row in frame.select("body").collect())


class TestIngest:
    @pytest.mark.long
    def test_into_iceberg_and_on_without_a_checkpoint(self, spark, own, tmp_path):
        topic, path = own.topic(), tmp_path / "lake"
        for first, rows in ((0, 20), (20, 25)):
            send(own, topic, first, rows)
            done = ingest(spark, topic, path, namesrv=own.namesrv, format="iceberg")
            assert (done.rows, done.repeated) == (rows - first, 0)
            shutil.rmtree(path / "_lake" / "checkpoints")
        found = IcebergTable(LakeStorage(path)).opened().scan(selected_fields=("body",)).to_arrow()
        assert sorted(json.loads(body)["number"] for body in found["body"].to_pylist()) == list(range(25))

    @pytest.mark.long
    def test_the_same_call_goes_on(self, spark, own, tmp_path):
        topic, path = own.topic(), tmp_path / "lake"
        send(own, topic, 0, 30)
        told = []
        done = ingest(
            spark, topic, path, namesrv=own.namesrv, options={"maxMessagesPerTrigger": "20"}, on_progress=told.append
        )
        assert (done.rows, done.batches, done.repeated) == (30, 2, 0)
        assert [each.rows for each in told] == [20, 30]
        assert told[-1].lag == 0
        assert sum(ranges.flat(done.offsets).values()) == 30
        kept = shutil.copytree(path / "_lake" / "checkpoints", tmp_path / "kept")

        # Without its checkpoint, but with one more topic, it continues where the lake ends.
        shutil.rmtree(path / "_lake" / "checkpoints")
        other = own.topic("other")
        send(own, topic, 30, 45)
        send(own, other, 45, 50)
        done = ingest(spark, [topic, other], path, namesrv=own.namesrv)
        assert (done.rows, done.repeated) == (20, 0)
        # An old checkpoint does not have the later messages.
        shutil.copytree(kept, path / "_lake" / "checkpoints", dirs_exist_ok=True)
        send(own, topic, 50, 55)
        done = ingest(spark, topic, path, namesrv=own.namesrv)
        assert (done.rows, done.repeated) == (5, 15)
        assert numbers(lake.read(spark, path)) == list(range(55))
        assert lake.describe(path).gaps == []

    @pytest.mark.long
    def test_killed_between_files_and_entry(self, spark, own, tmp_path, monkeypatch):
        """The first driver dies in its second batch, after the files and before the entry.

        The second driver dies after an entry.
        """
        topic, path = own.topic(), tmp_path / "lake"
        send(own, topic, 0, 30)
        options = {"maxMessagesPerTrigger": "10"}
        commit, calls = LakeTable.commit, []

        def dies(table, make):
            calls.append(make)
            if len(calls) == 2:
                raise RuntimeError("killed before the entry")
            state = commit(table, make)
            if len(calls) == 4:
                raise RuntimeError("killed after the entry")
            return state

        monkeypatch.setattr(LakeTable, "commit", dies)
        for reason, rows in (("before", 10), ("after", 30)):
            with pytest.raises(RuntimeError, match=f"killed {reason} the entry"):
                ingest(spark, topic, path, namesrv=own.namesrv, options=options)
            assert lake.describe(path).rows == rows
        monkeypatch.undo()
        done = ingest(spark, topic, path, namesrv=own.namesrv, options=options)
        assert (done.rows, done.batches) == (0, 0)
        assert numbers(lake.read(spark, path)) == list(range(30))
        assert lake.describe(path).gaps == []

    @pytest.mark.long
    def test_follow_until_a_stop_is_requested(self, spark, own, tmp_path):
        """Columns decoded from JSON go to the lake.

        A second ingest with the same checkpoint is refused, because it would end this one.
        """
        topic, path = own.topic(), tmp_path / "lake"
        send(own, topic, 0, 5)
        told = []

        def stop():
            if len(told) == 1:
                told.append(told[0])
                with pytest.raises(ConfigError, match="runs in this session already"):
                    ingest(spark, topic, path, namesrv=own.namesrv)
                own.producer().send(Message(topic, b"no json"))
                send(own, topic, 5, 8)
            return bool(told) and told[-1].rows == 9

        done = ingest(
            spark,
            topic,
            path,
            namesrv=own.namesrv,
            follow=True,
            trigger="200 milliseconds",
            options={"decode": "json", "decodeSchema": "number bigint"},
            on_progress=told.append,
            stop=stop,
        )
        assert done.rows == 9
        assert not spark.streams.active
        rows = lake.read(spark, path).select("number", "_corrupt").collect()
        assert sorted(row[0] for row in rows if row[1] is None) == list(range(8))
        assert [row[0] for row in rows if row[1] is not None] == [None]

    def test_invalid_arguments_are_refused(self, spark, own, tmp_path):
        with pytest.raises(ConfigError, match="name a topic"):
            ingest(spark, [], tmp_path, namesrv=own.namesrv)
        with pytest.raises(ConfigError, match="startingOffset is not known; did you mean startingOffsets"):
            ingest(spark, "T", tmp_path, namesrv=own.namesrv, options={"startingOffset": "latest"})
