"""A lake read by Spark, without a jar: pruning, versions, columns, and files read by PyArrow."""

from datetime import UTC, datetime, timedelta

import pytest

pytest.importorskip("pyspark")

from rmqkit.spark.delta.lake_table import LakeTable
from rmqkit.spark.delta.storage import LakeError, LakeMissing, LakeStorage
from rmqkit.spark.pipelines import lake
from rmqkit.spark.pipelines.compact import compact
from rmqkit.spark.pipelines.migrate import migrate
from tests.spark.lakes import HOUR_MS, NOON, NOON_MS, batch_of, expected, ingested, part, places, queue_rows
from tests.spark.old_lakes import OldLakeMaker

PARTS = (part("T", 0, 0, 20), part("T", 1, 5, 9), part("%RETRY%g", 0, 3, 6))


def test_hours_are_named_in_utc():
    assert lake.hour_name(NOON_MS) == "2026-11-22-12"
    assert lake.hour_name(NOON_MS - 1) == "2026-11-22-11"
    assert lake.millis(NOON) == lake.millis(NOON.replace(tzinfo=None)) == NOON_MS


@pytest.mark.xdist_group("spark")
class TestLake:
    @pytest.fixture
    def path(self, tmp_path):
        """A lake of three batches in two hours and two topics."""
        storage = LakeStorage(tmp_path / "lake")
        ingested(storage, *[((each,), {"at": NOON + timedelta(hours=number % 2)}) for number, each in enumerate(PARTS)])
        return tmp_path / "lake"

    def test_reading_goes_by_the_table(self, spark, path):
        assert places(lake.read(spark, path)) == expected(*PARTS)
        # files of an ingest that died before its commit
        queue_rows(spark, part("T", 0, 20, 40)).write.parquet(str(path / "topic=T" / "hour=2026-11-22-12" / "dead"))
        assert places(lake.read(spark, path)) == expected(*PARTS)
        described = lake.describe(path)
        assert (described.rows, described.topics, described.gaps) == (27, ["%RETRY%g", "T"], [])
        assert (described.files, described.hours) == (3, 2)
        assert described.covered["T"]["broker-a"]["1"] == [[5, 9]]

    def test_topics_and_hours_are_pruned(self, spark, path):
        assert places(lake.read(spark, path, topics=["%RETRY%g"])) == expected(PARTS[2])
        late = lake.read(spark, path, since=NOON_MS + HOUR_MS)
        assert places(late) == expected(PARTS[1])
        assert all("hour=2026-11-22-13" in name for name in late.inputFiles())
        early = lake.read(spark, path, until=NOON_MS + HOUR_MS)
        assert places(early) == expected(PARTS[0], PARTS[2])
        assert all("hour=2026-11-22-12" in name for name in early.inputFiles())
        nothing = lake.read(spark, path, until=0)
        assert nothing.count() == 0
        assert nothing.columns == lake.read(spark, path).columns

    def test_an_older_version(self, spark, path):
        rows = lake.read(spark, path, version=0)
        compact(path, before_hour="2026-11-22-14")
        storage = LakeStorage(path)
        LakeTable(storage).commit(lambda state: batch_of(storage, 9, part("T", 0, 20, 25)))
        assert places(rows) == places(lake.read(spark, path, version=0)) == expected(PARTS[0])
        assert places(lake.read(spark, path, version=datetime.now(UTC))) == expected(*PARTS, part("T", 0, 20, 25))
        with pytest.raises(LakeError, match="99"):
            lake.read(spark, path, version=99)

    def test_columns_come_back_as_they_were(self, spark, path):
        back = lake.read(spark, path, topics=["%RETRY%g"])
        asked = queue_rows(spark, PARTS[2])
        assert back.schema.simpleString() == asked.schema.simpleString()
        assert sorted(back.collect()) == sorted(asked.collect())

    def test_pyarrow_reads_the_same_where_spark_needs_a_jar(self, spark, path, monkeypatch):
        """A file that lacks a column has nulls there, and the rows are those that Spark reads."""
        storage = LakeStorage(path)
        LakeTable(storage).commit(lambda state: batch_of(storage, 9, part("T", 0, 20, 25), more=["id"]))
        rows = sorted(lake.read(spark, path).collect(), key=str)
        init = LakeStorage.__init__

        def elsewhere(self, *words):
            init(self, *words)
            self.is_local = False
            self.files = lambda: storage.files()

        monkeypatch.setattr(LakeStorage, "__init__", elsewhere)
        assert sorted(lake.read(spark, path).collect(), key=str) == rows

    def test_a_migrated_lake(self, spark, tmp_path):
        old = OldLakeMaker(tmp_path / "old")
        old.batch(part("T", 0, 0, 5), part("%RETRY%g", 0, 0, 2))
        migrate(old.path)
        assert places(lake.read(spark, old.path)) == expected(part("T", 0, 0, 5), part("%RETRY%g", 0, 0, 2))

    def test_hours_do_not_go_by_the_session(self, spark):
        rows = queue_rows(spark, part("T", 0, 0, 1), at=NOON + timedelta(hours=11, minutes=30))
        spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
        try:
            assert [row[0] for row in rows.select(lake.hour_column(rows.store_time)).collect()] == ["2026-11-22-23"]
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")

    def test_no_lake(self, spark, tmp_path):
        with pytest.raises(LakeMissing, match="there is no lake at"):
            lake.read(spark, tmp_path / "nothing")
