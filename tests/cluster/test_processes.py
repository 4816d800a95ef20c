"""Ending processes, and deferred signals."""

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from rmqkit.cluster import processes
from rmqkit.cluster.deferred_signals import signals_held

STUBBORN = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('on', flush=True); sys.stdin.read()"
LEADERLESS = (
    "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(60,)).start();"
    "print('on', flush=True); ctypes.CDLL(None).pthread_exit(None)"
)
POLITE = "import sys; print('on', flush=True); sys.stdin.read()"


@pytest.fixture
def start():
    started = []

    def start(program):
        process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        assert process.stdout.readline() == b"on\n"
        return psutil.Process(process.pid)

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_a_process_that_stops_in_time_is_not_killed(start):
    notes = []
    processes.end([("a", start(POLITE))], 20.0, notes.append)
    assert notes == []


def test_one_that_does_not_is_killed_and_that_is_said(start):
    notes = []
    stubborn, polite = start(STUBBORN), start(POLITE)
    processes.end([("a", stubborn), ("b", polite)], 0.1, notes.append)
    assert notes == [f"a (pid {stubborn.pid}) did not stop within 0.1 s: killed"]
    assert not stubborn.is_running()
    assert not polite.is_running()


def test_a_paused_process_stops_as_well(start):
    process = start(POLITE)
    process.suspend()
    processes.wait_paused([process], True)
    assert processes.is_paused(process)
    processes.end([("a", process)], 20.0)
    assert not process.is_running()


def test_a_process_has_not_ended_while_a_thread_of_it_is_left(start):
    """Only its main thread has ended: the process is a zombie, and its sockets are still open."""
    process = start(LEADERLESS)
    while process.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert processes.wait_gone([("broker-a-0", process)], 0.0) == [("broker-a-0", process)]
    processes.kill([("broker-a-0", process)])
    assert processes.wait_gone([("broker-a-0", process)], 0.0) == []


def test_a_signal_waits_for_the_end_of_the_block(heeds_ctrl_c):
    before = signal.getsignal(signal.SIGINT)
    done = []

    def work():
        with signals_held():
            signal.raise_signal(signal.SIGINT)
            done.append("all of it")
        done.append("never")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["all of it"]
    assert signal.getsignal(signal.SIGINT) is before


def test_an_ignored_signal_does_not_replace_one_that_is_heeded():
    """Ctrl-C arrives first but is ignored, as in a background job. SIGTERM must end the command."""

    def terminated(_number, _frame):
        raise SystemExit("terminated")

    def work():
        with signals_held():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)

    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
        signal.SIGTERM: signal.signal(signal.SIGTERM, terminated),
    }
    try:
        with pytest.raises(SystemExit, match="terminated"):
            work()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_the_last_lines_of_a_log(tmp_path):
    log = tmp_path / "log"
    log.write_text("old\n")
    size = processes.log_size(tmp_path)
    with open(log, "a") as more:
        more.write("".join(f"line {number}\n" for number in range(20_000)))
    assert processes.last_lines(tmp_path, 2, size) == ["line 19998", "line 19999"]
    assert processes.last_lines(tmp_path, 3, os.path.getsize(log)) == []
    assert processes.last_lines(tmp_path / "absent", 3) == []
    assert processes.log_size(tmp_path / "absent") == 0


def test_the_lifeline_is_an_open_descriptor(monkeypatch):
    reading, writing = os.pipe()
    monkeypatch.setenv(processes.LIFELINE_VARIABLE, str(reading))
    assert processes.lifeline_fd() == reading
    os.close(reading)
    os.close(writing)
    assert processes.lifeline_fd() is None
    monkeypatch.setenv(processes.LIFELINE_VARIABLE, "x")
    assert processes.lifeline_fd() is None
