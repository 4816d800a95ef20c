"""Nodes isolated at their own transport, with real sockets: what a partition shows, and that
everything continues after it."""

import json
import os
import socket
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqkit.errors import RmqkitError
from rmqkit.runtime.connection import Address
from rmqkit.shell.faults import drill_socket, silence
from rmqkit.shell.faults.drill_socket import DrillSocket
from rmqkit.shell.poller import READ, SelectorPoller
from tests.contract.toys import Echo, Toy, pattern
from tests.shell.conftest import Child, LoopLab, poll

HOST = "127.0.0.1"


class Pair:
    """Two nodes in two loops, run in turns. `near` has dialled `far`, the one to be isolated."""

    def __init__(self, make_lab: Callable[..., LoopLab], folder: Path, **limits: int) -> None:
        self.near_lab, self.far_lab = make_lab(**limits), make_lab(**limits)
        self.near = self.near_lab.host(Toy, "near")
        self.far = self.far_lab.host(Toy, "far")
        self.port = self.far_lab.loop.listen(self.far, "toy", HOST, 0)
        self.other_port = self.far_lab.loop.listen(self.far, "other", HOST, 0)
        (folder / "far").mkdir(exist_ok=True)
        self.drill = DrillSocket(self.far_lab.loop, self.far, str(folder / "far"))
        self.conn = self.near.dial(Address(HOST, self.port))
        self.until(lambda: self.far.opens and self.near.opens)
        self.peer = self.far.opens[0]

    def until(self, reached: Callable[[], Any]) -> None:
        def both() -> Any:
            for _ in range(16):
                self.near_lab.loop.turn(0)
            return reached()

        self.far_lab.run_until(both)

    def turns(self, count: int = 20) -> None:
        for _ in range(count):
            self.near_lab.loop.turn(2)
            self.far_lab.loop.turn(2)

    def ask(self, **request: Any) -> dict[str, Any]:
        return json.loads(self.drill.answer(json.dumps(request).encode()))

    def isolate(self, **rule: Any) -> None:
        answer = self.ask(do="isolate", id="cut", rules=[rule])
        assert answer["ok"], answer

    def counts(self) -> dict[str, int]:
        (found,) = self.ask(do="status")["isolations"]
        return found["counts"]

    def heal(self) -> dict[str, int]:
        answer = self.ask(do="heal")
        assert answer["ok"], answer
        return answer["isolations"][0]["counts"]

    def near_sends(self, data: bytes) -> None:
        self.near_lab.loop.call_soon_threadsafe(lambda: self.near.outbox.send(self.conn, data))

    def far_sends(self, data: bytes) -> None:
        self.far_lab.loop.call_soon_threadsafe(lambda: self.far.outbox.send(self.peer, data))


@pytest.fixture
def make_pair(make_lab: Callable[..., LoopLab], tmp_path: Path) -> Callable[..., Pair]:
    return lambda **limits: Pair(make_lab, tmp_path, **limits)


@pytest.fixture
def pair(make_pair: Callable[..., Pair]) -> Pair:
    return make_pair()


# --- bytes


@pytest.mark.parametrize("size", [100, 300_000])
def test_nothing_passes_until_it_is_healed_and_then_everything(pair: Pair, size: int):
    there, back = pattern(size), pattern(size + 1)
    pair.isolate()
    pair.near_sends(there)
    pair.far_sends(back)
    pair.turns()
    assert pair.far.got(pair.peer) == b""
    assert pair.near.got(pair.conn) == b""
    assert pair.peer.is_open
    assert pair.conn.is_open
    counts = pair.heal()
    assert counts["connections"] == counts["reads_ignored"] == 1
    assert counts["bytes_held"] == len(back)
    assert 0 < counts["bytes_unread"] <= len(there)
    pair.far_sends(b"newer")
    pair.until(lambda: len(pair.near.got(pair.conn)) == size + 6 and len(pair.far.got(pair.peer)) == size)
    assert pair.near.got(pair.conn) == back + b"newer"
    assert pair.far.got(pair.peer) == there


