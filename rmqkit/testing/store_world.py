"""One storage engine on a simulated disk, driven turn by turn in virtual time.

    world = StoreWorld(my_engine_factory)
    engine = world.start()
    engine.append(put("T", 0, b"hello"))
    world.settle()
    world.crash()                 # power loss: unsynced pages are kept, lost or torn
    engine = world.start()

`world.disk.fail("write")` plans errors. `world.folder` has the files, `world.notes` the log lines.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from random import Random
from typing import Any

from rmqkit.config import ControllerSettings, NameserverSettings, NodeConfig, StorePaths
from rmqkit.runtime.connection import Buffer
from rmqkit.runtime.duties import Duties
from rmqkit.runtime.ports import Clock, Disk, Ports
from rmqkit.sim.disk import SimDisk
from rmqkit.sim.folder import SimFolder
from rmqkit.store.contract import Arrival, EngineFactory, EngineParts, GetStatus, Put, PutRun, PutStatus, StorageEngine
from rmqkit.store.queues.batch_queue import message_count
from rmqkit.wire.record import Record, body_crc, decode_record

START_MS = 1_750_000_000_000
HOST = bytes([10, 0, 0, 1]) + (10911).to_bytes(4, "big")
BORN = bytes([10, 0, 0, 9]) + (40001).to_bytes(4, "big")


class Notes:
    """A log that keeps its lines as (level, event, fields)."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, dict[str, Any]]] = []

    def info(self, event: str, **fields: Any) -> None:
        self.lines.append(("info", event, fields))

    def warning(self, event: str, **fields: Any) -> None:
        self.lines.append(("warning", event, fields))

    def error(self, event: str, **fields: Any) -> None:
        self.lines.append(("error", event, fields))

    @property
    def events(self) -> list[str]:
        return [event for _, event, _ in self.lines]


def store_config(**sections: dict[str, Any]) -> NodeConfig:
    """Return a broker's configuration with small files.

    `sections` overrides fields of sections: `store_config(retention={"delete_when": "05"})`.
    """
    config = NodeConfig(
        kind="broker",
        paths=StorePaths(store_path_root_dir="/store", store_path_commit_log="/store/commitlog"),
        nameserver=NameserverSettings(kv_config_path="/kv.json", config_store_path="/ns.conf"),
        controller=ControllerSettings(config_store_path="/controller.conf"),
    )
    defaults: dict[str, dict[str, Any]] = {
        "commit_log": {"mapped_file_size_commit_log": 4096},
        "consume_queue": {"mapped_file_size_consume_queue": 200},
        "index": {"max_hash_slot_num": 50, "max_index_num": 40},
    }
    for name, fields in sections.items():
        defaults.setdefault(name, {}).update(fields)
    return replace(config, **{name: replace(getattr(config, name), **fields) for name, fields in defaults.items()})


