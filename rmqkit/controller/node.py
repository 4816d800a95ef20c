"""Controller: the node that decides which broker of a set is master.

    sets       the broker sets: members, masters, epochs, SyncStateSets (package `sets`)
    log        makes each change of them durable, and knows who leads (`contract`)
    queue      makes one decision at a time and answers it once it is committed
    live       who is alive, from the heartbeats to this controller
    watch      replaces masters that died
    notices    tells brokers about elections
    links      carries the log's messages to the other controllers
    metrics    Prometheus metrics, on connections with the tag `metrics`; None unless
               `metricsExporterType` is PROM, and inside a name server, which has its own
    handlers/  the request codes, by area

The log calls the node back (`LogTarget`): it applies entries to `sets`, and reports a change of
leadership, on which the node acts at the end of the turn. Settings are read at the moment of use.

Source: `controller/.../ControllerManager.java`.
"""

from collections.abc import Sequence
from typing import Any

from rmqkit.config import NodeConfig
from rmqkit.controller.access import ControllerAccess
from rmqkit.controller.contract import ControllerLog, ControllerLogFault, Leadership, LogParts
from rmqkit.controller.decision_queue import Decide, DecisionQueue
from rmqkit.controller.group import PeerLinks, group_of, log_type_of
from rmqkit.controller.handlers import HANDLERS
from rmqkit.controller.heartbeats import HeartbeatTable
from rmqkit.controller.master_watch import MasterWatch
from rmqkit.controller.role_notices import RoleNotices
from rmqkit.controller.sets.decisions import Resolution
from rmqkit.controller.sets.events import AnyEvent, NewMaster, Removal, decode_entry
from rmqkit.controller.sets.table import BrokerSets
from rmqkit.errors import RemoteProtocolError
from rmqkit.hookspecs import Factory
from rmqkit.runtime.atomic_file import AtomicFile
from rmqkit.runtime.calls import Answer, Call, Response
from rmqkit.runtime.connection import Connection
from rmqkit.runtime.ports import Ports
from rmqkit.runtime.remoting_node import RemotingNode


class Controller(RemotingNode):
    """One controller. It does no I/O itself; `ports` provides disk, clock and log."""

    def __init__(self, name: str, ports: Ports, config: NodeConfig, make_log: Factory, port: int) -> None:
        """`make_log` makes the `ControllerLog`; `port` is where this controller listens."""
        super().__init__(name, ports, config, HANDLERS)
        self.group = group_of(config.controller, port)
        self.config_file = AtomicFile(ports.disk, _config_path(config))
        self.access = ControllerAccess(ports, config, self.remoting)
        self.sets = BrokerSets()
        self.live = HeartbeatTable()
        self.links = PeerLinks(self.remoting, self.group, ports.log)
        self.log: ControllerLog = make_log(
            LogParts(
                ports=ports,
                duties=self.duties,
                target=self,
                self_id=self.group.self_id,
                peers=self.group.peers,
                send=self.links.send,
                folder=log_type_of(config.controller),
                election_timeout_ms=config.controller.election_timeout_ms,
                snapshot_entries=config.controller.snapshot_entries,
            )
        )
        self.queue = DecisionQueue(self.log, self.clock, self.duties)
        self.watch = MasterWatch(
            self.sets,
            self.live,
            self.log,
            self.queue,
            settings=lambda: self.config.controller,
            clock=self.clock,
            duties=self.duties,
            log=ports.log,
        )
        self.notices = RoleNotices(self.remoting, self.live, ports.log)
        if config.kind == "controller" and config.metrics.exporter_type == "PROM":
            # Imported on use: its libraries cost start-up time and memory.
            from rmqkit.controller import metrics

            endpoint = metrics.endpoint(self)
            endpoint.admission = self.access.metrics.fault
            self.metrics = endpoint
        self._leadership_changed = False

    def start(self) -> None:
        """Start to serve. Raises ControllerLogFault if the log cannot be read."""
        super().start()
        self.watch.start(self.started_ms)
        self.log.start()

    def stop(self) -> None:
        super().stop()
        self.log.stop()

    def closed(self, conn: Connection, reason: str) -> None:
        super().closed(conn, reason)
        if not self.stopping:
            self.watch.closed(conn, reason)

    def settle(self) -> None:
        if self._leadership_changed:
            self._leadership_changed = False
            self.queue.leadership_changed()
            self.watch.leadership_changed()
        self.log.settle()
        if self.stopping and not self.log.busy and not self.config_file.busy:
            self.stopped = True

    def decide(self, call: Call[Any], decide: Decide) -> Response:
        """Answer a call by a decision, once it is committed; return what the handler returns."""

        def begin(answer: Answer) -> None:
            self.queue.submit(decide, lambda decision: answer(_response(decision)))

        return call.later(begin)

    # --- what the log calls

    def apply(self, entry: bytes) -> None:
        try:
            for event in decode_entry(entry):
                self.sets.apply((event,))
                self._follow(event)
        except RemoteProtocolError as error:
            raise ControllerLogFault(str(error)) from None

    def check(self, before: Sequence[bytes], entries: Sequence[bytes]) -> None:
        preview = self.sets.preview()
        try:
            for entry in before:
                preview.apply(decode_entry(entry))
        except RemoteProtocolError:
            return
        for entry in entries:
            preview.apply(decode_entry(entry))

    def check_snapshot(self, snapshot: bytes) -> None:
        try:
            BrokerSets().restore(snapshot)
        except ControllerLogFault as error:
            raise RemoteProtocolError(str(error)) from None

    def snapshot(self) -> bytes:
        return self.sets.snapshot()

    def restore(self, snapshot: bytes) -> None:
        self.sets.restore(snapshot)

    def leadership_changed(self, leadership: Leadership) -> None:
        self.ports.log.info("controller-leader", term=leadership.term, leader=leadership.id, is_self=leadership.is_self)
        # A leadership that ends and begins again within a turn is one change: all is examined.
        self._leadership_changed = True

    def _follow(self, event: AnyEvent) -> None:
        """Do what a committed event means besides the table."""
        if isinstance(event, Removal):
            if event.broker_name not in self.sets.sets:
                self.live.forget_set(event.broker_name)
            for broker_id in event.broker_ids or ():
                self.live.forget(event.broker_name, broker_id)
        if not isinstance(event, NewMaster):
            return
        brokers = self.sets.sets[event.broker_name]
        self.ports.log.info(
            "master-elected" if event.broker_id is not None else "master-gone",
            broker_name=event.broker_name,
            broker_id=event.broker_id,
            address=brokers.master_address or "",
            epoch=brokers.master_epoch,
        )
        if self.log.leadership.is_self and self.config.controller.notify_role_changed:
            self.notices.send(brokers)


def _response(decision: Resolution) -> Response:
    return Response(decision.code, decision.ext, decision.body, decision.remark)


def _config_path(config: NodeConfig) -> str:
    """Return the file of changed settings: inside a name server, `configStorePath` is its own."""
    if config.kind == "controller":
        return config.controller.config_store_path
    return "controller.properties"
