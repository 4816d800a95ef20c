"""The Delta table of a lake, without Spark: commits, transactions, files, and other readers."""

import json
from datetime import timedelta

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from deltalake import CommitProperties, DeltaTable, TableFeatures, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError

from rmqkit.errors import ConfigError
from rmqkit.spark.delta import data_files, lake_table, transactions
from rmqkit.spark.delta.lake_table import LakeTable, merged_schema
from rmqkit.spark.delta.storage import LakeConflict, LakeDamaged, LakeError, LakeMissing, LakeStorage
from rmqkit.spark.delta.transactions import TransactionLog, decode, encode
from rmqkit.spark.pipelines import lake
from rmqkit.spark.pipelines.compact import compact
from rmqkit.spark.source.ranges import QueueKey
from tests.spark.lakes import HOUR_MS, NOON, NOON_MS, QUERY, arrow_rows, batch_of, ingested, part, written

KEY = QueueKey("T", "broker-a", 0)
NOTHING_KNOWN = decode({})


@pytest.fixture
def storage(tmp_path):
    return LakeStorage(tmp_path / "lake")


class TestCoverage:
    def test_intervals_that_meet_are_joined(self):
        parts = [part("T", 0, 5, 9), part("T", 0, 0, 5), part("T", 0, 20, 30), part("T", 1, 0, 0)]
        assert transactions.added({}, parts) == {KEY: [[0, 9], [20, 30]]}

    def test_a_lake_names_its_gaps(self, storage):
        spans = ((5, 9), (0, 5), (20, 30), (31, 32))
        ingested(storage, *[((part("T", 0, begin, end),), {}) for begin, end in spans], ((part("T", 1, 3, 4),), {}))
        described = lake.describe(storage.uri)
        assert described.covered == {"T": {"broker-a": {"0": [[0, 9], [20, 30], [31, 32]], "1": [[3, 4]]}}}
        assert described.gaps == ["T broker-a:0 9 to 20", "T broker-a:0 30 to 31"]

    def test_the_common_offsets_of_covered_ranges_and_parts(self):
        covered = {KEY: [[0, 9], [20, 30]]}
        assert transactions.common(covered, [part("T", 0, 5, 25), part("T", 1, 0, 9)]) == [
            part("T", 0, 5, 9),
            part("T", 0, 20, 25),
        ]
        assert transactions.common(covered, [part("T", 0, 9, 20)]) == []


class TestTransactions:
    @pytest.mark.parametrize(
        ("spans", "covered"),
        [
            ([(0, 10), (10, 20), (20, 25)], [[0, 25]]),
            ([(10, 20), (30, 40), (0, 5)], [[0, 5], [10, 20], [30, 40]]),
            ([(10, 20), (0, 10), (20, 30)], [[0, 30]]),
            ([(0, 9), (20, 30), (5, 25), (30, 31)], [[0, 31]]),
            ([(5, 9), (0, 20), (3, 4)], [[0, 20]]),
        ],
    )
    def test_intervals_come_back(self, spans, covered):
        known, found = NOTHING_KNOWN, {}
        for number, (begin, end) in enumerate(spans):
            made = encode(known, [part("T", 0, begin, end)], {"T": ["east/1"]}, QUERY, number)
            # the queue's own id is in each commit: it is what Delta compares
            assert made["rmqkit:queue/T/broker-a/0"] == max(end for _, end in spans[: number + 1])
            found |= made
            known = decode(found)
        assert known == transactions.Ledger({QUERY: len(spans) - 1}, {KEY: covered}, {"T": ["east/1"]})

    def test_a_continued_queue_needs_no_new_id(self):
        known = decode(encode(NOTHING_KNOWN, [part("T", 0, 0, 10)], {"T": ["c"]}, QUERY, 0))
        assert encode(known, [part("T", 0, 10, 20), part("T", 1, 4, 4)], {"T": ["c"]}, QUERY, 1) == {
            QUERY: 1,
            "rmqkit:queue/T/broker-a/0": 20,
            "rmqkit:range/T/broker-a/0/0": 20,
        }

    def test_names_of_any_kind(self):
        odd = part("%RETRY%g", 0, 3, 6)._replace(broker="a/b c")
        assert decode(encode(NOTHING_KNOWN, [odd], {}, None, 0)) == transactions.Ledger({}, {odd.key: [[3, 6]]}, {})

    def test_one_pass_reads_what_deltalake_says(self, storage, monkeypatch):
        """Before and after a checkpoint, which forgets commits, and at an older version."""
        monkeypatch.setitem(lake_table.PROPERTIES, "delta.checkpointInterval", "4")
        monkeypatch.setitem(lake_table.PROPERTIES, "delta.logRetentionDuration", "interval 0 seconds")
        log = TransactionLog(storage)
        for number in range(10):
            made = batch_of(storage, number, part("T", number % 3, number, number + 1))
            assert LakeTable(storage).commit(lambda state, made=made: made).version == number
            for reader in (log, TransactionLog(storage)):
                found = reader.at(number)
                table = DeltaTable(storage.uri)
                assert found == {app: table.transaction_version(app) for app in found}
                assert found[QUERY] == number
        table.cleanup_metadata()
        assert not (table_log(storage) / f"{0:020}.json").exists()
        assert TransactionLog(storage).at(9) == found

    def test_a_missing_commit_is_named(self, storage):
        ingested(storage, *[((part("T", 0, number, number + 1),), {}) for number in range(3)])
        (table_log(storage) / f"{1:020}.json").unlink()
        with pytest.raises(LakeDamaged, match=r"_delta_log: .*00000001\.json"):
            TransactionLog(storage).at(2)


