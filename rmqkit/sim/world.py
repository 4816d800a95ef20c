"""The simulator's driver: nodes, network and disks in one thread, in virtual time, from one seed.

    world = World(seed=7)
    world.add_node("ns", lambda ports: NameserverNode(ports, …), "10.0.0.1")
    world.listen("ns", "remoting", Address("10.0.0.1", 9876))
    assert world.run_until(lambda: …, limit_ms=10_000)

All future events are entries `(due_us, sequence, function)` in one heap. Virtual time jumps from
entry to entry. Each part has its own random stream (`Random(f"{seed}/net")` …), so a new draw in
one part does not change the draws of another.

`trace_hash` covers every turn, every byte sent or written, and every log line, in order. Two runs
with one seed must produce the same hash, even in processes with different PYTHONHASHSEED. Of a
connection with TLS it covers the plain bytes and the sizes of what is sent: `rmqkit.sim.tls_ends`.
`World(seed, keep_trace=True)` keeps the entries, to find the first difference.

An exception from a node propagates out of `run_*`, with a note that names node, time and seed. The
node's process is then dead, and the world can continue.
"""

from collections.abc import Callable, Iterable
from hashlib import blake2b
from heapq import heappop, heappush
from random import Random
from typing import TYPE_CHECKING, Any

from rmqkit.config import NetworkLimits
from rmqkit.runtime.connection import Address
from rmqkit.sim.disk import SimDisk
from rmqkit.sim.folder import SimFolder
from rmqkit.sim.net import NetProfile, SimNet
from rmqkit.sim.process import NodeMaker, Process, SimLog, TurnTimes

if TYPE_CHECKING:
    from rmqkit.tls.node_tls import NodeTls

START_US = 1_000_000
WALL_START_MS = 1_750_000_000_000
#: most trace entries that wait for the digest
TRACED_MAX = 1_000


