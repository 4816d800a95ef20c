"""`SimBroker`: a whole broker in virtual time, for tests of handlers, duties and storage engines.

    from rmqkit.testing import SimBroker

    def test_my_duty():
        broker = SimBroker("plugins=box", "plugin.box.size=3")
        broker.send("T", b"hello")
        broker.advance(60_000)
        assert broker.ask(71_999, {"topic": "T"}).ext["size"] == "1"

It is the broker that a process runs, with the installed plug-ins and those in `modules`. Only its
clock, network and disk are simulated (`rmqkit.sim`). No test sleeps or opens a socket: `advance`
moves time, and `ask` and `send` return when the response has arrived. An exception that would end a
real node is raised out of the current call.
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
#: small files, so that a test does not allocate a gigabyte. Settings of the caller override these
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
    """The client node that sends requests to the broker."""

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
    """A whole broker in virtual time, with a client that sends requests to it.

    The constructor starts the broker and returns once it serves. Virtual time moves only in calls
    of this object. The same seed and calls give the same run.

    Args:
        *settings: Settings as `key=value`. They override small defaults: files of 1 MiB, the
        storage
            engine `mapped`, the address 10.0.0.1:10911.
        modules: Names of plug-in modules to import.
        entry_points: Whether to load the installed plug-ins too.
        seed: Seed of all random choices of the simulation.

    Raises:
        ConfigError: If a setting is wrong.
        PluginError: If a plug-in cannot be loaded.

    Attributes:
        config: The configuration of the broker (`NodeConfig`).
        world: The simulated world, for further faults (`rmqkit.sim.world.World`).

    Example:
        Test a request code of a plug-in:

            from rmqkit.testing import SimBroker

            def test_count():
                broker = SimBroker("plugins=count", modules=["my_count"])
                broker.send("T", b"hello")
                assert broker.ask(79_001, {"topic": "T"}).ext == {"count": "1"}
    """

    def __init__(self, *settings: str, modules: Sequence[str] = (), entry_points: bool = True, seed: int | str = 1) -> None:
        self.config = config.load([], [*SETTINGS, *settings], "broker", host=Host())
        found = plugins.load(modules, entry_points=entry_points)
        found.broker_parts(self.config)
        self.world = World(seed)
        # Each life creates its own handlers and duties, as a new process does.
        self.world.add_node(
            NAME, lambda ports: Broker("broker-a-0", ports, self.config, found.broker_parts(self.config)), ADDRESS.host
        )
        self.world.listen(NAME, "remoting", ADDRESS)
        self.world.add_node(CLIENT, lambda ports: _Client(CLIENT, ports), CLIENT_HOST)
        self._wait_serving()

    @property
    def node(self) -> Broker:
        """The broker of the current life, to inspect. `start` replaces it."""
        node: Broker = self.world.node(NAME)
        return node

    @property
    def now_ms(self) -> int:
        """The broker's wall clock, Unix time in ms."""
        return self.world.wall_start_ms + self.world.now_ms

    # --- time and faults

    def advance(self, ms: int) -> None:
        """Let time pass and run everything that becomes due.

        Args:
            ms: Milliseconds of virtual time.
        """
        self.world.run_for(ms)

    def stop(self) -> None:
        """Stop the broker cleanly and wait until it has ended.

        Raises AssertionError if it does not end within 10 minutes of virtual time.
        """
        self.world.stop(NAME)
        assert self.world.run_until(lambda: not self.world.is_alive(NAME), START_LIMIT_MS), "the broker did not stop"

    def kill(self) -> None:
        """End the broker like `kill -9`: everything that was written stays."""
        self.world.kill(NAME)

    def crash(self) -> None:
        """Cut the broker's power: writes that were not synced may be lost or torn."""
        self.world.crash(NAME)

    def start(self) -> None:
        """Start the broker on the same files after `stop`, `kill` or `crash`. Wait until it serves.

        Raises AssertionError if it does not serve within 10 minutes of virtual time.
        """
        self.world.restart(NAME)
        self.world.restart(CLIENT)  # its connection to the previous life may be half-open
        self._wait_serving()

    def file(self, path: str) -> bytes:
        """Return the content of a file of the store.

        Args:
            path: Path relative to the store's folder, such as `config/mine.json`.

        Raises:
            FileNotFoundError: If the file does not exist.
        """
        disk = self.world.disk(NAME)
        size = disk.size(path)
        if size is None:
            raise FileNotFoundError(path)
        return disk.read(path, 0, size)

    def log_lines(self, event: str) -> list[Mapping[str, Any]]:
        """Return the fields of every log line of an event, oldest first.

        Args:
            event: Name of the event, the first argument of the log call.
        """
        return [line.fields for line in self.world.log(NAME).events(event)]

    # --- requests

    def ask(self, code: int, ext: Ext | Mapping[str, str] | None = None, body: bytes = b"") -> Reply:
        """Send a request, wait for the response, and return it, whatever its code.

        Args:
            code: The request code.
            ext: The request's fields, as a schema or as texts by their names on the wire.
            body: The request's body.

        Raises:
            AssertionError: If no response arrives within 30 s of virtual time.
        """
        outcomes: list[Outcome] = []
        self.world.call(
            CLIENT,
            lambda node: node.remoting.call(
                ADDRESS, int(code), ext, body, timeout_ms=CALL_TIMEOUT_MS, then=outcomes.append
            ),
        )
        assert self.world.run_until(lambda: outcomes, CALL_TIMEOUT_MS + 1_000), f"request {code} never completed"
        outcome = outcomes[0]
        assert not isinstance(outcome, CallFailed), f"request {code} got no answer: {outcome.text}"
        return outcome

    def create_topic(self, topic: str, queue_nums: int = 4) -> None:
        """Create a topic, or change the number of its queues.

        Args:
            topic: Name of the topic.
            queue_nums: Number of read queues and of write queues.

        Raises:
            AssertionError: If the broker refuses.
        """
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
        """Delete a topic.

        Args:
            topic: Name of the topic.

        Raises:
            AssertionError: If the broker refuses.
        """
        self._done(self.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}))

    def send(
        self, topic: str, body: bytes = b"", *, queue_id: int = 0, properties: Mapping[str, str] | None = None
    ) -> Reply:
        """Send a message and return the response. The broker creates the topic if it is missing.

        Args:
            topic: The topic.
            body: The body.
            queue_id: The queue.
            properties: Properties of the message, KEYS and TAGS included.

        Raises:
            AssertionError: If the broker does not store the message.
        """
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

    # --- helpers

    def _wait_serving(self) -> None:
        reached = self.world.run_until(lambda: self.node.serving, START_LIMIT_MS)
        assert reached, f"the broker does not serve: {self.node.store.progress}"

    @staticmethod
    def _done(reply: Reply) -> Reply:
        assert reply.is_ok, f"refused with {reply.code}: {reply.remark}"
        return reply
