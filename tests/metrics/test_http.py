"""The HTTP server: methods, paths, pipelining, keep-alive, and the behaviour at each limit."""

import pytest

from rmqkit.config import from_values
from rmqkit.nameserver.node import NameServer
from tests.metrics.browser import Driver, parsed

HEALTH = b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n"


def served(**settings: object) -> Driver:
    values = {"metricsExporterType": "PROM", "kvConfigPath": "/ns/kv", "configStorePath": "/ns/conf", **settings}
    return Driver(lambda ports: NameServer("ns-0", ports, from_values("nameserver", values)))  # type: ignore[arg-type]


def test_get_and_head():
    peer = served().connect()
    code, fields, body = peer.get()
    assert (code, fields["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert int(fields["content-length"]) == len(body) > 100
    code, fields, nothing = peer.get(method="HEAD")
    assert (code, nothing) == (200, b"")
    assert abs(int(fields["content-length"]) - len(body)) < 10
    assert not peer.closed


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/", 404),
        ("GET", "/metrics/", 404),
        ("GET", "/metrics/../etc/passwd", 404),
        ("DELETE", "/nowhere", 404),
        ("POST", "/metrics", 405),
        ("PUT", "/-/healthy", 405),
        ("GET", "/metrics?name[]=a", 200),
        ("GET", "/-/healthy", 200),
    ],
)
def test_paths_and_methods(method: str, path: str, code: int):
    peer = served().connect()
    answer, fields, body = peer.get(path, method)
    assert answer == code
    assert len(body) == int(fields["content-length"])
    assert fields.get("allow") == ("GET, HEAD" if code == 405 else None)
    assert peer.get("/-/healthy")[0] == 200, "the connection lives on"


def test_requests_sent_ahead_are_answered_in_order():
    peer = served().connect()
    text = peer.send(HEALTH + b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" + b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n" + HEALTH)
    assert text.count(b"HTTP/1.1 ") == 4
    assert [each[:3] for each in text.split(b"HTTP/1.1 ")[1:]] == [b"200", b"200", b"404", b"200"]


def test_byte_by_byte():
    peer = served().connect()
    for at in range(len(HEALTH) - 1):
        assert peer.send(HEALTH[at : at + 1]) == b""
    assert parsed(peer.send(HEALTH[-1:]))[0] == 200


def test_keep_alive_and_close():
    driver = served()
    peer = driver.connect()
    assert not peer.closed
    peer.get(more="Connection: close\r\n")
    assert peer.closed
    old = driver.connect()
    assert parsed(old.send(b"GET /-/healthy HTTP/1.0\r\n\r\n"))[0] == 200
    assert old.closed


def test_a_body_is_read_and_ignored_up_to_a_limit():
    peer = served().connect()
    assert peer.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n") == b""
    assert parsed(peer.send(b"hello"))[0] == 200
    assert (
        parsed(peer.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999\r\n\r\n" + b"x" * 70_000))[0] == 413
    )
    assert peer.closed


def test_a_peer_that_waits_for_100():
    peer = served().connect()
    head = b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
    assert peer.send(head).startswith(b"HTTP/1.1 100 ")
    assert parsed(peer.send(b"ab"))[0] == 405


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x00\x01\x02\r\n\r\n", 400),
        (b"garbage\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\n\r\n", 400),  # without Host
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-A: b\r\n" * 3000, 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    ],
)
def test_garbage_closes(data: bytes, code: int):
    driver = served()
    peer = driver.connect()
    assert parsed(peer.send(data))[0] == code
    assert peer.closed
    assert peer.send(HEALTH) == b"", "what comes after is not heard"
    assert driver.connect().get("/-/healthy")[0] == 200


def test_a_slow_request_is_ended():
    driver = served(httpRequestMillis=500)
    peer = driver.connect()
    peer.send(b"GET /metr")
    driver.advance(499)
    assert not peer.closed
    driver.advance(1)
    assert parsed(peer.take())[0] == 408
    assert peer.closed


def test_silence_between_requests_is_no_slow_request():
    driver = served(httpRequestMillis=500)
    peer = driver.connect()
    driver.advance(10_000)
    assert peer.get("/-/healthy")[0] == 200
    driver.advance(10_000)
    assert peer.get("/-/healthy")[0] == 200


def test_more_connections_than_allowed_push_out_the_idle():
    driver = served(httpConnectionsMax=2)
    first, second = driver.connect(), driver.connect()
    driver.advance(5)
    first.get("/-/healthy")
    third = driver.connect()
    assert second.closed
    assert not first.closed
    assert third.get("/-/healthy")[0] == 200


def test_when_none_is_idle_the_newcomer_is_refused():
    driver = served(httpConnectionsMax=2)
    busy = [driver.connect(), driver.connect()]
    for peer in busy:
        peer.send(b"GET /m")
    late = driver.connect()
    assert parsed(late.take())[0] == 503
    assert late.closed
    assert [peer.closed for peer in busy] == ["", ""]


def test_answers_that_nobody_reads_end_the_connection(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rmqkit.metrics.http.UNREAD_SIZE_MAX", 200_000)
    driver = served()
    peer = driver.connect()
    driver.unread.add(peer.conn.id)
    for _ in range(100):
        if peer.closed:
            break
        peer.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 20)
    assert "not read" in peer.closed
    assert peer.conn.out_size < 210_000


def test_a_peer_that_is_gone_takes_its_request_with_it():
    driver = served()
    peer = driver.connect()
    peer.driver.node.received(peer.conn, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    driver.node.closed(peer.conn, "closed by peer")
    driver.turn()
    assert peer.text == b""
    assert driver.connect().get()[0] == 200


def test_thousands_of_requests_sent_ahead_are_answered_one_after_the_other():
    """The node answers each request while it reads the data; this must not recurse."""
    peer = served().connect()
    assert peer.send(HEALTH * 1500).count(b"HTTP/1.1 200 OK") == 1500
