"""The network contract (`rmqkit.runtime.node`, `rmqkit.runtime.connection`), real and simulated."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from rmqkit.runtime.connection import Address, Connection
from rmqkit.runtime.ports import Ports
from tests.contract.labs import NetLab
from tests.contract.toys import READ_SIZE_MAX, Echo, Scripted, Toy, chunked, pattern

MIB = 1 << 20
NetMaker = Callable[..., NetLab]


def scripted(**on: Callable[..., Any]) -> Callable[[str, Ports], Toy]:
    return lambda name, ports: Scripted(name, ports, on)


def dial(net: NetLab, name: str, address: Address, **how: Any) -> Connection:
    """Let a node dial in a turn of its own; return the connection."""
    made: list[Connection] = []
    net.call(name, lambda node: made.append(node.dial(address, **how)))
    net.run_until(lambda: made)
    return made[0]


def pair(
    net: NetLab, server: Callable[[str, Ports], Toy], client: Callable[[str, Ports], Toy]
) -> tuple[Any, Any, Connection]:
    """Return a server, a client, and the client's open connection."""
    far, near = net.add("server", server), net.add("client", client)
    conn = dial(net, "client", net.listen("server"))
    net.run_until(lambda: far.opens and near.opens)
    return far, near, conn


def test_both_sides_learn_of_a_connection(net: NetLab):
    server, client = net.add("server", Toy), net.add("client", Toy)
    address = net.listen("server", "remoting")
    conn = dial(net, "client", address, tag="to the server")
    assert not conn.is_open
    net.run_until(lambda: client.opens and server.opens)
    accepted = server.opens[0]
    assert client.opens == [conn]
    assert conn.dialled
    assert not accepted.dialled
    assert (conn.tag, accepted.tag) == ("to the server", "remoting")
    assert conn.peer == address == accepted.local
    assert conn.local == accepted.peer
    assert conn.id < 0 < accepted.id


def test_an_echo_comes_back(net: NetLab):
    _, client, conn = pair(net, Echo, Toy)
    net.call("client", lambda node: node.outbox.send(conn, b"hello ", b"", bytearray(b"wor"), memoryview(b"xldx")[1:3]))
    net.run_until(lambda: client.got(conn) == b"hello world")


def test_what_is_sent_while_dialling_goes_out_first(net: NetLab):
    def greet(node: Any, conn: Connection) -> None:
        node.outbox.send(conn, b"three")

    server, client = net.add("server", Toy), net.add("client", scripted(opened=greet))
    address = net.listen("server")

    def begin(node: Any) -> None:
        conn = node.dial(address, send=b"one ")
        node.outbox.send(conn, b"two ")

    net.call("client", begin)
    net.run_until(lambda: server.opens and server.got(server.opens[0]) == b"one two three")
    assert client.dials[0].out_size == 0


def test_a_refused_dial_is_closed_and_never_opened(net: NetLab):
    client = net.add("client", Toy)
    conn = dial(net, "client", net.nobody(), send=b"lost")
    net.run_until(lambda: client.reasons)
    assert "refused" in client.reasons[conn]
    assert client.opens == []
    assert (conn.out, conn.out_size, conn.is_open) == ([], 0, False)


def test_a_name_that_nobody_knows_is_closed(make_net: NetMaker):
    net = make_net(connect_timeout_ms=2000)
    client = net.add("client", Toy)
    conn = dial(net, "client", Address("no-such-host.invalid", 10911))
    net.run_until(lambda: client.reasons)
    assert client.reasons[conn]
    assert client.opens == []