class StoreWorld:
    """One storage engine on a simulated disk, in virtual time.

    The constructor creates the engine; `start` starts it. `turn` lets time pass and runs what is
    due. `restart`, `kill` and `crash` begin a new life on the same files. Lost and torn writes
    depend only on the seed.

    Args:
        make: The factory of the engine.
        config: The broker's configuration. Default: `store_config()`, with small files.
        seed: Seed of the disk's random choices.

    Attributes:
        config: The broker's configuration (`NodeConfig`).
        engine: The engine of the current life.
        disk: The simulated disk of the current life; `disk.fail("write")` plans an error.
        folder: The files, in all lives.
        clock: The engine's clock.
        duties: The duties of the current life.
        notes: The log; `notes.lines` has its lines as (level, event, fields).
        arrivals: All messages that became readable, in order (`rmqkit.store.contract.Arrival`).
        random: Random choices of the disk, in all lives.
        now_us: Virtual time in µs; 1,000,000 at the beginning.

    Example:
        A synced message survives a power loss:

            from rmqkit.testing import StoreWorld
            from rmqkit.testing.store_world import put

            world = StoreWorld(my_engine_factory)
            engine = world.start()
            engine.append(put("T", 0, b"hello"))
            world.until(lambda: engine.offset_synced > 0)
            world.crash()
            engine = world.start()
            assert engine.queue_range("T", 0).offset_max == 1
    """

    def __init__(self, make: EngineFactory, config: NodeConfig | None = None, *, seed: int = 1) -> None:
        self.config = config or store_config()
        self.random = Random(f"{seed}/disk")
        self.folder = SimFolder()
        self.clock = Clock(mono_ms=1000, wall_ms=START_MS)
        self.now_us = 1_000_000
        self.notes = Notes()
        self.arrivals: list[Arrival] = []
        self._make = make
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self.begin()

    # --- lives ------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Create a new engine on the files, as a new process does. It is not started yet."""
        self._events.clear()
        self.duties = Duties()
        self.disk = SimDisk(self.folder, clock=self.clock, random=self.random, after_us=self._after_us)
        ports = Ports(self.clock, self.port(self.disk), Random(7), self.notes)
        self.engine = self._make(EngineParts(ports, self.duties, self.config))

    def port(self, disk: SimDisk) -> Disk:
        """Return the disk port for the engine. Subclasses may wrap the disk.

        Args:
            disk: The simulated disk of the new life.
        """
        return disk

    def start(self) -> StorageEngine:
        """Start the engine, run until it is ready, and return it.

        Raises AssertionError after 10,000 turns.
        """
        self.engine.start()
        for _ in range(10_000):
            if self.engine.ready:
                return self.engine
            self.turn()
        raise AssertionError(f"not ready: {self.engine.progress}")

    def stop(self) -> None:
        """Stop the engine cleanly and run until it has stopped.

        Raises AssertionError after 10,000 turns.
        """
        done: list[bool] = []
        self.engine.stop(lambda: done.append(True))
        for _ in range(10_000):
            if done:
                break
            self.turn()
        assert done, "the engine did not stop"
        self.disk.close()

    def restart(self) -> StorageEngine:
        """Stop the engine cleanly, begin a new life, and return the started engine."""
        self.stop()
        self.begin()
        return self.start()

    def kill(self) -> None:
        """End the engine like `kill -9` and begin a new life. Everything that was written stays."""
        self.disk.die()
        self.folder.kill()
        self.begin()

    def crash(self) -> None:
        """Cut the power and begin a new life. Unsynced pages are kept, lost or torn."""
        self.disk.die(self.random)
        self.folder.crash(self.random)
        self.begin()

    # --- turns ------------------------------------------------------------------------------------

    def _after_us(self, delay_us: int, function: Callable[[], None]) -> None:
        self._sequence += 1
        heappush(self._events, (self.now_us + delay_us, self._sequence, function))

    def turn(self, ms: int = 1) -> Sequence[Arrival]:
        """Let time pass, then run one turn: completions, duties, `settle`. Return its result.

        Args:
            ms: Milliseconds that pass.
        """
        self.now_us += ms * 1000
        self.clock.mono_ms += ms
        self.clock.wall_ms += ms
        while self._events and self._events[0][0] <= self.now_us:
            heappop(self._events)[2]()
        for then, error in list(self.disk.take_completed()):
            then(error)
        self.duties.run_due(self.clock.mono_ms)
        return self.settle()

    def settle(self) -> Sequence[Arrival]:
        """Write the records of this turn. Return the messages that became readable."""
        arrivals = self.engine.settle()
        self.arrivals += arrivals
        return arrivals

    def run(self, ms: int, step_ms: int = 10) -> None:
        """Let time pass in steps, with a turn after each one.

        Args:
            ms: Milliseconds that pass, rounded up to whole steps.
            step_ms: Milliseconds of one step.
        """
        for _ in range(-(-ms // step_ms)):
            self.turn(step_ms)

    def until(self, wanted: Callable[[], object], limit_ms: int = 100_000) -> None:
        """Run turns of 1 ms until `wanted` returns true.

        Args:
            wanted: The condition, checked before each turn.
            limit_ms: The most turns.

        Raises:
            AssertionError: If the condition is still false after `limit_ms` turns.
        """
        for _ in range(limit_ms):
            if wanted():
                return
            self.turn()
        raise AssertionError(f"not reached within {limit_ms} ms")


def put(topic: str = "T", queue_id: int = 0, body: bytes = b"body", *, properties: bytes = b"", **fields: Any) -> Put:
    """Return a message to append. `fields` overrides the defaults of the other fields."""
    values: dict[str, Any] = {
        "topic": topic,
        "queue_id": queue_id,
        "flag": 0,
        "sys_flag": 0,
        "born_ms": START_MS - 5,
        "born_host": BORN,
        "store_host": HOST,
        "reconsume_times": 0,
        "prepared_offset": 0,
        "body": body,
        "properties": properties,
        "tags_code": 0,
    }
    values.update(fields)
    return Put(**values)


def run_of(puts: Sequence[Put]) -> PutRun:
    """Return messages, whose hosts have IPv4 addresses, by column."""
    return PutRun(
        [(each.topic, each.queue_id) for each in puts],
        [each.flag for each in puts],
        [each.sys_flag for each in puts],
        [each.born_ms.to_bytes(8, "big") + each.born_host for each in puts],
        [each.store_host + each.reconsume_times.to_bytes(4, "big") for each in puts],
        [body_crc(each.body) for each in puts],
        [each.body for each in puts],
        [each.properties for each in puts],
        [each.tags_code for each in puts],
    )


# --- records ----------------------------------------------------------------------------------

#: ms; a time that no message reaches
FOREVER_MS = 1 << 60


def body_of(record: Buffer) -> bytes:
    """Return the body of a record with IPv4 hosts."""
    size = int.from_bytes(record[84:88], "big")
    return bytes(record[88 : 88 + size])


def records_of(buffers: Any) -> list[bytes]:
    """Split the joined buffers into whole records."""
    whole = b"".join(buffers)
    records = []
    while whole:
        size = int.from_bytes(whole[:4], "big")
        records.append(whole[:size])
        whole = whole[size:]
    return records


def offset_of(record: Buffer) -> int:
    return int.from_bytes(record[20:28], "big")


def phy_offset_of(record: Buffer) -> int:
    return int.from_bytes(record[28:36], "big")


def keys(*names: str) -> bytes:
    return b"UNIQ_KEY\x01" + names[0].encode() + b"\x02KEYS\x01" + " ".join(names[1:]).encode() + b"\x02"


def fill(world: StoreWorld, count: int, *, topic: str = "T", queue_id: int = 0, size: int = 100, ms: int = 1) -> None:
    """Append `count` messages, one per turn of `ms`.

    The bodies are `T-0-<number>`, padded to `size` bytes.
    """
    for number in range(count):
        body = f"{topic}-{queue_id}-{number}".encode().ljust(size, b".")
        assert world.engine.append(put(topic, queue_id, body)).status is PutStatus.PUT_OK
        world.turn(ms)


def drain(engine: StorageEngine, topic: str, queue_id: int) -> list[bytes]:
    """Return every record of a queue, read with pulls as a consumer does."""
    offset = engine.queue_range(topic, queue_id).offset_min
    records: list[bytes] = []
    while True:
        read = engine.read(topic, queue_id, offset, count_max=32, size_max=262_144)
        if read.status is not GetStatus.FOUND:
            return records
        found = records_of(read.buffers)
        assert read.message_count == sum(map(_message_count, found))
        assert read.size == sum(map(len, found))
        records += found
        offset = read.offset_next


def _message_count(data: bytes) -> int:
    """Return how many messages a record holds: several in an inner batch."""
    record = decode_record(data, check_crc=False)
    return message_count(record.properties) if isinstance(record, Record) else 1
