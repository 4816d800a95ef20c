"""The lake: its log, its files, compaction and vacuum, and kills between any two steps."""

import json
import os
import shutil
from datetime import timedelta

import pytest

pytest.importorskip("pyspark")

from rmqkit.errors import ConfigError
from rmqkit.spark.pipelines import coverage, lake
from rmqkit.spark.pipelines.batches import add
from rmqkit.spark.pipelines.compact import compact
from rmqkit.spark.pipelines.folders import HadoopFolder, LocalFolder, open_folder
from rmqkit.spark.pipelines.log import (
    LOG,
    BatchEntry,
    Compaction,
    DataFile,
    LakeConflict,
    LakeDamaged,
    LakeError,
    LakeLog,
    LakeMissing,
    merged_schema,
)
from rmqkit.spark.source.ranges import QueueKey
from tests.spark.lakes import HOUR_MS, NOON, NOON_MS, QUERY, batch_offsets, expected, part, places, queue_rows

LATER_MS = NOON_MS + 40 * 24 * HOUR_MS
SCHEMA = json.dumps({"type": "struct", "fields": []})


def entry(batch, *names, query=QUERY, begin=0, end=0):
    files = [DataFile(path=name, topic="T", hour="2026-11-22-12", size=1, rows=1) for name in names]
    offsets = batch_offsets(part("T", 0, begin, end))
    return BatchEntry(
        query=query,
        batch=batch,
        begin=offsets.begin,
        end=offsets.end,
        rows=len(files),
        files=files,
        schema=SCHEMA,
        written_ms=NOON_MS,
    )


def compaction(replaces, *names):
    return Compaction(replaces=replaces, files=entry(0, *names).files, written_ms=NOON_MS)


class TestCoverage:
    key = QueueKey("T", "broker-a", 0)

    def test_intervals_that_meet_are_joined(self):
        covered = coverage.added({}, [part("T", 0, 5, 9), part("T", 0, 0, 5), part("T", 0, 20, 30), part("T", 1, 0, 0)])
        assert covered == {self.key: [[0, 9], [20, 30]]}
        assert coverage.gaps(covered) == [part("T", 0, 9, 20)]
        assert coverage.ends(covered) == {self.key: 30}
        assert coverage.flat(json.loads(json.dumps(coverage.nested(covered)))) == covered

    def test_what_two_have_in_common(self):
        covered = {self.key: [[0, 9], [20, 30]]}
        assert coverage.common(covered, [part("T", 0, 5, 25), part("T", 1, 0, 9)]) == [
            part("T", 0, 5, 9),
            part("T", 0, 20, 25),
        ]
        assert coverage.common(covered, [part("T", 0, 9, 20)]) == []


@pytest.fixture(params=["local", "hadoop"])
def folder(request, tmp_path):
    """A folder on the OS, and one on Hadoop's FileSystem; both give the same guarantees."""
    if request.param == "local":
        return LocalFolder(tmp_path / "lake")
    return HadoopFolder(f"file://{tmp_path}/lake", request.getfixturevalue("spark"))


@pytest.mark.xdist_group("spark")
class TestFolder:
    def test_a_file_is_created_once(self, folder):
        assert folder.read("a/b") is None
        assert folder.list() == {}
        assert folder.create("a/b", b"one")
        assert not folder.create("a/b", b"two")
        assert folder.read("a/b") == b"one"
        names = [name for name in folder.list("a") if not name.endswith(".crc")]
        assert names == ["a/b"]
        assert folder.list("a")["a/b"].size == 3

    def test_empty_folders_go_with_their_last_file(self, folder, tmp_path):
        folder.create("a/b/c", b"")
        folder.create("a/d", b"")
        folder.remove("a/b/c")
        folder.remove("a/b/c")
        assert sorted(path.name for path in (tmp_path / "lake" / "a").iterdir() if not path.name.endswith(".crc")) == ["d"]
        folder.remove("a")
        assert folder.list() == {}

    def test_who_is_second_leaves_nothing_behind(self, folder, tmp_path, monkeypatch):
        """Two writers create a file; each checks before the other creates it."""
        folder.create("x", b"first")
        if isinstance(folder, LocalFolder):
            assert not folder.create("x", b"second")
        else:
            monkeypatch.setattr(folder, "_files", Blind(folder._files))
            assert not folder.create("x", b"second")
        assert folder.read("x") == b"first"
        assert not [path for path in (tmp_path / "lake").iterdir() if not path.name.startswith((".", "x"))]
        if isinstance(folder, LocalFolder):
            assert [path.name for path in (tmp_path / "lake").iterdir()] == ["x"]


