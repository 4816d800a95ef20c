"""A lake of rmqkit 0.2 becomes a Delta table in place; one that is damaged is refused."""

import json
import os
from datetime import timedelta

import polars
import pytest
from deltalake import DeltaTable

from rmqkit.errors import ConfigError
from rmqkit.spark.delta.lake_table import LakeTable
from rmqkit.spark.delta.storage import LakeDamaged, LakeError, LakeMissing, LakeStorage
from rmqkit.spark.pipelines import lake, migrate
from rmqkit.spark.pipelines.compact import compact
from rmqkit.spark.source.ranges import QueueKey
from tests.spark.lakes import NOON, QUERY, batch_of, part
from tests.spark.old_lakes import OldLakeMaker


@pytest.fixture
def old(tmp_path):
    """Two batches, compacted, and two more; rows of two topics; a column that came later."""
    made = OldLakeMaker(tmp_path / "lake")
    replaced = made.batch(part("T", 0, 0, 10)) + made.batch(part("T", 0, 10, 15))
    made.compaction(replaced, part("T", 0, 0, 15))
    made.batch(part("T", 0, 20, 25), part("%RETRY%g", 1, 3, 6), at=NOON + timedelta(hours=1))
    made.batch(part("T", 1, 0, 5), more=["id"], query="other")
    return made


def offsets(path):
    rows = DeltaTable(path).to_pyarrow_table(columns=["topic", "queue", "offset"]).to_pylist()
    return sorted(tuple(row.values()) for row in rows)


EXPECTED = sorted(
    [("T", 0, n) for n in (*range(15), *range(20, 25))]
    + [("%RETRY%g", 1, n) for n in range(3, 6)]
    + [("T", 1, n) for n in range(5)]
)


def test_rows_and_knowledge_move_and_files_do_not(old):
    before = {file["path"] for file in old.files}
    with pytest.raises(LakeError, match="in its own format: run `rmqkit pipeline migrate`"):
        lake.is_lake(old.path)
    done = migrate.migrate(old.path)
    assert (done.files, done.rows, done.is_new) == (4, 28, True)
    assert {path.removeprefix(f"{old.path}/") for path in lake.files(old.path)} == before
    assert offsets(old.path) == EXPECTED
    state = LakeTable(LakeStorage(old.path)).state()
    assert state.covered == {
        QueueKey("%RETRY%g", "broker-a", 1): [[3, 6]],
        QueueKey("T", "broker-a", 0): [[0, 15], [20, 25]],
        QueueKey("T", "broker-a", 1): [[0, 5]],
    }
    assert state.known.batches == {QUERY: 3, "other": 4}
    assert state.known.clusters == {"T": ["c"], "%RETRY%g": ["c"]}
    assert {field["name"]: field["type"] for field in state.schema["fields"]}["id"] == "long"
    # statistics of the footers prune
    opened = DeltaTable(old.path)
    assert len(opened.file_uris(file_pruning_predicate=[("topic", "=", "T"), ("offset", ">", 15)])) == 1


def test_an_ingest_continues_and_a_compaction_takes_the_files_in(old):
    migrate.migrate(old.path)
    storage = LakeStorage(old.path)
    LakeTable(storage).commit(lambda state: batch_of(storage, 5, part("T", 0, 25, 27)))
    done = compact(old.path, before_hour="2026-11-22-13", grace_ms=0)
    assert (done.hours, done.files_before, done.files_after) == (1, 3, 1)
    expected = sorted([*EXPECTED, ("T", 0, 25), ("T", 0, 26)])
    assert offsets(old.path) == expected
    # nothing is left of the files that the old compaction replaced
    assert len(list((old.path / "files").rglob("*.parquet"))) == 2
    ids = DeltaTable(old.path).to_pyarrow_table(filters=[("queue", "=", 1), ("topic", "=", "T")])["id"]
    assert sorted(ids.to_pylist()) == list(range(5))


def test_polars_reads_it_too(old):
    """Polars takes `lake_topic=` in a path for a column, unless it reads by PyArrow."""
    migrate.migrate(old.path)
    assert polars.scan_delta(str(old.path), use_pyarrow=True).select("offset").collect().height == 28


