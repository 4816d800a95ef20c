"""The final reading of a drill, as far as it needs no cluster: pieces of a log's files."""

from zlib import crc32

import pytest

from rmqkit.cluster.health.readiness import Target
from rmqkit.cluster.layout.description import NodePlan
from rmqkit.drill.history import FAIL, History
from rmqkit.drill.plan import Plan
from rmqkit.drill.promises import PROMISES, Judgement
from rmqkit.drill.real import final_state

FILE_SIZE, PIECE = 2_500, 1_000


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(final_state, "PIECE_SIZE", PIECE)


def write_log(store, data, first=0):
    folder = store / "commitlog"
    folder.mkdir(parents=True)
    for at in range(0, len(data), FILE_SIZE):
        (folder / f"{first + at:020d}").write_bytes(data[at : at + FILE_SIZE].ljust(FILE_SIZE, b"\0"))
    (folder / "strange.txt").write_bytes(b"no part of it")
    return store


def members(*stores):
    targets = [Target(NodePlan(node=f"broker-a-{i}", port=1, broker_name="broker-a", broker_id=i), "h", 1) for i in (0, 1)]
    return list(zip(targets, stores, strict=True))


def test_pieces_cover_the_log_up_to_its_end_and_stop_at_files(tmp_path):
    data = bytes(range(256)) * 20
    write_log(tmp_path, data[:4_200])
    found = list(final_state.pieces(tmp_path / "commitlog", 4_200))
    assert [(offset, size) for offset, size, _ in found] == [
        (0, 1000),
        (1000, 1000),
        (2000, 500),
        (2500, 1000),
        (3500, 700),
    ]
    assert [value for _, _, value in found] == [f"{crc32(data[offset : offset + size]):08x}" for offset, size, _ in found]


def judged(master, slave, ends):
    history = History()
    final_state.read_logs(history, lambda: 0, members(master, slave), {"broker-a-0"}, ends)
    return PROMISES["logs-equal"]().check(history, Plan(replicas=2)), history


def test_logs_are_compared_up_to_the_end_that_both_have(tmp_path):
    data = bytes(range(256)) * 20
    master = write_log(tmp_path / "m", data)
    slave = write_log(tmp_path / "s", data[:4_200])
    found, _ = judged(master, slave, {"broker-a-0": 5_120, "broker-a-1": 4_200})
    assert (found.judgement, found.counts["bytes"]) == (Judgement.VALID, 4_200)
    found, _ = judged(master, slave, {"broker-a-0": 5_120, "broker-a-1": 4_300})
    assert found.judgement is Judgement.BROKEN
    assert "in bytes 3500 to 4300" in found.broken[0].what


def test_a_slave_without_the_older_files_is_compared_from_its_first(tmp_path):
    data = bytes(range(256)) * 20
    master = write_log(tmp_path / "m", data)
    slave = write_log(tmp_path / "s", data[FILE_SIZE:], first=FILE_SIZE)
    found, _ = judged(master, slave, {"broker-a-0": 5_120, "broker-a-1": 5_120})
    assert (found.judgement, found.counts["bytes"]) == (Judgement.VALID, 5_120 - FILE_SIZE)


def test_a_log_that_cannot_be_read_proves_nothing(tmp_path):
    found, history = judged(write_log(tmp_path / "m", b"x"), tmp_path / "gone", {"broker-a-0": 1, "broker-a-1": 1})
    assert [row.client for row in history.by_kind["log"] if row.outcome == FAIL] == ["broker-a-1"]
    assert found.judgement is Judgement.INCONCLUSIVE
    assert "broker-a-1" in found.why
