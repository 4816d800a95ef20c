"""NameServer: the node that knows which brokers are alive, and which topic is on which broker.

Several name servers share nothing: brokers register with each of them, and a client may ask any.
Only the KV table is on disk. All other state is in memory, and is rebuilt by the next
registrations: a name server that starts empty is complete after at most 30 s.

    routes     live brokers, and which topic is on which broker (`route_table`, `registration`)
    liveness   removes brokers that did not unregister
    notices    tells the members of a group that its smallest id has changed
    access     users and rules of the brokers that register, with access control
    kv         small texts by namespace and key, stored in a file
    handlers/  the request codes, by area
    metrics    Prometheus metrics, on connections with the tag `metrics`; None unless
               `metricsExporterType` is PROM

Settings are read at the moment of use, so UPDATE_NAMESRV_CONFIG takes effect at once.

Source: `namesrv/.../NamesrvController.java`.
"""

from typing import TYPE_CHECKING

from rmqkit.config import NodeConfig
from rmqkit.nameserver.access import NameServerAccess
from rmqkit.nameserver.handlers import HANDLERS
from rmqkit.nameserver.kv import KvTable
from rmqkit.nameserver.liveness import BrokerLiveness
from rmqkit.nameserver.names import TableLimits
from rmqkit.nameserver.notices import Notices
from rmqkit.nameserver.route_table import RouteTable
from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.runtime.connection import Connection
from rmqkit.runtime.node import BaseNode
from rmqkit.runtime.ports import Ports
from rmqkit.runtime.remoting import TAG, Remoting

if TYPE_CHECKING:
    from rmqkit.metrics.endpoint import MetricsEndpoint


class NameServer(BaseNode):
    """One name server. It does no I/O itself; `ports` provides disk, clock and log."""

    def __init__(self, name: str, ports: Ports, config: NodeConfig, *, limits: TableLimits | None = None) -> None:
        super().__init__(name, ports)
        self.config = config
        self.limits = limits or TableLimits()
        self.routes = RouteTable(self.limits)
        self.kv = KvTable(ports.disk, config.nameserver.kv_config_path, self.limits)
        self.config_file = AtomicFile(ports.disk, config.nameserver.config_store_path)
        self.liveness = BrokerLiveness(
            self.routes,
            self.outbox,
            self.duties,
            ports.log,
            lambda: self.config.nameserver.scan_not_active_broker_interval_ms,
        )
        self.remoting = Remoting(
            self,
            outbox=self.outbox,
            clock=ports.clock,
            duties=self.duties,
            log=ports.log,
            tables={TAG: HANDLERS},
            frame_size_max=config.limits.frame_size_max,
            frame_complete_ms=config.limits.frame_complete_ms,
            partial_bytes_max=config.limits.partial_bytes_max,
            unread_bytes_max=config.limits.outbox_max,
        )
        self.access = NameServerAccess(ports, config, self.remoting)
        self.notices = Notices(self.routes, self.remoting, ports.log)
        self.metrics: MetricsEndpoint | None = None
        if config.metrics.exporter_type == "PROM":
            # Imported on use: its libraries cost start-up time and memory.
            from rmqkit.nameserver import metrics

            self.metrics = metrics.endpoint(self)
            self.metrics.admission = self.access.metrics.fault
        self.started_ms = 0
        self.stopping = False

    def start(self) -> None:
        """Start to serve. Raises AtomicFileDamaged if the KV file cannot be read."""
        self.kv.load()
        self.started_ms = self.clock.mono_ms
        self.liveness.start(self.started_ms)
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
        self.liveness.closed(conn, reason)

    def _protocol(self, conn: Connection) -> "Remoting | MetricsEndpoint":
        """Return the protocol that handles a connection, chosen by the connection's tag."""
        return self.metrics if conn.tag == "metrics" and self.metrics is not None else self.remoting

    def settle(self) -> None:
        self.notices.tell(enabled=self.config.nameserver.notify_min_broker_id_changed and not self.stopping)
        if self.stopping and not self.kv.busy and not self.config_file.busy:
            self.stopped = True
