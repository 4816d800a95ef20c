"""Log lines: text and JSON, levels, rotation, and that writing never raises."""

import json
from pathlib import Path
from typing import Any

import pytest

from rmqkit.shell.log import LogSink, NodeLog

WALL_NS = 1_784_378_096_789_000_000


def sink(path: Path, **how: Any) -> LogSink:
    return LogSink(str(path), wall_ns=lambda: WALL_NS, **how)


def test_a_line_is_an_event_with_fields(tmp_path: Path):
    made = sink(tmp_path / "logs" / "node.log")
    log = NodeLog(made, "broker-a-0")
    log.info("recovered", files=3, took_ms=120)
    log.warning("peer closed", reason='it said "no"', empty="", lines="a\nb")
    made.close()
    first, second = (tmp_path / "logs" / "node.log").read_text().splitlines()
    stamp, clock, rest = first.split(" ", 2)
    assert (len(stamp), len(clock)) == (10, 12)
    assert clock.endswith(".789")
    assert rest == "INFO broker-a-0 recovered files=3 took_ms=120"
    assert second.endswith(r'WARNING broker-a-0 peer closed reason="it said \"no\"" empty="" lines="a\nb"')


def test_json_lines_have_every_field(tmp_path: Path):
    made = sink(tmp_path / "log", log_format="json")
    NodeLog(made, "ns-0").error("failed", error=OSError(5, "Input/output error"), size=1, host="ä")
    made.close()
    assert json.loads((tmp_path / "log").read_text()) == {
        "time_ms": WALL_NS // 1_000_000,
        "level": "ERROR",
        "node": "ns-0",
        "event": "failed",
        "error": "[Errno 5] Input/output error",
        "size": 1,
        "host": "ä",
    }


def test_lines_below_the_level_are_only_remembered(tmp_path: Path):
    made = sink(tmp_path / "log", level="WARNING")
    log = NodeLog(made, "n")
    for number in range(80):
        log.info("chatter", number=number)
    log.warning("something")
    made.close()
    assert (tmp_path / "log").read_text().count("\n") == 1
    assert len(log.last) == 50
    assert log.last[0].endswith("chatter number=31")
    assert log.last[-1].endswith("WARNING n something")


def test_a_file_is_rotated_by_size(tmp_path: Path):
    made = sink(tmp_path / "log", size_max=200, kept=2)
    log = NodeLog(made, "n")
    for number in range(20):
        log.info("event", number=number, filling="x" * 20)
    made.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log", "log.1", "log.2"]
    assert all(path.stat().st_size <= 200 for path in tmp_path.iterdir())
    kept = "".join((tmp_path / name).read_text() for name in ("log.2", "log.1", "log"))
    numbers = [int(line.split("number=")[1].split()[0]) for line in kept.splitlines()]
    assert numbers == list(range(numbers[0], 20))


def test_a_file_that_was_moved_away_is_opened_again(tmp_path: Path):
    made = sink(tmp_path / "log")
    log = NodeLog(made, "n")
    log.info("before")
    (tmp_path / "log").rename(tmp_path / "old")
    log.info("still the old one")
    made.reopen()
    log.info("after")
    made.close()
    assert (tmp_path / "old").read_text().count("\n") == 2
    assert (tmp_path / "log").read_text().endswith("INFO n after\n")


def test_a_full_disk_drops_lines_and_counts_them():
    made = LogSink("/dev/full")
    log = NodeLog(made, "n")
    log.info("lost")
    log.info("lost too")
    made.write_block("a story\n")
    made.close()
    assert made.dropped == 3


def test_a_log_that_cannot_be_opened_drops_lines(tmp_path: Path):
    (tmp_path / "file").write_text("")
    made = sink(tmp_path / "file" / "log")
    NodeLog(made, "n").info("lost")
    assert made.dropped == 2


def test_without_a_path_lines_go_to_stderr(capfd: pytest.CaptureFixture[str]):
    NodeLog(LogSink(wall_ns=lambda: WALL_NS), "n").info("hello")
    assert capfd.readouterr().err.endswith("INFO n hello\n")
