"""Log lines: text and JSON, levels, rotation; writing never raises."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rmqkit.cli.nodes.watch import Tail
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
        "ts": "2026-07-18T12:34:56.789Z",
        "level": "ERROR",
        "node": "ns-0",
        "event": "failed",
        "fields": {"error": "[Errno 5] Input/output error", "size": 1, "host": "ä"},
    }


def test_the_audit_is_json_in_a_log_of_text_lines(tmp_path: Path):
    made = sink(tmp_path / "log")
    log = NodeLog(made, "broker-a-0")
    log.warning("access-refused", user="eve", why="check signature failed.")
    log.info("access-copied", users=3)
    made.close()
    refused, copied = (tmp_path / "log").read_text().splitlines()
    assert json.loads(refused)["fields"] == {"user": "eve", "why": "check signature failed."}
    assert copied.endswith("INFO broker-a-0 access-copied users=3")


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
    made.write_story("n", "a story\n")
    made.close()
    assert made.dropped == 3


def test_a_log_that_cannot_be_opened_drops_lines(tmp_path: Path):
    (tmp_path / "file").write_text("")
    made = sink(tmp_path / "file" / "log")
    NodeLog(made, "n").info("lost")
    assert made.dropped == 1


def test_without_a_path_lines_go_to_stderr(capfd: pytest.CaptureFixture[str]):
    NodeLog(LogSink(wall_ns=lambda: WALL_NS), "n").info("hello")
    assert capfd.readouterr().err.endswith("INFO n hello\n")


def lines_of(folder: Path, *names: str) -> list[int]:
    text = "".join((folder / name).read_text() for name in names)
    return [int(line.split("number=")[1].split()[0]) for line in text.splitlines()]


def test_a_line_is_one_line_whatever_a_peer_put_in_it(tmp_path: Path):
    evil = "a\nERROR n fake\r\x1b[2J\x85\u2028b\x00"
    for log_format in ("text", "json"):
        made = sink(tmp_path / log_format, log_format=log_format)
        NodeLog(made, "n").warning("peer", name=evil)
        made.close()
        (line,) = (tmp_path / log_format).read_text().splitlines()
        assert not [char for char in line if not char.isprintable()]
    assert json.loads(line)["fields"] == {"name": evil}


def test_a_failure_report_is_lines_in_text_and_one_object_in_json(tmp_path: Path):
    for log_format in ("text", "json"):
        made = sink(tmp_path / log_format, log_format=log_format)
        made.write_story("n", "Traceback:\n  here\n")
        made.close()
    assert (tmp_path / "text").read_text() == "Traceback:\n  here\n"
    assert json.loads((tmp_path / "json").read_text())["fields"] == {"text": "Traceback:\n  here\n"}


def test_rotation_loses_no_line(tmp_path: Path):
    made = sink(tmp_path / "log", size_max=2000, kept=100)
    log = NodeLog(made, "n")
    for number in range(500):
        log.info("event", number=number)
    made.close()
    names = sorted((path.name for path in tmp_path.iterdir()), key=lambda name: -int(name[4:] or 0))
    assert len(names) > 10
    assert lines_of(tmp_path, *names) == list(range(500))


def test_no_file_kept_means_none(tmp_path: Path):
    made = sink(tmp_path / "log", size_max=200, kept=0)
    for number in range(50):
        NodeLog(made, "n").info("event", number=number)
    made.close()
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def test_a_rotation_that_fails_goes_on_in_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_args: object) -> None:
        raise PermissionError

    made = sink(tmp_path / "log", size_max=200, kept=2)
    log = NodeLog(made, "n")
    monkeypatch.setattr("os.replace", refuse)
    for number in range(20):
        log.info("event", number=number)
    monkeypatch.undo()
    assert lines_of(tmp_path, "log") == list(range(20))
    monkeypatch.setattr("rmqkit.shell.log.RETRY_SIZE", 0)
    made.reopen()
    for number in range(20, 22):
        log.info("event", number=number)
    made.close()
    assert lines_of(tmp_path, "log.1", "log") == list(range(22))


def test_if_a_new_log_file_cannot_be_opened_the_old_one_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = sink(tmp_path / "log", size_max=200, kept=2)
    log = NodeLog(made, "n")
    log.info("event", number=0)
    really_open = os.open
    monkeypatch.setattr("os.open", lambda *args: (_ for _ in ()).throw(OSError(24, "Too many open files")))
    for number in range(1, 10):
        log.info("event", number=number)
    assert os.open is not really_open
    monkeypatch.undo()
    made.close()
    assert lines_of(tmp_path, "log.1") == list(range(10))


def test_what_a_full_disk_took_is_counted_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Half a line fits, then nothing, then there is room again.

    The torn line is ended, and a line reports how many are missing.
    """
    made = sink(tmp_path / "log")
    log = NodeLog(made, "n")
    log.info("event", number=0)
    really_write = os.write
    monkeypatch.setattr("os.write", lambda fd, data: really_write(fd, data[:20]))
    log.info("event", number=1)

    def full(_fd: int, _data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.write", full)
    log.info("event", number=2)
    log.info("event", number=3)
    monkeypatch.undo()
    log.info("event", number=4)
    log.info("event", number=5)
    made.close()
    first, torn, notice, *rest = (tmp_path / "log").read_text().splitlines()
    assert first.endswith("event number=0")
    assert len(torn) == 20
    assert notice.endswith("WARNING n log lines lost count=3")
    assert [line.split(" n ")[1] for line in rest] == ["event number=4", "event number=5"]
    assert made.dropped == 3


def test_output_of_the_process_follows_its_log(tmp_path: Path):
    """Nodes of a cluster have their log as stdout and stderr.

    What Python itself prints goes to the current file, also after a rotation.
    """
    program = f"""
import os, sys
from rmqkit.cli.nodes.watch import Tail
from rmqkit.shell.log import LogSink, NodeLog
log = NodeLog(LogSink({str(tmp_path / "log")!r}, size_max=300, kept=3), "n")
assert log.sink.is_stderr
for number in range(5):
    log.info("event", number=number, filling="x" * 60)
print("said at the end", file=sys.stderr)
"""
    with open(tmp_path / "log", "ab") as out:
        subprocess.run([sys.executable, "-c", program], stdout=out, stderr=out, check=True)
    assert (tmp_path / "log").read_text().endswith("said at the end\n")
    assert (tmp_path / "log.1").exists()


class Follower:
    """`rmqkit cluster logs -f`."""

    def __init__(self, path: Path) -> None:
        self.tail = Tail(path)
        self.numbers: list[int] = []

    def look(self) -> None:
        self.numbers += [int(line.split("number=")[1].split()[0]) for line in self.tail.new_lines()]


@pytest.mark.parametrize("every", [1, 3, 7, 40, 200])
def test_following_a_log_across_rotations(tmp_path: Path, every: int):
    """Any number of rotations may happen between two polls, while the old files are kept."""
    made = sink(tmp_path / "log", size_max=300, kept=60)
    log = NodeLog(made, "n")
    log.info("event", number=-1)
    follower = Follower(tmp_path / "log")
    for number in range(200):
        log.info("event", number=number)
        if number % every == every - 1:
            follower.look()
    follower.look()
    made.close()
    follower.tail.close()
    assert follower.numbers == list(range(200))


def test_following_a_log_that_is_not_there_yet(tmp_path: Path):
    follower = Follower(tmp_path / "log")
    follower.look()
    made = sink(tmp_path / "log")
    NodeLog(made, "n").info("event", number=1)
    follower.look()
    made.close()
    follower.tail.close()
    assert follower.numbers == [1]


def test_following_a_log_whose_old_files_are_gone(tmp_path: Path):
    """Lines of deleted files are missing; the rest comes once and in order."""
    made = sink(tmp_path / "log", size_max=300, kept=1)
    log = NodeLog(made, "n")
    follower = Follower(tmp_path / "log")
    for number in range(100):
        log.info("event", number=number)
    follower.look()
    made.close()
    follower.tail.close()
    assert follower.numbers[-1] == 99
    assert follower.numbers == sorted(set(follower.numbers))
