"""The loop with real sockets: the parts of its contract that need an operating system."""

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from rmqkit.config import NetworkLimits
from rmqkit.runtime.connection import Address, Connection
from rmqkit.runtime.ports import Ports
from rmqkit.shell import names, streams
from rmqkit.shell.listen_errors import CannotListen, PortTaken
from rmqkit.shell.listener import bind, release_reserved, reserve
from rmqkit.shell.loop import STALL_NS, Loop
from rmqkit.shell.poller import READ, WRITE, SelectorPoller
from rmqkit.shell.wakeup import Wakeup
from tests.contract.toys import Echo, Toy, pattern
from tests.shell.conftest import LoopLab

LabMaker = Callable[..., LoopLab]


def connect(port: int, host: str = "127.0.0.1") -> socket.socket:
    return socket.create_connection((host, port), 20)


def reader(sock: socket.socket) -> tuple[threading.Thread, list[bytes]]:
    """Read a blocking socket to its end on a separate thread."""
    parts: list[bytes] = []

    def read() -> None:
        try:
            while part := sock.recv(1 << 20):
                parts.append(part)
        except OSError as error:
            parts.append(f"!{error.strerror}".encode())

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread, parts


# --- threads


def test_functions_of_many_threads_run_in_the_order_of_each(lab: LoopLab):
    lab.host(Toy)
    ran: list[tuple[int, int]] = []
    ident: list[int] = []

    def post(thread: int) -> None:
        for number in range(2000):
            lab.loop.call_soon_threadsafe(lambda number=number: ran.append((thread, number)))
        lab.loop.call_soon_threadsafe(lambda: ident.append(threading.get_ident()))

    threads = [threading.Thread(target=post, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    lab.run_until(lambda: len(ident) == 4)
    for thread in threads:
        thread.join()
    assert set(ident) == {threading.get_ident()}
    for number in range(4):
        assert [call for thread, call in ran if thread == number] == list(range(2000))


def test_a_sleeping_loop_is_woken(lab: LoopLab):
    node = lab.host(Toy)
    answers: list[float] = []
    runner = threading.Thread(target=lab.loop.run)
    runner.start()
    try:
        for _ in range(200):
            event = threading.Event()
            lab.loop.call_soon_threadsafe(event.set)
            assert event.wait(20), "the loop sleeps on"
            answers.append(time.monotonic())
    finally:
        lab.loop.call_soon_threadsafe(node.stop)
        runner.join(20)
    assert not runner.is_alive()
    assert len(answers) == 200


def test_a_posted_function_ends_in_a_whole_turn(lab: LoopLab):
    """What it sends goes out at once, and the node settles."""
    node = lab.host(Toy)
    port = lab.loop.listen(node, "toy", "127.0.0.1", 0)
    with connect(port) as sock:
        lab.run_until(lambda: node.opens)
        turns = node.turns
        lab.loop.call_soon_threadsafe(lambda: node.outbox.send(node.opens[0], b"posted"))
        lab.loop.turn(None)
        assert node.turns == turns + 1
        assert sock.recv(100) == b"posted"


def test_the_clock_is_constant_within_a_turn_and_follows_time(lab: LoopLab):
    node = lab.host(Toy)
    seen: list[tuple[int, int]] = []
    for _ in range(3):
        lab.loop.call_soon_threadsafe(lambda: seen.append((node.clock.mono_ms, node.clock.wall_ms)))
        lab.loop.turn(1000)
        time.sleep(0.02)
    assert seen[1][0] >= seen[0][0] + 20
    assert abs(seen[2][1] - time.time() * 1000) < 10_000
    assert node.clock is lab.loop.clock


def test_a_node_that_stood_still_in_the_middle_of_a_turn_sees_it_before_the_next_bytes(lab: LoopLab):
    """A busy process usually stops within a turn; bytes read next may be older than they seem."""
    seen: list[int] = []

    class Stopped(Toy):
        def on_received(self, conn: Connection, data: bytes) -> None:
            seen.append(self.clock.mono_ms)
            if len(seen) == 1:
                time.sleep(STALL_NS / 1e9)

    node = lab.host(Stopped)
    port = lab.loop.listen(node, "toy", "127.0.0.1", 0)
    with connect(port) as first, connect(port) as second:
        lab.run_until(lambda: len(node.opens) == 2)
        turns = node.turns
        first.sendall(b"x")
        second.sendall(b"x")
        lab.run_until(lambda: len(seen) == 2)
        assert node.turns == turns + 1
        assert seen[1] - seen[0] >= STALL_NS // 1_000_000


# --- streams


def test_a_peer_that_ends_its_side_is_closed_after_its_bytes(lab: LoopLab):
    node = lab.host(Toy)
    port = lab.loop.listen(node, "toy", "127.0.0.1", 0)
    with connect(port) as sock:
        sock.sendall(pattern(300_000))
        sock.shutdown(socket.SHUT_WR)
        lab.run_until(lambda: node.reasons)
        assert node.got(node.opens[0]) == pattern(300_000)
        assert list(node.reasons.values()) == ["closed by peer"]
        assert sock.recv(10) == b""


def test_a_reset_peer_is_closed_with_the_systems_word(lab: LoopLab):
    node = lab.host(Toy)
    port = lab.loop.listen(node, "toy", "127.0.0.1", 0)
    sock = connect(port)
    lab.run_until(lambda: node.opens)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    sock.close()
    lab.run_until(lambda: node.reasons)
    assert list(node.reasons.values()) == ["Connection reset by peer"]


def test_a_reset_peer_is_noticed_while_it_is_not_read(lab: LoopLab):
    node = lab.host(Toy)
    port = lab.loop.listen(node, "toy", "127.0.0.1", 0)
    sock = connect(port)
    lab.run_until(lambda: node.opens)
    node.outbox.read(node.opens[0], False)
    lab.loop.turn(0)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    sock.close()
    lab.run_until(lambda: node.reasons)
    assert list(node.reasons.values()) == ["Connection reset by peer"]


def test_after_a_close_the_peers_late_bytes_do_not_reset_the_answer(lab: LoopLab):
    node = lab.host(Toy)
    port = lab.loop.listen(node, "toy", "127.0.0.1", 0)
    with connect(port) as sock:
        sock.sendall(b"bad")
        lab.run_until(lambda: node.data)
        node.outbox.send(node.opens[0], b"why")
        node.outbox.close(node.opens[0], "bad frame")
        lab.run_until(lambda: node.reasons)
        sock.sendall(pattern(500_000))
        for _ in range(3):
            lab.loop.turn(20)
        assert sock.recv(10) == b"why"
        assert sock.recv(10) == b""
    lab.run_until(lambda: lab.loop.stream_count == 0)


def test_a_closed_connection_lingers_for_a_moment_only(lab: LoopLab):
    node = lab.host(Toy)
    port = lab.loop.listen(node, "toy", "127.0.0.1", 0)
    with connect(port):
        lab.run_until(lambda: node.opens)
        node.outbox.close(node.opens[0], "bye")
        lab.run_until(lambda: node.reasons)
        assert lab.loop.stream_count == 1
        lab.run_until(lambda: lab.loop.stream_count == 0)


class Larger(Toy):
    """Answers with more than it has received."""

    def on_received(self, conn: Connection, data: bytes) -> None:
        self.outbox.send(conn, data + b"!")


@pytest.mark.parametrize(
    ("make", "count", "sizes"),
    [
        (Toy, 1, [1_000, 4_000, 4_000, 500]),
        (Echo, 1, [1_000, 4_000, 4_000, 500]),
        (Toy, 2, [1_000, 2_000, 2_000, 2_000, 2_000, 500]),
        (Larger, 1, [1_000] * 9 + [500]),
    ],
)
def test_a_backlog_is_read_in_larger_pieces(
    lab: LoopLab, monkeypatch: pytest.MonkeyPatch, make: type[Toy], count: int, sizes: list[int]
):
    """The connections of a turn share the size. Not if answers are larger than requests."""
    monkeypatch.setattr(streams, "READ_SIZE", 1_000)
    monkeypatch.setattr(streams, "READ_SIZE_MAX", 4_000)
    node = lab.host(make)
    port = lab.loop.listen(node, "toy", "127.0.0.1", 0)
    peers = [connect(port) for _ in range(count)]
    lab.run_until(lambda: len(node.opens) == count)
    for peer in peers:
        peer.sendall(pattern(9_500))
    while any(len(conn.driver.sock.recv(10_000, socket.MSG_PEEK)) < 9_500 for conn in node.opens):
        time.sleep(0.001)
    lab.run_until(lambda: all(len(node.got(conn)) == 9_500 for conn in node.opens))
    assert node.chunk_sizes == [size for size in sizes for _ in peers]
    for peer in peers:
        peer.close()


def test_a_slow_reader_gets_everything_in_order(lab: LoopLab):
    node = lab.host(Toy)
    port = lab.loop.listen(node, "toy", "127.0.0.1", 0)
    body = pattern(12 << 20)
    with connect(port) as sock:
        lab.run_until(lambda: node.opens)
        conn = node.opens[0]
        for position in range(0, len(body), 70_000):
            node.outbox.send(conn, body[position : position + 100], memoryview(body)[position + 100 : position + 70_000])
        lab.loop.turn(0)
        assert conn.out_size > 0
        node.outbox.close(conn, "all sent")
        thread, parts = reader(sock)
        lab.run_until(lambda: not thread.is_alive())
    assert b"".join(parts) == body


def test_silent_peers_are_closed(make_lab: LabMaker):
    lab = make_lab(idle_close_ms=100)
    node = lab.host(Toy)
    port = lab.loop.listen(node, "toy", "127.0.0.1", 0)
    with connect(port) as sock, connect(port):
        lab.run_until(lambda: len(node.reasons) == 2)
        assert set(node.reasons.values()) == {"idle"}
        assert sock.recv(10) == b""


def test_a_peer_that_never_reads_is_silent_too(make_lab: LabMaker):
    lab = make_lab(idle_close_ms=200)
    node = lab.host(Toy)
    port = lab.loop.listen(node, "toy", "127.0.0.1", 0)
    with connect(port):
        lab.run_until(lambda: node.opens)
        node.outbox.send(node.opens[0], pattern(30 << 20))
        lab.run_until(lambda: node.reasons)
    assert list(node.reasons.values()) == ["idle"]


def test_small_buffers_are_joined_and_large_ones_are_not(lab: LoopLab, monkeypatch: pytest.MonkeyPatch):
    large = b"x" * 100_000
    out: list[Any] = [b"a" * 10, b"b" * 20, large, b"c" * 10, large, b"d"]
    streams._join_small(out)
    assert [len(buffer) for buffer in out] == [30, 100_000, 10, 100_000, 1]
    assert out[1] is large
    streams._drop(out, 30 + 7)
    assert [len(buffer) for buffer in out] == [99_993, 10, 100_000, 1]
    streams._drop(out, 99_993 + 10)
    assert [len(buffer) for buffer in out] == [100_000, 1]


# --- dialling


def test_names_are_looked_up(lab: LoopLab):
    server, client = lab.host(Echo, "server"), lab.host(Toy, "client")
    port = lab.loop.listen(server, "toy", "127.0.0.1", 0)
    conn = client.dial(Address("localhost", port), send=b"by name")
    lab.run_until(lambda: client.got(conn) == b"by name" or client.reasons)
    assert client.reasons == {}


def test_a_slow_resolver_stops_nobody(make_lab: LabMaker, monkeypatch: pytest.MonkeyPatch):
    lab = make_lab(connect_timeout_ms=100)
    asked, answer = threading.Event(), threading.Event()
    real = socket.getaddrinfo

    def slow(host: Any, *args: Any) -> Any:
        if host != "slow.example":
            return real(host, *args)
        if args[-1] == socket.AI_NUMERICHOST:
            raise socket.gaierror(socket.EAI_NONAME, "not a number")
        asked.set()
        assert answer.wait(20)
        return real("127.0.0.1", *args)

    monkeypatch.setattr(names.socket, "getaddrinfo", slow)
    server, client = lab.host(Echo, "server"), lab.host(Toy, "client")
    port = lab.loop.listen(server, "toy", "127.0.0.1", 0)
    try:
        late = client.dial(Address("slow.example", port), send=b"x")
        other = client.dial(Address("127.0.0.1", port), send=b"y")
        lab.run_until(lambda: asked.is_set() and client.got(other) == b"y")
        lab.run_until(lambda: client.reasons)
        assert client.reasons == {late: "no connection within 100 ms"}
    finally:
        answer.set()
    lab.loop.turn(50)
    assert client.opens == [other]


def test_the_next_address_is_tried(lab: LoopLab, monkeypatch: pytest.MonkeyPatch):
    server, client = lab.host(Echo, "server"), lab.host(Toy, "client")
    port = lab.loop.listen(server, "toy", "127.0.0.1", 0)
    targets = [(socket.AF_INET, ("127.0.0.2", port)), (socket.AF_INET, ("127.0.0.1", port))]
    monkeypatch.setattr(streams, "numeric_targets", lambda host, number: list(targets))
    conn = client.dial(Address("both", port), send=b"hello")
    lab.run_until(lambda: client.got(conn) == b"hello")


def test_a_dial_that_nobody_answers_ends_in_time(make_lab: LabMaker):
    """A listener with a full backlog drops the first packet, as a dead machine would."""
    lab = make_lab(connect_timeout_ms=150)
    client = lab.host(Toy)
    full = socket.socket()
    full.bind(("127.0.0.1", 0))
    full.listen(0)
    address = Address("127.0.0.1", full.getsockname()[1])
    try:
        for _ in range(4):
            client.dial(address)
        lab.run_until(lambda: "no connection within 150 ms" in client.reasons.values())
    finally:
        full.close()


def test_a_socket_connected_to_itself_is_refused():
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    try:
        sock.connect(sock.getsockname())
        assert streams._is_to_itself(sock)
    finally:
        sock.close()


def test_ipv6(lab: LoopLab):
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    server, client = lab.host(Echo, "server"), lab.host(Toy, "client")
    try:
        port = lab.loop.listen(server, "toy", "::1", 0)
    except CannotListen as error:
        pytest.skip(str(error))
    conn = client.dial(Address("::1", port), send=b"six")
    lab.run_until(lambda: client.got(conn) == b"six")
    assert server.opens[0].peer.host == "::1"
    assert str(conn.peer) == f"[::1]:{port}"


def test_ipv4_peers_of_a_listener_on_every_address_have_ipv4_addresses(lab: LoopLab):
    node = lab.host(Toy)
    try:
        port = lab.loop.listen(node, "toy", "::", 0)
    except CannotListen as error:
        pytest.skip(str(error))
    with connect(port):
        lab.run_until(lambda: node.opens)
    assert node.opens[0].peer.host == "127.0.0.1"
    assert node.opens[0].local.host == "127.0.0.1"


# --- listening


def test_a_taken_port_names_the_process(lab: LoopLab):
    node = lab.host(Toy)
    port = lab.loop.listen(node, "toy", "127.0.0.1", 0)
    with pytest.raises(PortTaken) as caught:
        lab.loop.listen(node, "toy", "127.0.0.1", port)
    assert caught.value.address == Address("127.0.0.1", port)
    if os.path.isdir("/proc/self/fd"):
        assert f"pid {os.getpid()} (" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("host", ["203.0.113.77", "no such host", "999.1.1.1"])
def test_an_address_that_is_not_ours_is_one_line(host: str):
    with pytest.raises(CannotListen) as caught:
        bind(host, 0, 1)
    assert host in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_port_can_be_used_again_at_once(lab: LoopLab):
    node = lab.host(Toy)
    port = lab.loop.listen(node, "toy", "127.0.0.1", 0)
    with connect(port) as sock:
        lab.run_until(lambda: node.opens)
        lab.loop.close()
        assert sock.recv(10) == b""
    bind("127.0.0.1", port, 1).close()


# --- life


def test_run_ends_when_every_node_has_stopped_and_their_last_bytes_are_sent(make_lab: LabMaker, tmp_path: Any):
    body = pattern(8 << 20)

    class Server(Toy):
        def stop(self) -> None:
            for conn in self.opens:
                self.outbox.send(conn, body)
            self.stopped = True

    lab = make_lab()
    server, other = lab.host(Server, "server"), lab.host(Toy, "other")
    port = lab.loop.listen(server, "toy", "127.0.0.1", 0)
    with connect(port) as sock:
        lab.run_until(lambda: server.opens)
        thread, parts = reader(sock)
        lab.loop.call_soon_threadsafe(lab.loop.stop)
        assert lab.loop.run()
        lab.loop.close()
        thread.join(20)
    assert other.stopped
    assert b"".join(parts) == body


def test_run_gives_up_after_the_grace(lab: LoopLab):
    class Stubborn(Toy):
        def stop(self) -> None:
            pass

    lab.host(Stubborn)
    lab.loop.call_soon_threadsafe(lambda: lab.loop.stop(grace_ms=50))
    assert not lab.loop.run()


def test_an_exception_leaves_run_and_names_its_node(lab: LoopLab):
    class Broken(Toy):
        def on_received(self, conn: Connection, data: bytes) -> None:
            raise KeyError("invariant")

    lab.host(Toy, "fine")
    node = lab.host(Broken, "broken")
    port = lab.loop.listen(node, "toy", "127.0.0.1", 0)
    with connect(port) as sock:
        sock.sendall(b"x")
        with pytest.raises(KeyError, match="invariant"):
            lab.loop.run()
    assert lab.loop.failed is node


def test_start_is_a_turn_of_its_own(make_lab: LabMaker):
    class Greeter(Toy):
        def start(self) -> None:
            self.dial(address, send=b"started")

    lab = make_lab()
    server = lab.host(Toy, "server")
    address = Address("127.0.0.1", lab.loop.listen(server, "toy", "127.0.0.1", 0))
    lab.host(Greeter, "greeter")
    lab.loop.start()
    assert server.turns == 1
    lab.run_until(lambda: server.opens and server.got(server.opens[0]) == b"started")


def test_ports_of_two_nodes_share_clock_and_disk_thread(tmp_path: Any):
    loop = Loop(limits=NetworkLimits())
    try:
        first: Ports = loop.ports(str(tmp_path / "a"))
        second: Ports = loop.ports(str(tmp_path / "b"))
        assert first.clock is second.clock
        assert first.disk is not second.disk
        assert first.entropy.getrandbits(64) != second.entropy.getrandbits(64)
    finally:
        loop.close()


# --- the poller


class FrameToy(Toy):
    """Counts each byte as a frame."""

    def received(self, conn: Connection, data: bytes) -> None:
        super().received(conn, data)
        conn.frame_count = len(data)


def test_the_poller_learns_how_many_frames_each_turn_had(lab: LoopLab, monkeypatch: pytest.MonkeyPatch):
    counts: list[int] = []
    node, poll = lab.host(FrameToy), lab.loop.poller.poll

    def record(timeout_ms: int | None, turn_ns: int, frame_count: int) -> list[tuple[int, int]]:
        counts.append(frame_count)
        return poll(timeout_ms, turn_ns, frame_count)

    monkeypatch.setattr(lab.loop.poller, "poll", record)
    with connect(lab.loop.listen(node, "toy", "127.0.0.1", 0)) as one:
        one.sendall(b"abc")
        lab.run_until(lambda: node.data)
        lab.loop.turn()
        lab.loop.turn()
    assert [count for count in counts if count] == [3]
    assert counts[-1] == 0


# --- the other poller


def test_the_fallback_poller_does_the_same(tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    """macOS and Windows use this poller."""
    monkeypatch.setattr("rmqkit.shell.loop.make_poller", lambda wakeup, spin_polls: SelectorPoller(wakeup))
    lab = LoopLab(tmp_path, NetworkLimits(outbox_high_water=200_000, outbox_low_water=100_000))
    try:
        server, client = lab.host(Echo, "server"), lab.host(Toy, "client")
        port = lab.loop.listen(server, "toy", "127.0.0.1", 0)
        body = pattern(9 << 20)
        conn = client.dial(Address("127.0.0.1", port), send=body)
        lab.run_until(lambda: len(client.got(conn)) == len(body))
        assert client.got(conn) == body
        client.outbox.close(conn, "done")
        lab.run_until(lambda: server.reasons and lab.loop.stream_count == 0)
    finally:
        lab.loop.close()


def test_the_fallback_poller_takes_an_interest_in_nothing():
    left, right = socket.socketpair()
    wakeup = Wakeup()
    poller = SelectorPoller(wakeup)
    try:
        fd = left.fileno()
        poller.add(fd, 0)
        right.send(b"x")
        assert poller.poll(0) == []
        poller.change(fd, READ | WRITE)
        assert poller.poll(0) == [(fd, READ | WRITE)]
        poller.change(fd, 0)
        assert poller.poll(0) == []
        poller.remove(fd)
    finally:
        poller.close()
        wakeup.close()
        left.close()
        right.close()


def test_reserved_ports_cannot_be_taken_before_they_are_bound():
    port = reserve("127.0.0.1", (-2, 1), 100)
    try:
        for each in (port - 2, port, port + 1):
            with pytest.raises(OSError, match="in use"):
                socket.create_server(("127.0.0.1", each))
            with bind("127.0.0.1", each, 1) as sock:
                assert sock.getsockname()[1] == each
                socket.create_connection(("127.0.0.1", each)).close()
    finally:
        release_reserved()


def test_reserved_ports_that_nothing_claims_are_released():
    port = reserve("127.0.0.1", (-2, 1), 100)
    release_reserved()
    with socket.create_server(("127.0.0.1", port)):
        pass
