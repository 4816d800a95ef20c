"""How many broker groups suit this machine: `cluster up --groups auto`.

A broker uses one core, so one group per core uses all of them. Slaves share the cores with the
masters: they write the same bytes, but answer few clients.

- Cores: those that this process may use (affinity), at most the CPU quota of its control group.
- Memory: the available memory, at most the limit of the control group. Brokers get half of it, the
  page cache and the clients the rest. A broker counts as `BROKER_MEMORY_SIZE`.

The name of a group has one letter, so there are at most `GROUPS_MAX` groups.
"""

import math
import os
from pathlib import Path
from typing import NamedTuple

import psutil

from rmqkit.cluster.layout.names import GROUPS_MAX

#: bytes; a broker takes about 50 MB under load, and more with many queues and connections
BROKER_MEMORY_SIZE = 134_217_728
#: the part of the memory that brokers may take
_MEMORY_SHARE = 2
_CONTROL_GROUP = Path("/sys/fs/cgroup")


class Machine(NamedTuple):
    """What this process may use: the number of cores, and bytes of memory."""

    cores: int
    memory_size: int

    def groups_for(self, replicas: int) -> tuple[int, str]:
        """Return how many groups of `replicas` brokers to run, at least 1, and the reason."""
        by_memory = self.memory_size // _MEMORY_SHARE // (BROKER_MEMORY_SIZE * replicas)
        cores = f"{self.cores} CPU core{'s' * (self.cores > 1)}"
        if by_memory < self.cores:
            brokers = f"{replicas} broker{'s' * (replicas > 1)} of {BROKER_MEMORY_SIZE >> 20} MiB"
            why = f"{cores}, but half of {self.memory_size >> 20} MiB of memory is shared by groups of {brokers}"
            return min(max(by_memory, 1), GROUPS_MAX), why
        if self.cores > GROUPS_MAX:
            return GROUPS_MAX, f"{cores}, and at most {GROUPS_MAX} groups"
        return self.cores, f"{cores}, and a broker uses one"


def this_machine(control_group: Path = _CONTROL_GROUP) -> Machine:
    """Return what this process may use. A limit that cannot be read is none."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    memory_size = int(psutil.virtual_memory().available)
    quota = _words(control_group / "cpu.max")
    if len(quota) == 2 and quota[0].isdigit() and quota[1].isdigit() and int(quota[1]):
        cores = min(cores, max(1, math.ceil(int(quota[0]) / int(quota[1]))))
    limit = _words(control_group / "memory.max")
    if len(limit) == 1 and limit[0].isdigit():
        memory_size = min(memory_size, int(limit[0]))
    return Machine(cores, memory_size)


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError):
        return []
