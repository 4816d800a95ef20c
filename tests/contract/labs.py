"""Labs: both drivers behind one interface, so that each test runs on the OS and on the simulator.

`DiskLab` opens disks on one folder and waits for their completions. `NetLab` hosts toy nodes, lets
them listen, and runs until a condition holds. The real labs wait with a deadline of `DEADLINE_S`
seconds, the simulated ones in virtual time.
"""

import errno
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from rmqkit.config import NetworkLimits
from rmqkit.runtime.connection import Address
from rmqkit.runtime.node import Node
from rmqkit.runtime.ports import Clock, Completion, Disk, Ports
from rmqkit.shell import osfile
from rmqkit.shell.disk import OsDisk
from rmqkit.shell.loop import Loop
from rmqkit.sim.disk import SimDisk
from rmqkit.sim.folder import SimFolder
from rmqkit.sim.world import World
from rmqkit.tls.node_tls import NodeTls
from tests.contract.toys import Toy
from tests.helpers.certificates import SIM_HOSTS

DEADLINE_S = 15.0
Outcome = OSError | None


class DriverDisk(Disk, Protocol):
    """A disk port with the method that the driver calls."""

    def take_completed(self) -> Iterator[tuple[Completion, Outcome]]: ...


class DiskLab(Protocol):
    #: absolute path of a folder outside the node's own
    outside: str

    def open(self) -> DriverDisk: ...
    def wait(self, disk: DriverDisk) -> None:
        """Wait until at least one completion was delivered."""

    def break_sync(self, path: str) -> None:
        """Let the next sync of `path` fail with EIO."""

    def full(self) -> str:
        """Return a path where writes find no space."""


class OsDiskLab:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.outside = str(folder / "outside")
        self._root = str(folder / "root")
        self._monkeypatch = monkeypatch
        self._opened: list[OsDisk] = []

    def open(self) -> OsDisk:
        disk = OsDisk(self._root)
        self._opened.append(disk)
        return disk

    def wait(self, disk: Any) -> None:
        assert disk.wait(DEADLINE_S), "the disk thread is stuck"
        for completion, error in disk.take_completed():
            completion(error)

    def break_sync(self, path: str) -> None:
        real = osfile.sync_file

        def broken(fd: int) -> None:
            self._monkeypatch.setattr(osfile, "sync_file", real)
            raise OSError(errno.EIO, "planned")

        self._monkeypatch.setattr(osfile, "sync_file", broken)

    def full(self) -> str:
        return "/dev/full"

    def close(self) -> None:
        for disk in self._opened:
            disk.close()


class SimDiskLab:
    outside = "/elsewhere"

    def __init__(self) -> None:
        self.world = World("disk lab")
        self.folder = SimFolder("/sim/lab")
        self._broken = ""

    def open(self) -> SimDisk:
        world = self.world
        self._disk = SimDisk(
            self.folder,
            clock=Clock(1, 1_000),
            random=random.Random(1),
            after_us=lambda delay_us, function: world.at_us(world.now_us + delay_us, function),
        )
        return self._disk

    def wait(self, disk: Any) -> None:
        assert self.world.run_until(lambda: disk.completed, 10_000)
        for completion, error in disk.take_completed():
            completion(error)

    def break_sync(self, path: str) -> None:
        self._disk.fail("sync", path)

    def full(self) -> str:
        self.folder.capacity = self.folder.used + 8192
        return "too-much"

    def close(self) -> None:
        pass


class NetLab(Protocol):
    kind: str

    def add(self, name: str, make: Callable[[str, Ports], Toy]) -> Any: ...
    def listen(self, name: str, tag: str = "toy") -> Address: ...
    def nobody(self) -> Address: ...
    def call(self, name: str, function: Callable[[Any], Any]) -> None: ...
    def run_until(self, reached: Callable[[], Any]) -> None: ...
    def run_ms(self, duration_ms: int) -> None: ...


class ShellNetLab:
    """Runs all toys in one loop, over loopback. `make_tls` makes the TLS of each, None: none."""

    kind = "shell"

    def __init__(self, folder: Path, limits: NetworkLimits, make_tls: Callable[[], NodeTls] | None = None) -> None:
        self.loop = Loop(limits=limits)
        self._make_tls = make_tls
        self._folder = folder
        self._nodes: dict[str, Node] = {}
        self._bound: dict[str, int] = {}

    def add(self, name: str, make: Callable[[str, Ports], Toy]) -> Any:
        node = make(name, self.loop.ports(str(self._folder / name)))
        self._nodes[name] = node
        self.loop.add(node, tls=self._make_tls() if self._make_tls else None)
        return node

    def listen(self, name: str, tag: str = "toy") -> Address:
        return Address("127.0.0.1", self.loop.listen(self._nodes[name], tag, "127.0.0.1", 0))

    def nobody(self) -> Address:
        with self.loop.bind("127.0.0.1", 0) as sock:
            return Address("127.0.0.1", sock.getsockname()[1])

    def call(self, name: str, function: Callable[[Any], Any]) -> None:
        node = self._nodes[name]
        self.loop.call_soon_threadsafe(lambda: function(node))

    def run_until(self, reached: Callable[[], Any]) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not reached():
            assert time.monotonic() < deadline_s, "not within the deadline"
            self.loop.turn(20)

    def run_ms(self, duration_ms: int) -> None:
        until_s = time.monotonic() + duration_ms / 1000
        while time.monotonic() < until_s:
            self.loop.turn(5)

    def close(self) -> None:
        self.loop.close()


class SimNetLab:
    """Runs each toy on its own simulated machine. `make_tls` makes the TLS of each, None: none."""

    kind = "sim"

    def __init__(self, limits: NetworkLimits, seed: str, make_tls: Callable[[], NodeTls] | None = None) -> None:
        self.world = World(seed, limits=limits)
        self._make_tls = make_tls
        self._next_port = 1000

    def add(self, name: str, make: Callable[[str, Ports], Toy]) -> Any:
        host = SIM_HOSTS[len(self.world.names)]
        tls = self._make_tls() if self._make_tls else None
        self.world.add_node(name, lambda ports: make(name, ports), host, tls=tls)
        return self.world.node(name)

    def listen(self, name: str, tag: str = "toy") -> Address:
        self._next_port += 1
        address = Address(self.world.process(name).host, self._next_port)
        self.world.listen(name, tag, address)
        return address

    def nobody(self) -> Address:
        return Address(self.world.process(self.world.names[0]).host, 9)

    def call(self, name: str, function: Callable[[Any], Any]) -> None:
        self.world.call(name, function)

    def run_until(self, reached: Callable[[], Any]) -> None:
        assert self.world.run_until(reached, 600_000), "not within ten virtual minutes"

    def run_ms(self, duration_ms: int) -> None:
        self.world.run_for(duration_ms)

    def close(self) -> None:
        pass
