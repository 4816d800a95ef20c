"""TLS over real sockets: modes, clients that do not finish, reload, isolation by a drill."""

import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from rmqkit.runtime.connection import Address
from rmqkit.shell.faults.isolation import Isolation, IsolationRule, Match
from rmqkit.tls.contexts import client_context
from rmqkit.tls.node_tls import NodeTls
from tests.contract.toys import Echo, Toy
from tests.helpers.certificates import Certificates
from tests.shell.conftest import DEADLINE_S, LoopLab

CLIENT_HELLO_START = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


class Rig:
    """An echo node with TLS, and raw clients in the test's thread."""

    def __init__(self, lab: LoopLab, tls: NodeTls, stack: ExitStack, context: ssl.SSLContext) -> None:
        self.lab = lab
        self.tls = tls
        self.node = lab.host(Echo, tls=tls)
        self.port = lab.loop.listen(self.node, "toy", "127.0.0.1", 0)
        self._stack = stack
        self.context = context

    def connect(self) -> socket.socket:
        sock = self._stack.enter_context(socket.create_connection(("127.0.0.1", self.port)))
        sock.setblocking(False)
        return sock

    def handshake(self) -> ssl.SSLSocket:
        sock = self.context.wrap_socket(self.connect(), server_hostname="localhost", do_handshake_on_connect=False)
        self._stack.enter_context(sock)
        self.until(lambda: _done(sock.do_handshake))
        return sock

    def until(self, reached: Callable[[], Any]) -> Any:
        until_s = time.monotonic() + DEADLINE_S
        while not (found := reached()):
            assert time.monotonic() < until_s, "not within the deadline"
            self.lab.loop.turn(5)
        return found

    def echo(self, sock: socket.socket, data: bytes = b"ping") -> None:
        sock.send(data)
        got = bytearray()

        def received() -> bool:
            with suppress(BlockingIOError, ssl.SSLWantReadError):
                got.extend(sock.recv(65_536))
            return bytes(got) == data

        self.until(received)

    def is_closed(self, sock: socket.socket) -> bool:
        with suppress(BlockingIOError, ssl.SSLWantReadError):
            try:
                return sock.recv(65_536) == b""
            except (ConnectionError, ssl.SSLError):
                return True
        return False

    def failures(self) -> list[str]:
        return [fields["reason"] for fields in self.lab.log.of("tls handshake failed")]


def _done(step: Callable[[], Any]) -> bool:
    with suppress(ssl.SSLWantReadError):
        step()
        return True
    return False


Make = Callable[..., Rig]


@pytest.fixture
def make(lab: LoopLab, certificates: Certificates) -> Iterator[Make]:
    with ExitStack() as stack:
        yield lambda **given: Rig(lab, certificates.node(**given), stack, client_context(certificates.client()))


def test_an_enforcing_listener_serves_tls_and_nothing_else(make: Make):
    rig = make()
    rig.echo(rig.handshake())
    plain = rig.connect()
    plain.send(b"\x00\x00\x00\x40 a frame")
    rig.until(lambda: rig.is_closed(plain))
    assert len(rig.node.opens) == 1, "the node knows the connection with TLS only"
    assert rig.failures() == ["TLS: the peer's bytes are not TLS"]
    assert len(rig.tls.handshakes) == 0


def test_a_permissive_listener_decides_by_the_first_byte(make: Make):
    rig = make(mode="permissive")
    silent, plain = rig.connect(), rig.connect()
    rig.echo(plain, b"\x00\x00\x00\x40 a frame")
    rig.echo(rig.handshake())
    rig.echo(plain)
    assert len(rig.node.opens) == 2
    silent.close()
    rig.until(lambda: rig.lab.loop.stream_count == 2)
    assert len(rig.node.reasons) == 0, "the node never knew of the silent peer"


def test_nothing_is_executed_before_the_handshake_is_over(make: Make):
    rig = make()
    sock = rig.connect()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = rig.context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    assert not _done(client.do_handshake)
    sock.send(outgoing.read() + b"\x00\x00\x00\x40 a frame in plain text")
    rig.until(lambda: rig.failures())
    rig.until(lambda: rig.is_closed(sock))
    assert rig.node.opens == []
    assert rig.node.data == {}


def test_a_client_that_never_finishes_is_closed_at_the_limit(make: Make):
    rig = make(handshake_ms=150)
    begun, silent = rig.connect(), rig.connect()
    begun.send(CLIENT_HELLO_START)
    rig.until(lambda: rig.is_closed(begun) and rig.is_closed(silent))
    assert rig.lab.log.of("tls handshake failed")[0]["reason"] == "TLS: the handshake took more than 150 ms"
    assert rig.lab.loop.by_source == {}
    assert len(rig.tls.handshakes) == 0
    rig.echo(rig.handshake())


def test_a_silent_plain_client_of_a_permissive_listener_is_not_hurried(make: Make):
    rig = make(mode="permissive", handshake_ms=20)
    silent, begun = rig.connect(), rig.connect()
    begun.send(CLIENT_HELLO_START)
    rig.until(lambda: rig.is_closed(begun))
    assert not rig.is_closed(silent)
    rig.echo(silent)


