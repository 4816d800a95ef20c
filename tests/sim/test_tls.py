"""TLS in the simulator: one seed gives one run, and faults may hit any byte of a connection."""

import itertools
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmqkit.runtime.connection import Address
from rmqkit.settings.tls_sections import ClientAuth
from rmqkit.sim.ends import CLOSED
from rmqkit.sim.net import NetProfile
from rmqkit.sim.tls_ends import TlsEnd
from rmqkit.sim.world import World
from rmqkit.tls.node_tls import HANDSHAKE_STEPS_MAX, NodeTls
from rmqkit.tls.transport import HANDSHAKE_BYTE, TlsState, TlsTransport
from tests.contract.toys import Echo, Toy, pattern
from tests.helpers.certificates import SIM_HOSTS, Certificates, Pair
from tests.sim.toy_cluster import broken_day

ROOT = Path(__file__).resolve().parents[2]
SERVER = Address(SIM_HOSTS[0], 1)
DAY = "from tests.sim.test_tls import day; print(*day({folder!r}, is_ed25519={is_ed25519}))"
MIB = 1 << 20
RECORD_HEADER = 5


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"), is_ed25519=True)


@pytest.fixture(scope="module")
def pair(certificates: Certificates) -> Pair:
    return certificates.pair("server", SIM_HOSTS)


class Rig:
    """A world with an echo node at `SERVER`, and toys that dial it."""

    def __init__(self, server: NodeTls | None, **how: Any) -> None:
        self.world = World("tls", **how)
        self.tls = server
        self.world.add_node("server", lambda ports: Echo("server", ports), SERVER.host, tls=server)
        self.world.listen("server", "toy", SERVER)

    @property
    def server(self) -> Any:
        return self.world.node("server")

    def add(self, name: str, tls: NodeTls | None) -> Any:
        self.world.add_node(name, lambda ports: Toy(name, ports), SIM_HOSTS[len(self.world.names)], tls=tls)
        return self.world.node(name)

    def dial(self, name: str, send: bytes = b"") -> None:
        self.world.call(name, lambda node: node.dial(SERVER, send=send))

    def until(self, reached: Callable[[], Any]) -> None:
        assert self.world.run_until(reached, 60_000), "not within a virtual minute"

    def echo(self, name: str, data: bytes = b"ping") -> None:
        """Open a connection of its own and get back what it sends."""
        node = self.world.node(name)
        count = len(node.dials)
        self.dial(name, data)
        self.until(lambda: len(node.dials) > count and node.got(node.dials[-1]) == data)

    def reasons(self, name: str) -> list[str]:
        return list(self.world.node(name).reasons.values())

    def failures(self) -> list[str]:
        return [line.fields["reason"] for line in self.world.log("server").events("tls handshake failed")]


@pytest.fixture
def make(certificates: Certificates, pair: Pair) -> Callable[..., Rig]:
    """A function that makes a rig: a server with the given TLS settings, and a client "client"."""

    def made(profile: NetProfile | None = None, **given: Any) -> Rig:
        rig = Rig(certificates.node(pair, **given), profile=profile)
        rig.add("client", certificates.node(pair))
        return rig

    return made


# --- one seed, one run


def day(folder: str, *, is_ed25519: bool) -> tuple[str, int]:
    """Return the hash of a day with every fault, and how many records were acknowledged."""
    certificates = Certificates(Path(folder), is_ed25519=is_ed25519)
    hosts = ("10.0.0.1", *(f"10.0.1.{number}" for number in range(3)))
    server = certificates.pair("server", hosts)
    world = broken_day(7, make_tls=lambda: certificates.node(server))
    return world.trace_hash(), sum(len(world.node(name).acked) for name in ("w0", "w1", "w2"))


