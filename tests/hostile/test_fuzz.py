"""Fuzz tests: invalid frames, whole and in pieces, against a broker and a name server.

No exception leaves a node, and no handler fails unexpectedly. The resources held for peers are
bounded, and released when the peers are gone. The tables keep their invariants. A good client is
served during and after the attack.

`make test` sends 2 * 10^4 frames, `make test-long` 10^5. `RMQKIT_FUZZ_FRAMES` sets another number,
`RMQKIT_FUZZ_SEED` another seed. A failure names the seed and the frame.
"""

import gc
import os
from collections.abc import Callable

import pytest

from rmqkit.broker.node import Broker
from rmqkit.config import from_values
from rmqkit.nameserver.node import NameServer
from rmqkit.wire.codes import RequestCode
from tests.broker.conftest import broker_of, validate
from tests.helpers.script import Command, read_command, write_command
from tests.hostile.frames import Mutator
from tests.hostile.good import SEND, pull_from
from tests.hostile.rig import Rig
from tests.metrics.test_http import served
from tests.nameserver.peers import register_body

FRAMES = [int(os.environ.get("RMQKIT_FUZZ_FRAMES", "20000")), pytest.param(100_000, marks=pytest.mark.long)]
SEED = int(os.environ.get("RMQKIT_FUZZ_SEED", "20260718"))
#: frames per turn, over all peers
BATCH = 40
#: maximum growth of the number of Python objects from the first frames to the end
OBJECTS_MAX = 5000
PARTS = ((0.5, "memory"), (0.1, "mapped"))


def fuzz(rig: Rig, frames: int, seed: int, in_between: Callable[[], None]) -> None:
    mutator = Mutator(seed)
    for number in range(frames):
        data = mutator.frame()
        try:
            for chunk in mutator.chunks(data):
                rig.feed(number, chunk)
            if number % 4:
                rig.end_frame(number)
            if number % BATCH == BATCH - 1:
                rig.turn()
            if number % 5000 == 4999:
                in_between()
        except Exception as error:
            error.add_note(f"seed {seed}, frame {number}: {data[:2000]!r}")
            raise


def ask(rig: Rig, code: int, ext: dict[str, str], body: bytes = b"") -> Command:
    """Send a request of a good client on its own connection; it must succeed."""
    peer = rig._peer("remoting")
    rig.node.received(peer.conn, write_command(code, ext, body))
    answers = []
    rig._by_conn.pop(id(peer.conn))
    for _ in range(6):
        out = b"".join(bytes(each) for each in peer.conn.out)
        peer.conn.out.clear()
        answers += peer.answers.feed(out)
        if answers:
            break
        rig.node.outbox.dirty = [conn for conn in rig.node.outbox.dirty if conn is not peer.conn]
        for completion, error in rig.disk.take_completions():
            rig.node.done(completion, error)
        rig.node.run_due()
        rig.node.settle()
    peer.conn.closing = "done"
    rig.node.closed(peer.conn, "done")
    rig.turn()
    (answer,) = [read_command(each) for each in answers]
    assert answer.code == 0, answer
    return answer


def good_send(rig: Rig) -> str:
    """Send a message and return its queue offset."""
    return str(ask(rig, RequestCode.SEND_MESSAGE, SEND, b"a good message").ext["queueOffset"])


@pytest.mark.parametrize("frames", FRAMES)
@pytest.mark.parametrize(("part", "engine"), PARTS, ids=[engine for _, engine in PARTS])
def test_a_broker_survives(part: float, engine: str, frames: int) -> None:
    rig = Rig(broker_of("memoryEngineSizeMax=16777216", engine=engine), ("remoting", "remoting", "vip"))
    node = rig.node
    assert isinstance(node, Broker)
    good_send(rig)
    sizes: list[int] = []

    def in_between() -> None:
        good_send(rig)
        gc.collect()
        sizes.append(len(gc.get_objects()))

    frames = int(frames * part)
    fuzz(rig, frames, SEED, in_between)
    rig.close_all()
    assert rig.log.errors == []
    assert rig.answer_count > frames // 5
    assert rig.closed_count > frames // 20
    held(rig)
    validate(node)
    assert node.view.arrivals.count == 0
    assert node.clients.count == 0
    assert len(node.puts) == 0
    # Only data that peers may create grows, mainly topics and groups. It has its own limits.
    assert not sizes or sizes[-1] - sizes[0] < OBJECTS_MAX
    queue_offset = good_send(rig)
    assert b"a good message" in ask(rig, RequestCode.PULL_MESSAGE, pull_from(queue_offset)).body


@pytest.mark.parametrize("frames", FRAMES)
def test_a_name_server_survives(frames: int) -> None:
    values = {"kvConfigPath": "/ns/kvConfig.json", "configStorePath": "/ns/namesrv.properties"}
    config = from_values("nameserver", values)
    rig = Rig(lambda ports: NameServer("ns-0", ports, config))
    node = rig.node
    assert isinstance(node, NameServer)
    identity = {
        "brokerName": "good",
        "brokerAddr": "127.0.0.1:10911",
        "clusterName": "C",
        "haServerAddr": "127.0.0.1:10912",
    }
    register = {**identity, "brokerId": "0", "compressed": "false", "bodyCrc32": "0"}

    def in_between() -> None:
        ask(rig, RequestCode.REGISTER_BROKER, register, register_body(("Good", "TBW102")))

    frames = int(frames * 0.4)
    fuzz(rig, frames, SEED + 1, in_between)
    rig.close_all()
    assert rig.log.errors == []
    assert rig.answer_count > frames // 5
    held(rig)
    node.routes.validate()
    node.kv.validate()
    assert node.routes.by_connection == {}


HTTP = (
    b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /-/healthy HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello",
    b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"GET /metrics HTTP/1.0\r\n\r\n",
    b"GET /a HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
)


@pytest.mark.parametrize("frames", FRAMES)
def test_the_metrics_endpoint_survives(frames: int) -> None:
    """Send damaged HTTP in pieces. A separate driver is needed, since answers are not frames."""
    driver = served(httpConnectionsMax=6)
    mutator = Mutator(SEED + 2)
    pick = mutator.random
    peers = [driver.connect() for _ in range(5)]
    for number in range(frames // 20):
        data = bytearray(pick.choice(HTTP) if pick.random() < 0.9 else mutator.frame()[:3000])
        for _ in range(pick.choice((0, 0, 1, 2))):
            data[pick.randrange(len(data))] = pick.randrange(256)
        at = number % len(peers)
        if peers[at].closed:
            peers[at] = driver.connect()
        for chunk in mutator.chunks(bytes(data)):
            text = peers[at].send(chunk)
            assert not text or text.startswith(b"HTTP/1.1 "), data
        if number % 200 == 199:
            driver.advance(10_000)
    assert driver.log.events("error") == []
    assert len(driver.node.metrics.http.exchanges) <= 6  # type: ignore[attr-defined]
    assert driver.connect().get("/metrics")[0] == 200


def held(rig: Rig) -> None:
    """Check that nothing is kept for peers that are gone."""
    remoting = rig.node.remoting  # type: ignore[attr-defined]
    assert remoting.partial_bytes == 0
    assert remoting._partial == {}
