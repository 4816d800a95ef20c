"""Connections of a worker process: reused, checked, closed."""

import os
import socket
from struct import pack

import pytest

from rmqkit.errors import PeerUnreachable, RemoteProtocolError
from rmqkit.runtime.connection import Address
from rmqkit.spark import link
from rmqkit.spark.link import Link, give, take
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.remoting.frames import CODEC_ROCKETMQ, frame
from rmqkit.wire.remoting.headers import encode_request, encode_response
from rmqkit.wire.schemas.nameserver import GetRouteInfoRequest
from tests.spark.stand_in import close_idle_links

ASKED = GetRouteInfoRequest(topic="T")


@pytest.fixture(autouse=True)
def no_idle_links():
    yield
    close_idle_links()


@pytest.fixture
def server():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)
        yield listening


@pytest.fixture
def pair(server):
    made = Link(Address(*server.getsockname()), 5)
    peer, _ = server.accept()
    with peer:
        yield made, peer
        made.close()


def test_an_answer_is_a_place_in_the_buffer(pair):
    made, peer = pair
    made.send(b"", 2)
    one = frame(encode_response(0, 1, {"a": "b"}), b"body one")
    two = frame(encode_response(17, 2, None, "no such"), b"")
    peer.sendall(one + two[:5])
    first = made.receive()
    assert (first.opaque, first.code, first.fields) == (1, 0, {"a": "b"})
    assert bytes(made.buffer[first.begin : first.end]) == b"body one"
    peer.sendall(two[5:])
    second = made.receive()
    assert (second.opaque, second.code, second.remark, made.waiting) == (2, 17, "no such", 0)
    assert bytes(made.buffer[first.begin : first.end]) == b"body one"


def test_a_large_answer_after_others_were_forgotten(pair):
    made, peer = pair
    made.send(b"", 3)
    peer.sendall(frame(encode_response(0, 1), b"x" * 1000) + frame(encode_response(0, 2), b"y" * 1000))
    made.receive()
    made.forget()
    answer = made.receive()
    assert bytes(made.buffer[answer.begin : answer.end]) == b"y" * 1000
    peer.setblocking(False)
    body, sent = frame(encode_response(0, 3), bytes(range(256)) * 20_000), 0
    while sent < len(body):
        try:
            sent += peer.send(body[sent : sent + 100_000])
        except BlockingIOError:
            made._read()
    answer = made.receive()
    assert bytes(made.buffer[answer.begin : answer.end]) == bytes(range(256)) * 20_000


def test_notices_are_passed_over_and_binary_answers_are_read(pair):
    made, peer = pair
    made.send(b"", 1)
    notice = frame(encode_request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 9))
    peer.sendall(notice + frame(encode_response(0, 1, {"k": "v"}, codec=CODEC_ROCKETMQ), b"b", CODEC_ROCKETMQ))
    answer = made.receive()
    assert (answer.opaque, answer.fields) == (1, {"k": "v"})


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (pack(">iI", 300 * 1024 * 1024, 10), RemoteProtocolError, "frame of 314572800 bytes"),
        (pack(">iI", 8, 100), RemoteProtocolError, "header of 100"),
        (frame(b"no header at all"), RemoteProtocolError, "not a remoting header"),
        (None, PeerUnreachable, "closed the connection"),
        (b"", PeerUnreachable, "no answer from 127.0.0.1:[0-9]+ within 0.05 s"),
    ],
)
def test_invalid_answers_are_errors(pair, data, error, words):
    made, peer = pair
    made.allow(0.05)
    if data is None:
        peer.close()
    else:
        peer.sendall(data)
    with pytest.raises(error, match=words):
        made.receive()


def test_a_closed_port_is_peer_unreachable():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = Address(*listening.getsockname())
    with pytest.raises(PeerUnreachable, match=f"cannot connect to {address}"):
        take(address, 1)


def test_a_connection_is_used_again_but_not_one_that_the_peer_closed(server):
    address = Address(*server.getsockname())
    first = take(address, 5)
    peer, _ = server.accept()
    give(first)
    assert take(address, 5) is first
    give(first)
    peer.close()
    second = take(address, 5)
    assert second is not first
    second.close()


def test_a_large_buffer_is_not_kept_with_its_connection(server, monkeypatch):
    address = Address(*server.getsockname())
    first = take(address, 5)
    peer, _ = server.accept()
    monkeypatch.setattr(link, "BUFFER_KEPT_MAX", 2 * link.BUFFER_SIZE)
    for size, kept in ((2, 2), (3, 1)):
        first.buffer = bytearray(size * link.BUFFER_SIZE)
        give(first)
        assert take(address, 5) is first
        assert len(first.buffer) == kept * link.BUFFER_SIZE
    first.send(b"", 1)
    peer.sendall(frame(encode_response(0, 1), b"body"))
    answer = first.receive()
    assert bytes(first.buffer[answer.begin : answer.end]) == b"body"
    peer.close()
    first.close()


def test_a_connection_that_waits_for_answers_is_not_kept(server):
    address = Address(*server.getsockname())
    first = take(address, 5)
    first.send(frame(encode_request(1, 1)), 1)
    give(first)
    second = take(address, 5)
    assert second is not first
    second.close()


def test_a_forked_process_starts_without(server, monkeypatch):
    address = Address(*server.getsockname())
    first = take(address, 5)
    give(first)
    monkeypatch.setattr(os, "getpid", lambda: first.pid + 1)
    second = take(address, 5)
    assert second is not first
    second.close()


def test_what_was_idle_for_long_is_closed(server, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as other:
        first, second = take(Address(*server.getsockname()), 5), take(Address(*other.getsockname()), 5)
        give(first)
        monkeypatch.setattr(link, "IDLE_S", -1.0)
        give(second)
        assert not first.is_usable
        assert second.is_usable


def test_an_answer_to_somebody_else_is_dropped(pair):
    made, peer = pair
    peer.sendall(frame(encode_response(0, 77), b"late") + frame(encode_response(0, 1), b"mine"))
    answer, body = made.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ASKED)
    assert (answer.opaque, body) == (1, b"mine")
