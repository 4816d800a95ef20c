"""One simulated process: a node, its ports, and its turns in virtual time.

A turn follows the node contract: set the clock, run posted calls and completions, deliver
notifications (drained, closed) and input, run due work, settle, flush the outbox. A turn takes a
random time (`TurnTimes`). As in a real event loop, input that arrives meanwhile is handled together
in the next turn. A turn is scheduled (`plan`) when there is input for the node or when its next due
time comes; there is no periodic tick.

States:

- alive
- paused, as by SIGSTOP: the kernel still accepts connections and bytes
- dead, because it was killed, stopped or failed to start: the machine refuses connections
- off: the machine has no power and does not reply
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
    from rmqkit.tls.node_tls import NodeTls

NodeMaker = Callable[[Ports], Node]
LOG_LINES_MAX = 20_000


class TurnTimes(NamedTuple):
    """The time that turns take, each a minimum and the random part added to it, in microseconds.

    `wake_us` is the time from the first input of a process that waits to its turn. Input that
    arrives meanwhile is handled in the same turn. (0, 0): the turn begins at once.

    `timer_us` is the resolution of timers: due work waits for the next multiple of it.
    """

    turn_us: tuple[int, int] = (5, 60)
    wake_us: tuple[int, int] = (0, 0)
    timer_us: int = 1


class LogLine(NamedTuple):
    """One log line of a node."""

    mono_ms: int
    level: str
    event: str
    fields: dict[str, Any]


class SimLog:
    """The log port: collects the newest lines, newest last, across restarts of the node."""

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
    """A source of input for the node: an `End` or a `SimDial`."""

    def take(self) -> None: ...


class Process:
    """A node on its own machine. It outlives restarts: each start creates a new node object."""

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
        #: TLS of its listeners and dials; None: plain text
        self.tls: NodeTls | None = None
        self.incarnation = 0
        #: other nodes of the same OS process; each turn of one settles all of them
        self.mates: list[Process] = []
        #: deviation of this machine's wall clock in ms
        self.wall_skew_ms = 0
        self._is_started = False
        self._last_id = 0
        self._random = Random(f"{world.seed}/turns/{name}")
        self._turn_least_us, self._turn_more_us = world.turns.turn_us
        self._wake_least_us, self._wake_more_us = world.turns.wake_us
        self._timer_us = world.turns.timer_us
        self._wakes_late = world.turns.wake_us != (0, 0)
        #: whether a wake-up is planned: more input does not plan another one
        self._is_waking = False
        self._ready: dict[Input, None] = {}
        self._notices: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._posted: deque[Callable[[Any], Any]] = deque()
        self._name_bytes = name.encode()
        self._turn_us: int | None = None
        #: times of the calls of `_fire` that the world has in its heap
        self._fires: set[int] = set()
        self._free_us = 0

    # --- life -------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Create the node. Its first turn starts it."""
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
        """End the process and drop its pending input."""
        self.is_alive = False
        self.is_paused = False
        self._ready.clear()
        self._notices.clear()
        self._posted.clear()
        self._forget_turn()

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        self._forget_turn()
        self.plan()

    def post(self, function: Callable[[Any], Any]) -> None:
        """Call `function(node)` in the next turn. Raises ValueError if the process is not alive."""
        if not self.is_alive:
            raise ValueError(f"{self.name} is not running")
        self._posted.append(function)
        self.plan()

    # --- for the net ------------------------------------------------------------------------------

    def next_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def ready(self, item: Input) -> None:
        """Let the next turn take input from `item`."""
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
        self._notices.append((self.node.drained, (conn,)))
        self.plan()

    def tell_closed(self, conn: Connection) -> None:
        self._notices.append((self.node.closed, (conn, conn.closing)))
        self.plan()

    # --- turns ------------------------------------------------------------------------------------

    def plan(self, due_us: int = 0) -> None:
        """Schedule a turn at `due_us`, but not before the previous turn is over.

        A time that is past means input or overdue work: the turn begins once the process has woken.
        """
        if not self.is_alive or self.is_paused:
            return
        world = self.world
        now_us, planned_us = world.now_us, self._turn_us
        if due_us < self._free_us:
            due_us = self._free_us
        if due_us < now_us:
            due_us = now_us
            if self._wakes_late:
                if self._is_waking:
                    return
                self._is_waking = True
                due_us += self._wake_least_us + int(self._random.random() * self._wake_more_us)
        if planned_us is None or due_us < planned_us:
            self._turn_us = due_us
            # Input often comes between a turn and its successor's due time, which is then
            # planned again.
            if due_us not in self._fires:
                self._fires.add(due_us)
                world.at_us(due_us, self._fire)

    def _plan_due(self) -> None:
        """Schedule the turn of the next due work."""
        due_ms = self.node.due_ms()
        if due_ms is None:
            return
        due_us = due_ms * 1000
        if due_us > self.world.now_us:
            due_us += -due_us % self._timer_us
        self.plan(due_us)

    def _forget_turn(self) -> None:
        self._turn_us = None
        self._is_waking = False

    def _fire(self) -> None:
        now_us = self.world.now_us
        self._fires.discard(now_us)
        if self._turn_us != now_us or self.is_paused or not self.is_alive:
            return
        self._forget_turn()
        self.world.trace(b"turn %d %s" % (now_us, self._name_bytes))
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
        self._free_us = now_us + self._turn_least_us + int(self._random.random() * self._turn_more_us)
        if self._ready or self._notices or self._posted or self.disk.completed:
            self.plan()
            return
        self._plan_due()

    def _turn(self) -> None:
        node = self.node
        self._set_clock()
        if not self._is_started:
            self._is_started = True
            node.start()
        else:
            for _ in range(len(self._posted)):
                self._posted.popleft()(node)
            if self.disk.completed:
                for completion, error in self.disk.take_completed():
                    node.done(completion, error)
            if self._notices:
                self._deliver_notices()
            if self._ready:
                self._take_ready()
                if self._notices:
                    self._deliver_notices()
        due_ms = node.due_ms()
        if due_ms is not None and due_ms <= self.clock.mono_ms:
            node.run_due()
        node.settle()
        outbox = node.outbox
        if outbox.dirty or outbox.dials or outbox.closes or outbox.reads_changed:
            self._flush()
        for mate in self.mates:
            mate.settle()

    def settle(self) -> None:
        """End a turn that another node of this process took.

        That turn may have changed this node, for example by a call, so flush its output too.
        """
        if not self.is_alive or not self._is_started:
            return
        self._set_clock()
        self.node.settle()
        if not self.node.outbox.is_empty:
            self._flush()
        self._plan_due()

    def _take_ready(self) -> None:
        if len(self._ready) == 1:
            item, _ = self._ready.popitem()
            item.take()
            return
        items, self._ready = list(self._ready), {}
        if self._random.random() < 0.5:
            # The order in which a poller reports is arbitrary.
            self._random.shuffle(items)
        for item in items:
            item.take()

    def _deliver_notices(self) -> None:
        notices = self._notices
        while notices:
            method, arguments = notices.popleft()
            self.world.trace(b"told %d" % arguments[0].id)
            method(*arguments)

    def _flush(self) -> None:
        """Carry out the node's outbox, in the same order as the shell's driver."""
        outbox = self.node.outbox
        if outbox.dials:
            for conn in outbox.dials:
                self.world.net.dial(self, conn)
            outbox.dials.clear()
        for conn in outbox.dirty:
            if conn.driver is not None:
                conn.driver.flush()
        outbox.dirty.clear()
        if outbox.reads_changed:
            for conn in outbox.reads_changed:
                if conn.driver is not None:
                    conn.driver.watch()
            outbox.reads_changed.clear()
        if outbox.closes:
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