def day_in_a_process(folder: Path, *, is_ed25519: bool) -> str:
    """Return the words of `day` in another process, whose keys and certificates are new."""
    return subprocess.run(
        [sys.executable, "-c", DAY.format(folder=str(folder), is_ed25519=is_ed25519)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout.strip()


def test_a_seed_tells_the_same_story_in_two_processes(tmp_path: Path):
    told, acked = day(str(tmp_path / "one"), is_ed25519=True)
    assert day_in_a_process(tmp_path / "other", is_ed25519=True) == f"{told} {acked}"
    assert acked > 20


@pytest.mark.long
def test_signatures_of_many_lengths_would_show(tmp_path: Path):
    """Checks the test above: with ECDSA keys the sizes of handshakes differ."""
    told, acked = day(str(tmp_path / "one"), is_ed25519=False)
    assert day_in_a_process(tmp_path / "other", is_ed25519=False) != f"{told} {acked}"


def test_the_trace_has_plain_bytes_and_sizes_of_records(make):
    def trace() -> list[bytes]:
        rig = make()
        rig.world.trace_kept, rig.world.trace = [], rig.world._keep
        rig.echo("client", b"a secret of the node")
        return rig.world.trace_kept

    entries = trace()
    assert b"a secret of the node" in entries
    assert any(entry.endswith(b" encrypted") for entry in entries)
    assert entries == trace(), "no entry has encrypted bytes"


# --- faults at any byte


def places_of_cuts(pieces: list[bytes]) -> set[str]:
    """Return where in TLS records the pieces of one direction end."""
    data, found, end = b"".join(pieces), set(), 0
    ends_of_pieces = set(itertools.accumulate(map(len, pieces)))
    while end < len(data):
        begin, end = end, end + RECORD_HEADER + int.from_bytes(data[end + 3 : end + 5], "big")
        inside = ends_of_pieces & set(range(begin + 1, end))
        kind = "handshake" if data[begin] == HANDSHAKE_BYTE else "data"
        found |= {f"{kind} header" if cut < begin + RECORD_HEADER else kind for cut in inside}
    assert end == len(data)
    return found


def test_records_cut_at_random_bytes_are_put_together(make, monkeypatch):
    rig = make(NetProfile(cut_chance=1.0))
    fed: dict[TlsTransport, list[bytes]] = {}
    feed = TlsTransport.feed

    def noted(self: TlsTransport, data: bytes) -> bytes:
        fed.setdefault(self, []).append(data)
        return feed(self, data)

    monkeypatch.setattr(TlsTransport, "feed", noted)
    for number in range(60):
        rig.echo("client", pattern(1 + 900 * number))
    rig.echo("client", pattern(2 * MIB))
    cuts = set().union(*map(places_of_cuts, fed.values()))
    assert cuts == {"handshake", "handshake header", "data", "data header"}


@pytest.mark.parametrize("fault", ["reset", "kill", "crash", "isolate"])
def test_a_fault_at_any_time_of_a_handshake(make, fault):
    """Each connection that a node knows ends once (the toys check it), and then a new one works."""
    found = set()
    for delay_us in range(200, 3200, 150):
        rig = make(NetProfile(cut_chance=1.0))
        rig.dial("client", b"sent while dialling")
        rig.world.run_for(1)
        rig.world._run_to(rig.world.now_us + delay_us)
        sides = [end for end in rig.world.net.ends if isinstance(end, TlsEnd)]
        found |= {end.transport.state for end in sides}
        if fault == "reset":
            rig.world.net.reset("client", "server")
        elif fault == "isolate":
            rig.world.net.isolate("client")
            rig.world.run_for(20_000)
            rig.world.net.heal()
            rig.world.run_for(5_000)
        else:
            getattr(rig.world, fault)("server")
            rig.world.run_for(100)
            rig.world.restart("server")
        rig.echo("client")
        rig.world.run_for(20_000)
        assert len(rig.tls.handshakes) == 0
    assert found >= {TlsState.HANDSHAKE, TlsState.OPEN}, "faults came during and after handshakes"


def test_an_isolated_client_gives_up_its_handshake(make):
    rig = make(handshake_ms=10_000)
    rig.dial("client")
    rig.until(lambda: rig.world.net.ends)
    rig.world.net.isolate("client")
    rig.until(lambda: rig.reasons("client"))
    assert rig.reasons("client") == ["TLS: the handshake took more than 10000 ms"]
    assert rig.server.opens == []


# --- who is refused


def test_a_client_without_a_certificate_is_refused(make, certificates: Certificates, pair: Pair):
    rig = make(need_client_auth=ClientAuth.REQUIRE, trust_cert_path=certificates.trust)
    rig.dial("client", b"a request")
    rig.until(lambda: rig.reasons("client"))
    assert rig.reasons("client") == ["TLS: the peer requires a client certificate"]
    assert rig.failures() == ["TLS: the peer has no client certificate"]
    assert rig.server.opens == []
    named = certificates.client(cert_path=pair.cert, key_path=pair.key)
    rig.add("named", NodeTls(certificates.server(pair), named))
    rig.echo("named")


def test_a_peer_without_tls_is_refused(make):
    rig = make()
    rig.add("plain", None)
    rig.dial("plain", b"\x00\x00\x00\x40 a frame")
    rig.until(lambda: rig.reasons("plain"))
    assert rig.failures() == ["TLS: the peer's bytes are not TLS"]
    assert rig.server.opens == []


def test_a_server_without_tls_is_refused(certificates: Certificates, pair: Pair):
    rig = Rig(None)
    rig.add("client", certificates.node(pair))
    rig.dial("client", b"a request")
    rig.until(lambda: rig.reasons("client"))
    assert rig.reasons("client")[0].startswith("TLS: "), "the echo of its first message is not an answer"
    assert rig.world.node("client").opens == []


def test_a_certificate_of_another_host_is_refused(certificates: Certificates, pair: Pair):
    rig = Rig(certificates.node(certificates.pair("elsewhere", ("10.9.9.9",))))
    rig.add("client", certificates.node(pair))
    rig.dial("client")
    rig.until(lambda: rig.reasons("client"))
    assert "10.0.0.1" in rig.reasons("client")[0]
    assert rig.server.opens == []


def test_one_handshake_above_the_limit_ends_the_oldest(make, certificates: Certificates):
    rig = make(handshakes_max=1)
    rig.add("silent", None)
    rig.dial("silent")
    rig.until(lambda: len(rig.tls.handshakes))
    rig.echo("client")
    rig.until(lambda: rig.reasons("silent"))
    assert rig.failures() == ["more than tlsHandshakesMax = 1 connections are in their TLS handshake"]


def test_more_handshakes_than_a_turn_may_step_all_end(make, monkeypatch):
    rig = make(NetProfile(jitter_us=0, spike_chance=0.0, cut_chance=0.0))
    steps: Counter[int] = Counter()
    feed = TlsTransport.feed

    def noted(self: TlsTransport, data: bytes) -> bytes:
        if self._object.server_side and not self.is_open:
            steps[rig.world.now_us] += 1
        return feed(self, data)

    monkeypatch.setattr(TlsTransport, "feed", noted)
    for _ in range(3 * HANDSHAKE_STEPS_MAX):
        rig.dial("client")
    rig.until(lambda: len(rig.server.opens) == 3 * HANDSHAKE_STEPS_MAX)
    assert max(steps.values()) == HANDSHAKE_STEPS_MAX


def test_a_close_tells_the_peer_that_nothing_follows(make):
    rig = make()
    rig.echo("client")
    transport = next(end.transport for end in rig.world.net.ends if end.process.name == "server")

    def end(node: Any) -> None:
        node.outbox.send(node.dials[0], b"end")
        node.outbox.close(node.dials[0], "done")

    rig.world.call("client", end)
    rig.until(lambda: rig.reasons("server"))
    assert transport.state is TlsState.ENDED
    assert rig.server.got(rig.server.opens[0]) == b"pingend"


def test_the_message_that_nothing_follows_ends_a_connection(make):
    rig = make()
    rig.echo("client")
    end = next(end for end in rig.world.net.ends if end.process.name == "client")
    end.transport.close()
    end.flush()
    rig.until(lambda: rig.reasons("server"))
    assert rig.reasons("server") == [CLOSED]


def test_a_peer_that_ends_its_handshake_is_logged(make):
    rig = make()
    rig.add("plain", None)
    rig.dial("plain")
    rig.until(lambda: len(rig.tls.handshakes) and rig.world.node("plain").opens)
    rig.world.call("plain", lambda node: node.outbox.close(node.dials[0], "done"))
    rig.until(rig.failures)
    assert rig.failures() == ["TLS: closed by peer during the handshake"]
    assert len(rig.tls.handshakes) == 0


def test_a_dial_that_is_closed_in_its_handshake_sends_before(make):
    rig = make()
    rig.dial("client")
    rig.until(lambda: len(rig.world.net.ends) == 2)

    def end(node: Any) -> None:
        assert not node.dials[0].is_open
        node.outbox.send(node.dials[0], b"a farewell")
        node.outbox.close(node.dials[0], "done")

    rig.world.call("client", end)
    rig.until(lambda: rig.reasons("server"))
    assert rig.server.got(rig.server.opens[0]) == b"a farewell"
    assert rig.reasons("client") == ["done"]


def test_bytes_behind_the_handshake_wait_for_a_node_that_does_not_read(make):
    rig = make(NetProfile(cut_chance=0.0))
    rig.server.on_opened = lambda conn: rig.server.outbox.read(conn, False)
    rig.dial("client", b"early")
    rig.until(lambda: rig.server.opens)
    rig.world.run_for(1000)
    assert rig.server.data == {}
    rig.world.call("server", lambda node: node.outbox.read(node.opens[0], True))
    client = rig.world.node("client")
    rig.until(lambda: client.got(client.dials[0]) == b"early")


def test_mode_permissive_is_not_simulated(certificates: Certificates, pair: Pair):
    with pytest.raises(ValueError, match="permissive"):
        Rig(certificates.node(pair, mode="permissive"))
