"""Whole node processes: signals, exit codes, the lifeline, the report of a failed node."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.shell.conftest import ROOT, Child, poll

Start = Callable[..., Child]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_cleanly(start: Start, number: signal.Signals):
    child = start("echo")
    with child.connect(child.port()) as sock:
        sock.sendall(b"hello")
        assert sock.recv(100) == b"hello"
        child.process.send_signal(number)
        assert child.wait() == 0
    assert (child.folder / "store" / "last").read_bytes() == b"words"
    assert f"stopping signal={number.name}" in child.log()
    assert child.errors() == ""


def test_a_second_signal_ends_at_once(start: Start):
    child = start("stubborn")
    child.port()
    child.process.send_signal(signal.SIGTERM)
    child.wait_for_log("asked to stop")
    child.process.send_signal(signal.SIGINT)
    assert child.wait() == 128 + signal.SIGINT


def test_a_node_that_does_not_stop_is_left_after_the_grace(start: Start):
    child = start("stubborn", "--grace-ms", "100")
    child.port()
    child.process.send_signal(signal.SIGTERM)
    assert child.wait() == 1
    assert "not stopped in time" in child.log()


def test_sighup_opens_the_log_again(start: Start):
    child = start("echo")
    child.port()
    os.rename(child.folder / "log", child.folder / "log.old") if (child.folder / "log").exists() else None
    child.process.send_signal(signal.SIGHUP)
    poll(lambda: (child.folder / "log").exists(), "a new log file")
    child.process.send_signal(signal.SIGTERM)
    assert child.wait() == 0
    assert "stopped" in child.log()


def test_the_lifeline_ends_a_child_whose_parent_is_gone(start: Start):
    child = start("stubborn")
    child.port()
    os.close(child.lifeline)
    child.lifeline = -1
    assert child.wait() == 1


def test_an_exception_out_of_a_node_is_logged_with_its_last_log_lines(start: Start):
    child = start("broken")
    with child.connect(child.port()) as sock:
        sock.sendall(b"12345")
        assert child.wait() == 70
    log = child.log()
    assert 'ERROR toy node failed doing=breaking error="AssertionError(' in log
    assert "before: " in log
    assert "got size=5" in log.split("node failed")[1]
    assert "Traceback" in log
    assert child.errors() == f"error: toy has failed while breaking; see the traceback in {child.folder}/log\n"


def test_what_keeps_a_node_from_starting_is_one_line(start: Start):
    child = start("refusing")
    assert child.errors() == "error: the store is damaged; restore it from a backup\n"
    assert child.wait() == 1


def test_a_recovery_that_cannot_go_on_is_one_line(start: Start):
    child = start("refusinglater")
    assert child.wait() == 1
    assert child.errors() == "error: the store cannot be recovered; look at the disk\n"
    assert "Traceback" not in child.log()


def test_a_folder_is_used_by_one_process(start: Start):
    first = start("locking", folder="same")
    first.port()
    second = start("locking", folder="same")
    assert second.errors() == "error: the folder is in use by another process\n"
    assert second.wait() == 1
    # The second process must not have released the first one's lock.
    third = start("locking", folder="same")
    assert third.wait() == 1
    first.process.kill()
    first.wait()
    start("locking", folder="same").port()


def test_a_taken_port_names_its_owner(start: Start):
    first = start("echo", folder="first")
    port = first.port()
    second = start("echo", "--port", str(port), folder="second")
    told = second.errors()
    assert told.startswith(f"error: 127.0.0.1:{port} is taken by pid {first.process.pid} (")
    assert "toy_process" in told
    assert told.count("\n") == 1
    assert second.wait() == 1


def test_a_folder_that_cannot_be_made_is_one_line(start: Start, tmp_path: Path):
    (tmp_path / "child").mkdir()
    (tmp_path / "child" / "store").write_text("a file, not a folder")
    child = start("echo")
    told = child.errors()
    assert told == f"error: {tmp_path}/child/store: File exists\n"
    assert child.wait() == 1


def test_slow_turns_are_named(start: Start):
    child = start("slow")
    with child.connect(child.port()) as sock:
        sock.sendall(b"handler")
        assert sock.recv(100) == b"handler"
        line = child.wait_for_log("slow turn")
        assert 'on=toy part=network doing="a long request"' in line
        sock.sendall(b"duty")
        assert sock.recv(100) == b"duty"
        child.wait_for_log("duty=long")


def test_without_descriptors_accepting_rests_and_goes_on(start: Start):
    child = start("echo", "--descriptors-later", "24")
    port = child.port()
    socks = [child.connect(port) for _ in range(30)]
    try:
        child.wait_for_log("no descriptor for a new connection")
        for sock in socks[:3]:
            sock.sendall(b"still here")
            assert sock.recv(100) == b"still here"
        for sock in socks[:20]:
            sock.close()
        socks[29].sendall(b"now me")
        assert socks[29].recv(100) == b"now me"
    finally:
        for sock in socks:
            sock.close()
    assert child.log().count("no descriptor") == 1


def test_few_descriptors_leave_some_for_files(start: Start):
    """Many connections must not keep the store from opening its next file."""
    child = start("echo", "--descriptors", "64")
    port = child.port()
    socks = [child.connect(port) for _ in range(60)]
    try:
        child.wait_for_log("connection refused")
        child.process.send_signal(signal.SIGTERM)
        assert child.wait() == 0
    finally:
        for sock in socks:
            sock.close()
    assert "few descriptors descriptors=64 connections_max=32" in child.log()
    assert (child.folder / "store" / "last").read_bytes() == b"words"
    assert "no descriptor" not in child.log()


def test_a_signal_during_the_start_is_a_clean_stop_too(start: Start):
    child = start("starting")
    child.wait_for_log("starting")
    child.process.send_signal(signal.SIGINT)
    assert child.wait() == 0
    assert child.errors() == ""


def test_more_connections_than_allowed_are_closed(start: Start):
    child = start("echo", "--connections-max", "8")
    port = child.port()
    socks = [child.connect(port) for _ in range(12)]
    try:
        socks[0].sendall(b"fine")
        assert socks[0].recv(10) == b"fine"
        assert socks[11].recv(10) == b""
        assert child.wait_for_log("connection refused").count("connections_max=8") == 1
    finally:
        for sock in socks:
            sock.close()


def test_nodes_do_not_run_without_their_checks(tmp_path: Path):
    run = subprocess.run(
        [sys.executable, "-O", "-m", "tests.shell.toy_process", "echo", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert run.returncode == 1
    assert run.stderr == b"error: nodes do not run under python -O: their checks are needed\n"


def test_a_node_process_takes_in_no_heavy_library():
    code = (
        "import sys, rmqkit.shell.run\n"
        "print(sorted({'typer','rich','psutil','asyncio','click','ssl','logging'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=30, check=True)
    assert run.stdout == b"[]\n"
