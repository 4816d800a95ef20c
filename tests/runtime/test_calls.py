"""A handler returns a response, or parks the call and returns LATER: exactly one answer."""

import pytest

from rmqkit.access.rules import any_user
from rmqkit.runtime.calls import LATER, Call, Handlers, Response
from rmqkit.runtime.node import BaseNode
from rmqkit.runtime.ports import Ports
from rmqkit.runtime.remoting import Remoting
from rmqkit.wire.remoting.headers import encode_answer
from rmqkit.wire.schema import NoFields
from tests.helpers.script import Client, Script

AT_ONCE, IN_A_TURN, HELD, BUILT, BOTH, TWICE = range(90_001, 90_007)
rows = Handlers()


class Server(BaseNode):
    def __init__(self, ports: Ports) -> None:
        super().__init__("server", ports)
        self.remoting = Remoting(
            self, outbox=self.outbox, clock=ports.clock, duties=self.duties, log=ports.log, tables={"remoting": rows}
        )
        self.opened = self.remoting.opened
        self.received = self.remoting.received
        self.closed = self.remoting.closed
        self.parked: list = []


@rows.handles(AT_ONCE, NoFields, access=any_user)
def at_once(node: Server, call: Call[NoFields]) -> Response:
    return call.later(lambda answer: answer(call.ok(body=b"now")))


@rows.handles(IN_A_TURN, NoFields, access=any_user)
def in_a_turn(node: Server, call: Call[NoFields]) -> Response:
    return call.later(node.parked.append)


@rows.handles(HELD, NoFields, access=any_user)
def held(node: Server, call: Call[NoFields]) -> Response:
    node.parked.append(call.finish)
    return LATER


@rows.handles(BUILT, NoFields, access=any_user)
def built(node: Server, call: Call[NoFields]) -> Response:
    head = encode_answer(7, call.opaque, {}, "built", 4, call.codec)
    return Response(7, None, (b"bo", b"dy"), None, head)


@rows.handles(BOTH, NoFields, access=any_user)
def both(node: Server, call: Call[NoFields]) -> Response:
    call.finish(call.ok())
    return LATER


@rows.handles(TWICE, NoFields, access=any_user)
def twice(node: Server, call: Call[NoFields]) -> Response:
    call.finish(call.ok())
    return call.ok()


@pytest.fixture
def script() -> Script[Server]:
    return Script(Server)


@pytest.fixture
def client(script: Script[Server]) -> Client:
    return script.connect()


def test_an_answer_that_comes_at_once_is_returned(client):
    assert client.ask(AT_ONCE).body == b"now"


@pytest.mark.parametrize("code", [IN_A_TURN, HELD])
def test_an_answer_that_comes_later_ends_the_parked_call(script, client, code):
    client.tell(code)
    assert client.take() == []
    (answer,) = script.node.parked
    script.turn(lambda: answer(Response(0, None, b"later")))
    (command,) = client.take()
    assert command.body == b"later"


def test_a_frame_that_the_handler_has_begun_is_sent_as_it_is(client):
    answer = client.ask(BUILT)
    assert (answer.code, answer.remark, answer.body) == (7, "built", b"body")


@pytest.mark.parametrize("code", [BOTH, TWICE])
def test_a_handler_that_breaks_the_contract_stops_the_node(client, code):
    with pytest.raises(AssertionError, match="answered"):
        client.ask(code)


def test_codes_with_one_schema_share_its_decoder():
    # Making one costs a class: brokers add rows at their start.
    assert rows.rows[AT_ONCE].decoder is rows.rows[HELD].decoder