def table_log(storage):
    from pathlib import Path

    return Path(storage.uri) / "_delta_log"


class TestCommits:
    def test_a_lake_says_where_its_rows_come_from(self, storage):
        table = ingested(
            storage, ((part("T", 0, 0, 5),), {"clusters": ("east",)}), ((part("U", 0, 0, 5),), {"clusters": ("east",)})
        )
        state = table.state()
        assert state.covered == {KEY: [[0, 5]], KEY._replace(topic="U"): [[0, 5]]}
        assert state.known.clusters == {"T": ["east"], "U": ["east"]}
        assert state.has(QUERY, 1)
        assert not state.has(QUERY, 2)
        assert not state.has(None, 0)
        metadata = DeltaTable(storage.uri).metadata()
        assert (metadata.name, metadata.partition_columns) == ("messages", ["topic", "hour"])
        assert "T of east, U of east. Written by rmqkit" in metadata.description

    def test_of_two_commits_of_a_queue_at_once_one_reads_the_table_again(self, storage):
        """The second writer's commit was made for a state that is no more."""
        one, two = ingested(storage, ((part("T", 0, 0, 5),), {})), LakeTable(storage)
        mine = batch_of(storage, 0, part("T", 0, 5, 9), query="other")
        seen = []

        def make(state):
            seen.append(state.covered)
            if len(seen) == 1:
                theirs = batch_of(storage, 1, part("T", 0, 5, 7))
                one.commit(lambda state: theirs)
                return mine
            return None

        assert two.commit(make) is None
        assert two.state().version == 1
        assert seen == [{KEY: [[0, 5]]}, {KEY: [[0, 7]]}]
        assert lake.describe(storage.uri).rows == 7

    def test_two_that_create_a_lake_at_once(self, storage):
        mine = batch_of(storage, 0, part("T", 0, 0, 5), query="other")
        seen = []

        def make(state):
            seen.append(state.version)
            if len(seen) == 1:
                ingested(storage, ((part("T", 1, 0, 5),), {}))
            return mine

        LakeTable(storage).commit(make)
        assert seen == [-1, 0]
        assert lake.describe(storage.uri).rows == 10

    def test_a_topic_or_a_column_of_its_own_hides_no_other_writer(self, storage):
        """Both are commits of their own before the batch; another ingest commits before them."""
        one, two = ingested(storage, ((part("T", 0, 0, 5),), {"clusters": ("c",)})), LakeTable(storage)
        mine = batch_of(storage, 0, part("T", 0, 5, 9), part("U", 0, 0, 2), query="other", clusters=("c",), more=["id"])
        seen = []

        def make(state):
            seen.append(state.covered[KEY])
            if len(seen) == 1:
                theirs = batch_of(storage, 1, part("T", 0, 5, 7))
                one.commit(lambda state: theirs)
            return mine if state.covered[KEY] == [[0, 5]] else None

        two.commit(make)
        assert (seen[0], seen[-1]) == ([[0, 5]], [[0, 7]])
        assert lake.describe(storage.uri).rows == 7

    def test_ingests_of_other_queues_do_not_wait_for_each_other(self, storage):
        one, two = ingested(storage, ((part("T", 0, 0, 5),), {})), LakeTable(storage)
        mine = batch_of(storage, 0, part("T", 1, 0, 5), query="other")
        seen = []

        def make(state):
            seen.append(state.version)
            theirs = batch_of(storage, len(seen), part("T", 0, 5 * len(seen), 5 * len(seen) + 5))
            one.commit(lambda state: theirs)
            return mine

        assert two.commit(make).covered == {KEY: [[0, 10]], KEY._replace(queue=1): [[0, 5]]}
        assert seen == [0]

    def test_two_drivers_and_a_compaction(self, storage, monkeypatch):
        """A compaction has read its files when both drivers commit; the second looks again."""
        one = ingested(storage, *[((part("T", 0, number, number + 1),), {}) for number in range(4)])
        two, mine = LakeTable(storage), batch_of(storage, 0, part("T", 0, 4, 9), query="other")
        swap, seen = LakeTable.swap, []

        def at_once(table, old, new):
            theirs = batch_of(storage, 4, part("T", 0, 4, 6))

            def make(state):
                seen.append(state.covered[KEY])
                if len(seen) == 1:
                    one.commit(lambda state: theirs)
                return mine if state.covered[KEY] == [[0, 4]] else None

            two.commit(make)
            return swap(table, old, new)

        monkeypatch.setattr(LakeTable, "swap", at_once)
        done = compact(storage.uri, before_hour="2026-11-22-13")
        assert seen == [[[0, 4]], [[0, 6]]]
        assert (done.hours, done.rows, done.files_before, done.files_after) == (1, 4, 4, 1)
        described = lake.describe(storage.uri)
        assert (described.rows, described.files, described.covered["T"]["broker-a"]["0"]) == (6, 2, [[0, 6]])

    def test_an_ingest_between_the_check_and_the_swap(self, storage, monkeypatch):
        """The compaction's commit is refused, and tried again after a look."""
        one = ingested(storage, *[((part("T", 0, number, number + 1),), {}) for number in range(4)])
        opened, calls = LakeTable.opened, []

        def late(table, version=None):
            before = opened(table, version)
            calls.append(before.version())
            if len(calls) == 3:
                monkeypatch.setattr(LakeTable, "opened", opened)
                one.commit(lambda state: batch_of(storage, 4, part("T", 0, 4, 6)))
            return before

        monkeypatch.setattr(LakeTable, "opened", late)
        assert compact(storage.uri, before_hour="2026-11-22-13").files_before == 4
        assert sorted(polars.read_delta(storage.uri)["offset"]) == list(range(6))

    def test_of_two_compactions_the_second_changes_nothing(self, storage, monkeypatch):
        ingested(storage, *[((part("T", 0, number, number + 1),), {}) for number in range(4)])
        swap, done = LakeTable.swap, []

        def other_first(table, old, new):
            monkeypatch.setattr(LakeTable, "swap", swap)
            done.append(compact(storage.uri, before_hour="2026-11-22-13"))
            return swap(table, old, new)

        monkeypatch.setattr(LakeTable, "swap", other_first)
        late = compact(storage.uri, before_hour="2026-11-22-13")
        assert (done[0].hours, late.hours) == (1, 0)
        assert lake.describe(storage.uri).rows == 4

    @pytest.mark.parametrize(
        "properties",
        [
            None,
            CommitProperties(app_transactions=[Transaction("rmqkit:compact", 1)]),
            CommitProperties(max_commit_retries=0),
        ],
        ids=["plain", "one application transaction", "no retries"],
    )
    def test_why_compaction_is_not_deltalakes_own(self, storage, properties):
        """Its `optimize` doubles rows if two run at once. If this fails, use it in `compact`."""
        ingested(storage, *[((part("T", 0, number, number + 1),), {}) for number in range(4)])
        one, two = DeltaTable(storage.uri), DeltaTable(storage.uri)
        one.optimize.compact(commit_properties=properties)
        two.optimize.compact(commit_properties=properties)
        assert sorted(polars.read_delta(storage.uri)["offset"]) == [0, 0, 1, 1, 2, 2, 3, 3]
        assert two.transaction_version("rmqkit:compact") is None

    def test_rows_that_a_user_deleted_stay_away(self, storage, monkeypatch):
        ingested(storage, *[((part("T", 0, number, number + 1),), {}) for number in range(4)])
        swap = LakeTable.swap

        def deleted_first(table, old, new):
            DeltaTable(storage.uri).delete("offset = 2")
            return swap(table, old, new)

        monkeypatch.setattr(LakeTable, "swap", deleted_first)
        assert compact(storage.uri, before_hour="2026-11-22-13").hours == 0
        assert sorted(polars.read_delta(storage.uri)["offset"]) == [0, 1, 3]

    def test_a_commit_that_always_conflicts_is_given_up(self, storage, monkeypatch):
        table = ingested(storage, ((part("T", 0, 0, 5),), {}))
        mine = batch_of(storage, 1, part("T", 0, 5, 9))

        def fail(*_):
            raise CommitFailedError("first")

        monkeypatch.setattr(table, "_commit", fail)
        with pytest.raises(LakeConflict, match="commit failed 100 times"):
            table.commit(lambda state: mine)

    def test_what_is_covered_outlives_clean_up(self, storage, monkeypatch):
        """Old commits, replaced files and leftovers are gone; what ingests know is not."""
        monkeypatch.setitem(lake_table.PROPERTIES, "delta.logRetentionDuration", "interval 0 seconds")
        table = ingested(storage, *[((part("T", 0, number, number + 1),), {}) for number in range(6)])
        before = table.state()
        written(storage, arrow_rows(part("T", 0, 90, 95)))
        done = compact(storage.uri, before_hour="2026-11-22-13", grace_ms=0)
        assert (done.files_before, done.files_after, done.vacuumed) == (6, 1, 7)
        opened = DeltaTable(storage.uri)
        opened.create_checkpoint()
        opened.cleanup_metadata()
        assert not (table_log(storage) / f"{0:020}.json").exists()
        assert LakeTable(storage).state().known == before.known
        after = LakeTable(storage).commit(lambda state: batch_of(storage, 6, part("T", 0, 6, 8)))
        assert after.covered == {KEY: [[0, 8]]}

    def test_columns_may_come_and_not_change(self, storage):
        table = ingested(storage, ((part("T", 0, 0, 2),), {}), ((part("T", 0, 2, 4),), {"more": ["id"]}))
        found = polars.read_delta(storage.uri).sort("offset")["id"].to_list()
        assert found == [None, None, 0, 1]
        # an older query does not have the new column
        table.commit(lambda state: batch_of(storage, 2, part("T", 0, 4, 5)))
        assert polars.read_delta(storage.uri)["id"].null_count() == 3
        wrong = batch_of(storage, 3, part("T", 0, 5, 6))
        wrong.schema["fields"].append({"name": "id", "type": "string"})
        with pytest.raises(LakeConflict, match="column id is long in the lake, string in new rows"):
            table.commit(lambda state: wrong)
        assert merged_schema({"fields": []}, {"fields": []})["fields"] == [
            {"name": "hour", "type": "string", "nullable": True, "metadata": {}}
        ]