def test_close_lets_what_was_sent_go_first(net: NetLab):
    body = pattern(5 * MIB)

    def answer(node: Any, conn: Connection, data: bytes) -> None:
        node.outbox.send(conn, *chunked(body, (100_000, 7, 4096)))
        node.outbox.close(conn, "served")
        node.outbox.send(conn, b"too late")

    server, client, conn = pair(net, scripted(received=answer), Toy)
    net.call("client", lambda node: node.outbox.send(conn, b"go"))
    net.run_until(lambda: client.reasons and server.reasons)
    assert client.got(conn) == body
    assert client.reasons[conn] == "closed by peer"
    assert list(server.reasons.values()) == ["served"]
    server.validate()
    client.validate()


def test_a_close_does_not_destroy_the_answer_while_the_peer_still_sends(net: NetLab):
    """The response must arrive, although closing a socket with unread bytes resets it."""

    def answer(node: Any, conn: Connection, data: bytes) -> None:
        node.outbox.send(conn, b"go away")
        node.outbox.close(conn, "bad frame")

    server, client, conn = pair(net, scripted(received=answer), Toy)
    net.call("client", lambda node: node.outbox.send(conn, pattern(300_000)))
    net.run_until(lambda: client.reasons and server.reasons)
    assert client.got(conn) == b"go away"
    assert client.reasons[conn] == "closed by peer"


def test_abort_ends_both_sides_once(net: NetLab):
    body = pattern(20 * MIB)

    def answer(node: Any, conn: Connection, data: bytes) -> None:
        node.outbox.send(conn, body)
        node.outbox.abort(conn, "no more")

    server, client, conn = pair(net, scripted(received=answer), Toy)
    net.call("client", lambda node: node.outbox.send(conn, b"go"))
    net.run_until(lambda: client.reasons and server.reasons)
    assert list(server.reasons.values()) == ["no more"]
    assert len(client.got(conn)) < len(body)
    assert body.startswith(client.got(conn))
    net.run_ms(50)
    server.validate()
    client.validate()


def test_closing_a_dial_at_once(net: NetLab):
    server, client = net.add("server", Toy), net.add("client", Toy)
    address = net.listen("server")

    def begin(node: Any) -> None:
        node.outbox.close(node.dial(address), "changed my mind")
        node.outbox.abort(node.dial(address, send=b"never"), "that too")
        node.outbox.close(node.dial(address, send=b"last words"), "said")

    net.call("client", begin)
    net.run_until(lambda: len(client.reasons) == 3 and server.reasons)
    net.run_ms(50)
    assert [client.reasons[conn] for conn in client.dials] == ["changed my mind", "that too", "said"]
    assert client.opens == []
    assert [server.got(conn) for conn in server.opens if server.got(conn)] == [b"last words"]
    server.validate()


def test_close_and_abort_twice_and_after_the_end(net: NetLab):
    server, client, conn = pair(net, Echo, Toy)

    def often(node: Any) -> None:
        node.outbox.close(conn, "once")
        node.outbox.close(conn, "twice")
        node.outbox.abort(conn, "thrice")

    net.call("client", often)
    net.run_until(lambda: client.reasons and server.reasons)
    net.call("client", often)
    net.call("client", lambda node: node.outbox.send(conn, b"x"))
    net.call("client", lambda node: node.outbox.read(conn, False))
    net.run_ms(20)
    assert len(client.reasons) == len(server.reasons) == 1


def test_large_transfers_both_ways_keep_their_order(net: NetLab):
    up, down = pattern(6 * MIB, 1), pattern(6 * MIB, 2)
    server, client, conn = pair(net, Toy, Toy)
    accepted = server.opens[0]
    net.call("client", lambda node: node.outbox.send(conn, *chunked(up, (1, 50_000, 300, 1_000_000))))
    net.call("server", lambda node: node.outbox.send(accepted, down))
    net.run_until(lambda: len(client.got(conn)) == len(down) and len(server.got(accepted)) == len(up))
    assert client.got(conn) == down
    assert server.got(accepted) == up
    assert conn.out_size == accepted.out_size == 0


