"""The transport alone: bytes in, bytes out, no socket."""

import socket
import ssl
import warnings
from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqkit.tls import transport
from rmqkit.tls.contexts import client_context, server_context
from rmqkit.tls.transport import MOVES, TlsError, TlsState, TlsTransport
from tests.helpers.certificates import Certificates
from tests.helpers.flows import is_drawn

HELLO = b"hello from the client"


@pytest.fixture(scope="module")
def contexts(certificates: Certificates) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    return server_context(certificates.server()), client_context(certificates.client())


Contexts = tuple[ssl.SSLContext, ssl.SSLContext]


def pair(contexts: Contexts, name: str = "localhost") -> tuple[TlsTransport, TlsTransport]:
    """Return a server and a client that has sent its first message."""
    server, client = TlsTransport(contexts[0]), TlsTransport(contexts[1], name)
    client.begin()
    return server, client


def exchange(server: TlsTransport, client: TlsTransport) -> None:
    """Pass bytes both ways until neither side has any."""
    while server.has_output or client.has_output:
        if data := client.take():
            server.feed(data)
        if data := server.take():
            client.feed(data)


def connect(contexts: Contexts, name: str = "localhost") -> tuple[TlsTransport, TlsTransport]:
    server, client = pair(contexts, name)
    exchange(server, client)
    return server, client


def single_bytes(data: bytes) -> Iterator[bytes]:
    return (data[at : at + 1] for at in range(len(data)))


def test_both_sides_open_and_talk(contexts: Contexts):
    server, client = connect(contexts)
    assert server.is_open
    assert client.is_open
    client.encrypt([b"a", bytearray(b"b"), memoryview(b"xcx")[1:2]])
    assert server.feed(client.take()) == b"abc"
    server.encrypt([b"answer"])
    assert client.feed(server.take()) == b"answer"
    server.validate()
    client.validate()


def test_the_table_is_drawn_in_the_head_of_the_module():
    assert is_drawn(MOVES, transport)


def test_handshake_and_records_may_be_cut_at_every_byte(contexts: Contexts):
    server, client = pair(contexts)
    got = b""
    sent = False
    while client.has_output or server.has_output:
        for piece in single_bytes(client.take()):
            got += server.feed(piece)
        for piece in single_bytes(server.take()):
            assert client.feed(piece) == b""
        if client.is_open and not sent:
            client.encrypt([HELLO * 1000])
            sent = True
    assert got == HELLO * 1000
    assert server.is_open


@pytest.mark.parametrize("cut", range(0, 800, 7))
def test_a_handshake_cut_once_anywhere_ends(contexts: Contexts, cut: int):
    server, client = pair(contexts)
    while client.has_output or server.has_output:
        for source, target in ((client, server), (server, client)):
            data = source.take()
            target.feed(data[:cut])
            target.feed(data[cut:])
    assert server.is_open
    assert client.is_open


def test_one_feed_returns_what_it_got_and_one_record_more(contexts: Contexts):
    server, client = connect(contexts)
    client.encrypt([b"x" * 1_000_000])
    data = client.take()
    sizes = [len(server.feed(data[at : at + 49_152])) for at in range(0, len(data), 49_152)]
    assert sum(sizes) == 1_000_000
    assert max(sizes) <= 65_536


def test_an_end_is_seen_and_nothing_follows(contexts: Contexts):
    server, client = connect(contexts)
    client.encrypt([b"last"])
    client.close()
    assert server.feed(client.take()) == b"last"
    assert server.state is TlsState.ENDED
    assert server.feed(b"anything") == b""
    server.encrypt([b"too late"])
    assert server.take() == b""


def test_plain_text_after_the_handshake_fails_with_an_alert(contexts: Contexts):
    server, client = connect(contexts)
    with pytest.raises(TlsError, match=r"not TLS|version"):
        server.feed(b"\x00\x00\x00\x40 a frame in plain text")
    assert server.state is TlsState.FAILED
    with pytest.raises(TlsError):
        client.feed(server.take())


def test_plain_text_instead_of_a_handshake_fails(contexts: Contexts):
    server, _ = pair(contexts)
    with pytest.raises(TlsError, match="the peer's bytes are not TLS"):
        server.feed(b"GET / HTTP/1.1\r\n\r\n")


def test_a_client_of_plain_text_servers_does_not_open(contexts: Contexts):
    _, client = pair(contexts)
    with pytest.raises(TlsError, match="not TLS"):
        client.feed(b"\x00\x00\x00\x40\x00\x00\x00\x10{}" * 8)
    assert not client.is_open


def test_a_changed_byte_ends_the_connection(contexts: Contexts):
    server, client = connect(contexts)
    client.encrypt([HELLO])
    data = bytearray(client.take())
    data[-1] ^= 1
    with pytest.raises(TlsError):
        server.feed(bytes(data))


def test_a_repeated_record_ends_the_connection(contexts: Contexts):
    server, client = connect(contexts)
    client.encrypt([HELLO])
    data = client.take()
    assert server.feed(data) == HELLO
    with pytest.raises(TlsError):
        server.feed(data)