def test_more_than_a_send_buffer_waits_in_the_node_and_flows_on(make_pair: Callable[..., Pair]):
    """Bytes that the kernel would not take are counted like those for a peer that does not read."""
    pair = make_pair(outbox_high_water=1_000_000, outbox_low_water=500_000)
    data = pattern(8_000_000)
    pair.isolate()
    pair.far_sends(data)
    pair.turns(5)
    held = pair.counts()["bytes_held"]
    assert 65_536 <= held < len(data)
    assert pair.peer.out_size == len(data) - held
    pair.heal()
    pair.until(lambda: len(pair.near.got(pair.conn)) == len(data))
    assert pair.near.got(pair.conn) == data
    assert pair.far.drains == [pair.peer]


def test_one_direction(pair: Pair):
    pair.isolate(direction="in")
    pair.near_sends(b"there")
    pair.far_sends(b"back")
    pair.until(lambda: pair.near.got(pair.conn) == b"back")
    pair.turns(5)
    assert pair.far.got(pair.peer) == b""
    assert pair.counts()["bytes_unread"] == 5
    pair.heal()
    pair.isolate(direction="out")
    pair.far_sends(b"more")
    pair.until(lambda: pair.far.got(pair.peer) == b"there")
    pair.turns(5)
    assert pair.near.got(pair.conn) == b"back"
    assert pair.heal()["bytes_held"] == 4
    pair.until(lambda: pair.near.got(pair.conn) == b"backmore")


def test_traffic_without_a_rule_passes(pair: Pair):
    pair.near.dial(Address(HOST, pair.other_port))
    pair.until(lambda: len(pair.far.opens) == 2)
    other = pair.far.opens[1]
    for rule in ({"tag": "toy"}, {"port": pair.port}, {"spare": [{"tag": "other"}]}, {"peer": str(pair.peer.peer)}):
        pair.isolate(**rule)
        before = len(pair.far.got(other)), len(pair.far.got(pair.peer))
        pair.near_lab.loop.call_soon_threadsafe(lambda: pair.near.outbox.send(pair.near.dials[1], b"x"))
        pair.near_sends(b"y")
        pair.until(lambda before=before: len(pair.far.got(other)) > before[0])
        pair.turns(3)
        assert len(pair.far.got(pair.peer)) == before[1], rule
        pair.heal()
        pair.until(lambda before=before: len(pair.far.got(pair.peer)) == before[1] + 1)


def test_isolations_that_overlap_end_one_by_one(pair: Pair):
    pair.isolate()
    assert pair.ask(do="isolate", id="second", rules=[{"direction": "in"}])["ok"]
    pair.near_sends(b"there")
    pair.far_sends(b"back")
    pair.turns(5)
    assert pair.ask(do="heal", id="cut")["isolations"][0]["counts"]["bytes_held"] == 4
    pair.until(lambda: pair.near.got(pair.conn) == b"back")
    pair.turns(3)
    assert pair.far.got(pair.peer) == b""
    (left,) = pair.ask(do="status")["isolations"]
    assert left["id"] == "second"
    assert left["counts"]["bytes_unread"] == 5
    pair.heal()
    pair.until(lambda: pair.far.got(pair.peer) == b"there")


def test_it_leaves_no_trace(pair: Pair):
    loop = pair.far_lab.loop
    poller, sock, recv = loop.poller, pair.peer.driver.sock, pair.peer.driver._recv
    pair.isolate()
    assert loop.poller is not poller
    pair.heal()
    assert (loop.poller, loop.isolation) == (poller, None)
    assert pair.peer.driver.sock is sock
    assert pair.peer.driver._recv == recv


def test_a_cut_connection_does_not_keep_the_loop_awake(pair: Pair):
    """Bytes or an end wait in the kernel; neither wakes the loop, in any direction of isolation."""
    for direction in ("both", "in", "out"):
        pair.isolate(direction=direction)
        pair.near_sends(b"there")
        pair.far_sends(pattern(8_000_000) if direction == "both" else b"back")
        pair.turns()
        assert pair.far_lab.loop.poller.poll(0) == []
        pair.heal()
        pair.turns()


