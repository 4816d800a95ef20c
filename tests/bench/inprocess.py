"""Measures the cost of a message in a broker in this process: real files, no sockets, little noise.

    python -m tests.bench.inprocess send batch pull hold [--rounds 10]     µs per message
    python -m tests.bench.inprocess --profile send                         the same, by function
    python -m tests.bench.inprocess --against FOLDER [--pairs 7]           ratio to another checkout

`alternating.py` does the comparison with another checkout.

The loads pass whole frames, as a Java client writes them, to the broker, and take its answers from
the outbox. A turn is like a turn of the shell. The network is missing: about 5 µs of the kernel for
each read or write of a socket.

Every round has the same turns, on a clock that advances as the load requires. Therefore turn n does
the same work in every round, and the minimum over the rounds counts for each turn. That leaves out
whatever else ran on the machine. (A clock of CPU time would need a system call per reading.) The
index handles records later, in batches, so it has its own load.

    send    64 sends of 1 KiB per turn (64 threads that wait for their answers)
    single  one send per turn (one thread)
    batch   4 batches of 32 × 128 B per turn
    pull    pulls of 32 × 1 KiB, one per turn
    hold    a waiting pull and the send that wakes it: the cost of a message read immediately
    pop     a pop of 32 × 1 KiB, then an ack of each in two turns, with JSON headers: the codes of
            pop do not fit a binary header. It includes the work until the invisible time is over
    ack     the same with one ack per turn
    index   the work that the index does later for one of the sends
    batchindex  the same for a message of the batches

`service_loads.py` has the loads of timers and transactions: `timer`, `due`, `transaction`.
"""

import argparse
import cProfile
import gc
import pstats
import random
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import msgspec

from rmqkit import config, plugins
from rmqkit.broker.node import Broker
from rmqkit.runtime.connection import Address, Connection
from rmqkit.runtime.ports import Clock, Ports
from rmqkit.shell.disk import OsDisk
from rmqkit.shell.log import stderr_log
from rmqkit.wire.batch import BatchMessage, encode_batch
from rmqkit.wire.codes import RequestCode
from tests.bench import alternating, service_loads

TOPIC = "BenchmarkTest"
QUEUES = 8
#: `TOPIC` is built in and has 1,024 queues; a pop looks at all queues of its topic
POP_TOPIC = "PopTest"
#: messages of a round of `pop`, and their invisible time
POPPED = 4096
INVISIBLE_MS = 60_000
_FRAME = struct.Struct(">iI")
_HEAD = struct.Struct(">hbhiiii")
_BINARY = 1 << 24
_VERSION = 479


def frame(code: int, opaque: int, fields: dict[str, str], body: bytes = b"", flag: int = 0) -> bytes:
    """Return a request with the binary header of Java's client."""
    pairs = b"".join(
        len(key).to_bytes(2, "big") + key.encode() + len(value.encode()).to_bytes(4, "big") + value.encode()
        for key, value in fields.items()
    )
    header = _HEAD.pack(code, 0, _VERSION, opaque, flag, 0, len(pairs)) + pairs
    return _FRAME.pack(4 + len(header) + len(body), _BINARY | len(header)) + header + body


def json_frame(code: int, opaque: int, fields: dict[str, str]) -> bytes:
    """Return a request with the JSON header of Java's client, which writes sorted keys."""
    head = {"code": code, "extFields": fields, "flag": 0, "language": "JAVA", "opaque": opaque}
    header = msgspec.json.encode(head | {"serializeTypeCurrentRPC": "JSON", "version": _VERSION})
    return _FRAME.pack(4 + len(header), len(header)) + header


def properties(number: int) -> str:
    """Return a plain message's properties of Java's client; only the unique key's end varies."""
    return f"UNIQ_KEY\x017F000001{number >> 16:016X}{number & 0xFFFF:08X}\x02WAIT\x01true\x02"


