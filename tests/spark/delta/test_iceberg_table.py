"""The Iceberg table of a lake, without Spark: commits that happen once, and readers. No jar."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import polars
import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from rmqkit.errors import ConfigError
from rmqkit.spark.delta import iceberg_table
from rmqkit.spark.delta.iceberg_table import IcebergTable
from rmqkit.spark.delta.storage import LakeConflict, LakeError, LakeStorage
from rmqkit.spark.source.ranges import QueueKey
from tests.spark import lakes
from tests.spark.lakes import NOON, QUERY, arrow_rows, part

KEY = QueueKey("T", "broker-a", 0)


@pytest.fixture
def table(tmp_path):
    return IcebergTable(LakeStorage(tmp_path / "lake"))


def batch_of(table, number, *parts, **named):
    return lakes.batch_of(table.storage, number, *parts, has_topics=True, **named)


def committed(table, number, *parts, **named):
    made = batch_of(table, number, *parts, **named)
    return table.commit(lambda _state: made)


def places(table):
    rows = table.opened().scan(selected_fields=("topic", "queue", "offset")).to_arrow()
    return sorted(tuple(row.values()) for row in rows.to_pylist())


class TestCommits:
    def test_a_table_says_where_its_rows_come_from(self, table):
        assert table.state().version == -1
        committed(table, 0, part("T", 0, 0, 5), clusters=("east",))
        state = committed(table, 1, part("%RETRY%g", 1, 3, 6), clusters=("east",))
        assert state.covered == {KEY: [[0, 5]], QueueKey("%RETRY%g", "broker-a", 1): [[3, 6]]}
        assert state.known.clusters == {"T": ["east"], "%RETRY%g": ["east"]}
        assert state.has(QUERY, 1)
        assert not state.has(QUERY, 2)
        opened = table.opened()
        assert [(field.name, str(field.transform)) for field in opened.spec().fields] == [
            ("topic_name", "identity"),
            ("hour", "hour"),
        ]
        assert "%RETRY%g of east, T of east. Written by rmqkit" in opened.properties["comment"]
        assert places(table) == lakes.expected(part("T", 0, 0, 5), part("%RETRY%g", 1, 3, 6))

    @pytest.mark.parametrize("theirs", [part("T", 0, 5, 7), part("T", 1, 0, 2)])
    @pytest.mark.parametrize("is_empty", [False, True])
    def test_of_two_commits_at_once_one_reads_the_table_again(self, table, theirs, is_empty):
        """Also if the first has no rows, so that it adds no file."""
        committed(table, 0, part("T", 0, 0, 5))
        mine = batch_of(table, 0, part("T", 0, 7, 9), query="other")
        other = IcebergTable(table.storage)
        first = batch_of(other, 1, theirs)
        seen = []

        def make(state):
            seen.append(state.covered.get(theirs.key))
            if len(seen) == 1:
                other.commit(lambda _state: first._replace(files=[]) if is_empty else first)
            return mine

        after = table.commit(make)
        assert len(seen) == 2
        assert seen[1][-1][-1] == theirs.end
        assert after.covered[KEY][-1][-1] == 9
        assert places(table) == lakes.expected(part("T", 0, 0, 5), part("T", 0, 7, 9), *([] if is_empty else [theirs]))

    def test_two_that_create_a_table_at_once(self, table):
        mine, seen = batch_of(table, 0, part("T", 0, 0, 5), query="other"), []

        def make(state):
            seen.append(state.version)
            if len(seen) == 1:
                committed(IcebergTable(table.storage), 0, part("T", 1, 0, 5))
            return mine

        table.commit(make)
        assert (seen[0], len(seen)) == (-1, 2)
        assert places(table) == lakes.expected(part("T", 0, 0, 5), part("T", 1, 0, 5))

    @pytest.mark.long
    def test_many_threads_each_row_once(self, table):
        """Four writers of one queue: each appends where the table ends."""
        committed(table, 0, part("T", 0, 0, 1))

        def write(writer):
            mine = IcebergTable(table.storage)
            for number in range(4):
                mine.commit(lambda state, number=number: self._next(mine, state, writer, number))

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(write, range(4)))
        assert places(table) == lakes.expected(part("T", 0, 0, 17))

    @staticmethod
    def _next(table, state, writer, number):
        end = state.covered[KEY][-1][1]
        return batch_of(table, number, part("T", 0, end, end + 1), query=f"writer {writer}")

    def test_pyiceberg_must_not_retry(self, table):
        """It would repeat a refused append without a look at what the other writer has covered."""
        committed(table, 0, part("T", 0, 0, 5))
        with table.opened().transaction() as change:
            change.set_properties({iceberg_table.RETRIES: "4"})
        with pytest.raises(LakeError, match=r"set the table's commit\.retry\.num-retries to 0 again"):
            committed(table, 1, part("T", 0, 5, 9))

    def test_a_commit_that_always_conflicts_is_given_up(self, table, monkeypatch):
        from pyiceberg.exceptions import CommitFailedException

        def fail(*_):
            raise CommitFailedException("first")

        monkeypatch.setattr(table, "_commit", fail)
        with pytest.raises(LakeConflict, match="commit failed 100 times"):
            committed(table, 0, part("T", 0, 0, 5))

    def test_columns_may_come_and_not_change(self, table):
        committed(table, 0, part("T", 0, 0, 2))
        committed(table, 1, part("T", 0, 2, 4), more=["id"])
        committed(table, 2, part("T", 0, 4, 5))
        rows = table.opened().scan().to_arrow().sort_by("offset")
        assert rows["id"].to_pylist() == [None, None, 0, 1, None]
        wrong = batch_of(table, 3, part("T", 0, 5, 6))
        wrong.schema["fields"].append({"name": "id", "type": "string"})
        with pytest.raises(LakeConflict, match="column id is long in the lake, string in new rows"):
            table.commit(lambda _state: wrong)

    def test_rows_without_a_time(self, table):
        rows = arrow_rows(part("T", 0, 0, 2))
        at = rows.schema.get_field_index("store_time")
        rows = rows.set_column(at, "store_time", pa.array([None, NOON], rows.schema.field(at).type))
        made = lakes.batch_of_rows(table.storage, 0, rows, part("T", 0, 0, 2), has_topics=True)
        table.commit(lambda _state: made)
        assert places(table) == lakes.expected(part("T", 0, 0, 2))


class TestReaders:
    def test_the_catalog_and_polars(self, table, monkeypatch):
        monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
        committed(table, 0, part("T", 0, 0, 20))
        committed(table, 1, part("T", 1, 0, 3), at=NOON + timedelta(hours=1))
        catalog = SqlCatalog("rmqkit", uri=f"sqlite:///{table.storage.full('catalog.db')}")
        opened = catalog.load_table("rmqkit.messages")
        late = opened.scan(row_filter="store_time >= '2026-11-22T13:00:00+00:00'")
        assert len(list(late.plan_files())) == 1
        assert sorted(late.to_arrow()["message_id"].to_pylist()) == [f"a-T-1-{n}" for n in range(3)]
        some = polars.scan_iceberg(opened).filter(polars.col("queue") == 0).select("offset", "body").collect()
        assert sorted(some["offset"]) == list(range(20))
        assert some.sort("offset")["body"].to_list()[3] == b"body 3"
        catalog.engine.dispose()


def test_an_iceberg_table_needs_a_local_folder_and_pyiceberg(monkeypatch):
    with pytest.raises(ConfigError, match="s3://b/x: an Iceberg table must be in a local or mounted folder"):
        IcebergTable(LakeStorage("s3://b/x"))
    monkeypatch.setattr(iceberg_table, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match="needs pyiceberg: pip install"):
        IcebergTable(LakeStorage("/x"))


def test_a_driver_that_dies_before_its_commit_leaves_no_row(table):
    """Its files are in no snapshot; the next one commits the batch."""
    committed(table, 0, part("T", 0, 0, 5))
    program = (
        "import os\n"
        "from rmqkit.spark.delta.iceberg_table import IcebergTable\n"
        "from rmqkit.spark.delta.storage import LakeStorage\n"
        "from tests.spark import lakes\n"
        f"table = IcebergTable(LakeStorage({table.storage.uri!r}))\n"
        "made = lakes.batch_of(table.storage, 1, lakes.part('T', 0, 5, 9), has_topics=True)\n"
        "table._commit = lambda *_: os._exit(7)\n"
        "table.commit(lambda _state: made)\n"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 7
    assert places(table) == lakes.expected(part("T", 0, 0, 5))
    committed(table, 1, part("T", 0, 5, 9))
    assert places(table) == lakes.expected(part("T", 0, 0, 9))