# --- ends


def test_an_end_of_the_peer_is_seen_after_the_healing(pair: Pair):
    pair.isolate()
    pair.near_sends(b"last words")
    pair.near_lab.loop.call_soon_threadsafe(lambda: pair.near.outbox.close(pair.conn, "done"))
    pair.turns()
    assert pair.conn in pair.near.reasons
    assert pair.far.reasons == {}
    assert pair.far_lab.loop.poller.poll(0) == []
    pair.heal()
    pair.until(lambda: pair.far.reasons)
    assert pair.far.got(pair.peer).endswith(b"last words")
    assert pair.far.reasons == {pair.peer: "closed by peer"}


@pytest.mark.parametrize("how", ["close", "abort"])
def test_the_end_of_a_connection_is_not_seen_before_the_healing(pair: Pair, how: str):
    pair.isolate()
    pair.far_sends(b"last words")
    pair.turns(3)
    pair.far_lab.loop.call_soon_threadsafe(lambda: getattr(pair.far.outbox, how)(pair.peer, "tired"))
    pair.until(lambda: pair.far.reasons)
    pair.turns()
    assert pair.near.reasons == {}
    pair.heal()
    pair.until(lambda: pair.near.reasons)
    assert pair.near.got(pair.conn) == b"last words"
    assert pair.near.reasons == {pair.conn: "closed by peer"}


def test_an_end_that_lingers_while_it_is_healed(make_pair: Callable[..., Pair]):
    pair = make_pair()
    pair.isolate()
    pair.far_sends(b"last words")
    pair.far_lab.loop.call_soon_threadsafe(lambda: pair.far.outbox.close(pair.peer, "tired"))
    pair.until(lambda: pair.far.reasons)
    pair.heal()
    pair.until(lambda: pair.near.reasons)
    assert pair.near.got(pair.conn) == b"last words"


def test_a_half_cut_connection_whose_peer_resets_stays(pair: Pair):
    """`in` is isolated, so the reset is not seen. Bytes sent are lost, and the loop sleeps."""
    pair.isolate(direction="in")
    sock = pair.conn.driver.sock
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    pair.near_lab.loop.call_soon_threadsafe(lambda: pair.near.outbox.abort(pair.conn, "gone"))
    pair.until(lambda: pair.near.reasons)
    for _ in range(3):
        pair.far_sends(b"more")
        pair.turns(3)
    assert pair.far.reasons == {}
    assert pair.far_lab.loop.poller.poll(0) == []
    pair.heal()
    pair.until(lambda: pair.far.reasons)


def test_an_idle_connection_is_closed_on_time_and_its_peer_does_not_know(make_pair: Callable[..., Pair]):
    pair = make_pair(idle_close_ms=400)
    pair.isolate()
    pair.until(lambda: pair.far.reasons)
    assert pair.far.reasons == {pair.peer: "idle"}
    assert pair.near.reasons.get(pair.conn) in (None, "idle")
    pair.heal()
    pair.until(lambda: pair.near.reasons)


def test_what_is_sent_into_the_cut_keeps_a_connection_from_being_idle(make_pair: Callable[..., Pair]):
    """A kernel's send buffer has the same effect."""
    pair = make_pair(idle_close_ms=600)
    pair.isolate()
    began_ms = pair.far_lab.loop.clock.mono_ms
    while pair.far_lab.loop.clock.mono_ms < began_ms + 1500:
        pair.far_sends(b"beat")
        pair.far_lab.loop.turn(50)
    assert pair.far.reasons == {}


# --- new connections


def test_connections_are_accepted_only_after_the_healing(pair: Pair):
    pair.isolate(tag="toy")
    late = pair.near.dial(Address(HOST, pair.port), send=b"late")
    pair.turns(10)
    assert pair.far.opens == [pair.peer]
    assert pair.heal()["not_accepted"] >= 1
    pair.until(lambda: len(pair.far.opens) == 2)
    pair.until(lambda: pair.far.got(pair.far.opens[1]) == b"late")
    assert late.is_open


