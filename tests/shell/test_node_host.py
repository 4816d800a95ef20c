"""Nodes that start and stop while their process runs: what remains, and what other nodes notice."""

import os
import socket
import weakref
from pathlib import Path
from typing import Any

import pytest

from rmqkit.errors import CannotStart, RmqkitError
from rmqkit.runtime.connection import Address, Connection
from rmqkit.shell.faults.isolation import Isolation, IsolationRule, Match
from rmqkit.shell.listen_errors import PortTaken
from rmqkit.shell.log import LogSink
from rmqkit.shell.node_host import Listen, NodeHost, NodeSpec
from tests.contract.toys import Echo, Toy
from tests.shell.conftest import LoopLab


class Refusing(Toy):
    def start(self) -> None:
        self.ports.disk.lock("lock", b"lock")
        raise RmqkitError("no")


class RefusingLater(Toy):
    def start(self) -> None:
        self.duties.add("recovery", self._recover, self.clock.mono_ms)

    def _recover(self, now_ms: int) -> None:
        raise CannotStart("damaged")


class Uncollected(NodeHost):
    """Does not freeze the heap: collecting that of a whole test session takes a second."""

    def freeze(self) -> None:
        pass


class Rig:
    def __init__(self, lab: LoopLab, folder: Path, hosting: type[NodeHost] = Uncollected) -> None:
        self.lab = lab
        self.folder = folder
        self.sink = LogSink(str(folder / "log"))
        self.hosting = hosting(lab.loop, self.sink)
        self.failures: list[str] = []

    def spec(self, name: str, make: Any = Echo, port: int = 0, **more: Any) -> NodeSpec:
        def made(ports: Any, numbers: Any) -> Any:
            return make(name, ports)

        return NodeSpec(name, str(self.folder / name), made, [Listen("toy", "127.0.0.1", port)], **more)

    def add(self, name: str, make: Any = Echo, **more: Any) -> Any:
        return self.hosting.add(self.spec(name, make, **more), lambda error: self.failures.append(str(error)))

    def remove(self, name: str) -> None:
        gone: list[bool] = []
        self.hosting.remove(name, lambda: gone.append(True))
        self.lab.run_until(lambda: gone)

    def descriptors(self) -> int:
        return len(os.listdir("/dev/fd"))


@pytest.fixture
def rig(lab: LoopLab, tmp_path: Path) -> Rig:
    return Rig(lab, tmp_path)


