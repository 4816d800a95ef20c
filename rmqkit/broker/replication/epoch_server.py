"""The master's side of HA in controller mode: as `ha_server`, with a handshake of epochs.

A slave sends its id, and gets this master's epochs. Its reports count for this id. A piece of the
log belongs to one epoch, which its head names, together with the confirm offset. If one of them has
grown and there is nothing to send, an empty piece carries it: the slave's readers see confirmed
messages alone. (Apache's masters send it with the next message, or after 5 s.)

A broker that is no master closes each connection: its epochs may still change.

Source: `store/.../ha/autoswitch/AutoSwitchHAConnection.java`.
"""

from collections.abc import Callable

from rmqkit.broker.context import BrokerContext
from rmqkit.broker.election.sync_states import SyncStates
from rmqkit.broker.replication.acks import Acks
from rmqkit.broker.replication.epochs import Epochs
from rmqkit.broker.replication.ha_connection import Binding, HaConnections, ReplicaLink
from rmqkit.broker.replication.ha_server import HaServer
from rmqkit.broker.replication.members import ReplicaMembers
from rmqkit.errors import RemoteProtocolError
from rmqkit.runtime.connection import Connection
from rmqkit.store.contract import StorageEngine
from rmqkit.wire.ha.epochs import EpochReports, MasterHandshake, encode_master_handshake, epoch_transfer_head


class EpochLink(ReplicaLink):
    """One slave connection in controller mode."""

    __slots__ = ("_confirmed", "_epochs", "confirmed_sent", "epoch_sent", "frames", "is_greeted", "is_learner")

    def __init__(self, conn: Connection, now_ms: int, epochs: Epochs, confirmed: Callable[[], int]) -> None:
        super().__init__(conn, now_ms)
        self.reports = self.frames = EpochReports()
        self._epochs = epochs
        self._confirmed = confirmed
        #: the confirm offset and the epoch that were sent last
        self.confirmed_sent = self.epoch_sent = -1
        self.is_greeted = self.is_learner = False

    def piece_end(self, end: int) -> int:
        return min(end, self._epochs.end_at(self.sent, end))

    def head(self, size: int) -> bytes:
        self.confirmed_sent = self._confirmed()
        # A heartbeat at the end of the log carries the newest epoch.
        epoch = self._epochs.at(self.sent)
        self.epoch_sent = epoch.epoch
        return epoch_transfer_head(self.sent, size, epoch, self.confirmed_sent)


class EpochServer(HaServer):
    """The HA port of a broker in controller mode."""

    def __init__(
        self,
        context: BrokerContext,
        store: StorageEngine,
        connections: HaConnections,
        members: ReplicaMembers,
        acks: Acks,
        epochs: Epochs,
        sync_states: SyncStates,
    ) -> None:
        super().__init__(context, store, connections, members, acks)
        self._epochs = epochs
        self._sync_states = sync_states

    def _make_link(self, conn: Connection, now_ms: int) -> ReplicaLink:
        return EpochLink(conn, now_ms, self._epochs, lambda: self._sync_states.confirmed)

    def received(self, conn: Connection, data: bytes) -> None:
        link = self.links.get(conn.id)
        if link is None or conn.closing:
            return
        assert isinstance(link, EpochLink)
        link.read_ms = self._context.clock.mono_ms
        try:
            reported = link.frames.feed(data)
        except RemoteProtocolError as error:
            self._close(conn, str(error))
            return
        if link.frames.handshake is not None and not link.is_greeted:
            self._greet(link)
        if reported is not None and not conn.closing:
            self._reported(link, reported)

    def _greet(self, link: EpochLink) -> None:
        handshake, identity = link.frames.handshake, self._context.config.identity
        assert handshake is not None
        if not self._is_started or identity.broker_id != 0:
            self._close(link.conn, "this broker is not the master")
            return
        if handshake.broker_id <= 0 or handshake.broker_id == self._sync_states.own_id:
            self._close(link.conn, f"its handshake has the id {handshake.broker_id}, which is no slave's")
            return
        holder = self._members.bound.get(handshake.broker_id)
        if holder is not None and self._is_elsewhere(holder, link):
            self._close(link.conn, f"id {handshake.broker_id} belongs to the slave at {holder.peer}, which is connected")
            return
        # A handshake is no claim: with access control only 906 is one.
        fault = self.admission(link.conn, is_claimed=link.binding is not None)
        if fault:
            self._close(link.conn, fault)
            return
        link.is_greeted, link.is_learner = True, handshake.is_learner
        self._members.claim(link, Binding(handshake.broker_id, str(link.peer), not handshake.from_last_file))
        answer = MasterHandshake(self._store.offset_written, tuple(self._epochs.entries))
        self._context.outbox.send(link.conn, encode_master_handshake(answer))

    def _is_elsewhere(self, holder: ReplicaLink, link: ReplicaLink) -> bool:
        """Whether the holder of an id is a living connection from another host than `link`.

        A copy of a broker's folder on another machine would otherwise count for the broker.
        """
        silent_ms = self._context.clock.mono_ms - holder.read_ms
        is_alive = not holder.conn.closing and silent_ms <= 2 * self._context.config.ha.heartbeat_ms
        return is_alive and holder.peer.host != link.peer.host

    def _reported(self, link: ReplicaLink, reported: int) -> None:
        super()._reported(link, reported)
        assert isinstance(link, EpochLink)
        if link.acked == reported and not link.conn.closing and link.binding is not None:
            self._sync_states.reported(link.binding.broker_id, is_learner=link.is_learner)
            self._acks.changed()

    def closed(self, conn: Connection, reason: str) -> None:
        link = self.links.get(conn.id)
        binding = None if link is None else link.binding
        is_bound = binding is not None and self._members.bound.get(binding.broker_id) is link
        super().closed(conn, reason)
        if binding is not None and is_bound:
            self._sync_states.gone(binding.broker_id)
            self._acks.changed()

    def settle(self) -> None:
        super().settle()
        end, epoch = self._store.offset_written, self._epochs.last
        confirmed = min(self._sync_states.confirmed, end)
        for link in self.links.values():
            assert isinstance(link, EpochLink)
            if link.sent == end and (link.confirmed_sent < confirmed or link.epoch_sent < epoch):
                link.written_ms = self._context.clock.mono_ms
                self._context.outbox.send(link.conn, link.head(0))