class TestPaths:
    def test_a_pattern_is_no_path(self):
        with pytest.raises(ConfigError, match="must not be empty or hold"):
            LakeStorage("/data/{a,b}")

    def test_local_paths_may_be_uris(self, tmp_path):
        assert LakeStorage(f"file://{tmp_path}/x").uri == LakeStorage(tmp_path / "x").uri

    def test_credentials_are_not_shown(self):
        assert "geheim" not in repr(LakeStorage("s3://bucket/lake/", {"AWS_SECRET_ACCESS_KEY": "geheim"}))

    def test_no_lake(self, tmp_path):
        for read in (lake.describe, lake.files, lake.vacuum, compact):
            with pytest.raises(LakeMissing, match="there is no lake at"):
                read(tmp_path / "nothing")
        assert not lake.is_lake(tmp_path / "nothing")

    def test_another_table_is_no_lake(self, tmp_path):
        write_deltalake(tmp_path / "other", pa.table({"x": [1]}))
        with pytest.raises(LakeError, match="not partitioned by topic and hour"):
            lake.is_lake(tmp_path / "other")

    def test_a_table_with_features_that_need_deltas_readers_is_refused(self, storage):
        ingested(storage, ((part("T", 0, 0, 5),), {}))
        opened = DeltaTable(storage.uri)
        opened.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
        with pytest.raises(LakeError, match="deletionVectors: only Delta's own readers"):
            lake.files(storage.uri)