class Blind:
    """A Hadoop FileSystem whose first `exists` returns False."""

    def __init__(self, files):
        self._files = files
        self._asked = False

    def exists(self, path):
        if not self._asked:
            self._asked = True
            return False
        return self._files.exists(path)

    def __getattr__(self, name):
        return getattr(self._files, name)


class TestPaths:
    def test_a_pattern_is_no_path(self):
        with pytest.raises(ConfigError, match="must not be empty or hold"):
            open_folder("/data/{a,b}")

    def test_elsewhere_needs_a_session(self):
        with pytest.raises(ConfigError, match="a Spark session is needed"):
            open_folder("s3a://bucket/lake")

    def test_local_paths_may_be_uris(self, tmp_path):
        assert open_folder(f"file://{tmp_path}/x").uri == open_folder(tmp_path / "x").uri

    @pytest.mark.xdist_group("spark")
    def test_other_schemes_go_to_the_jvm(self, spark):
        assert isinstance(open_folder("hdfs://127.0.0.1:1/lake", spark), HadoopFolder)


class TestLog:
    """Without Spark: entries, their order, and refused entries."""

    @pytest.fixture
    def folder(self, tmp_path):
        return LocalFolder(tmp_path)

    def test_entries_come_to_a_state(self, folder):
        log = LakeLog(folder)
        log.commit(lambda state: entry(0, "a", "b", end=10), NOON_MS)
        log.commit(lambda state: entry(1, "c", begin=10, end=15), NOON_MS)
        log.commit(lambda state: compaction(["a", "c"], "d"), NOON_MS)
        state = LakeLog(folder).state()
        assert sorted(state.files) == ["b", "d"]
        assert state.batches == {QUERY: 1}
        assert state.covered == {QueueKey("T", "broker-a", 0): [[0, 15]]}
        assert state.number == 3

    def test_two_writers_are_put_in_order(self, folder):
        """The second writer's first try collides with the first writer's entry number.

        It reads the new entry and decides again.
        """
        one, two = LakeLog(folder), LakeLog(folder)
        seen = []

        def make(state):
            seen.append(sorted(state.files))
            if len(seen) == 1:
                one.commit(lambda state: entry(0, "a"), NOON_MS)
            return entry(0, "b", query="other")

        two.commit(make, NOON_MS)
        assert seen == [[], ["a"]]
        assert sorted(LakeLog(folder).state().files) == ["a", "b"]

    def test_snapshots_stand_for_entries(self, folder, monkeypatch):
        monkeypatch.setattr("rmqkit.spark.pipelines.log.SNAPSHOT_EVERY", 3)
        log, slow = LakeLog(folder), LakeLog(folder)
        for number in range(7):
            log.commit(lambda state, number=number: entry(number, str(number), begin=number, end=number + 1), NOON_MS)
            if number == 0:
                slow.state()
        log.commit(lambda state: compaction(["0", "6"], "x"), NOON_MS)
        assert log.forget(before_ms=lake.wall_ms() + 1) == 6 + 1
        for reader in (slow, LakeLog(folder), log):
            state = reader.state()
            assert (state.number, sorted(state.files)) == (8, ["1", "2", "3", "4", "5", "x"])
            assert state.batches == {QUERY: 6}
        assert log.replaced_since(0) == {"0", "6"}

    def test_a_half_written_entry_is_none(self, folder, tmp_path):
        LakeLog(folder).commit(lambda state: entry(0, "a"), NOON_MS)
        (tmp_path / LOG / f".{2:020}.json.1234.tmp").write_bytes(b'{"kind":"batch","que')
        (tmp_path / LOG / "notes.txt").write_bytes(b"mine")
        assert LakeLog(folder).state().number == 1
        LakeLog(folder).commit(lambda state: entry(1, "b"), NOON_MS)
        assert sorted(LakeLog(folder).state().files) == ["a", "b"]
        LakeLog(folder).forget(before_ms=lake.wall_ms() + 1)
        assert not [path for path in (tmp_path / LOG).iterdir() if path.name.endswith(".tmp")]
        assert (tmp_path / LOG / "notes.txt").exists()

    @pytest.mark.parametrize("content", [b"", b'{"kind":"batch","que', b'{"kind":"party"}', b"[]"])
    def test_a_damaged_entry_is_named(self, folder, tmp_path, content):
        """A damaged entry is an error; skipping it would silently lose its rows."""
        for number in range(3):
            LakeLog(folder).commit(lambda state, number=number: entry(number, str(number)), NOON_MS)
        (tmp_path / LOG / f"{2:020}.json").write_bytes(content)
        with pytest.raises(LakeDamaged, match=r"00000002\.json is not a valid entry"):
            LakeLog(folder).state()

    def test_a_missing_entry_is_named(self, folder, tmp_path):
        for number in range(3):
            LakeLog(folder).commit(lambda state, number=number: entry(number, str(number)), NOON_MS)
        (tmp_path / LOG / f"{2:020}.json").unlink()
        with pytest.raises(LakeDamaged, match="entries are missing"):
            LakeLog(folder).state()

    def test_an_entry_of_a_newer_rmqkit_is_refused(self, folder, tmp_path):
        LakeLog(folder).commit(lambda state: entry(0, "a"), NOON_MS)
        path = tmp_path / LOG / f"{1:020}.json"
        path.write_bytes(path.read_bytes().replace(b'"format": 1', b'"format": 2'))
        with pytest.raises(LakeError, match="newer"):
            LakeLog(folder).state()

    def test_a_compaction_of_what_is_not_there_is_damage(self, folder):
        LakeLog(folder).commit(lambda state: entry(0, "a"), NOON_MS)
        LakeLog(folder).folder.create(
            f"{LOG}/{2:020}.json", b'{"kind":"compaction","replaces":["z"],"files":[],"written_ms":1}'
        )
        with pytest.raises(LakeDamaged, match="replaces z"):
            LakeLog(folder).state()

    def test_a_type_cannot_change(self):
        one = json.dumps({"type": "struct", "fields": [{"name": "id", "type": "long", "nullable": True, "metadata": {}}]})
        with pytest.raises(LakeConflict, match="column id is long in the lake, string in new rows"):
            merged_schema([one, one.replace("long", "string")])