def may_filter() -> bool:
    """Socket filters exist on Linux only; some kernels require capabilities for them."""
    with socket.create_server((HOST, 0)) as sock:
        return sys.platform == "linux" and silence._attach(sock)


@pytest.mark.skipif(not may_filter(), reason="no socket filters here")
def test_a_dial_to_a_cut_listener_hangs_until_its_timeout(make_pair: Callable[..., Pair]):
    pair = make_pair(connect_timeout_ms=300)
    pair.isolate()
    late = pair.near.dial(Address(HOST, pair.port))
    pair.until(lambda: late in pair.near.reasons)
    assert pair.near.reasons[late] == "no connection within 300 ms"
    assert late not in pair.near.opens


def test_connections_of_one_peer_are_set_aside(pair: Pair):
    pair.isolate(peer=HOST)
    late = pair.near.dial(Address(HOST, pair.port), send=b"late")
    pair.until(lambda: late.is_open)
    pair.turns(5)
    assert pair.far.opens == [pair.peer]
    assert pair.heal()["not_accepted"] == 1
    pair.until(lambda: len(pair.far.opens) == 2)
    pair.until(lambda: pair.far.got(pair.far.opens[1]) == b"late")


def test_a_listener_with_a_spared_peer_takes_that_one(pair: Pair):
    pair.isolate(spare=[{"peer": HOST}])
    pair.near.dial(Address(HOST, pair.port))
    pair.until(lambda: len(pair.far.opens) == 2)


def test_a_dial_of_ours_hangs_until_its_timeout(make_pair: Callable[..., Pair]):
    pair = make_pair(connect_timeout_ms=300)
    near_port = pair.near_lab.loop.listen(pair.near, "toy", HOST, 0)
    pair.isolate(peer=f"{HOST}:{near_port}", tag="out")
    dialled = pair.far.dial(Address(HOST, near_port), tag="out")
    began_ms = pair.far_lab.loop.clock.mono_ms
    pair.until(lambda: dialled in pair.far.reasons)
    assert pair.far.reasons[dialled] == "no connection within 300 ms"
    assert pair.far_lab.loop.clock.mono_ms >= began_ms + 300
    assert pair.near.opens == [pair.conn]
    assert pair.heal()["dials_held"] == 1
    pair.turns(5)
    assert pair.near.opens == [pair.conn]


def test_a_dial_goes_on_when_it_is_healed_in_time(pair: Pair):
    near_port = pair.near_lab.loop.listen(pair.near, "toy", HOST, 0)
    pair.isolate()
    dialled = pair.far.dial(Address(HOST, near_port), send=b"hello")
    pair.turns(5)
    assert pair.near.opens == [pair.conn]
    pair.heal()
    pair.until(lambda: len(pair.near.opens) == 2)
    pair.until(lambda: pair.near.got(pair.near.opens[1]) == b"hello")
    assert dialled.is_open


def test_a_stop_in_the_cut_ends(pair: Pair):
    pair.isolate()
    pair.far_sends(pattern(5_000_000))
    pair.far_lab.loop.turn()
    pair.far_lab.loop.call_soon_threadsafe(lambda: pair.far_lab.loop.stop(5000))
    assert pair.far_lab.loop.run()


def test_another_poller(pair: Pair):
    """Use `selectors`, as on other systems."""
    loop = pair.far_lab.loop
    before, loop.poller = loop.poller, SelectorPoller(loop.wakeup)
    before.close()
    for fd in loop.items:
        loop.poller.add(fd, READ)
    test_one_direction(pair)
    test_an_end_of_the_peer_is_seen_after_the_healing(pair)


# --- the socket