def test_one_half_open_client_too_many_ends_the_oldest(make: Make):
    rig = make(handshakes_max=3)
    halves = [rig.connect() for _ in range(5)]
    rig.until(lambda: rig.is_closed(halves[0]) and rig.is_closed(halves[1]))
    assert not any(rig.is_closed(sock) for sock in halves[2:])
    rig.echo(rig.handshake())


def test_a_client_gets_through_beside_half_open_ones(make: Make):
    rig = make()
    rig.lab.loop.limits = type(rig.lab.loop.limits)(connections_per_ip_max=10_000)
    halves = [rig.connect() for _ in range(200)]
    for sock in halves:
        sock.send(CLIENT_HELLO_START)
    sock = rig.handshake()
    for _ in range(5):
        rig.echo(sock)
    assert len(rig.node.opens) == 1


def test_a_dial_fails_with_the_reason_and_never_opens(lab: LoopLab, make: Make, certificates: Certificates):
    rig = make()
    for name, settings in (
        ("stranger", {"trust_cert_path": Certificates(certificates.folder / "foreign", "another").trust}),
        ("plain", {"use_tls": False}),
    ):
        tls = NodeTls(certificates.server(mode="disabled"), certificates.client(**settings))
        client = lab.host(Toy, name, tls if settings.get("use_tls", True) else None)
        conn = client.dial(Address("127.0.0.1", rig.port), send=b"\x00\x00\x00\x40 a request")
        lab.run_until(lambda client=client: client.reasons)
        if name == "stranger":
            assert client.opens == []
            assert "certificate is not accepted" in client.reasons[conn]
        assert rig.node.opens == []


def test_a_plain_server_is_never_spoken_to_in_plain_text(lab: LoopLab, certificates: Certificates):
    server = lab.host(Echo, "server")
    port = lab.loop.listen(server, "toy", "127.0.0.1", 0)
    client = lab.host(Toy, "client", certificates.node())
    conn = client.dial(Address("127.0.0.1", port), send=b"a secret")
    lab.run_until(lambda: client.reasons)
    assert client.reasons[conn].startswith("TLS: ")
    assert b"secret" not in b"".join(map(bytes, server.data.values()))


def test_a_reload_loses_no_connection(lab: LoopLab, tmp_path: Path):
    own = Certificates(tmp_path / "own")
    tls = own.node()
    with ExitStack() as stack:
        rig = Rig(lab, tls, stack, client_context(own.client()))
        before = rig.handshake()
        first = before.getpeercert(binary_form=True)
        own.pair("server")
        tls.poll(lab.log)
        tls.poll(lab.log)
        after = rig.handshake()
        assert after.getpeercert(binary_form=True) != first
        rig.echo(before)
        rig.echo(after)
        (own.folder / "server.key").unlink()
        tls.poll(lab.log)
        tls.poll(lab.log)
        rig.echo(rig.handshake())
    assert len(lab.log.of("tls certificate reloaded")) == 1
    assert len(lab.log.of("tls certificate not reloaded")) == 1


def test_the_loop_polls_for_changed_files(lab: LoopLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rmqkit.shell.loop.TLS_POLL_MS", 10)
    own = Certificates(tmp_path / "own")
    lab.host(Toy, tls=own.node())
    own.pair("server")
    lab.run_until(lambda: lab.log.of("tls certificate reloaded"))


def test_an_isolation_holds_encrypted_bytes_and_loses_none(make: Make, lab: LoopLab):
    rig = make()
    sock, half = rig.handshake(), rig.connect()
    rig.echo(sock)
    half.send(CLIENT_HELLO_START)
    isolation = Isolation(lab.loop)
    isolation.begin("cut", rig.node, (IsolationRule(Match(tag="toy")),))
    sock.send(b"during the cut")
    accepted = rig.node.opens[0]
    rig.node.outbox.send(accepted, b"held")
    for _ in range(20):
        lab.loop.turn(2)
    assert rig.node.got(accepted) == b"ping"
    isolation.heal("cut")
    got = bytearray()

    def received() -> bool:
        with suppress(ssl.SSLWantReadError):
            got.extend(sock.recv(100))
        return got == b"heldduring the cut"

    rig.until(received)


@pytest.mark.parametrize("closes", [False, True])
def test_a_node_that_stops_reading_in_opened_gets_early_bytes_later(lab: LoopLab, certificates: Certificates, closes: bool):
    """The client's first request may come in the segment that ends its handshake."""

    class Waiting(Toy):
        def opened(self, conn: Any) -> None:
            super().opened(conn)
            self.outbox.read(conn, False)

    server = lab.host(Waiting, "server", certificates.node())
    client = lab.host(Toy, "client", certificates.node())
    conn = client.dial(Address("127.0.0.1", lab.loop.listen(server, "toy", "127.0.0.1", 0)), send=b"early")
    if closes:
        client.outbox.close(conn, "done")
    lab.run_until(lambda: server.opens)
    for _ in range(10):
        lab.loop.turn(2)
    assert server.data.get(server.opens[0], b"") == b""
    server.outbox.read(server.opens[0], True)
    lab.run_until(lambda: server.got(server.opens[0]) == b"early")
    if closes:
        lab.run_until(lambda: server.reasons)
        assert server.reasons[server.opens[0]] == "closed by peer"