def send_frame(
    number: int,
    body: bytes,
    *,
    topic: str = TOPIC,
    queue_id: int = 0,
    batch: bool = False,
    sent: str | None = None,
    sys_flag: int = 0,
) -> bytes:
    """Return a send; `sent` are its properties, if they are not those of a plain message."""
    fields = {
        "a": "bench_producer", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": str(sys_flag),
        "g": str(1_760_000_000_000 + number), "h": "0", "i": sent or properties(number), "j": "0", "k": "false",
        "m": "true" if batch else "false", "n": "broker-a",
    }  # fmt: skip
    code = RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2
    return frame(code, number & 0x7FFFFFFF, fields, body)


def batch_body(first: int, count: int, size: int) -> bytes:
    return encode_batch(
        [BatchMessage(0, bytes(size), properties(number).encode()) for number in range(first, first + count)]
    )


def pull_frame(opaque: int, offset: int, *, topic: str = TOPIC, queue_id: int = 0, suspend_ms: int = 15_000) -> bytes:
    fields = {
        "consumerGroup": "bench", "topic": topic, "queueId": str(queue_id), "queueOffset": str(offset), "maxMsgNums": "32",
        "sysFlag": "6" if suspend_ms else "4", "commitOffset": "0", "suspendTimeoutMillis": str(suspend_ms),
        "subscription": "*", "subVersion": "1", "expressionType": "TAG", "bname": "broker-a",
    }  # fmt: skip
    return frame(RequestCode.PULL_MESSAGE, opaque, fields)


#: the input of a turn; a function if it depends on what earlier turns have stored
Turn = bytes | Callable[[], bytes]


