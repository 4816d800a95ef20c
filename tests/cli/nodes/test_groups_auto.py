"""`cluster up --groups auto`: one broker group per core, if the memory suffices."""

import pytest

from rmqkit.cluster.layout import machine
from rmqkit.cluster.layout.machine import BROKER_MEMORY_SIZE, Machine
from tests.cli.conftest import free_base


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(machine, "this_machine", lambda: Machine(2, 1 << 40))


@pytest.mark.long
def test_a_group_per_core_that_holds_every_new_topic(shell, two_cores):
    words = ("--groups", "auto", "--replicas", "1", "--set", "mappedFileSizeCommitLog=16777216")
    done = shell.run("cluster", "up", "--any-port", "--base-port", free_base(), *words)
    assert done.stderr == "2 groups: 2 CPU cores, and a broker uses one\n"
    shell.run("send", "everywhere", "x")
    route = shell.json("topic", "route", "everywhere")
    assert [row["broker_name"] for row in route["brokers"]] == ["broker-a", "broker-b"]
    assert shell.run("cluster", "up", "--groups", "auto").stderr == "2 groups: those that the cluster default has already\n"


def test_a_running_cluster_keeps_its_groups(up):
    done = up.run("cluster", "up", "--groups", "auto")
    assert done.stderr == "1 group: those that the cluster default has already\n"
    assert "is up already" in done.stdout


def test_the_replicas_of_all_options_count_for_the_memory(shell, monkeypatch):
    """The description that follows is invalid, so nothing starts."""
    monkeypatch.setattr(machine, "this_machine", lambda: Machine(8, 12 * BROKER_MEMORY_SIZE))
    file = shell.home / "mine.toml"
    file.write_text('name = "mine"\nreplicas = 1\n')
    for words, groups in (
        ((), 3),
        (("--replicas", "1"), 6),
        (("--preset", "crosswise"), 2),
        (("--file", file), 6),
    ):
        done = shell.run("cluster", "up", "--groups", "auto", *words, "--nameservers", "99", code=2)
        note, error = done.stderr.splitlines()
        assert note.startswith(f"{groups} groups: 8 CPU cores, but half of 1536 MiB of memory")
        assert "nameservers = 99" in error


@pytest.mark.parametrize("words", [("--container",), ("--layout", "replica"), ("--layout", "crosswise")])
def test_groups_whose_masters_share_a_process_use_no_more_cores(shell, monkeypatch, words):
    monkeypatch.setattr(machine, "this_machine", lambda: Machine(4, 1 << 40))
    done = shell.run("cluster", "up", "--groups", "auto", *words, "--nameservers", "99", code=2)
    shared = "1 group: one process has the masters of all groups, and a process uses one CPU core"
    apart = "4 groups: 4 CPU cores, and a broker uses one"
    assert done.stderr.splitlines()[0] == (apart if "crosswise" in words else shared)


@pytest.mark.parametrize("word", ["many", "", "1.5", "AUTO"])
def test_groups_must_be_a_number_or_auto(shell, word):
    assert f"--groups {word}: give a number or auto" in shell.error("cluster", "up", "--groups", word, code=2)


def test_a_number_is_checked_as_before(shell):
    assert "groups = -1: must be from 1 to 26" in shell.error("cluster", "up", "--groups", "-1", code=2)