@pytest.mark.parametrize(
    ("days", "reason"), [((-30, -1), "certificate has expired"), ((1, 30), "certificate is not yet valid")]
)
def test_a_certificate_at_the_wrong_time_is_refused(own_certificates: Certificates, days: tuple[int, int], reason: str):
    made = own_certificates.pair("old", days=days)
    contexts = server_context(own_certificates.server(made)), client_context(own_certificates.client())
    server, client = pair(contexts)
    server.feed(client.take())
    with pytest.raises(TlsError, match=reason):
        client.feed(server.take())
    with pytest.raises(TlsError):
        server.feed(client.take())


@pytest.mark.parametrize("name", ["example.org", "127.0.0.9", "localhost.example"])
def test_a_certificate_of_another_host_is_refused(contexts: Contexts, name: str):
    with pytest.raises(TlsError, match="not accepted"):
        connect(contexts, name)


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_names_and_addresses_are_checked_against_the_certificate(contexts: Contexts, name: str):
    assert connect(contexts, name)[1].is_open


def test_a_foreign_authority_is_refused_unless_auth_server_is_off(
    own_certificates: Certificates, certificates: Certificates
):
    server = server_context(own_certificates.server())
    foreign = Certificates(own_certificates.folder / "foreign", "another authority")
    with pytest.raises(TlsError, match="not accepted"):
        connect((server, client_context(foreign.client())))
    assert connect((server, client_context(foreign.client(auth_server=False))), "wrong.example")[1].is_open


def test_a_required_client_certificate(own_certificates: Certificates):
    strict = server_context(own_certificates.server(need_client_auth="require", trust_cert_path=own_certificates.trust))
    with pytest.raises(TlsError, match="the peer has no client certificate"):
        connect((strict, client_context(own_certificates.client())))
    foreign = Certificates(own_certificates.folder / "foreign", "another authority").pair("client")
    with pytest.raises(TlsError, match="not accepted"):
        connect((strict, client_context(own_certificates.client(cert_path=foreign.cert, key_path=foreign.key))))
    own = own_certificates.pair("client")
    server, client = connect((strict, client_context(own_certificates.client(cert_path=own.cert, key_path=own.key))))
    assert server.is_open
    assert client.is_open


def test_renegotiation_is_refused(own_certificates: Certificates):
    """Python's `ssl` cannot ask for one, so the option is checked, and TLS 1.3 has none."""
    context = server_context(own_certificates.server())
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.num_tickets == 0


def test_old_versions_are_refused(contexts: Contexts):
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname = False
    old.verify_mode = ssl.CERT_NONE
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version = ssl.TLSVersion.TLSv1
        old.maximum_version = ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(TlsError, match="version"):
        connect((contexts[0], old))


@settings(max_examples=200, deadline=None)
@given(data=st.binary(max_size=2000), cut=st.integers(0, 2000))
def test_garbage_never_opens_and_fails_in_one_way(data: bytes, cut: int):
    server = TlsTransport(FUZZED[0])
    with suppress(TlsError):
        assert server.feed(data[:cut]) == b""
        assert server.feed(data[cut:]) == b""
    assert server.state in (TlsState.HANDSHAKE, TlsState.FAILED)


@settings(max_examples=300, deadline=None)
@given(
    changes=st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 255)), max_size=4),
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=8),
)
def test_damaged_handshakes_and_records_never_deliver_wrong_bytes(changes: list[tuple[int, int]], sizes: list[int]):
    """Bytes of the client's stream are replaced and the stream is cut: the server gets a prefix."""
    server, client = TlsTransport(FUZZED[0]), TlsTransport(FUZZED[1], "localhost")
    client.begin()
    replaced = dict(changes)
    position, got, is_sent, turn = 0, b"", False, 0
    try:
        while client.has_output or server.has_output:
            data = bytearray(client.take())
            for at in range(len(data)):
                data[at] = replaced.get(position + at, data[at])
            position += len(data)
            while data:
                size = sizes[turn % len(sizes)]
                turn += 1
                got += server.feed(bytes(data[:size]))
                del data[:size]
            client.feed(server.take())
            if client.is_open and not is_sent:
                is_sent = True
                client.encrypt([HELLO * 50])
                client.encrypt([HELLO * 50])
    except TlsError:
        pass
    assert (HELLO * 100).startswith(got)
    if not changes:
        assert got == HELLO * 100


@pytest.fixture(scope="module", autouse=True)
def fuzzed(contexts: Contexts) -> None:
    FUZZED[:] = contexts


#: the contexts of the property tests, which take no fixtures
FUZZED: list[ssl.SSLContext] = []


def test_it_works_with_a_plain_ssl_socket(contexts: Contexts):
    """The other end is OpenSSL behind a real socket, as in Apache's peers."""
    ours, theirs = socket.socketpair()
    server = TlsTransport(contexts[0])
    ours.setblocking(False)
    theirs.setblocking(False)
    peer = contexts[1].wrap_socket(theirs, server_hostname="localhost", do_handshake_on_connect=False)
    with ours, peer:
        while not server.is_open:
            with suppress(ssl.SSLWantReadError):
                peer.do_handshake()
            with suppress(BlockingIOError):
                server.feed(ours.recv(4096))
            ours.sendall(server.take())
        peer.do_handshake()
        peer.sendall(HELLO)
        assert server.feed(ours.recv(4096)) == HELLO