def test_only_its_user_can_open_it(pair: Pair):
    mode = os.stat(pair.drill.path).st_mode
    assert stat.S_ISSOCK(mode)
    assert stat.S_IMODE(mode) == 0o600


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"", "truncated"),
        (b"garbage", "malformed"),
        (b"[1]", "object"),
        (b"\xff\xfe", ""),
        (b"[" * 10_000, ""),
        (b'{"do":"explode"}', "isolate, heal or status"),
        (b'{"do":"isolate"}', "1 to 64 rules"),
        (b'{"do":"isolate","rules":[{"who":"x"}]}', "who"),
        (b'{"do":"isolate","rules":[{"direction":"up"}]}', "in, out or both"),
        (b'{"do":"isolate","rules":[{"port":70000}]}', "from 0 to 65535"),
        (b'{"do":"isolate","rules":[{"peer":":70000"}]}', "from 0 to 65535"),
        (b'{"do":"isolate","rules":[{"peer":"a:70000"}]}', "host:port"),
        (b'{"do":"isolate","rules":' + b"[" + b"{}," * 64 + b"{}]}", "1 to 64 rules"),
        (b'{"do":"isolate","id":"%b","rules":[{}]}' % (b"x" * 65), "64 characters"),
        (b'{"do":"heal","id":"nobody"}', "no isolation 'nobody'"),
        (b'{"do":"status","rules":[{}]}', "`isolate` only"),
        (b'{"do":"heal","extra":1}', "extra"),
    ],
)
def test_an_invalid_request_changes_nothing(pair: Pair, line: bytes, why: str):
    answer = json.loads(pair.drill.answer(line))
    assert answer["ok"] is False
    assert why in answer["error"]
    assert pair.far_lab.loop.isolation is None


def test_an_id_is_given_once_and_isolations_have_a_limit(pair: Pair):
    pair.isolate()
    assert "already" in pair.ask(do="isolate", id="cut", rules=[{}])["error"]
    ids = [each["id"] for _ in range(7) for each in pair.ask(do="isolate", rules=[{"tag": "no"}])["isolations"]]
    assert len(set(ids)) == 8
    assert "at most 8 isolations" in pair.ask(do="isolate", rules=[{}])["error"]
    assert len(pair.ask(do="heal")["isolations"]) == 8
    assert pair.ask(do="status") == {"ok": True, "isolations": []}


def test_rules_are_returned_as_they_were_sent(pair: Pair):
    rules = [
        {"peer": "10.0.0.1:10911", "tag": "ha", "direction": "in", "spare": [{"port": 5}, {"peer": ":7"}]},
        {"peer": "10.0.0.1"},
        {"peer": "[::1]:5"},
        {"peer": "::1"},
        {},
    ]
    (told,) = pair.ask(do="isolate", id="x", rules=rules)["isolations"]
    assert told["rules"] == rules


