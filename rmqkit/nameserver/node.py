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
from rmqkit.runtime.ports import Ports
from rmqkit.runtime.remoting_node import RemotingNode


class NameServer(RemotingNode):
    """One name server. It does no I/O itself; `ports` provides disk, clock and log."""

    def __init__(self, name: str, ports: Ports, config: NodeConfig, *, limits: TableLimits | None = None) -> None:
        super().__init__(name, ports, config, HANDLERS)
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
        self.access = NameServerAccess(ports, config, self.remoting)
        self.notices = Notices(self.routes, self.remoting, ports.log)
        if config.metrics.exporter_type == "PROM":
            # Imported on use: its libraries cost start-up time and memory.
            from rmqkit.nameserver import metrics

            endpoint = metrics.endpoint(self)
            endpoint.admission = self.access.metrics.fault
            self.metrics = endpoint

    def start(self) -> None:
        """Start to serve. Raises AtomicFileDamaged if the KV file cannot be read."""
        self.kv.load()
        super().start()
        self.liveness.start(self.started_ms)

    def closed(self, conn: Connection, reason: str) -> None:
        super().closed(conn, reason)
        self.liveness.closed(conn, reason)

    def settle(self) -> None:
        self.notices.send(enabled=self.config.nameserver.notify_min_broker_id_changed and not self.stopping)
        if self.stopping and not self.kv.busy and not self.config_file.busy:
            self.stopped = True
