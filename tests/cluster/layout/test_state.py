"""state.json, and how a process is recognised again."""

import json
import os
import subprocess
import sys

import pytest

from rmqkit.cluster import processes
from rmqkit.cluster.layout import state
from rmqkit.cluster.layout.state import ClusterState, ProcessRecord


def test_what_is_saved_is_loaded(tmp_path):
    wanted = ClusterState(
        {"ns-0": ProcessRecord(12, 1700000000.25), "broker-a-0": ProcessRecord(13, 1700000001.5, "killed")}
    )
    state.save(tmp_path, wanted)
    assert state.load(tmp_path) == wanted
    assert os.listdir(tmp_path) == ["state.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        '{"nodes": 3}',
        '{"nodes": {"a": 1}}',
        '{"nodes": {"a": {"pid": 5}}}',
        '{"nodes": {"a": {"pid": "1", "start_s": 1, "asked": ""}}}',
        '{"nodes": {"a": {"pid": -5, "start_s": 1.0, "asked": "up"}}}',
    ],
)
def test_a_broken_file_is_no_state(tmp_path, text):
    (tmp_path / "state.json").write_text(text)
    assert state.load(tmp_path) is None


def test_no_file_is_no_state(tmp_path):
    assert state.load(tmp_path) is None
    assert processes.known(tmp_path) == ClusterState()


@pytest.fixture
def sleeper():
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys; print('on', flush=True); sys.stdin.read()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout.readline() == b"on\n"
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_a_process_is_known_by_pid_and_start_time(tmp_path, sleeper):
    started_s = processes._start_s(sleeper.pid)
    assert processes.find(ProcessRecord(sleeper.pid, started_s), tmp_path).pid == sleeper.pid


def test_a_pid_that_was_given_to_another_process_is_not_ours(tmp_path, sleeper):
    started_s = processes._start_s(sleeper.pid)
    assert processes.find(ProcessRecord(sleeper.pid, started_s - 3600), tmp_path) is None
    assert processes.find(ProcessRecord(sleeper.pid, started_s + 3600), tmp_path) is None


def test_a_shifted_clock_does_not_hide_a_node_that_names_its_file(tmp_path):
    command = [sys.executable, "-c", "import sys; print('on', flush=True); sys.stdin.read()", str(tmp_path / "node.toml")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as node:
        assert node.stdout.readline() == b"on\n"
        found = processes.find(ProcessRecord(node.pid, processes._start_s(node.pid) + 3600), tmp_path)
        assert found is not None
        assert found.pid == node.pid
        node.kill()


def test_an_ended_child_is_gone_at_once_and_no_zombie(tmp_path, sleeper):
    started = ProcessRecord(sleeper.pid, processes._start_s(sleeper.pid))
    running = [("x", processes.find(started, tmp_path))]
    processes.kill(running)
    assert processes.find(started, tmp_path) is None


def test_state_is_plain_json_for_other_tools(tmp_path):
    state.save(tmp_path, ClusterState({"ns-0": ProcessRecord(12, 1.5)}))
    assert json.loads((tmp_path / "state.json").read_text()) == {
        "version": 1,
        "nodes": {"ns-0": {"pid": 12, "start_s": 1.5, "asked": "up"}},
    }
