"""`SimBroker`: a whole broker in virtual time, for tests of handlers, duties and storage engines.

    from rmqkit.testing import SimBroker

    def test_my_duty():
        broker = SimBroker("plugins=box", "plugin.box.size=3")
        broker.send("T", b"hello")
        broker.advance(60_000)
        assert broker.ask(71_999, {"topic": "T"}).ext["size"] == "1"

The broker is the one that runs in a process, with the plug-ins that are installed and those named by `modules`; only clock,
net and disk are `rmqkit.sim`'s. Nothing sleeps and no socket is opened: `advance` lets time pass, `ask` and `send` end when
the answer is there. An exception out of the broker leaves the call under way, as it would end a real node.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rmqkit import config, plugins
from rmqkit.broker.node import Broker
from rmqkit.config import Host
from rmqkit.runtime.calls import CallFailed, Handlers, Outcome, Reply
from rmqkit.runtime.connection import Address, Connection
from rmqkit.runtime.node import BaseNode
from rmqkit.runtime.ports import Ports
from rmqkit.runtime.remoting import Remoting
from rmqkit.sim.world import World
from rmqkit.wire import properties as props
from rmqkit.wire.codes import RequestCode
from rmqkit.wire.schema import Ext
from rmqkit.wire.schemas.send import SendMessageRequestV2
from rmqkit.wire.schemas.topics import CreateTopicRequest

NAME = "broker"
CLIENT = "client"
ADDRESS = Address("10.0.0.1", 10_911)
CLIENT_HOST = "10.0.0.2"
CALL_TIMEOUT_MS = 30_000
START_LIMIT_MS = 600_000
#: small files, so that a test does not pay for a gigabyte; what the caller gives comes after them
SETTINGS = (
    "brokerName=broker-a",
    f"brokerIP1={ADDRESS.host}",
    f"listenPort={ADDRESS.port}",
    f"storePathRootDir=/sim/{NAME}",
    "mappedFileSizeCommitLog=1048576",
    "mappedFileSizeConsumeQueue=6000",
    "maxHashSlotNum=100",
    "maxIndexNum=400",
)


class _Client(BaseNode):
    """What asks the broker."""

    def __init__(self, name: str, ports: Ports) -> None:
        super().__init__(name, ports)
        self.remoting = Remoting(
            self, outbox=self.outbox, clock=self.clock, duties=self.duties, log=ports.log, tables={"remoting": Handlers()}
        )

    def opened(self, conn: Connection) -> None:
        self.remoting.opened(conn)

    def received(self, conn: Connection, data: bytes) -> None:
        self.remoting.received(conn, data)

    def closed(self, conn: Connection, reason: str) -> None:
        self.remoting.closed(conn, reason)


class SimBroker:
    def __init__(self, *settings: str, modules: Sequence[str] = (), entry_points: bool = True, seed: int | str = 1) -> None:
        """Starts the broker and waits until it serves.

        `settings` are `key=value` texts over small defaults (engine `mapped`). `modules` are plug-ins by name; with
        `entry_points` the installed ones are found too. Raises what a real start would: ConfigError, PluginError.
        """
        self.config = config.load([], [*SETTINGS, *settings], "broker", host=Host())
        found = plugins.load(modules, entry_points=entry_points)
        found.broker_parts(self.config)
        self.world = World(seed)
        # Handlers and duties are made anew for each life, as a new process makes them.
        self.world.add_node(
            NAME, lambda ports: Broker("broker-a-0", ports, self.config, found.broker_parts(self.config)), ADDRESS.host
        )
        self.world.listen(NAME, "remoting", ADDRESS)
        self.world.add_node(CLIENT, lambda ports: _Client(CLIENT, ports), CLIENT_HOST)
        self._wait_serving()

    @property
    def node(self) -> Broker:
        """The broker of the current life, to look at."""
        node: Broker = self.world.node(NAME)
        return node

    @property
    def now_ms(self) -> int:
        """Wall time as the broker sees it."""
        return self.world.wall_start_ms + self.world.now_ms

    # --- time and faults

    def advance(self, ms: int) -> None:
        """Let time pass: everything that is due in it happens."""
        self.world.run_for(ms)

    def stop(self) -> None:
        """A clean stop, waited for."""
        self.world.stop(NAME)
        assert self.world.run_until(lambda: not self.world.is_alive(NAME), START_LIMIT_MS), "the broker did not stop"

    def kill(self) -> None:
        """kill -9: what was written stays."""
        self.world.kill(NAME)

    def crash(self) -> None:
        """Power loss: what was not synced may be gone or torn."""
        self.world.crash(NAME)

    def start(self) -> None:
        """After `stop`, `kill` or `crash`: on the same files, waited for."""
        self.world.restart(NAME)
        self.world.restart(CLIENT)  # its connection to the last life may be half-open
        self._wait_serving()

    def file(self, path: str) -> bytes:
        """A file of the store's folder (`config/mine.json`). FileNotFoundError if absent."""
        disk = self.world.disk(NAME)
        size = disk.size(path)
        if size is None:
            raise FileNotFoundError(path)
        return disk.read(path, 0, size)

    def log_lines(self, event: str) -> list[Mapping[str, Any]]:
        """The fields of every log line of this event."""
        return [line.fields for line in self.world.log(NAME).events(event)]

    # --- requests

    def ask(self, code: int, ext: Ext | Mapping[str, str] | None = None, body: bytes = b"") -> Reply:
        """Send a request and wait for its answer, whatever its code."""
        outcomes: list[Outcome] = []
        self.world.call(
            CLIENT,
            lambda node: node.remoting.call(
                ADDRESS, int(code), ext, body, timeout_ms=CALL_TIMEOUT_MS, then=outcomes.append
            ),
        )
        assert self.world.run_until(lambda: outcomes, CALL_TIMEOUT_MS + 1_000), f"request {code} was never ended"
        outcome = outcomes[0]
        assert not isinstance(outcome, CallFailed), f"request {code} got no answer: {outcome.text}"
        return outcome

    def create_topic(self, topic: str, queue_nums: int = 4) -> None:
        request = CreateTopicRequest(
            topic=topic,
            default_topic="TBW102",
            read_queue_nums=queue_nums,
            write_queue_nums=queue_nums,
            perm=6,
            topic_filter_type="SINGLE_TAG",
            order=False,
        )
        self._done(self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, request))

    def delete_topic(self, topic: str) -> None:
        self._done(self.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}))

    def send(
        self, topic: str, body: bytes = b"", *, queue_id: int = 0, properties: Mapping[str, str] | None = None
    ) -> Reply:
        """Send a message that must be stored; its topic comes into being if need be."""
        request = SendMessageRequestV2(
            producer_group="test",
            topic=topic,
            default_topic="TBW102",
            default_topic_queue_nums=4,
            queue_id=queue_id,
            sys_flag=0,
            born_timestamp=self.now_ms,
            flag=0,
            properties=props.encode(dict(properties or {})).decode(),
        )
        return self._done(self.ask(RequestCode.SEND_MESSAGE_V2, request, body))

    # --- inside

    def _wait_serving(self) -> None:
        reached = self.world.run_until(lambda: self.node.serving, START_LIMIT_MS)
        assert reached, f"the broker does not serve: {self.node.store.progress}"

    @staticmethod
    def _done(reply: Reply) -> Reply:
        assert reply.is_ok, f"refused with {reply.code}: {reply.remark}"
        return reply
