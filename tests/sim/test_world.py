"""The world: its faults do what they say, a seed gives one run, and idle time costs nothing."""

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rmqkit.config import NetworkLimits
from rmqkit.errors import RmqkitError
from rmqkit.runtime.connection import Address, Connection
from rmqkit.sim.net import NetProfile
from rmqkit.sim.process import TurnTimes
from rmqkit.sim.world import World
from tests.contract.toys import Echo, Toy, pattern
from tests.sim.toy_cluster import KEEPER, Writer, broken_day, build

ROOT = Path(__file__).resolve().parents[2]
ECHO = Address("10.0.0.1", 1)


def acked(world: World) -> list[bytes]:
    return [record for name in world.names if name != "keeper" for record in world.node(name).acked]


def echo_world(**how: Any) -> tuple[World, Any, Connection]:
    """Return a world with a server "echo" and a client "client" with an open connection."""
    world = World("echo", **how)
    world.add_node("echo", lambda ports: Echo("echo", ports), ECHO.host)
    world.add_node("client", lambda ports: Toy("client", ports), "10.0.0.2")
    world.listen("echo", "toy", ECHO)
    world.call("client", lambda node: node.dial(ECHO))
    client = world.node("client")
    assert world.run_until(lambda: client.opens, 1000)
    return world, client, client.opens[0]


# --- one seed, one run


