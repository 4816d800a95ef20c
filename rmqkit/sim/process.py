"""One simulated process: a node, its ports, and its turns in virtual time.

A turn is the contract's: clock set, posted calls and completions, told and read, dues, settle, outbox. It takes a drawn few
microseconds, so what arrives meanwhile is taken together in the next one, as in a real loop. A turn is planned (`plan`)
when something is there for the node or its next due time comes; nothing ticks.

States: alive; paused (as by SIGSTOP: the kernel goes on taking connections and bytes); dead (killed, stopped or failed to
start: the machine refuses connections); off (the machine has no power and answers nothing).
"""

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rmqkit.runtime.connection import Connection
from rmqkit.runtime.node import Node
from rmqkit.runtime.ports import Clock, Ports
from rmqkit.sim.disk import SimDisk
from rmqkit.sim.folder import SimFolder

if TYPE_CHECKING:
    from rmqkit.sim.world import World

NodeMaker = Callable[[Ports], Node]
TURN_US = (5, 60)
LOG_LINES_MAX = 20_000


class LogLine(NamedTuple):
    """One log line of a node."""

    mono_ms: int
    level: str
    event: str
    fields: dict[str, Any]


class SimLog:
    """The log port: lines are kept, newest last, across restarts of the node."""

    def __init__(self, clock: Clock, trace: Callable[[bytes], None]) -> None:
        self.clock = clock
        self.lines: deque[LogLine] = deque(maxlen=LOG_LINES_MAX)
        self._trace = trace

    def info(self, event: str, **fields: Any) -> None:
        self._add("INFO", event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        self._add("WARNING", event, fields)

    def error(self, event: str, **fields: Any) -> None:
        self._add("ERROR", event, fields)

    def events(self, event: str) -> Sequence[LogLine]:
        return [line for line in self.lines if line.event == event]

    def _add(self, level: str, event: str, fields: dict[str, Any]) -> None:
        self.lines.append(LogLine(self.clock.mono_ms, level, event, fields))
        self._trace(f"{level} {event} {fields}".encode())


class Input(Protocol):
    """What may have something for the node: an `End` or a `Dial`."""

    def take(self) -> None: ...


class Process:
    def __init__(self, world: "World", name: str, host: str, make: NodeMaker) -> None:
        self.world = world
        self.name = name
        self.host = host
        self.make = make
        self.clock = Clock()
        self.log = SimLog(self.clock, world.trace)
        self.folder = SimFolder(f"/sim/{name}")
        self.node: Any = None
        self.disk: SimDisk
        self.is_alive = False
        self.is_paused = False
        self.is_off = False
        self.refuses = False
        self.incarnation = 0
        #: nodes of the same OS process: each turn of one settles them all
        self.mates: list[Process] = []
        #: how far this machine's wall clock is off
        self.wall_skew_ms = 0
        self._is_started = False
        self._last_id = 0
        self._random = Random(f"{world.seed}/turns/{name}")
        self._ready: dict[Input, None] = {}
        self._told: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._posted: deque[Callable[[Any], Any]] = deque()
        self._turn_us: int | None = None
        self._free_us = 0

    # --- life -------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make the node; it is started in a turn of its own."""
        world = self.world
        self.incarnation += 1
        stream = f"{self.name}/{self.incarnation}"
        self.disk = SimDisk(
            self.folder,
            clock=self.clock,
            random=Random(f"{world.seed}/disk/{stream}"),
            after_us=lambda delay_us, function: world.at_us(world.now_us + delay_us, function),
            ended=self.plan,
            trace=world.trace,
        )
        self._set_clock()
        entropy = Random(f"{world.seed}/entropy/{stream}")
        self._is_started = False
        self.node = self.make(Ports(clock=self.clock, disk=self.disk, entropy=entropy, log=self.log))
        self.is_alive, self.is_paused, self.is_off = True, False, False
        self.plan()

    def end(self) -> None:
        """The process is gone; what was on its way to the node is dropped."""
        self.is_alive = False
        self.is_paused = False
        self._ready.clear()
        self._told.clear()
        self._posted.clear()
        self._turn_us = None

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        self._turn_us = None
        self.plan()

    def post(self, function: Callable[[Any], Any]) -> None:
        """Call a function with the node in its next turn."""
        if not self.is_alive:
            raise ValueError(f"{self.name} is not running")
        self._posted.append(function)
        self.plan()

    # --- for the net ------------------------------------------------------------------------------------------------

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def ready(self, item: Input) -> None:
        if self.is_alive:
            self._ready[item] = None
            self.plan()

    def opened(self, conn: Connection) -> None:
        self.world.trace(b"opened %d" % conn.id)
        self.node.opened(conn)

    def received(self, conn: Connection, data: bytes) -> None:
        self.world.trace(b"received %d %d" % (conn.id, len(data)))
        self.node.received(conn, data)

    def tell_drained(self, conn: Connection) -> None:
        self._told.append((self.node.drained, (conn,)))
        self.plan()

    def tell_closed(self, conn: Connection) -> None:
        self._told.append((self.node.closed, (conn, conn.closing)))
        self.plan()

    # --- turns ------------------------------------------------------------------------------------------------------

    def plan(self, due_us: int = 0) -> None:
        """Take a turn at `due_us`, or as soon as the last one is over."""
        if not self.is_alive or self.is_paused:
            return
        due_us = max(due_us, self.world.now_us, self._free_us)
        if self._turn_us is None or due_us < self._turn_us:
            self._turn_us = due_us
            self.world.at_us(due_us, self._fire)

    def _fire(self) -> None:
        now_us = self.world.now_us
        if self._turn_us != now_us or self.is_paused or not self.is_alive:
            return
        self._turn_us = None
        self.world.trace(b"turn %d %s" % (now_us, self.name.encode()))
        try:
            self._turn()
        except Exception as error:
            error.add_note(
                f"in node {self.name} at {now_us / 1_000_000:.6f} s, doing {self.node.doing!r}; seed {self.world.seed!r}"
            )
            self.world.failed(self)
            raise
        if self.node.stopped and self._is_started:
            self.world.stopped(self)
            return
        self._free_us = now_us + TURN_US[0] + int(self._random.random() * TURN_US[1])
        if self._ready or self._told or self._posted or self.disk.completed:
            self.plan()
            return
        due_ms = self.node.due_ms()
        if due_ms is not None:
            self.plan(due_ms * 1000)

    def _turn(self) -> None:
        node = self.node
        self._set_clock()
        if not self._is_started:
            self._is_started = True
            node.start()
        else:
            for _ in range(len(self._posted)):
                self._posted.popleft()(node)
            for completion, error in self.disk.take_completed():
                node.done(completion, error)
            self._tell_all()
            if self._ready:
                self._take_ready()
                self._tell_all()
        due_ms = node.due_ms()
        if due_ms is not None and due_ms <= self.clock.mono_ms:
            node.run_due()
        node.settle()
        self._flush()
        for mate in self.mates:
            mate.settle()

    def settle(self) -> None:
        """The end of a turn of the driver, which another of its nodes took: what that one has done here goes on."""
        if not self.is_alive or not self._is_started:
            return
        self._set_clock()
        self.node.settle()
        self._flush()
        due_ms = self.node.due_ms()
        if due_ms is not None:
            self.plan(due_ms * 1000)

    def _take_ready(self) -> None:
        items, self._ready = list(self._ready), {}
        if len(items) > 1 and self._random.random() < 0.5:
            # A poller reports in no order that means anything.
            self._random.shuffle(items)
        for item in items:
            item.take()

    def _tell_all(self) -> None:
        told = self._told
        while told:
            method, arguments = told.popleft()
            self.world.trace(b"told %d" % arguments[0].id)
            method(*arguments)

    def _flush(self) -> None:
        """The outbox, in the shell's order."""
        outbox = self.node.outbox
        if outbox.is_empty:
            return
        for conn in outbox.dials:
            self.world.net.dial(self, conn)
        outbox.dials.clear()
        for conn in outbox.dirty:
            if conn.driver is not None:
                conn.driver.flush()
        outbox.dirty.clear()
        for conn in outbox.reads_changed:
            if conn.driver is not None:
                conn.driver.watch()
        outbox.reads_changed.clear()
        for conn, keep in outbox.closes:
            if conn.driver is not None:
                if keep:
                    conn.driver.finish()
                else:
                    conn.driver.abort()
        outbox.closes.clear()

    def _set_clock(self) -> None:
        mono_ms = self.world.now_us // 1000
        self.clock.mono_ms = mono_ms
        self.clock.wall_ms = self.world.wall_start_ms + mono_ms + self.wall_skew_ms