class TestFiles:
    def test_a_task_writes_a_file_for_each_topic_and_hour(self, storage):
        late = arrow_rows(part("T", 0, 5, 7), part("U", 1, 0, 3), at=NOON + timedelta(hours=1))
        made = written(storage, arrow_rows(part("T", 0, 0, 5)), late, arrow_rows(part("T", 0, 7, 8)))
        assert sorted((file.topic, file.hour, file.rows) for file in made) == [
            ("T", "2026-11-22-12", 6),
            ("T", "2026-11-22-13", 2),
            ("U", "2026-11-22-13", 3),
        ]
        [first] = [file for file in made if file.rows == 6]
        assert first.path.startswith("topic=T/hour=2026-11-22-12/part-00000-")
        assert first.queues == [("broker-a", 0, 0)]
        rows = parquet.read_table(storage.full(first.path), partitioning=None)
        assert rows["offset"].to_pylist() == [0, 1, 2, 3, 4, 7]
        assert "topic" not in rows.column_names

    def test_few_files_are_open_at_once(self, storage, monkeypatch):
        """With more hours than that, a file ends early, and its hour gets another one."""
        monkeypatch.setattr(data_files, "OPEN_FILES_MAX", 2)
        batches = [arrow_rows(part("T", 0, n, n + 1), at=NOON + timedelta(hours=n % 3)) for n in range(6)]
        made = written(storage, *batches)
        assert (len(made), sum(file.rows for file in made)) == (6, 6)

    def test_a_file_ends_once_it_is_large(self, storage, monkeypatch):
        monkeypatch.setattr(data_files, "ROW_GROUP_BYTES", 1)
        writer = data_files.TaskWriter(storage, 0, file_bytes=1)
        for number in range(3):
            writer.put(arrow_rows(part("T", 0, number, number + 1)))
        assert [file.rows for file in writer.close()] == [1, 1, 1]

    def test_row_groups_are_written_as_they_fill(self, storage, monkeypatch):
        monkeypatch.setattr(data_files, "ROW_GROUP_BYTES", 1)
        [file] = written(storage, arrow_rows(part("T", 0, 0, 5)), arrow_rows(part("T", 0, 5, 9)))
        assert parquet.read_metadata(storage.full(file.path)).num_row_groups == 2
        assert json.loads(file.stats)["maxValues"]["offset"] == 8

    def test_statistics_are_those_that_delta_prunes_by(self, storage):
        [file] = written(storage, arrow_rows(part("T", 1, 3, 9)))
        stats = json.loads(file.stats)
        assert stats["numRecords"] == 6
        assert (stats["minValues"]["offset"], stats["maxValues"]["offset"]) == (3, 8)
        assert stats["minValues"]["store_time"] == "2026-11-22T12:00:00.000Z"
        assert stats["minValues"]["born_time"] == "2026-11-22T11:59:59.991Z"
        assert (stats["nullCount"]["broker"], stats["minValues"]["broker"]) == (0, "broker-a")
        assert "body" not in stats["maxValues"]

    def test_bounds_of_times_are_never_too_tight(self, tmp_path):
        times = [NOON + timedelta(microseconds=1500), NOON + timedelta(microseconds=2500)]
        rows = pa.table(
            {"at": pa.array(times, pa.timestamp("us", "UTC")), "text": ["x" * 65, "y"], "no": pa.nulls(2, pa.int64())}
        )
        parquet.write_table(rows, tmp_path / "x.parquet")
        stats = json.loads(data_files.statistics(parquet.read_metadata(tmp_path / "x.parquet")))
        assert stats["minValues"] == {"at": "2026-11-22T12:00:00.001Z"}
        assert stats["maxValues"] == {"at": "2026-11-22T12:00:00.003Z"}
        assert stats["nullCount"] == {"at": 0, "text": 0, "no": 2}

    def test_rows_without_a_time_have_an_hour_too(self, storage):
        rows = arrow_rows(part("T", 0, 0, 2))
        at = rows.schema.get_field_index("store_time")
        rows = rows.set_column(at, "store_time", pa.array([None, NOON], rows.schema.field(at).type))
        assert sorted(file.hour for file in written(storage, rows)) == ["2026-11-22-12", "none"]