def echoed(rig: Rig, resident: Any, text: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", resident.started.ports["toy"]), 20) as sock:
        sock.sendall(text)
        sock.setblocking(False)
        got = bytearray()

        def read() -> bool:
            try:
                got.extend(sock.recv(100))
            except BlockingIOError:
                pass
            return len(got) == len(text)

        rig.lab.run_until(read)
        return bytes(got)


def test_a_node_is_added_to_a_loop_that_runs_and_removed_again(rig: Rig) -> None:
    first = rig.add("first")
    rig.lab.run_until(lambda: True)
    before = rig.descriptors()
    second = rig.add("second")
    assert echoed(rig, second, b"second") == b"second"
    with socket.create_connection(("127.0.0.1", second.started.ports["toy"]), 20) as sock:
        rig.lab.run_until(lambda: len(second.node.opens) == 2)
        rig.remove("second")
        assert sock.recv(10) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", second.started.ports["toy"]), 20)
    assert echoed(rig, first, b"first") == b"first"
    rig.lab.run_until(lambda: rig.lab.loop.stream_count == 0)
    assert rig.descriptors() == before
    assert list(rig.hosting.residents) == ["first"]
    again = rig.add("second", port=second.started.ports["toy"])
    assert echoed(rig, again, b"again") == b"again"


def test_the_dials_of_a_removed_node_end(rig: Rig) -> None:
    server = rig.add("server")
    caller = rig.add("caller", Toy)
    made = caller.node.dial(Address("127.0.0.1", server.started.ports["toy"]))
    rig.lab.run_until(lambda: made in caller.node.opens)
    asked = caller.node.dial(Address("127.0.0.1", server.started.ports["toy"]))
    named = caller.node.dial(Address("localhost", server.started.ports["toy"]))
    rig.remove("caller")
    rig.lab.run_until(lambda: {made, asked, named} == set(caller.node.reasons))
    rig.lab.run_until(lambda: rig.lab.loop.stream_count == 0)


@pytest.mark.long
def test_memory_of_a_removed_node_comes_back(lab: LoopLab, tmp_path: Path) -> None:
    rig = Rig(lab, tmp_path, NodeHost)
    rig.add("first")
    node = weakref.ref(rig.add("second").node)
    rig.hosting.freeze()
    rig.remove("second")
    rig.lab.run_until(lambda: node() is None)


def test_a_node_that_cannot_start_leaves_nothing(rig: Rig) -> None:
    first = rig.add("first")
    before = rig.descriptors()
    with pytest.raises(RmqkitError, match="no"):
        rig.add("second", Refusing)
    with pytest.raises(RmqkitError, match="in this process already"):
        rig.add("first")
    with pytest.raises(PortTaken):
        rig.add("second", port=first.started.ports["toy"])
    assert rig.descriptors() == before
    rig.add("second", Toy).node.ports.disk.lock("lock", b"free again")


def test_one_that_finds_out_later_is_gone_and_nobody_else_is(rig: Rig) -> None:
    first = rig.add("first")
    second = rig.add("second", RefusingLater)
    rig.lab.loop.after(200, rig.lab.loop.stop)
    assert rig.lab.loop.run()
    assert rig.failures == ["damaged"]
    assert list(rig.hosting.residents) == ["first"]
    assert first.node.stopped
    assert not rig.lab.loop.hosts(second.node)


def test_one_that_was_there_from_the_start_ends_the_process(rig: Rig) -> None:
    rig.hosting.make(rig.spec("first", RefusingLater))
    with pytest.raises(CannotStart, match="damaged"):
        rig.lab.loop.start()


def test_the_cut_of_a_removed_node_ends_with_it(rig: Rig, tmp_path: Path) -> None:
    rig.add("first")
    folder = tmp_path / "drills"
    folder.mkdir()
    second = rig.add("second", drill_folder=str(folder))
    with socket.create_connection(("127.0.0.1", second.started.ports["toy"]), 20):
        rig.lab.run_until(lambda: second.node.opens)
        Isolation(rig.lab.loop).begin("cut", second.node, (IsolationRule(Match()),))
        assert (folder / "drill.sock").exists()
        rig.remove("second")
    assert rig.lab.loop.isolation is None
    assert list(folder.iterdir()) == []


def test_the_last_that_came_stops_first(rig: Rig) -> None:
    asked: list[str] = []

    class Noted(Toy):
        def stop(self) -> None:
            asked.append(self.name)
            super().stop()

    for name in ("master", "slave", "container"):
        rig.add(name, Noted)
    rig.lab.loop.call_soon_threadsafe(rig.lab.loop.stop)
    assert rig.lab.loop.run()
    assert asked == ["container", "slave", "master"]


def test_a_broken_node_is_no_failed_start(rig: Rig) -> None:
    class Broken(Toy):
        def on_received(self, conn: Connection, data: bytes) -> None:
            raise KeyError("invariant")

    rig.add("first")
    broken = rig.add("second", Broken)
    with socket.create_connection(("127.0.0.1", broken.started.ports["toy"]), 20) as sock:
        sock.sendall(b"x")
        with pytest.raises(KeyError):
            rig.lab.loop.run()


def test_each_node_writes_its_own_log(rig: Rig, tmp_path: Path) -> None:
    own = rig.add("first", sink=LogSink(str(tmp_path / "own")))
    shared = rig.add("second")
    own.node.ports.log.info("here")
    shared.node.ports.log.info("there")
    assert "INFO first here" in (tmp_path / "own").read_text()
    assert "INFO second there" in (tmp_path / "log").read_text()
    assert "first" not in (tmp_path / "log").read_text()