class Asking:
    """The drill's end of the socket, in the loop's own thread."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(pair.drill.path)
        self.sock.setblocking(False)

    def lines(self, data: bytes, count: int) -> list[dict[str, Any]]:
        self.sock.sendall(data)
        got = bytearray()

        def read() -> bool:
            try:
                got.extend(self.sock.recv(1 << 20))
            except BlockingIOError:
                pass
            return got.count(b"\n") >= count

        self.pair.until(read)
        return [json.loads(line) for line in got.splitlines()]

    def is_closed(self) -> bool:
        try:
            return self.sock.recv(1) == b""
        except BlockingIOError:
            return False


def test_lines_in_pieces_and_together(pair: Pair):
    asking = Asking(pair)
    asking.sock.sendall(b'{"do":"sta')
    pair.turns(3)
    answers = asking.lines(b'tus"}\n{"do":"isolate","id":"x","rules":[{}]}\nrubbish\n{"do":"heal"}\n', 4)
    assert [each["ok"] for each in answers] == [True, True, False, True]
    assert answers[3]["isolations"][0]["id"] == "x"
    asking.sock.close()
    pair.until(lambda: pair.drill.connections == 0)


def test_a_line_that_is_too_long_is_refused_and_ends_the_connection(pair: Pair):
    for data in (b"x" * 20_000, b'{"do":"isolate","id":"' + b"x" * 20_000 + b'","rules":[{}]}\n'):
        asking = Asking(pair)
        (answer,) = asking.lines(data, 1)
        assert answer == {"ok": False, "error": "a request has at most 16384 bytes"}
        pair.until(asking.is_closed)
        assert pair.far_lab.loop.isolation is None
        asking.sock.close()


def test_a_peer_that_asks_without_reading_is_disconnected(pair: Pair):
    asking = Asking(pair)
    line = b'{"do":"status"}\n'

    def ask_on() -> bool:
        try:
            asking.sock.send(line * 1000)
        except BlockingIOError:
            pass
        except OSError:
            return True
        return False

    pair.until(ask_on)
    assert pair.drill.connections == 0
    asking.sock.close()


def test_connections_have_a_limit(pair: Pair):
    asking = [Asking(pair) for _ in range(drill_socket.CONNECTIONS_MAX)]
    pair.until(lambda: pair.drill.connections == drill_socket.CONNECTIONS_MAX)
    more = Asking(pair)
    pair.until(more.is_closed)
    assert asking[0].lines(b'{"do":"status"}\n', 1) == [{"ok": True, "isolations": []}]
    for each in [*asking, more]:
        each.sock.close()


def test_connections_of_drills_are_not_cut_off(pair: Pair):
    asking = Asking(pair)
    (answer,) = asking.lines(b'{"do":"isolate","rules":[{}]}\n', 1)
    assert answer["ok"]
    assert asking.lines(b'{"do":"heal"}\n', 1)[0]["ok"]
    asking.sock.close()


def test_a_path_that_is_too_long_is_named_in_a_file(lab: LoopLab, tmp_path: Path):
    folder = tmp_path / ("deep" * 30)
    folder.mkdir()
    drill = DrillSocket(lab.loop, lab.host(Echo), str(folder))
    assert (folder / "drill.sock.path").read_text() == drill.path == drill_socket.find(str(folder))
    assert stat.S_IMODE(os.stat(os.path.dirname(drill.path)).st_mode) == 0o700
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(drill.path)
    drill.remove()
    assert not os.path.exists(os.path.dirname(drill.path))
    assert list(folder.iterdir()) == []


def test_what_a_killed_process_has_left_is_replaced_and_a_living_one_is_named(lab: LoopLab, tmp_path: Path):
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "drill.sock"))
    drill = DrillSocket(lab.loop, lab.host(Echo), str(tmp_path))
    with pytest.raises(RmqkitError, match="belongs to another process"):
        DrillSocket(lab.loop, lab.host(Echo, "other"), str(tmp_path))
    drill.remove()


def test_a_file_that_names_something_else_removes_nothing(lab: LoopLab, tmp_path: Path):
    (tmp_path / "precious").write_text("data")
    (tmp_path / "drill.sock.path").write_text(str(tmp_path / "precious"))
    drill = DrillSocket(lab.loop, lab.host(Echo), str(tmp_path))
    assert (tmp_path / "precious").read_text() == "data"
    assert drill.path == str(tmp_path / "drill.sock")
    drill.remove()


def test_a_process(start: Callable[..., Child]):
    """Its socket exists once it is `ready` and is deleted at a clean end; its rules die with it."""
    child = start("echo", "--drill")
    port = child.port()
    path = child.folder / "drill.sock"
    with socket.socket(socket.AF_UNIX) as asking, child.connect(port) as sock:
        sock.sendall(b"before")
        assert sock.recv(100) == b"before"
        asking.settimeout(20)
        asking.connect(str(path))
        asking.sendall(b'{"do":"isolate","id":"cut","rules":[{}]}\n')
        assert json.loads(asking.recv(65_536))["ok"]
        child.wait_for_log("isolated by a drill")
        sock.sendall(b"during")
        sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            sock.recv(100)
        asking.sendall(b'{"do":"heal"}\n')
        assert json.loads(asking.recv(65_536))["isolations"][0]["counts"]["bytes_unread"] == 6
        sock.settimeout(20)
        assert sock.recv(100) == b"during"
    child.process.terminate()
    assert child.wait() == 0
    poll(lambda: not path.exists(), "the socket is gone")


def test_without_the_setting_there_is_no_socket(start: Callable[..., Child]):
    child = start("echo")
    child.port()
    assert not (child.folder / "drill.sock").exists()