def test_two_sides_above_their_marks_do_not_wait_for_each_other(make_net: NetMaker):
    net = make_net(outbox_high_water=200_000, outbox_low_water=100_000)
    server, client, conn = pair(net, Toy, Toy)
    accepted = server.opens[0]
    body = pattern(24 * MIB)
    net.call("client", lambda node: node.outbox.send(conn, body))
    net.call("server", lambda node: node.outbox.send(accepted, body))
    net.run_until(lambda: client.drains and server.drains)
    net.run_until(lambda: len(client.data[conn]) == len(server.data[accepted]) == len(body))


def test_many_small_buffers_in_one_turn(net: NetLab):
    pieces = [b"%05d;" % number for number in range(5000)]
    server, _, conn = pair(net, Toy, Toy)

    def send(node: Any) -> None:
        for piece in pieces:
            node.outbox.send(conn, piece)
        node.outbox.send(conn, *[b"x" * 600] * 3000)

    net.call("client", send)
    expected = b"".join(pieces) + b"x" * 1_800_000
    net.run_until(lambda: len(server.got(server.opens[0])) == len(expected))
    assert server.got(server.opens[0]) == expected


def test_a_node_that_does_not_read_gets_nothing_and_loses_nothing(net: NetLab):
    server, _client, conn = pair(net, Toy, Toy)
    accepted = server.opens[0]
    net.call("server", lambda node: node.outbox.read(accepted, False))
    net.run_ms(20)
    net.call("client", lambda node: node.outbox.send(conn, b"patience"))
    net.run_ms(100)
    assert server.got(accepted) == b""
    net.call("server", lambda node: node.outbox.read(accepted, True))
    net.run_until(lambda: server.got(accepted) == b"patience")


def test_above_the_high_water_mark_the_peer_is_not_read_until_it_reads(make_net: NetMaker):
    net = make_net(outbox_high_water=4 * MIB, outbox_low_water=MIB)
    body = pattern(32 * MIB)

    def answer(node: Any, conn: Connection, data: bytes) -> None:
        if node.got(conn) == b"go":
            node.outbox.send(conn, *chunked(body, (65_536,)))

    server, client, conn = pair(net, scripted(received=answer), Toy)
    accepted = server.opens[0]
    net.call("client", lambda node: node.outbox.read(conn, False))
    net.run_ms(20)
    net.call("client", lambda node: node.outbox.send(conn, b"go"))
    net.run_until(lambda: accepted.out_size > 4 * MIB)
    net.call("client", lambda node: node.outbox.send(conn, b" and more"))
    net.run_ms(100)
    assert server.got(accepted) == b"go"
    assert server.drains == []
    assert accepted.reading, "the node's own wish is not touched"
    net.call("client", lambda node: node.outbox.read(conn, True))
    net.run_until(lambda: server.drains and server.got(accepted) == b"go and more")
    net.run_until(lambda: len(client.data[conn]) == len(body))
    assert client.got(conn) == body
    assert server.drains == [accepted]


def test_a_peer_that_never_reads_is_closed_at_the_limit(make_net: NetMaker):
    net = make_net(outbox_max=16 * MIB)
    server, _client, conn = pair(net, Toy, Toy)
    accepted = server.opens[0]
    net.call("client", lambda node: node.outbox.read(conn, False))
    net.run_ms(20)
    for _ in range(6):
        net.call("server", lambda node: node.outbox.send(accepted, pattern(8 * MIB)))
        net.run_ms(10)
    net.run_until(lambda: server.reasons)
    assert "does not read" in server.reasons[accepted]
    assert (accepted.out, accepted.out_size) == ([], 0)


def test_silence_closes_a_connection(make_net: NetMaker):
    net = make_net(idle_close_ms=150)
    server, client, conn = pair(net, Echo, Toy)
    for _ in range(4):
        net.call("client", lambda node: node.outbox.send(conn, b"x"))
        net.run_ms(60)
    if net.kind == "sim":
        # The connection was never silent for 150 ms. A busy machine cannot guarantee that for real
        # sockets.
        assert client.reasons == {}
    net.run_until(lambda: client.reasons and server.reasons)
    assert "idle" in {*client.reasons.values(), *server.reasons.values()}
    assert client.got(conn) == b"x" * len(client.got(conn))