class World:
    """A simulated world: machines with one node each, a network, faults, and the virtual time."""

    def __init__(
        self,
        seed: int | str,
        *,
        profile: NetProfile | None = None,
        limits: NetworkLimits | None = None,
        turns: TurnTimes | None = None,
        keep_trace: bool = False,
    ) -> None:
        self.seed = seed
        self.turns = turns or TurnTimes()
        self.now_us = START_US
        self.wall_start_ms = WALL_START_MS
        self.trace_kept: list[bytes] | None = [] if keep_trace else None
        self._digest = blake2b(digest_size=16)
        #: entries that the digest does not cover yet: one update for many is cheaper
        self._traced: list[bytes] = []
        self.trace: Callable[[bytes], None] = self._keep if keep_trace else self._traced.append
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._processes: dict[str, Process] = {}
        self.net = SimNet(self, profile or NetProfile(), limits or NetworkLimits(), Random(f"{seed}/net"))
        self._crashes = Random(f"{seed}/crash")

    # --- nodes ------------------------------------------------------------------------------------

    def add_node(self, name: str, make: NodeMaker, host: str, *, tls: "NodeTls | None" = None) -> None:
        """Add a node on its own machine with the address `host`.

        `make` is called now and at each restart. With `tls` its listeners and dials use TLS.
        Raises ValueError if the name is in use, or for TLS in mode permissive.
        """
        if name in self._processes:
            raise ValueError(f"node {name!r} exists already")
        if tls is not None and tls.accepts("") and not tls.is_enforcing:
            raise ValueError(f"node {name!r}: the simulator has no TLS in mode permissive")
        process = self._processes[name] = Process(self, name, host, make)
        process.tls = tls
        process.begin()

    def listen(self, name: str, tag: str, address: Address) -> None:
        """Route connections to the address to the node, also after restarts.

        "0.0.0.0" stands for the node's host.
        """
        self.net.listen(self._processes[name], tag, address)

    def share_turns(self, names: Iterable[str]) -> None:
        """Run these nodes as one process: each turn of one settles all of them."""
        processes = [self._processes[name] for name in names]
        for process in processes:
            process.mates = [each for each in processes if each is not process]

    @property
    def names(self) -> list[str]:
        return list(self._processes)

    @property
    def processes(self) -> Iterable[Process]:
        return self._processes.values()

    def process(self, name: str) -> Process:
        return self._processes[name]

    def node(self, name: str) -> Any:
        """Return the node object created at the last start."""
        return self._processes[name].node

    def log(self, name: str) -> SimLog:
        return self._processes[name].log

    def disk(self, name: str) -> SimDisk:
        """Return the disk handle created at the last start, to inject faults."""
        return self._processes[name].disk

    def folder(self, name: str) -> SimFolder:
        """Return the node's files."""
        return self._processes[name].folder

    def is_alive(self, name: str) -> bool:
        return self._processes[name].is_alive

    def call(self, name: str, function: Callable[[Any], Any]) -> None:
        """Call `function(node)` in the node's next turn, as a user's thread would post it."""
        self._processes[name].post(function)

    # --- faults -----------------------------------------------------------------------------------

    def stop(self, name: str) -> None:
        """Request a clean stop; `is_alive` turns False once it has completed."""
        self.call(name, lambda node: node.stop())

    def kill(self, name: str) -> None:
        """Kill the process as by `kill -9`: its connections end, written bytes stay."""
        self.trace(b"kill " + name.encode())
        self.failed(self._processes[name])

    def crash(self, name: str) -> None:
        """Cut the machine's power: unsynced bytes are kept, lost or torn.

        Peers get no reply until the machine is restarted.
        """
        process = self._processes[name]
        self.trace(b"crash " + name.encode())
        process.disk.die(self._crashes)
        process.end()
        process.is_off = True
        process.folder.crash(self._crashes)
        self.net.power_off(process)

    def lose_disk(self, name: str) -> None:
        """Cut the machine's power and empty its disk."""
        self.crash(name)
        self.trace(b"lose disk " + name.encode())
        process = self._processes[name]
        process.folder = SimFolder(process.folder.root, capacity=process.folder.capacity)

    def restart(self, name: str) -> None:
        """Start a new process on the same files; kill the old one first if it still runs."""
        process = self._processes[name]
        if process.is_alive:
            self.kill(name)
        self.trace(b"restart " + name.encode())
        process.begin()
        self.net.release_held()

    def pause(self, name: str) -> None:
        """Stop the process as by SIGSTOP."""
        self._processes[name].pause()

    def resume(self, name: str) -> None:
        """Continue the process as by SIGCONT."""
        self._processes[name].resume()

    def jump_wall(self, name: str, delta_ms: int) -> None:
        """Change the wall clock of the node's machine by `delta_ms`, which may be negative."""
        self._processes[name].wall_skew_ms += delta_ms

    def stopped(self, process: Process) -> None:
        """Clean up after a node that has stopped cleanly. Called by `Process`."""
        self.trace(b"stopped " + process.name.encode())
        process.disk.close()
        self.net.end(process)
        process.end()

    def failed(self, process: Process) -> None:
        """End a process like a kill. Also called by `Process` after an exception of its node."""
        process.disk.die()
        process.end()
        process.folder.kill()
        self.net.kill(process)

    # --- time -------------------------------------------------------------------------------------

    @property
    def now_ms(self) -> int:
        """Monotonic time in ms, as the nodes see it."""
        return self.now_us // 1000

    def at_us(self, due_us: int, function: Callable[[], None]) -> None:
        """Call `function` at the virtual time `due_us`."""
        self._sequence += 1
        heappush(self._heap, (due_us, self._sequence, function))

    def after_ms(self, delay_ms: int, function: Callable[[], None]) -> None:
        """Call `function` after `delay_ms`, for example to inject a fault."""
        self.at_us(self.now_us + delay_ms * 1000, function)

    def run_for(self, duration_ms: int) -> None:
        self._run_to(self.now_us + duration_ms * 1000)

    def run_until(self, reached: Callable[[], Any], limit_ms: int) -> bool:
        """Run until `reached()` is true, checked after each event.

        Return False after `limit_ms`.
        """
        heap, until_us = self._heap, self.now_us + limit_ms * 1000
        while not reached():
            if not heap or heap[0][0] > until_us:
                self.now_us = until_us
                return bool(reached())
            self.now_us, _, function = heappop(heap)
            function()
            if len(self._traced) >= TRACED_MAX:
                self._digest_traced()
        return True

    def trace_hash(self) -> str:
        self._digest_traced()
        return self._digest.hexdigest()

    def _run_to(self, until_us: int) -> None:
        heap, traced = self._heap, self._traced
        while heap and heap[0][0] <= until_us:
            self.now_us, _, function = heappop(heap)
            function()
            if len(traced) >= TRACED_MAX:
                self._digest_traced()
        self.now_us = until_us

    def _digest_traced(self) -> None:
        self._digest.update(b"".join(self._traced))
        self._traced.clear()

    def _keep(self, data: bytes) -> None:
        assert self.trace_kept is not None
        self.trace_kept.append(data)
        self._traced.append(data)
