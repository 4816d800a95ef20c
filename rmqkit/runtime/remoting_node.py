"""RemotingNode: what the name server and the controller share as nodes.

Each answers the requests of one table. A connection with the tag `metrics` belongs to the node's
metrics endpoint, if it has one, every other one to `remoting`. (A broker has more protocols and
duties in each of these calls; it is a node of its own.)
"""

from typing import Protocol

from rmqkit.config import NodeConfig
from rmqkit.runtime.calls import Handlers
from rmqkit.runtime.connection import Connection
from rmqkit.runtime.node import BaseNode
from rmqkit.runtime.ports import Ports
from rmqkit.runtime.remoting import TAG, Remoting


class ConnectionProtocol(Protocol):
    """What handles the bytes of a connection."""

    def opened(self, conn: Connection) -> None: ...
    def received(self, conn: Connection, data: bytes) -> None: ...
    def closed(self, conn: Connection, reason: str) -> None: ...


class RemotingNode(BaseNode):
    """A node that answers the requests of `handlers`. Settings are read at the moment of use."""

    def __init__(self, name: str, ports: Ports, config: NodeConfig, handlers: Handlers) -> None:
        super().__init__(name, ports)
        self.config = config
        self.remoting = Remoting(
            self,
            outbox=self.outbox,
            clock=ports.clock,
            duties=self.duties,
            log=ports.log,
            tables={TAG: handlers},
            limits=config.limits,
        )
        self.metrics: ConnectionProtocol | None = None
        self.started_ms = 0
        self.stopping = False

    def start(self) -> None:
        self.started_ms = self.clock.mono_ms
        for note in self.config.notes:
            self.ports.log.warning("setting-without-effect", note=note)

    def use_config(self, config: NodeConfig) -> None:
        """Continue with new values of live settings."""
        self.config = config

    def stop(self) -> None:
        self.stopping = True

    def opened(self, conn: Connection) -> None:
        self._protocol(conn).opened(conn)

    def received(self, conn: Connection, data: bytes) -> None:
        self._protocol(conn).received(conn, data)

    def closed(self, conn: Connection, reason: str) -> None:
        self._protocol(conn).closed(conn, reason)

    def _protocol(self, conn: Connection) -> ConnectionProtocol:
        return self.metrics if conn.tag == "metrics" and self.metrics is not None else self.remoting