class TestReaders:
    """The same rows by deltalake, Polars and DuckDB, after an ingest and after a compaction."""

    PARTS = (part("T", 0, 0, 20), part("%RETRY%g", 1, 3, 6))

    @pytest.fixture(params=["as written", "compacted"])
    def made(self, storage, request):
        ingested(storage, (self.PARTS[:1], {}), (self.PARTS[1:], {"at": NOON + timedelta(hours=1)}))
        LakeTable(storage).commit(lambda state: batch_of(storage, 2, part("T", 0, 20, 25)))
        LakeTable(storage).commit(
            lambda state: batch_of(storage, 3, part("%RETRY%g", 1, 6, 7), at=NOON + timedelta(hours=1))
        )
        if request.param == "compacted":
            done = compact(storage.uri, before_hour="2026-11-22-14", grace_ms=0)
            assert (done.hours, done.files_after, done.vacuumed) == (2, 2, 4)
        return storage.uri

    expected = sorted(
        [("T", 0, n, "2026-11-22-12") for n in range(25)] + [("%RETRY%g", 1, n, "2026-11-22-13") for n in range(3, 7)]
    )

    def test_deltalake(self, made):
        rows = DeltaTable(made).to_pyarrow_table(columns=["topic", "queue", "offset", "hour"])
        assert sorted(tuple(row.values()) for row in rows.to_pylist()) == self.expected
        some = DeltaTable(made).to_pyarrow_table(filters=[("topic", "=", "T"), ("offset", ">=", 20)])
        assert sorted(some["offset"].to_pylist()) == list(range(20, 25))

    def test_polars(self, made):
        rows = polars.scan_delta(made).select("topic", "queue", "offset", "hour").collect()
        assert sorted(rows.rows()) == self.expected
        some = polars.scan_delta(made).filter(polars.col("hour") == "2026-11-22-13").collect()
        assert sorted(some["message_id"]) == [f"a-%RETRY%g-1-{n}" for n in range(3, 7)]
        assert some["store_time"].to_list() == [NOON + timedelta(hours=1)] * 4

    def test_duckdb(self, made):
        """From deltalake's list of files, because DuckDB's own extension comes from its site."""
        base = duckdb.connect().register("messages", DeltaTable(made).to_pyarrow_dataset())
        found = base.sql('SELECT topic, queue, "offset", hour FROM messages').fetchall()
        assert sorted(found) == self.expected
        top = base.sql("SELECT keys, count(*) FROM messages WHERE topic = 'T' GROUP BY keys ORDER BY 2 DESC, 1 LIMIT 1")
        assert top.fetchall() == [("key-0", 9)]
        files = lake.files(made, topics=["T"])
        assert duckdb.sql(f"SELECT count(*) FROM read_parquet({files})").fetchall() == [(25,)]

    def test_statistics_prune(self, made):
        opened = DeltaTable(made)
        assert len(opened.file_uris(file_pruning_predicate=[("topic", "=", "T"), ("offset", ">", 30)])) == 0
        assert {path.split("/")[-2] for path in lake.files(made, since=NOON_MS + 3_600_000)} == {"hour=2026-11-22-13"}
        assert lake.files(made, until=NOON_MS) == []
        assert lake.describe(made).hours == 2


