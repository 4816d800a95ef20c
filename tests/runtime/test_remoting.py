"""Outgoing calls: each ends once, and reports whether the request may have been carried out."""

import gc
import weakref
from collections.abc import Mapping

import pytest

from rmqkit.runtime.calls import CallFailed, Handlers, Reply
from rmqkit.runtime.connection import Address
from rmqkit.runtime.node import BaseNode
from rmqkit.runtime.ports import Ports
from rmqkit.runtime.remoting import Remoting
from tests.helpers.script import Script, write_command

PEER = Address("10.1.1.1", 9876)


class Caller(BaseNode):
    def __init__(self, ports: Ports) -> None:
        super().__init__("caller", ports)
        self.ended: list[Reply | CallFailed] = []
        tables = {"remoting": Handlers()}
        self.remoting = Remoting(
            self, outbox=self.outbox, clock=ports.clock, duties=self.duties, log=ports.log, tables=tables
        )
        self.opened = self.remoting.opened
        self.received = self.remoting.received
        self.closed = self.remoting.closed


@pytest.fixture
def script() -> Script[Caller]:
    return Script(Caller)


def call(script: Script[Caller], timeout_ms: int = 3000) -> None:
    node = script.node
    script.turn(lambda: node.remoting.call(PEER, 105, {"topic": "T"}, timeout_ms=timeout_ms, then=node.ended.append))


def test_an_answer_ends_the_call(script):
    call(script)
    (peer,) = script.dialled
    script.accept(peer)
    (request,) = peer.take()
    peer.send(write_command(0, {"a": "b"}, b"body", opaque=request.opaque, flag=1))
    peer.send(write_command(0, opaque=request.opaque, flag=1))
    (reply,) = script.node.ended
    assert (reply.code, reply.ext, reply.body) == (0, {"a": "b"}, b"body")
    script.advance(10_000)
    assert len(script.node.ended) == 1


def test_a_refused_connection_means_it_was_not_done(script):
    call(script)
    script.refuse(script.dialled[0])
    (failed,) = script.node.ended
    assert (failed.kind, failed.maybe_done) == ("connect", False)


def test_a_lost_connection_means_it_may_have_been_done(script):
    """Drivers clear `is_open` before they report that the connection was closed."""
    call(script)
    (peer,) = script.dialled
    script.accept(peer)
    peer.conn.is_open = False
    peer.close()
    (failed,) = script.node.ended
    assert (failed.kind, failed.maybe_done) == ("lost", True)


def test_silence_ends_at_the_deadline_and_gives_the_connection_up(script):
    call(script, timeout_ms=500)
    (peer,) = script.dialled
    script.accept(peer)
    script.advance(499)
    assert not script.node.ended
    script.advance(1)
    (failed,) = script.node.ended
    assert (failed.kind, failed.maybe_done) == ("timeout", True)
    assert peer.closed
    call(script)
    assert len(script.dialled) == 1, "the next call dials anew"


def test_calls_to_one_address_share_a_connection(script):
    call(script)
    call(script)
    (peer,) = script.dialled
    script.accept(peer)
    assert len({each.opaque for each in peer.take()}) == 2


def test_an_unfinished_dial_is_given_up_for_a_new_one(script):
    call(script)
    (old,) = script.dialled
    script.turn(lambda: script.node.remoting.dial_again(PEER))
    (failed,) = script.node.ended
    assert (failed.kind, failed.maybe_done) == ("connect", False)
    call(script)
    assert script.dialled[-1] is not old


def test_an_open_connection_is_not_dialled_again(script):
    call(script)
    (peer,) = script.dialled
    script.accept(peer)
    script.turn(lambda: script.node.remoting.dial_again(PEER))
    assert not peer.closed
    assert not script.node.ended


@pytest.mark.parametrize("answered", [True, False])
def test_the_data_of_a_call_is_released_when_it_ends(script, answered):
    """Not only at its timeout: a peer could fill our memory by closing connections."""

    class Body:
        pass

    def ask() -> "weakref.ref[Body]":
        body = Body()

        def then(outcome: Reply | CallFailed, body: Body = body) -> None:
            script.node.ended.append(outcome)

        script.node.remoting.call(PEER, 105, timeout_ms=10_000, then=then)
        return weakref.ref(body)

    kept = ask()
    script.turn()
    (peer,) = script.dialled
    script.accept(peer)
    if answered:
        peer.send(write_command(0, opaque=peer.take()[0].opaque, flag=1))
    else:
        peer.close()
    assert len(script.node.ended) == 1
    gc.collect()
    assert kept() is None
    script.advance(20_000)
    assert len(script.node.ended) == 1


def sealed(fields: Mapping[str, str] | None, body: bytes) -> dict[str, str]:
    fields = fields or {}
    return {**fields, "Signature": f"over {sorted(fields.values())} and {body!r}"}


def test_requests_on_dialled_connections_are_signed(script):
    node = script.node
    node.remoting.sign = sealed
    script.turn(lambda: node.remoting.call(PEER, 105, {"topic": "T"}, b"body", timeout_ms=1000, then=node.ended.append))
    script.turn(lambda: node.remoting.oneway(PEER, 34, None, b"beat"))
    (peer,) = script.dialled
    script.accept(peer)
    first, second = peer.take()
    assert first.ext == {"topic": "T", "Signature": "over ['T'] and b'body'"}
    assert second.ext == {"Signature": "over [] and b'beat'"}
    assert (first.flag, second.flag) == (0, 2)


def test_requests_to_a_peer_that_connected_to_us_are_not_signed(script):
    """It could send them again in our name."""
    node = script.node
    node.remoting.sign = sealed
    client = script.connect()
    script.turn(lambda: node.remoting.oneway(client.conn, 40, {"consumerGroup": "g"}))
    script.turn(lambda: node.remoting.call(client.conn, 307, timeout_ms=1000, then=node.ended.append))
    assert [each.ext for each in client.take()] == [{"consumerGroup": "g"}, {}]


def test_a_connection_tells_the_driver_how_many_frames_a_read_completed(script):
    peer = script.connect()
    request = write_command(105, {"topic": "T"}, flag=2)
    peer.send(request + request + request[:10])
    assert peer.conn.frame_count == 2
    peer.send(request[10:20])
    assert peer.conn.frame_count == 0
    peer.send(request[20:])
    assert peer.conn.frame_count == 1