def test_a_seed_tells_the_same_story_in_two_processes():
    """Also with other hash seeds: no order of sets, addresses or `hash` reaches an effect."""
    told = []
    for hash_seed in ("1", "2", "random"):
        run = subprocess.run(
            [sys.executable, "-m", "tests.sim.toy_cluster", "7"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            timeout=60,
            check=True,
        )
        told.append(run.stdout)
    assert len(set(told)) == 1
    assert broken_day(7).trace_hash() != broken_day(8).trace_hash()


def test_the_trace_shows_an_order_that_hangs_on_hashes():
    """Checks the test above: it detects a node that iterates over a set of strings."""

    code = (
        "from rmqkit.sim.world import World\n"
        "from rmqkit.runtime.node import BaseNode\n"
        "class Careless(BaseNode):\n"
        "    def start(self):\n"
        "        for name in {f'file-{number}' for number in range(20)}:\n"
        "            self.ports.disk.write(name, 0, [b'x'])\n"
        "world = World(1)\n"
        "world.add_node('n', lambda ports: Careless('n', ports), '10.0.0.1')\n"
        "world.run_for(1000)\n"
        "print(world.trace_hash())\n"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            timeout=60,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert told[0] != told[1]


def test_a_kept_trace_has_the_same_hash():
    kept = broken_day("kept", keep_trace=True)
    assert kept.trace_hash() == broken_day("kept").trace_hash()
    assert kept.trace_kept


def test_a_draw_of_a_node_shifts_no_other_stream():
    class Drawing(Toy):
        draws = 0

        def start(self) -> None:
            for _ in range(self.draws):
                self.ports.entropy.random()

    def delays(draws: int) -> list[int]:
        Drawing.draws = draws
        world = World("streams")
        world.add_node("a", lambda ports: Drawing("a", ports), "10.0.0.1")
        return [world.net.edge("a", "b").delay_us() for _ in range(5)] + [world.now_us]

    assert delays(0) == delays(100)


# --- time


def test_idle_time_costs_nothing():
    world, client, conn = echo_world(limits=NetworkLimits(idle_close_ms=86_400_000))
    events = world._sequence
    turns = client.turns
    world.run_for(3_600_000)
    assert client.turns == turns
    assert world._sequence == events
    assert client.reasons == {}
    world.call("client", lambda node: node.outbox.send(conn, b"x"))
    world.run_for(1000)
    assert client.got(conn) == b"x"
    assert client.clock.mono_ms >= 3_600_000


def test_dues_come_at_their_time_and_wall_and_mono_agree():
    world = World("dues")
    world.add_node("n", lambda ports: Toy("n", ports), "10.0.0.1")
    node = world.node("n")
    seen: list[tuple[int, int]] = []

    def duty(now_ms: int) -> int:
        seen.append((now_ms, node.clock.wall_ms - now_ms))
        return now_ms + 250

    world.call("n", lambda node: node.duties.add("duty", duty, node.clock.mono_ms + 1))
    world.run_for(1000)
    world.jump_wall("n", 5000)
    world.run_for(1000)
    assert [later - earlier for (earlier, _), (later, _) in itertools.pairwise(seen)] == [250] * 7
    assert {offset for _, offset in seen} == {world.wall_start_ms, world.wall_start_ms + 5000}


def test_run_until_says_when_it_did_not_come_to_it():
    world = World("limit")
    assert not world.run_until(lambda: False, 5000)
    assert world.now_ms == 6000


def test_what_arrives_during_a_turn_is_taken_together():
    """Turns take time, so a busy node gets several events in one, as from a real poller."""
    world = build("batches", writers=20, every_ms=1, profile=NetProfile(latency_us=10, jitter_us=20))
    world.run_for(2000)
    keeper = world.node("keeper")
    assert len(keeper.kept) > keeper.turns


def test_what_arrives_while_a_process_wakes_up_is_taken_together():
    """A process that waits wakes up 50 µs after its first input."""
    world = World("wake", turns=TurnTimes((5, 0), (50, 0)))
    world.add_node("n", lambda ports: Toy("n", ports), "10.0.0.1")
    world.run_for(10)
    turns: list[tuple[int, int, int]] = []

    def post(at_us: int) -> None:
        world.at_us(at_us, lambda: world.process("n").post(lambda node: turns.append((at_us, world.now_us, node.turns))))

    start_us = world.now_us + 1000
    for later_us in (0, 20, 49, 60):
        post(start_us + later_us)
    world.run_for(2)
    assert [(at_us - start_us, now_us - start_us) for at_us, now_us, _ in turns] == [(0, 50), (20, 50), (49, 50), (60, 110)]
    assert len({turn for *_, turn in turns}) == 2
    turns.clear()
    start_us = world.now_us + 1000
    post(start_us)
    world.at_us(start_us + 20, lambda: (world.kill("n"), world.restart("n")))
    post(start_us + 2000)
    world.run_for(4)
    assert [now_us - start_us for _, now_us, _ in turns] == [2050], "killed as it woke up, it wakes up again"


def test_timers_fire_at_multiples_of_their_resolution():
    """Two nodes whose work is due at different times run it at the same time."""
    world = World("timers", turns=TurnTimes((5, 0), timer_us=100_000))
    ran: list[tuple[str, int]] = []

    for number, name in enumerate(("a", "b")):
        world.add_node(name, lambda ports, name=name: Toy(name, ports), f"10.0.0.{number + 1}")
    world.run_for(50)
    for name, due_ms in (("a", world.now_ms + 10), ("b", world.now_ms + 40), ("a", world.now_ms - 1)):
        world.call(
            name,
            lambda node, due_ms=due_ms, name=name: node.duties.add(
                f"work-{due_ms}", lambda now_ms: ran.append((name, now_ms)), due_ms
            ),
        )
    begin_ms = world.now_ms
    world.run_for(100)
    assert ran == [("a", begin_ms), ("a", 1_100), ("b", 1_100)]


# --- processes


@pytest.mark.parametrize("seed", range(5))
def test_kill_loses_no_written_byte(seed: int):
    world = build(f"kill {seed}")
    for _ in range(5):
        world.run_for(700)
        kept = world.node("keeper").kept
        world.kill("keeper")
        world.run_for(100)
        world.restart("keeper")
        world.run_for(10)
        assert world.node("keeper").kept[: len(kept)] == kept
    assert set(acked(world)) <= set(world.node("keeper").kept)


def test_kill_closes_the_peers_connections():
    world, client, conn = echo_world()
    world.kill("echo")
    world.run_for(10)
    assert client.reasons[conn] in ("closed by peer", "Connection reset by peer")
    world.call("client", lambda node: node.dial(ECHO))
    world.run_for(10)
    assert list(client.reasons.values())[1] == "Connection refused"


@pytest.mark.parametrize("seed", range(12))
def test_a_power_loss_keeps_what_was_acknowledged(seed: int):
    world = build(f"crash {seed}", every_ms=1)
    for _ in range(5):
        world.run_for(400)
        world.crash("keeper")
        world.run_for(50)
        world.restart("keeper")
        world.run_for(1)
        assert set(acked(world)) <= set(world.node("keeper").kept)
    assert len(acked(world)) > 500


def test_power_losses_do_lose_what_was_not_synced():
    """Otherwise the test above would prove nothing."""
    lost = 0
    for seed in range(12):
        world = build(f"loss {seed}", every_ms=1)
        world.run_for(300)
        kept = len(world.node("keeper").kept)
        world.crash("keeper")
        world.restart("keeper")
        world.run_for(1)
        lost += kept - len(world.node("keeper").kept)
    assert lost > 0


def test_after_a_power_loss_peers_hear_nothing_until_the_machine_is_back():
    world, client, conn = echo_world()
    world.crash("echo")
    world.call("client", lambda node: node.outbox.send(conn, b"anyone?"))
    world.run_for(30_000)
    assert client.reasons == {}
    world.call("client", lambda node: node.dial(ECHO))
    world.run_for(10_000)
    assert list(client.reasons.values()) == ["no connection within 3000 ms"]
    world.restart("echo")
    world.run_for(1000)
    assert client.reasons[conn] == "Connection reset by peer"


def test_a_half_open_connection_ends_by_silence():
    world, client, conn = echo_world()
    world.crash("echo")
    world.run_for(119_000)
    assert client.reasons == {}
    world.run_for(2_000)
    assert client.reasons == {conn: "idle"}


def test_a_paused_node_takes_bytes_and_connections_but_no_turn():
    world, client, conn = echo_world()
    echo = world.node("echo")
    world.pause("echo")
    turns = echo.turns
    world.call("client", lambda node: node.outbox.send(conn, b"hello"))
    world.call("client", lambda node: node.dial(ECHO, send=b"me too"))
    world.run_for(10_000)
    assert echo.turns == turns
    assert len(client.opens) == 2
    assert client.reasons == {}
    world.resume("echo")
    world.run_for(100)
    assert client.got(conn) == b"hello"
    assert client.got(client.opens[1]) == b"me too"
    assert echo.clock.mono_ms >= 11_000


def test_a_clean_stop_ends_the_process_and_frees_its_lock():
    world = build("stop")
    world.run_for(1000)
    world.stop("keeper")
    assert world.run_until(lambda: not world.is_alive("keeper"), 1000)
    world.run_for(200)
    assert world.log("w0").events("closed")
    world.restart("keeper")
    world.run_for(1000)
    assert world.is_alive("keeper")
    assert len(world.log("keeper").events("recovered")) == 2


def test_last_words_go_out_when_a_node_stops():
    class Polite(Toy):
        def stop(self) -> None:
            for conn in self.opens:
                self.outbox.send(conn, pattern(3_000_000))
            self.stopped = True

    world = World("polite")
    world.add_node("server", lambda ports: Polite("server", ports), ECHO.host)
    world.add_node("client", lambda ports: Toy("client", ports), "10.0.0.2")
    world.listen("server", "toy", ECHO)
    world.call("client", lambda node: node.dial(ECHO))
    world.run_for(100)
    world.stop("server")
    world.run_for(1000)
    client = world.node("client")
    assert client.got(client.opens[0]) == pattern(3_000_000)
    assert client.reasons[client.opens[0]] == "closed by peer"


def test_an_exception_of_a_node_comes_with_node_time_and_seed():
    class Broken(Toy):
        def start(self) -> None:
            self.doing = "starting"
            raise RmqkitError("the store is locked")

    world = World("exception")
    world.add_node("n", lambda ports: Broken("n", ports), "10.0.0.1")
    with pytest.raises(RmqkitError, match="locked") as caught:
        world.run_for(1000)
    assert caught.value.__notes__ == ["in node n at 1.000000 s, doing 'starting'; seed 'exception'"]
    assert not world.is_alive("n")
    world.run_for(1000)


def test_two_nodes_cannot_listen_on_one_address():
    world, _, _ = echo_world()
    with pytest.raises(ValueError, match=r"10\.0\.0\.1:1 is taken by echo"):
        world.listen("client", "toy", ECHO)
    world.listen("client", "toy", Address("0.0.0.0", 1))


# --- the network


def test_bytes_are_cut_at_random_and_stay_in_order():
    world, client, conn = echo_world(profile=NetProfile(cut_chance=1.0))
    body = pattern(100_000)
    for position in range(0, len(body), 1000):
        world.call("client", lambda node, position=position: node.outbox.send(conn, body[position : position + 1000]))
        world.run_for(5)
    world.run_for(100)
    assert client.got(conn) == body
    assert len(set(client.chunk_sizes)) > 50


def test_a_partition_holds_bytes_and_healing_brings_them():
    world, client, conn = echo_world()
    world.net.partition(["echo"], ["client"])
    world.call("client", lambda node: node.outbox.send(conn, b"held"))
    world.call("client", lambda node: node.dial(ECHO))
    world.run_for(10_000)
    assert client.got(conn) == b""
    assert list(client.reasons.values()) == ["no connection within 3000 ms"]
    world.net.heal()
    world.run_for(2000)
    assert client.got(conn) == b"held"


def test_a_cut_in_one_direction():
    world, client, conn = echo_world()
    echo = world.node("echo")
    world.net.cut("echo", "client")
    world.call("client", lambda node: node.outbox.send(conn, b"there"))
    world.run_for(1000)
    assert echo.got(echo.opens[0]) == b"there"
    assert client.got(conn) == b""
    world.net.heal()
    world.run_for(2000)
    assert client.got(conn) == b"there"


def test_without_acknowledgements_the_window_closes():
    """A one-way fault: acknowledgements do not come back, so only one window is sent."""
    world, client, conn = echo_world()
    echo = world.node("echo")
    world.call("echo", lambda node: node.outbox.read(echo.opens[0], True))
    world.net.cut("echo", "client")
    world.call("client", lambda node: node.outbox.send(conn, pattern(1_000_000)))
    world.run_for(5000)
    assert len(echo.got(echo.opens[0])) == 262_144
    assert conn.out_size == 1_000_000 - 262_144
    world.net.heal()
    world.run_for(5000)
    assert client.got(conn) == pattern(1_000_000)


def test_isolation_cuts_a_node_from_all_others():
    world = build("isolated")
    world.run_for(1000)
    world.net.isolate("w1")
    counts = {name: len(world.node(name).acked) for name in ("w0", "w1", "w2")}
    world.run_for(5000)
    assert len(world.node("w1").acked) <= counts["w1"] + 2
    assert all(len(world.node(name).acked) > counts[name] + 30 for name in ("w0", "w2"))


def test_a_stall_makes_late_and_loses_nothing():
    world, client, conn = echo_world()
    world.net.stall("client", "echo", 2000)
    world.call("client", lambda node: node.outbox.send(conn, b"late"))
    world.run_for(1900)
    assert client.got(conn) == b""
    world.run_for(200)
    assert client.got(conn) == b"late"


def test_a_slow_link():
    world, client, conn = echo_world()
    world.net.edge("client", "echo").bytes_per_s = 100_000
    world.call("client", lambda node: node.outbox.send(conn, pattern(200_000)))
    world.run_for(900)
    assert 0 < len(client.got(conn)) < 150_000
    world.run_for(3000)
    assert client.got(conn) == pattern(200_000)


def test_a_reset_cuts_in_the_middle():
    cut_short = 0
    for seed in range(10):
        world = World(f"reset {seed}")
        world.add_node("echo", lambda ports: Echo("echo", ports), ECHO.host)
        world.add_node("client", lambda ports: Toy("client", ports), "10.0.0.2")
        world.listen("echo", "toy", ECHO)
        world.call("client", lambda node: node.dial(ECHO, send=pattern(400_000)))
        world.run_for(1)
        world.net.reset("client", "echo")
        world.run_for(100)
        client, echo = world.node("client"), world.node("echo")
        assert set(client.reasons.values()) <= {"Connection reset by peer"}
        assert len(client.reasons) == len(client.opens)
        assert len(echo.reasons) == len(echo.opens)
        cut_short += 0 < sum(map(len, client.data.values())) < 400_000
    assert cut_short


def test_a_machine_that_refuses():
    world, client, _ = echo_world()
    world.process("echo").refuses = True
    world.call("client", lambda node: node.dial(ECHO))
    world.run_for(100)
    assert list(client.reasons.values()) == ["Connection refused"]


def test_host_names():
    world, client, _ = echo_world()
    world.net.names["broker.example"] = ECHO.host
    world.call("client", lambda node: node.dial(Address("broker.example", 1)))
    world.run_for(100)
    assert len(client.opens) == 2
    world.call("client", lambda node: node.dial(Address("elsewhere.example", 1)))
    world.run_for(100)
    assert list(client.reasons.values()) == ["Name or service not known"]


def test_writers_find_the_keeper_again_after_everything():
    world = broken_day("liveness")
    counts = {name: len(world.node(name).acked) for name in ("w1", "w2")}
    world.net.heal()
    world.run_for(10_000)
    for name, count in counts.items():
        writer: Writer = world.node(name)
        assert len(writer.acked) > count + 50
        assert len(set(writer.acked)) == len(writer.acked)
    assert set(acked(world)) <= set(world.node("keeper").kept)
    assert world.process("keeper").host == KEEPER.host
