"""A toy cluster for tests of the world: one keeper that stores records, and writers that send them.

`python -m tests.sim.toy_cluster SEED` runs `broken_day` and prints the hash of its trace.
"""

import sys
from collections.abc import Callable
from typing import Any

from rmqkit.config import NetworkLimits
from rmqkit.runtime.connection import Address, Connection
from rmqkit.runtime.ports import Ports
from rmqkit.sim.net import NetProfile
from rmqkit.sim.world import World
from rmqkit.tls.node_tls import NodeTls
from tests.contract.toys import Toy

KEEPER = Address("10.0.0.1", 9876)
RECORD_SIZE = 16
LOG = "log/0"


class Keeper(Toy):
    """Appends 16-byte records to a file and echoes each once it is durable. `kept` holds them."""

    def start(self) -> None:
        disk = self.ports.disk
        disk.lock("lock", b"lock")
        disk.create(LOG, 1 << 20)
        self.kept: list[bytes] = []
        position = 0
        while (record := disk.read(LOG, position, RECORD_SIZE)).startswith(b"r"):
            self.kept.append(record)
            position += RECORD_SIZE
        self.ports.log.info("recovered", count=len(self.kept))
        self._turn: list[tuple[Connection, bytes]] = []

    def on_received(self, conn: Connection, data: bytes) -> None:
        held = self.data[conn]
        while len(held) >= RECORD_SIZE:
            self._turn.append((conn, bytes(held[:RECORD_SIZE])))
            del held[:RECORD_SIZE]

    def settle(self) -> None:
        super().settle()
        if not self._turn:
            return
        records, self._turn = self._turn, []
        self.ports.disk.write(LOG, len(self.kept) * RECORD_SIZE, [record for _, record in records])
        self.kept += [record for _, record in records]

        def durable(error: OSError | None) -> None:
            for conn, record in records:
                self.outbox.send(conn, b"FAILED".ljust(RECORD_SIZE) if error else record)

        self.ports.disk.sync(LOG, durable)


class Writer(Toy):
    """Sends a record every `every_ms` and redials when its connection ends. `acked`: the echoes."""

    def __init__(self, name: str, ports: Ports, every_ms: int) -> None:
        super().__init__(name, ports)
        self.every_ms = every_ms
        self.sent = 0
        self.acked: list[bytes] = []
        self.conn: Connection | None = None

    def start(self) -> None:
        self.duties.add("send", self._send, self.clock.mono_ms)

    def _send(self, now_ms: int) -> int:
        if self.conn is None:
            self.conn = self.dial(KEEPER)
        if self.conn.is_open:
            self.sent += 1
            record = b"r%s%06d" % (self.name.encode()[:4], self.sent)
            self.outbox.send(self.conn, record.ljust(RECORD_SIZE, b"."))
        return now_ms + self.every_ms + self.ports.entropy.randrange(5)

    def on_received(self, conn: Connection, data: bytes) -> None:
        held = self.data[conn]
        while len(held) >= RECORD_SIZE:
            record = bytes(held[:RECORD_SIZE])
            assert record.startswith(b"r"), record
            self.acked.append(record)
            del held[:RECORD_SIZE]

    def on_closed(self, conn: Connection, reason: str) -> None:
        self.ports.log.info("closed", reason=reason)
        self.conn = None


def build(
    seed: int | str,
    *,
    writers: int = 3,
    every_ms: int = 100,
    make_tls: Callable[[], NodeTls | None] = lambda: None,
    **how: Any,
) -> World:
    world = World(seed, **how)
    world.add_node("keeper", lambda ports: Keeper("keeper", ports), KEEPER.host, tls=make_tls())
    world.listen("keeper", "toy", KEEPER)
    for number in range(writers):
        name = f"w{number}"
        world.add_node(name, lambda ports, name=name: Writer(name, ports, every_ms), f"10.0.1.{number}", tls=make_tls())
    return world


def broken_day(seed: int | str, **how: Any) -> World:
    """Run every fault the world knows, with details drawn from the seed."""
    world = build(seed, profile=NetProfile(cut_chance=0.5), limits=NetworkLimits(idle_close_ms=3000), **how)
    world.run_for(1000)
    world.net.stall("w0", "keeper", 200)
    world.jump_wall("w1", -3_600_000)
    world.run_for(500)
    world.net.partition(["keeper"], ["w0", "w1"])
    world.run_for(5000)
    world.net.heal()
    world.run_for(1500)
    world.net.reset("w1", "keeper")
    world.pause("w2")
    world.after_ms(700, lambda: world.resume("w2"))
    world.run_for(1000)
    world.kill("keeper")
    world.run_for(300)
    world.restart("keeper")
    world.run_for(1500)
    world.crash("keeper")
    world.run_for(2500)
    world.restart("keeper")
    world.run_for(2000)
    world.stop("w0")
    world.run_for(500)
    return world


def main() -> None:
    world = broken_day(sys.argv[1])
    print(world.trace_hash(), sum(len(world.node(name).acked) for name in ("w0", "w1", "w2")))


if __name__ == "__main__":
    main()
