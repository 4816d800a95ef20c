"""Histories as Arrow tables: the same rows from every file, as a whole or kind by kind."""

import json

import pytest

from rmqkit.drill.history import KINDS, History, HistoryRow, write_lines
from tests.drill.hand import whole

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
rows = pytest.importorskip("rmqkit.drill.arrow.rows")
stored_history = pytest.importorskip("rmqkit.drill.arrow.stored_history")
StoredHistory, TooManyRows = stored_history.StoredHistory, stored_history.TooManyRows


@pytest.fixture(params=["history.parquet", "history.jsonl"])
def stored(request, tmp_path):
    """(history, its file)"""
    history = whole().unknown("dunno", at_ms=1_100).history
    path = tmp_path / request.param
    if path.suffix == ".parquet":
        rows.write_parquet(history, path)
    else:
        write_lines(history, path)
    return history, path


def test_parquet_has_the_same_columns(tmp_path):
    history = whole().history
    rows.write_parquet(history, tmp_path / "h.parquet")
    table = pq.read_table(tmp_path / "h.parquet")
    assert table.column_names == list(HistoryRow._fields)
    found = [HistoryRow(**{**each, "extra": json.loads(each["extra"])}) for each in table.to_pylist()]
    assert found == history.rows


def test_a_history_is_read_as_a_whole(stored):
    history, path = stored
    assert rows.read_history(path).rows == history.rows
    if path.suffix == ".parquet":
        assert rows.read_history(path.read_bytes()).rows == history.rows


def test_a_stored_history_gives_the_rows_of_each_kind(stored, monkeypatch):
    history, path = stored
    monkeypatch.setattr(rows, "CHUNK_ROWS", 7)
    found = StoredHistory(rows.dataset(path), held_max=2 * len(history))
    assert (len(found), found.last_ms) == (len(history), history.last_ms)
    assert {kind: found.by_kind[kind] for kind in KINDS} == history.by_kind
    assert found.rows == history.rows
    events = found.events
    assert found.events is events
    found.release()
    assert found.events is not events
    assert found.story("b") == history.story("b")


def test_only_what_is_released_makes_room(stored):
    history, path = stored
    sends, reads = len(history.sends), len(history.reads)
    found = StoredHistory(rows.dataset(path), held_max=max(sends, reads))
    for _ in range(2):
        assert found.sends == history.sends
        assert found.sends == history.sends
        with pytest.raises(TooManyRows, match=f"it needs {sends + reads} rows at once"):
            _ = found.reads
        found.release()
    with pytest.raises(TooManyRows):
        _ = found.rows


def test_an_empty_history_has_no_rows(tmp_path):
    rows.write_parquet(History(), tmp_path / "history.parquet")
    (tmp_path / "history.jsonl").touch()
    for path in tmp_path.iterdir():
        found = StoredHistory(rows.dataset(path), held_max=0)
        assert (found.rows, found.last_ms, len(found)) == ([], 0, 0)


def test_an_invalid_history_is_an_error(tmp_path):
    pq.write_table(pa.table({"op": [1]}), tmp_path / "history.parquet")
    with pytest.raises(ValueError, match="it has no column client"):
        rows.dataset(tmp_path / "history.parquet")
    (tmp_path / "history.jsonl").write_text("{}\n")
    with pytest.raises(ValueError, match=r"history\.jsonl:1 is not a row"):
        rows.dataset(tmp_path / "history.jsonl")
