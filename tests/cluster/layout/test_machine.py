"""The number of groups that `cluster up --groups auto` chooses."""

import os
from types import SimpleNamespace

import psutil
import pytest

from rmqkit.cluster.layout.machine import BROKER_MEMORY_SIZE, Machine, this_machine
from rmqkit.cluster.layout.names import GROUPS_MAX

MUCH = 1 << 40


@pytest.mark.parametrize(("cores", "groups"), [(1, 1), (2, 2), (8, 8), (GROUPS_MAX + 5, GROUPS_MAX)])
def test_one_group_per_core(cores, groups):
    assert Machine(cores, MUCH).groups_for(2)[0] == groups


@pytest.mark.parametrize(
    ("brokers", "replicas", "groups"),
    [(8, 2, 4), (7, 2, 3), (8, 1, 8), (2, 2, 1), (0, 2, 1)],
)
def test_memory_bounds_it(brokers, replicas, groups):
    chosen, why = Machine(16, 2 * brokers * BROKER_MEMORY_SIZE).groups_for(replicas)
    assert chosen == groups
    assert f"half of {2 * brokers * BROKER_MEMORY_SIZE >> 20} MiB" in why


def test_the_reason_names_the_cores():
    assert Machine(1, MUCH).groups_for(2)[1] == "1 CPU core, and a broker uses one"
    assert Machine(4, MUCH).groups_for(2)[1] == "4 CPU cores, and a broker uses one"


def test_the_limits_of_a_container_count(tmp_path):
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    (tmp_path / "memory.max").write_text("1048576\n")
    assert this_machine(tmp_path) == Machine(1, 1_048_576)


@pytest.mark.parametrize(("cpu", "memory"), [("max 100000", "max"), ("", ""), ("ten of", "é"), ("1 0", "-1")])
def test_without_limits_the_machine_counts(tmp_path, cpu, memory, monkeypatch):
    (tmp_path / "cpu.max").write_text(cpu)
    (tmp_path / "memory.max").write_text(memory)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2}, raising=False)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=7))
    assert this_machine(tmp_path) == Machine(3, 7)