def test_hours_are_named_in_utc():
    assert lake.hour_name(NOON_MS) == "2026-11-22-12"
    assert lake.hour_name(NOON_MS - 1) == "2026-11-22-11"
    assert lake.millis(NOON) == lake.millis(NOON.replace(tzinfo=None)) == NOON_MS


@pytest.mark.xdist_group("spark")
class TestLake:
    PARTS = (part("T", 0, 0, 20), part("T", 1, 5, 9), part("%RETRY%g", 0, 3, 6))

    @pytest.fixture(scope="class")
    @classmethod
    def made(cls, spark, tmp_path_factory):
        """A lake of three batches in two hours and two topics."""
        path = tmp_path_factory.mktemp("lake")
        log = LakeLog(open_folder(path, spark))
        for number, each in enumerate(cls.PARTS):
            at = NOON + timedelta(hours=number % 2)
            add(
                log,
                queue_rows(spark, each, at=at),
                query=QUERY,
                batch=number,
                offsets=batch_offsets(each),
                now_ms=NOON_MS,
            )
        return path

    @pytest.fixture
    def log(self, made, tmp_path):
        """A copy of the lake for one test; the names in the log are relative."""
        return LakeLog(open_folder(shutil.copytree(made, tmp_path / "lake")))

    def test_reading_goes_by_the_log(self, spark, tmp_path, log):
        path = tmp_path / "lake"
        assert places(lake.read(spark, path)) == expected(*self.PARTS)
        # files of an ingest that died before its entry
        left = queue_rows(spark, part("T", 0, 20, 40))
        left.write.parquet(str(path / "files" / QUERY / "0000000003" / "dead" / "lake_topic=T" / "hour=2026-11-22-12"))
        assert places(lake.read(spark, path)) == expected(*self.PARTS)
        described = lake.describe(path)
        assert (described.rows, described.topics, described.gaps) == (27, ["%RETRY%g", "T"], [])
        assert described.covered["T"]["broker-a"]["1"] == [[5, 9]]

    def test_topics_and_hours_are_pruned(self, spark, tmp_path, log):
        path = tmp_path / "lake"
        assert places(lake.read(spark, path, topics=["%RETRY%g"])) == expected(self.PARTS[2])
        late = lake.read(spark, path, since=NOON_MS + HOUR_MS)
        assert places(late) == expected(self.PARTS[1])
        assert all("hour=2026-11-22-13" in name for name in late.inputFiles())
        early = lake.read(spark, path, until=NOON_MS + HOUR_MS)
        assert places(early) == expected(self.PARTS[0], self.PARTS[2])
        assert all("hour=2026-11-22-12" in name for name in early.inputFiles())
        nothing = lake.read(spark, path, until=0)
        assert nothing.count() == 0
        assert nothing.columns == lake.read(spark, path).columns

    def test_columns_come_back_as_they_were(self, spark, tmp_path, log):
        back = lake.read(spark, tmp_path / "lake", topics=["%RETRY%g"])
        asked = queue_rows(spark, self.PARTS[2])
        assert back.schema.simpleString() == asked.schema.simpleString()
        assert sorted(back.collect()) == sorted(asked.collect())

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
        with pytest.raises(LakeMissing):
            lake.vacuum(tmp_path / "nothing", spark)
        with pytest.raises(LakeMissing):
            compact(spark, tmp_path / "nothing")

    def test_other_tools_get_files(self, spark, tmp_path, log):
        import pyarrow.parquet as parquet

        names = [name.removeprefix("file://") for name in lake.files(tmp_path / "lake", topics=["T"])]
        assert sum(parquet.ParquetFile(name).metadata.num_rows for name in names) == 24