class InProcess:
    """A broker with a temporary folder, ready to serve."""

    def __init__(self, *overrides: str) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="inprocess-")
        values = [
            "brokerName=broker-a",
            "brokerIP1=127.0.0.1",
            "brokerIP2=127.0.0.1",
            f"storePathRootDir={self._folder.name}",
        ]
        settings = config.load([], [*values, *overrides], "broker")
        self.clock = Clock()
        self._now_us = time.time_ns() // 1000
        #: duration of a turn by the broker's clock, in µs
        self._turn_us = 1000
        self._tick()
        self.disk = OsDisk(self._folder.name)
        ports = Ports(self.clock, self.disk, random.Random(1), stderr_log("bench"))
        self.broker = Broker("bench", ports, settings, plugins.load(entry_points=False).broker_parts(settings))
        self._connections = 0
        self.number = 0
        self.turn(self.broker.start)
        while not self.broker.serving:
            self.turn()
        self.conn = self.connect()

    def __enter__(self) -> "InProcess":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.disk.close()
        self._folder.cleanup()

    def _tick(self) -> None:
        self._now_us += self._turn_us
        self.clock.mono_ms = self.clock.wall_ms = self._now_us // 1000

    def connect(self) -> Connection:
        self._connections += 1
        conn = Connection(self._connections, "remoting", Address("127.0.0.1", 40_000 + self._connections))
        self.turn(lambda: self.broker.opened(conn))
        return conn

    def turn(self, event: Callable[[], None] | None = None) -> None:
        """Run one turn; its answers stay in `out` of the connections until the next turn."""
        broker = self.broker
        self._tick()
        if self.disk.completed:
            for completion, error in self.disk.take_completed():
                broker.done(completion, error)
        if event is not None:
            event()
        due_ms = broker.due_ms()
        if due_ms is not None and due_ms <= self.clock.mono_ms:
            broker.run_due()
        broker.settle()
        outbox = broker.outbox
        outbox.dials.clear()
        for conn in outbox.dirty:
            conn.out.clear()
            conn.out_size = 0
        outbox.dirty.clear()

    def receive(self, data: bytes, conn: Connection | None = None) -> None:
        at = conn or self.conn
        self.turn(lambda: self.broker.received(at, data))

    def make_topic(self, topic: str, queues: int = QUEUES) -> None:
        fields = {
            "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(queues), "writeQueueNums": str(queues),
            "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        }  # fmt: skip
        self.receive(frame(RequestCode.UPDATE_AND_CREATE_TOPIC, 1, fields))
        self.idle()

    def idle(self) -> None:
        """Complete all pending work: disk thread, index, and duties of the next 10 seconds."""
        self._turn_us, before_us = 100_000, self._turn_us
        for _ in range(100):
            self.disk.wait(1.0)
            self.turn()
        self._turn_us = before_us

    def skip(self, ms: int) -> bytes:
        """Let the clock advance before the next turn, which receives nothing."""
        self._now_us += ms * 1000
        return b""

    @property
    def now_ms(self) -> int:
        return self._now_us // 1000

    def align(self) -> None:
        """Let the clock go on to the next whole second."""
        self._now_us += -self._now_us % 1_000_000

    def sends(
        self,
        turns: int,
        per_turn: int,
        size: int,
        *,
        topic: str = TOPIC,
        queues: int = QUEUES,
        sent: Callable[[int], str] = properties,
        sys_flag: int = 0,
    ) -> list[bytes]:
        """Return the input bytes of each turn of a send load.

        `sent` returns the properties of the message with a number.
        """
        body = bytes(size)
        made = []
        for _ in range(turns):
            frames = []
            for _ in range(per_turn):
                self.number += 1
                queue_id, its = self.number % queues, sent(self.number)
                frames.append(send_frame(self.number, body, topic=topic, queue_id=queue_id, sent=its, sys_flag=sys_flag))
            made.append(b"".join(frames))
        return made

    def request(self, code: int, fields: dict[str, str], flag: int = 0) -> bytes:
        """Return the frame of a request without a body."""
        self.number += 1
        return frame(code, self.number & 0x7FFFFFFF, fields, flag=flag)

    def run(self, turns: Sequence[Turn], turn_us: int) -> list[int]:
        """Return each turn's time in ns, including duties that become due."""
        self.idle()
        self._turn_us = turn_us
        gc.collect()
        now = time.perf_counter_ns
        took = []
        for each in turns:
            data = each if isinstance(each, bytes) else each()
            began = now()
            self.receive(data)
            took.append(now() - began)
        return took

    def index(self, turns: Sequence[Turn]) -> list[int]:
        """Return the time of each step of the index in ns, for the records of these turns."""
        index = self.broker.store.index  # type: ignore[attr-defined]
        self.broker.duties.remove("store-index")
        while index._has_work:
            index._step()
        for data in turns:
            assert isinstance(data, bytes)
            self.receive(data)
        now = time.perf_counter_ns
        took = []
        while index._has_work:
            began = now()
            index._step()
            took.append(now() - began)
        return took


class Load(NamedTuple):
    """A load of the benchmark.

    `make` returns the input bytes of each turn. `turn_us` is the length of a turn at a high rate,
    in µs. `is_index`: the work of the index is measured, not the turns.
    """

    make: Callable[[InProcess], Sequence[Turn]]
    messages: int
    turn_us: int
    is_index: bool = False


def make_batches(server: InProcess) -> list[bytes]:
    turns = []
    for _ in range(128):
        frames = []
        for _ in range(4):
            server.number += 32
            body = batch_body(server.number, 32, 128)
            frames.append(send_frame(server.number, body, queue_id=server.number // 32 % QUEUES, batch=True))
        turns.append(b"".join(frames))
    return turns


def make_pulls(server: InProcess) -> list[bytes]:
    for data in server.sends(150, 64, 1024):
        server.receive(data)
    first = server.broker.store.queue_range(TOPIC, 0).offset_max - 1024
    return [pull_frame(number, first + number * 32, suspend_ms=0) for number in range(32)] * 10


def make_held(server: InProcess) -> list[bytes]:
    offset = server.broker.store.queue_range(TOPIC, 0).offset_max
    turns = []
    for number in range(2048):
        turns += [pull_frame(number, offset + number), server.sends(1, 1, 1024, queues=1)[0]]
    return turns


def make_pops(server: InProcess, acks_per_turn: int = 16) -> Sequence[Turn]:
    """Return turns that pop and ack `POPPED` messages, then turns until their due time is over."""
    server.make_topic(POP_TOPIC)
    server.receive(frame(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, 1, {}, b'{"groupName":"bench_pop"}'))
    for data in server.sends(POPPED // 32, 32, 1024, topic=POP_TOPIC):
        server.receive(data)
    turns: list[bytes | Callable[[], bytes]] = []
    for _ in range(POPPED // 32):
        turns.append(partial(pop_frame, server))
        turns += [partial(ack_frames, server, acks_per_turn)] * (32 // acks_per_turn)
    return [*turns, *[partial(server.skip, INVISIBLE_MS // 10)] * 15]


def pop_frame(server: InProcess) -> bytes:
    fields = {
        "bornTime": str(server.clock.wall_ms), "consumerGroup": "bench_pop", "exp": "*", "expType": "TAG", "initMode": "0",
        "invisibleTime": str(INVISIBLE_MS), "maxMsgNums": "32", "order": "false", "pollTime": "0", "queueId": "-1",
        "topic": POP_TOPIC,
    }  # fmt: skip
    return json_frame(RequestCode.POP_MESSAGE, 1, fields)


def ack_frames(server: InProcess, count: int) -> bytes:
    """Return acks of up to `count` popped messages, the oldest first."""
    frames: list[bytes] = []
    for each in server.broker.view.revive.pending:
        topic, group, queue_id, start, pop_ms, name = each.key
        handle = f"{start} {pop_ms} {INVISIBLE_MS} {each.revive_queue} 0 {name} {queue_id} "
        for offset in [offset for offset in each.offsets if each.index(offset) >= 0][: count - len(frames)]:
            fields = {"consumerGroup": group, "extraInfo": f"{handle}{offset}", "offset": str(offset)}
            fields |= {"queueId": str(queue_id), "topic": topic}
            frames.append(json_frame(RequestCode.ACK_MESSAGE, offset & 0xFFFFFF, fields))
    return b"".join(frames)


LOADS = {
    "send": Load(lambda server: server.sends(256, 64, 1024), 16_384, 2000),
    "single": Load(lambda server: server.sends(2048, 1, 1024), 2048, 200),
    "batch": Load(make_batches, 16_384, 640),
    "pull": Load(make_pulls, 10_240, 300),
    "hold": Load(make_held, 2048, 100),
    "pop": Load(make_pops, POPPED, 1000),
    "ack": Load(partial(make_pops, acks_per_turn=1), POPPED, 100),
    "index": Load(lambda server: server.sends(256, 64, 1024), 16_384, 2000, is_index=True),
    "batchindex": Load(make_batches, 16_384, 640, is_index=True),
    "timer": Load(service_loads.make_timers, 16_384, 2000),
    "due": Load(service_loads.make_due, 16_384, 10_000),
    "transaction": Load(service_loads.make_transactions, 8_192, 2000),
}


def least_us(server: InProcess, load: Load, rounds: int) -> float:
    """Return the time per message in µs, from the minimum of each turn over all rounds."""
    least: list[int] = []
    for _ in range(rounds):
        turns = load.make(server)
        took = server.index(turns) if load.is_index else server.run(turns, load.turn_us)
        least = [min(pair) for pair in zip(least or took, took, strict=True)]
    return sum(least) / 1000 / load.messages


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="The time of a message in a broker without sockets.")
    parser.add_argument("loads", nargs="*", metavar="LOAD", help=", ".join(LOADS))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="compare with the checkout in this folder")
    parser.add_argument("--pairs", type=int, default=7, help="measurements of each checkout")
    parser.add_argument("--limit", type=float, default=3, help="percent a load may be slower with --against")
    chosen = parser.parse_args(arguments)
    if chosen.against is not None:
        options = ["--rounds", str(chosen.rounds), *(part for each in chosen.set for part in ("--set", each))]
        measure = alternating.measure_with(options)
        loads = chosen.loads or list(LOADS)
        return alternating.run(chosen.against.resolve(), loads, chosen.pairs, chosen.limit, measure)
    for name in chosen.loads or LOADS:
        load = LOADS[name]
        with InProcess(f"messageIndexEnable={'true' if load.is_index else 'false'}", *chosen.set) as server:
            server.make_topic(TOPIC)
            gc.freeze()
            server.run(load.make(server), load.turn_us)
            if chosen.profile:
                profiler = cProfile.Profile()
                what = server.index if load.is_index else partial(server.run, turn_us=load.turn_us)
                profiler.runcall(what, load.make(server))
                pstats.Stats(profiler).sort_stats("tottime").print_stats(35)
            else:
                print(f"{name:>8}  {least_us(server, load, chosen.rounds):7.2f} µs a message", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
