"""Peers that exhaust a broker process: sockets, half frames, unread answers, large declared sizes.

Each limit closes the connection of the peer that exceeds it and logs that once. A good client is
still served, and memory stays bounded. These tests do not measure time; `tests/bench/hostile.py`
does.
"""

import resource
import socket
import threading
from pathlib import Path

import pytest

from tests.helpers.script import write_command
from tests.hostile.good import pull_from
from tests.hostile.process import Good, Node, is_closed, poll, read_answer, running

HALF_A_FRAME = write_command(10, {"topic": "T"}, b"x" * 100)[:60]
MIB = 1024 * 1024


def room_for(wanted: int) -> int:
    """Return the number of sockets that this process and its child may open, at most `wanted`."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return wanted if soft == resource.RLIM_INFINITY else max(50, min(wanted, soft - 200, soft // 2 - 50))


def said(node: Node, reason: str) -> bool:
    return any(reason in str(line["fields"]) for line in node.lines() if line["level"] == "WARNING")


def test_a_thousand_slow_and_silent_sockets(tmp_path: Path):
    """Slow sockets are closed when a frame is overdue, silent ones when they are idle too long."""
    count = room_for(1000)
    with running(tmp_path, "frameCompleteMillis=1000") as node:
        good = Good(node)
        good.send()
        before = node.private_bytes()
        silent = [node.connect() for _ in range(count // 2)]
        slow = [node.connect() for _ in range(count - len(silent))]
        for sock in slow:
            sock.sendall(HALF_A_FRAME)
        for _ in range(200):
            good.send()
        assert node.private_bytes() - before < 40 * MIB
        for sock in slow:
            poll(lambda sock=sock: is_closed(sock), "the slow one is closed")
        assert not any(is_closed(sock) for sock in silent)
        assert said(node, "a frame was not complete after 1000 ms")
        good.send()


def test_a_byte_now_and_then_is_no_frame(tmp_path: Path):
    """A peer that keeps sending single bytes is closed once its frame takes too long."""
    with running(tmp_path, "frameCompleteMillis=300", "serverChannelMaxIdleTimeSeconds=1") as node:
        drip = node.connect()

        def dripped() -> bool:
            try:
                drip.sendall(b"\x00")
            except OSError:
                return True
            return is_closed(drip)

        poll(dripped, "the dripping one is closed")
        Good(node).send()


def test_silence_is_ended(tmp_path: Path):
    with running(tmp_path, "serverChannelMaxIdleTimeSeconds=1") as node:
        silent = node.connect()
        poll(lambda: is_closed(silent), "the silent one is closed")


def test_a_hundred_answers_left_unread(tmp_path: Path):
    """Above the high-water mark the broker stops reading from the peer, but loses no answer."""
    with running(tmp_path, "outboxHighWater=1048576", "outboxLowWater=262144") as node:
        good = Good(node)
        for _ in range(64):
            good.send(b"y" * 8000)
        before = node.private_bytes()
        lazy = node.connect(read_buffer=65_536)
        lazy.settimeout(5)
        for number in range(100):
            lazy.sendall(write_command(11, pull_from("0"), opaque=number))
        for _ in range(100):
            good.send()
        assert node.private_bytes() - before < 30 * MIB
        answers = [read_answer(lazy) for _ in range(100)]
        assert sorted(header["opaque"] for header, _ in answers) == list(range(100))
        assert all(header["code"] == 0 and len(body) > 100_000 for header, body in answers)


def test_answers_are_not_let_grow_within_a_turn(tmp_path: Path):
    """Thousands of small requests with large answers: above outboxMax the connection is closed."""
    with running(tmp_path, "outboxHighWater=262144", "outboxLowWater=65536", "outboxMax=2097152") as node:
        good = Good(node)
        good.send()
        before = node.private_bytes()
        for _ in range(3):
            greedy = node.connect(read_buffer=65_536)
            try:
                greedy.sendall(write_command(26, {}) * 600)
            except OSError:
                pass
            good.send()
            poll(lambda greedy=greedy: said(node, "the peer does not read"), "the greedy one is closed")
        assert node.private_bytes() - before < 30 * MIB
        good.send()


def test_unread_answers_of_all_together(tmp_path: Path):
    """No single peer exceeds the limit; the one with the most unread bytes is closed."""
    limits = ("outboxMax=16777216", "unsentBytesMax=20971520")
    with running(tmp_path, *limits) as node:
        good = Good(node)
        for _ in range(32):
            good.send(b"y" * 8000)
        lazy = [node.connect(read_buffer=65_536) for _ in range(4)]
        for sock in lazy:
            sock.sendall(write_command(11, pull_from("0")) * 40)
            good.send()
        poll(lambda: said(node, "all connections together hold more than 20971520 unsent bytes"), "one is closed")
        good.send()


def test_one_address_does_not_take_all_connections(tmp_path: Path):
    with running(tmp_path, "connectionsPerIpMax=20") as node:
        first = [node.connect("127.0.0.2") for _ in range(20)]
        late = node.connect("127.0.0.2")
        poll(lambda: is_closed(late), "the late one is closed")
        Good(node, "127.0.0.3").send()
        assert not any(is_closed(sock) for sock in first)
        assert any(line["fields"].get("address") == "127.0.0.2" for line in node.lines())
        first.pop().close()

        def is_taken() -> bool:
            sock = node.connect("127.0.0.2")
            try:
                sock.sendall(write_command(26, {}))
                return read_answer(sock)[0]["code"] == 0
            except OSError:
                return False

        poll(is_taken, "a place is free again")


def test_claims_of_size_reserve_nothing(tmp_path: Path):
    """A too large frame is refused by its first bytes; others cost only the bytes received."""
    with running(tmp_path) as node:
        good = Good(node)
        good.send()
        before = node.private_bytes()
        for claim in (16 * MIB + 1, 2**31 - 1):
            liar = node.connect()
            liar.sendall(claim.to_bytes(4, "big"))
            poll(lambda liar=liar: is_closed(liar), "the liar is closed")
        claiming = [node.connect() for _ in range(200)]
        for sock in claiming:
            sock.sendall((16 * MIB).to_bytes(4, "big") + b"\x00\x00\x00\x40" + b"{" * 100)
        good.send()
        assert node.private_bytes() - before < 20 * MIB
        assert not any(is_closed(sock) for sock in claiming)


def test_half_frames_of_all_together(tmp_path: Path):
    with running(tmp_path, "partialBytesMax=4194304") as node:
        good = Good(node)
        good.send()
        hoarders = [node.connect() for _ in range(6)]
        for sock in hoarders:
            send_what_goes(sock, (16 * MIB).to_bytes(4, "big") + b"\x00\x00\x00\x40" + b"{" * MIB)
        poll(lambda: said(node, "incomplete frames hold more than 4194304 bytes"), "one is closed")
        poll(lambda: sum(map(is_closed, hoarders)) >= 2, "two of six are one too many")
        good.send()


@pytest.mark.long
def test_thousands_of_scrapes_sent_ahead(tmp_path: Path):
    """With too many requests at once, the endpoint stops reading, answers them, and reads again."""
    with running(tmp_path, "metricsExporterType=PROM", "metricsPromExporterPort=0") as node:
        good = Good(node)
        with socket.create_connection(("127.0.0.1", node.ports["metrics_port"]), 20) as eager:
            request = b"GET /-/healthy HTTP/1.1\r\nHost: x\r\n\r\n"
            sender = threading.Thread(target=eager.sendall, args=(request * 4000,))
            sender.start()
            answers = b""
            while answers.count(b"HTTP/1.1 200 OK") < 4000:
                piece = eager.recv(65_536)
                assert piece
                answers += piece
            sender.join()
        good.send()


def send_what_goes(sock: socket.socket, data: bytes) -> None:
    try:
        sock.sendall(data)
    except OSError:
        pass