class TestCompaction:
    @pytest.fixture
    def made(self, storage):
        """Two hours of two batches each."""
        batches = [((part("T", 0, 10 * n, 10 * n + 10),), {"at": NOON + timedelta(hours=n // 2)}) for n in range(4)]
        return ingested(storage, *batches)

    def test_closed_hours_are_swapped(self, storage, made):
        done = compact(storage.uri, before_hour="2026-11-22-13")
        assert (done.hours, done.rows, done.files_before, done.files_after, done.vacuumed) == (1, 20, 2, 1, 0)
        assert sorted(polars.read_delta(storage.uri)["offset"]) == list(range(40))
        assert compact(storage.uri, before_hour="2026-11-22-13").hours == 0
        # the files of older versions are still there
        assert polars.read_delta(storage.uri, version=3).height == 40

    def test_by_default_an_hour_rests_for_one(self, storage, made):
        assert compact(storage.uri, now_ms=NOON_MS + 2 * HOUR_MS - 1).hours == 0
        assert compact(storage.uri, now_ms=NOON_MS + 2 * HOUR_MS).hours == 1

    def test_only_some_topics(self, storage, made):
        assert compact(storage.uri, before_hour="2026-11-22-14", topics=["U"]).hours == 0
        assert compact(storage.uri, before_hour="2026-11-22-14", topics=["T"]).hours == 2

    def test_a_later_row_of_a_closed_hour(self, storage, made):
        compact(storage.uri, before_hour="2026-11-22-14")
        made.commit(lambda state: batch_of(storage, 4, part("T", 0, 40, 50)))
        assert compact(storage.uri, before_hour="2026-11-22-14").hours == 1
        assert sorted(polars.read_delta(storage.uri)["offset"]) == list(range(50))

    def test_a_queue_keeps_its_order(self, storage, made):
        """Files are merged by their queues and offsets, whatever the order of their commits."""
        for number, each in enumerate((part("T", 0, 50, 60), part("T", 0, 40, 50), part("T", 1, 0, 5)), start=4):
            made.commit(lambda state, number=number, each=each: batch_of(storage, number, each))
        compact(storage.uri, before_hour="2026-11-22-13")
        [merged] = lake.files(storage.uri, until=NOON_MS + 1)
        offsets = parquet.read_table(merged, partitioning=None)["offset"].to_pylist()
        assert offsets == [*range(20), *range(40, 60), *range(5)]

    def test_a_large_hour_is_left_alone(self, storage, made):
        assert compact(storage.uri, before_hour="2026-11-22-13", file_bytes=1).hours == 0

    def test_rows_that_would_change_stop_it(self, storage, made):
        """A file replaced by hand has other rows than the table says."""
        [name, *_] = lake.files(storage.uri, until=NOON_MS + 1)
        parquet.write_table(parquet.read_table(name, partitioning=None).slice(0, 3), name)
        with pytest.raises(LakeError, match="nothing was changed"):
            compact(storage.uri, before_hour="2026-11-22-14")
        assert made.state().version == 3

    def test_vacuum_waits_for_readers(self, storage, made):
        compact(storage.uri, before_hour="2026-11-22-14")
        assert lake.vacuum(storage.uri) == 0
        assert lake.vacuum(storage.uri, grace_ms=0) == 4
        assert sorted(polars.read_delta(storage.uri)["offset"]) == list(range(40))