def test_from_a_snapshot(old):
    """Old entries may be gone: the snapshot has what they come to."""
    snapshot = {
        "kind": "snapshot",
        "format": 1,
        "files": old.files,
        "batches": {QUERY: 3},
        "covered": {"T": {"broker-a": {"0": [[0, 15], [20, 25]]}}},
        "clusters": {"T": ["c"]},
        "schemas": [json.loads(old.log(f"{5:020}.json").read_text())["schema"]],
        "written_ms": 1,
    }
    old.log(f"{5:020}.snapshot.json").write_text(json.dumps(snapshot))
    for number in range(1, 6):
        old.log(f"{number:020}.json").unlink()
    old.batch(part("T", 0, 15, 17))
    assert migrate.migrate(old.path).rows == 30
    assert LakeTable(LakeStorage(old.path)).state().covered == {QueueKey("T", "broker-a", 0): [[0, 17], [20, 25]]}


def test_an_old_rmqkit_is_stopped(old):
    """The last entry of the old log has a format that it refuses, at the next number."""
    migrate.migrate(old.path)
    last = json.loads(old.log(f"{6:020}.json").read_text())
    assert (last["kind"], last["format"], last["files"]) == ("compaction", 2, [])


def test_killed_at_any_step_it_is_run_again(old, monkeypatch):
    def die(*_words, **_named):
        raise KeyboardInterrupt

    for owner, name in ((os, "link"), (LakeTable, "create"), (LakeStorage, "sync")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, die)
            with pytest.raises(KeyboardInterrupt):
                migrate.migrate(old.path)
        assert LakeTable(LakeStorage(old.path)).exists() == (name == "sync")
    again = migrate.migrate(old.path)
    assert (again.rows, again.is_new) == (28, False)
    assert offsets(old.path) == EXPECTED
    assert sorted(path.name for path in old.log("").iterdir()) == [f"{number:020}.json" for number in range(1, 7)]


def test_an_old_ingest_that_commits_meanwhile_is_taken_in(old, monkeypatch):
    read, link = migrate.read_old, os.link

    def late(source, target):
        monkeypatch.setattr(os, "link", link)
        old.batch(part("T", 0, 25, 30))
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    assert migrate.migrate(old.path).rows == 33
    assert read(old.path).is_ended


class TestDamage:
    """Nothing is changed: there is no Delta table afterwards."""

    @pytest.fixture(autouse=True)
    def unchanged(self, old):
        yield
        assert not LakeTable(LakeStorage(old.path)).exists()

    @pytest.mark.parametrize("content", ["", '{"kind":"batch","que', '{"kind":"batch"}', "[]"])
    def test_an_entry_is_invalid(self, old, content):
        old.log(f"{2:020}.json").write_text(content)
        with pytest.raises(LakeDamaged, match=r"00000002\.json is not a valid entry"):
            migrate.migrate(old.path)

    def test_an_entry_is_missing(self, old):
        old.log(f"{2:020}.json").unlink()
        with pytest.raises(LakeDamaged, match="entry 2 is missing"):
            migrate.migrate(old.path)

    def test_an_entry_is_of_a_newer_rmqkit(self, old):
        old.entry(kind="batch", files=[], format=3)
        with pytest.raises(LakeError, match="a newer rmqkit"):
            migrate.migrate(old.path)

    def test_an_entry_replaces_what_is_not_there(self, old):
        old.entry(kind="compaction", replaces=["z"], files=[])
        with pytest.raises(LakeDamaged, match="replaces z"):
            migrate.migrate(old.path)

    @pytest.mark.parametrize("damage", ["gone", "shorter", "no Parquet"])
    def test_a_file_is_not_as_it_was(self, old, damage):
        file = old.path / old.files[0]["path"]
        content = file.read_bytes()
        file.unlink()
        if damage != "gone":
            file.write_bytes(content + b"PAR1" if damage == "shorter" else b"x" * len(content))
        with pytest.raises(LakeDamaged, match="restore the file, nothing was changed"):
            migrate.migrate(old.path)


def test_what_is_no_old_lake(tmp_path):
    with pytest.raises(LakeMissing, match=r"no lake of rmqkit 0\.2"):
        migrate.migrate(tmp_path)
    (tmp_path / "_lake" / "log").mkdir(parents=True)
    with pytest.raises(LakeMissing, match="its log is empty"):
        migrate.migrate(tmp_path)
    with pytest.raises(ConfigError, match="local or mounted"):
        migrate.migrate("s3://bucket/lake")