def test_many_connections_at_once(net: NetLab):
    server, client = net.add("server", Echo), net.add("client", Toy)
    address = net.listen("server")

    def begin(node: Any) -> None:
        for number in range(150):
            node.dial(address, send=b"%d" % number)

    net.call("client", begin)
    net.run_until(lambda: sum(len(data) for data in client.data.values()) == 10 + 90 * 2 + 50 * 3)
    assert [client.got(conn) for conn in client.dials] == [b"%d" % number for number in range(150)]
    assert len({conn.id for conn in server.opens}) == 150
    net.call("client", lambda node: [node.outbox.close(conn, "done") for conn in node.dials])
    net.run_until(lambda: len(server.reasons) == len(client.reasons) == 150)


def test_one_node_listens_with_several_tags(net: NetLab):
    server = net.add("server", Toy)
    net.add("client", Toy)
    first, second = net.listen("server", "remoting"), net.listen("server", "ha")
    dial(net, "client", first)
    dial(net, "client", second)
    net.run_until(lambda: len(server.opens) == 2)
    assert sorted(conn.tag for conn in server.opens) == ["ha", "remoting"]


def test_an_answer_can_wait_for_the_disk(net: NetLab):
    """A completion runs in the first phase of a later turn; that turn sends what it queues."""

    def durable(node: Any, conn: Connection, error: OSError | None) -> None:
        node.outbox.send(conn, b"failed" if error else b"durable")

    def store(node: Any, conn: Connection, data: bytes) -> None:
        node.ports.disk.write("log", 0, [data])
        node.ports.disk.sync("log", partial(durable, node, conn))

    _, client, conn = pair(net, scripted(received=store), Toy)
    net.call("client", lambda node: node.outbox.send(conn, b"record"))
    net.run_until(lambda: client.got(conn) == b"durable")


def test_duties_run_when_they_are_due(net: NetLab):
    node = net.add("node", Toy)
    ran: list[int] = []

    def duty(now_ms: int) -> int | None:
        ran.append(now_ms)
        return now_ms + 30 if len(ran) < 4 else None

    began_ms: list[int] = []

    def begin(node: Any) -> None:
        began_ms.append(node.clock.mono_ms)
        node.duties.add("tick", duty, node.clock.mono_ms + 50)

    net.call("node", begin)
    net.run_until(lambda: len(ran) == 4)
    assert ran[0] >= began_ms[0] + 50
    assert all(later - earlier >= 30 for earlier, later in pairwise(ran))
    assert node.clock.mono_ms == ran[-1]
    net.run_ms(50)
    assert len(ran) == 4


def test_bytes_that_a_node_sends_while_it_stops_arrive(net: NetLab):
    def say_bye(node: Any) -> None:
        for conn in node.opens:
            node.outbox.send(conn, b"bye")
            node.outbox.close(conn, "stopping")
        node.stopped = True

    _server, client, conn = pair(net, scripted(stop=say_bye), Toy)
    net.call("server", lambda node: node.stop())
    net.run_until(lambda: client.reasons)
    assert client.got(conn) == b"bye"
    assert client.reasons[conn] == "closed by peer"


@pytest.mark.parametrize("size", [1, 65_536, 65_537, 600_000])
def test_reads_are_bounded(net: NetLab, size: int):
    server, _, conn = pair(net, Toy, Toy)
    net.call("client", lambda node: node.outbox.send(conn, pattern(size)))
    net.run_until(lambda: server.opens and len(server.got(server.opens[0])) == size)
    assert server.got(server.opens[0]) == pattern(size)
    assert max(server.chunk_sizes) <= READ_SIZE_MAX