@pytest.mark.xdist_group("spark")
class TestCompaction:
    PARTS = tuple(part("T", 0, 10 * number, 10 * number + 10) for number in range(4))

    @pytest.fixture
    def path(self, tmp_path):
        return tmp_path / "lake"

    @pytest.fixture(scope="class")
    @classmethod
    def made(cls, spark, tmp_path_factory):
        """A lake with two hours of two batches each."""
        path = tmp_path_factory.mktemp("lake")
        for number in range(4):
            cls.ingest(LakeLog(open_folder(path)), spark, number)
        return path

    @pytest.fixture
    def log(self, made, path):
        return LakeLog(open_folder(shutil.copytree(made, path)))

    @staticmethod
    def ingest(log, spark, number, hour=None):
        each = part("T", 0, 10 * number, 10 * number + 10)
        rows = queue_rows(spark, each, at=NOON + timedelta(hours=number // 2 if hour is None else hour))
        add(log, rows, query=QUERY, batch=number, offsets=batch_offsets(each), now_ms=NOON_MS)

    def test_closed_hours_are_swapped(self, spark, path, log):
        before = lake.read(spark, path)
        done = compact(spark, path, before_hour="2026-11-22-13", now_ms=LATER_MS, grace_ms=60 * 24 * HOUR_MS)
        assert (done.hours, done.rows, done.files_after) == (1, 20, 1)
        after = lake.read(spark, path)
        # a query that listed the files before can still read them
        assert sorted(before.collect()) == sorted(after.collect())
        assert places(after) == expected(*self.PARTS)
        [swapped] = [file for file in log.state().files.values() if file.hour == "2026-11-22-12"]
        assert swapped.rows == 20
        assert compact(spark, path, before_hour="2026-11-22-13").hours == 0

    def test_by_default_an_hour_rests_for_one(self, spark, path, log):
        assert compact(spark, path, now_ms=NOON_MS + 2 * HOUR_MS - 1).hours == 0
        assert compact(spark, path, now_ms=NOON_MS + 2 * HOUR_MS).hours == 1

    @pytest.mark.long
    def test_a_later_row_of_a_closed_hour(self, spark, path, log):
        compact(spark, path, before_hour="2026-11-22-14")
        self.ingest(log, spark, 4, hour=0)
        assert places(lake.read(spark, path)) == expected(*self.PARTS, part("T", 0, 40, 50))
        assert compact(spark, path, before_hour="2026-11-22-14").hours == 1
        assert places(lake.read(spark, path)) == expected(*self.PARTS, part("T", 0, 40, 50))

    @pytest.mark.long
    def test_a_large_hour_keeps_several_files(self, spark, path, log, monkeypatch):
        monkeypatch.setattr("rmqkit.spark.pipelines.compact.BLOCK", 1)
        for number in (4, 5):
            self.ingest(log, spark, number, hour=0)
        sizes = [file.size for file in log.state().files.values() if file.hour == "2026-11-22-12"]
        done = compact(spark, path, before_hour="2026-11-22-13", file_bytes=sum(sizes) // 2)
        assert done.files_after < done.files_before == len(sizes)
        assert places(lake.read(spark, path)) == expected(*self.PARTS, part("T", 0, 40, 60))

    @pytest.mark.long
    def test_killed_before_the_swap(self, spark, path, log, monkeypatch):
        def die(*_):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(LakeLog, "commit", die)
            with pytest.raises(KeyboardInterrupt):
                compact(spark, path, before_hour="2026-11-22-14")
        assert places(lake.read(spark, path)) == expected(*self.PARTS)
        assert compact(spark, path, before_hour="2026-11-22-14").hours == 2
        assert places(lake.read(spark, path)) == expected(*self.PARTS)
        # vacuum removes the killed compaction's files once they are old enough
        left = lake.vacuum(path, spark, now_ms=LATER_MS)
        assert left.files > 0
        assert places(lake.read(spark, path)) == expected(*self.PARTS)

    @pytest.mark.long
    def test_two_compactions_at_once(self, spark, path, log, monkeypatch):
        """Another compaction commits after this one wrote its files, which are then discarded."""
        commit = LakeLog.commit
        done = []

        def other_first(self, make, now_ms):
            monkeypatch.setattr(LakeLog, "commit", commit)
            done.append(compact(spark, path, before_hour="2026-11-22-13"))
            return commit(self, make, now_ms)

        monkeypatch.setattr(LakeLog, "commit", other_first)
        late = compact(spark, path, before_hour="2026-11-22-14")
        assert (done[0].hours, late.hours) == (1, 0)
        assert places(lake.read(spark, path)) == expected(*self.PARTS)
        data = {name for name in LocalFolder(path).list("files") if name.endswith(".parquet")}
        assert {name for name in data if "/compaction/" in name} == {
            name for name in log.state().files if "/compaction/" in name
        }

    @pytest.mark.long
    def test_an_ingest_in_the_middle(self, spark, path, log, monkeypatch):
        commit = LakeLog.commit

        def ingest_first(log, make, now_ms):
            monkeypatch.setattr(LakeLog, "commit", commit)
            self.ingest(LakeLog(log.folder), spark, 4, hour=0)
            return commit(log, make, now_ms)

        monkeypatch.setattr(LakeLog, "commit", ingest_first)
        assert compact(spark, path, before_hour="2026-11-22-14").hours == 2
        assert places(lake.read(spark, path)) == expected(*self.PARTS, part("T", 0, 40, 50))
        self.ingest(log, spark, 5)
        assert places(lake.read(spark, path)) == expected(*self.PARTS, part("T", 0, 40, 60))

    @pytest.mark.long
    def test_rows_that_would_change_stop_it(self, spark, path, log):
        """A file replaced by hand has other rows than the log says."""
        [name, *_] = [name for name in log.state().files if "hour=2026-11-22-12" in name]
        queue_rows(spark, part("T", 0, 0, 3)).coalesce(1).write.parquet(str(path / "by-hand"))
        [other] = (path / "by-hand").glob("*.parquet")
        (path / name).with_name(f".{(path / name).name}.crc").unlink()
        os.replace(other, path / name)
        with pytest.raises(LakeError, match="nothing was changed"):
            compact(spark, path, before_hour="2026-11-22-14")
        assert log.state().number == 4

    @pytest.mark.long
    def test_vacuum_waits_for_readers(self, spark, path, log):
        before = lake.read(spark, path)
        compact(spark, path, before_hour="2026-11-22-14")
        assert lake.vacuum(path, spark) == lake.VacuumResult(files=0, bytes=0, entries=0)
        assert places(before) == expected(*self.PARTS)
        gone = lake.vacuum(path, spark, now_ms=LATER_MS)
        assert gone.files >= 4
        assert gone.entries == 5
        assert places(lake.read(spark, path)) == expected(*self.PARTS)
        self.ingest(LakeLog(log.folder), spark, 4)
        self.ingest(log, spark, 5)
        assert places(lake.read(spark, path)) == expected(*self.PARTS, part("T", 0, 40, 60))
        names = LocalFolder(path).list("files")
        assert {name for name in names if name.endswith(".parquet")} == set(log.state().files)
