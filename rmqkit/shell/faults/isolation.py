"""Isolates nodes from their peers in the node's own transport, as a drill's `isolate` asks for.

Everything here exists only while there are isolation rules (`Loop.isolation` is None otherwise). A
node that no drill isolates pays nothing per read, write or event.

While a rule covers a connection:

- It stays open, but bytes are not read from the kernel (`in`), not written to it (`out`), or
  neither (`both`).
- A close does not pass. If one side closes the connection (idle, timeout, stop), the other side
  sees that only after the isolation is healed.
- A listener that is covered as a whole accepts nothing (`silence.py`). A listener that is covered
  for some peers accepts their connections and sets them aside. The node gets them after healing.
- A dial does not begin. It fails at its timeout, or continues if the rule ends before.

After healing, data flows again, and the held bytes are sent before any newer ones. A connection may
time out while it is isolated, as it would in a real partition. The rules end with the process, and
its peers then see their connections close.

A rule consists of a match (peer, tag, own port; an omitted field matches all), a direction, and
matches to spare. Peers on one machine dial from ephemeral ports. So a rule by `host:port` covers
the connections that the node has dialled, and a rule by tag or port covers those that it has
accepted. To isolate a pair of nodes from each other, give each a rule with the other's addresses.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqkit.errors import RmqkitError
from rmqkit.runtime.connection import Address, Connection
from rmqkit.shell.faults.isolated_socket import IsolatedSocket, MaskingPoller
from rmqkit.shell.faults.silence import SilentListener
from rmqkit.shell.listener import Listener
from rmqkit.shell.poller import READ, WRITE
from rmqkit.shell.streams import Dial, LingeringSocket, Stream, address_of

if TYPE_CHECKING:
    from rmqkit.runtime.node import Node
    from rmqkit.shell.loop import Loop

DIRECTIONS = {"in": READ, "out": WRITE, "both": READ | WRITE}
#: most isolations that are active at a time, in one process
ISOLATIONS_MAX = 8
#: most accepted connections set aside; when reached, the listener is silenced as a whole
ASIDE_MAX = 1024


class IsolationError(RmqkitError):
    """A request that cannot be fulfilled. It has changed nothing."""


class Match(NamedTuple):
    """Selects connections; "" and 0 match any. `port` is the node's own port."""

    host: str = ""
    peer_port: int = 0
    tag: str = ""
    port: int = 0

    @property
    def any_peer(self) -> bool:
        return not self.host and not self.peer_port

    def covers(self, tag: str, port: int, peer: Address | None) -> bool:
        """Whether this matches a connection. With `peer` None: all connections of a listener."""
        if self.tag not in ("", tag) or self.port not in (0, port):
            return False
        if peer is None:
            return self.any_peer
        return self.host in ("", peer.host) and self.peer_port in (0, peer.port)


class IsolationRule(NamedTuple):
    """Blocks the connections that `match` covers and none of `spared` does, in `direction`."""

    match: Match
    direction: str = "both"
    spared: tuple[Match, ...] = ()

    def blocks(self, tag: str, port: int, peer: Address | None) -> int:
        """Return the mask of what this rule blocks of a connection: READ, WRITE, both or 0.

        A listener (`peer` None) is blocked only if none of its peers is spared.
        """
        if not self.match.covers(tag, port, peer):
            return 0
        for spared in self.spared:
            named = Match(tag=spared.tag, port=spared.port) if peer is None else spared
            if named.covers(tag, port, peer):
                return 0
        return DIRECTIONS[self.direction]


class Counts(NamedTuple):
    """The effects of an isolation since it began; a drill uses them as proof that it worked."""

    #: open connections that it covered
    connections: int = 0
    #: outgoing bytes that were held back
    bytes_held: int = 0
    #: bytes from peers that wait in the kernel now; a close counts as one
    bytes_unread: int = 0
    #: connections with data to read now that is not read
    reads_ignored: int = 0
    #: connections that were not accepted: set aside, in the backlog, or dropped by the filter
    not_accepted: int = 0
    #: dials that were delayed
    dials_held: int = 0


class _PendingConnection(NamedTuple):
    """An accepted connection that the node does not know of yet. `id` is the isolation."""

    id: str
    listener: Listener
    sock: socket.socket
    name: tuple[Any, ...]


class _IsolatedConnection(NamedTuple):
    """A connection that is isolated.

    It stays here until its rules end, even if the node closes it before.
    """

    sock: IsolatedSocket
    node: Node
    conn: Connection


@dataclass(slots=True, eq=False)
class _Active:
    """One isolation: rules that begin and end together."""

    node: Node
    rules: tuple[IsolationRule, ...]
    began_ms: int
    connections: int = 0
    dials_held: int = 0


class Isolation:
    """All isolations of one loop, by id.

    It installs itself in the loop when it is created, for the first isolation, and uninstalls
    itself after the last has ended.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._poller = MaskingPoller(loop.poller)
        self._active: dict[str, _Active] = {}
        #: by descriptor: isolated connections
        self._held: dict[int, _IsolatedConnection] = {}
        #: by descriptor: silenced listeners, with the isolation that counts them
        self._silent: dict[int, tuple[str, SilentListener]] = {}
        #: by descriptor: dials whose connect is in progress and whose outcome is hidden
        self._masked_dials: dict[int, Dial] = {}
        #: dials that wait for their rules to end
        self._waiting_dials: list[Dial] = []
        self._aside: list[_PendingConnection] = []
        loop.poller = self._poller
        loop.isolation = self

    def begin(self, id: str, node: Node, rules: tuple[IsolationRule, ...]) -> None:
        """Apply rules to a node. Raises IsolationError if `id` is in use or there are too many."""
        if id in self._active:
            raise IsolationError(f"isolation {id!r} exists already: heal it first, or choose another id")
        if len(self._active) >= ISOLATIONS_MAX:
            raise IsolationError(f"a process has at most {ISOLATIONS_MAX} isolations: heal one first")
        self._active[id] = _Active(node, rules, self._loop.clock.wall_ms)
        self._apply()

    def heal(self, id: str) -> None:
        """End an isolation. After the last one, restore the loop to its original state."""
        del self._active[id]
        self._apply()
        if not self._active:
            self._loop.poller = self._poller.inner
            self._loop.isolation = None

    def ids(self, node: Node) -> list[str]:
        """Return the ids of a node's isolations."""
        return [id for id, active in self._active.items() if active.node is node]

    def rules(self, id: str) -> tuple[int, tuple[IsolationRule, ...]]:
        """Return the wall time at which the isolation began, in ms, and its rules."""
        return self._active[id].began_ms, self._active[id].rules

    def counts(self, id: str) -> Counts:
        active = self._active[id]
        held = [each.sock for each in self._held.values() if each.sock.rule_id == id]
        unread = [each.unread() for each in held]
        knocks = sum(silence.knocks() for silent_id, silence in self._silent.values() if silent_id == id)
        return Counts(
            connections=active.connections,
            bytes_held=sum(each.bytes_held for each in held),
            bytes_unread=sum(unread),
            reads_ignored=sum(1 for size in unread if size),
            not_accepted=knocks + sum(1 for each in self._aside if each.id == id),
            dials_held=active.dials_held,
        )

    def close(self) -> None:
        """Close every socket that is held or set aside, because the loop ends."""
        for held in self._held.values():
            held.sock.sock.close()
        for aside in self._aside:
            aside.sock.close()

    # --- called by listeners and dials

    def sets_aside(self, listener: Listener, sock: socket.socket, name: tuple[Any, ...]) -> bool:
        """Set a newly accepted connection aside if a rule covers it. Return whether one does."""
        id, blocked = self._blocked(listener.node, listener.tag, listener.port, address_of(name))
        if blocked:
            self._aside.append(_PendingConnection(id, listener, sock, name))
            if len(self._aside) >= ASIDE_MAX:
                self._silence(id, listener)
        return bool(blocked)

    def holds(self, dial: Dial) -> bool:
        """Hold a dial if a rule covers it. Return whether one does.

        `Dial.try_next` is called once the rule has ended.
        """
        id, blocked = self._blocked(dial.node, dial.conn.tag, 0, dial.conn.peer)
        if blocked:
            self._active[id].dials_held += 1
            self._waiting_dials.append(dial)
        return bool(blocked)

    # --- apply the current rules

    def _blocked(self, node: Node, tag: str, port: int, peer: Address | None) -> tuple[str, int]:
        """Return the first isolation that blocks a connection, and the mask all of them block."""
        first, blocked = "", 0
        for id, active in self._active.items():
            if active.node is not node:
                continue
            for rule in active.rules:
                here = rule.blocks(tag, port, peer)
                if here and not blocked:
                    first = id
                blocked |= here
        return first, blocked

    def _blocked_of(self, node: Node, conn: Connection) -> tuple[str, int]:
        port = conn.local.port if conn.local is not None and not conn.dialled else 0
        return self._blocked(node, conn.tag, port, conn.peer)

    def _apply(self) -> None:
        for fd, held in list(self._held.items()):
            self._apply_held(fd, held)
        for fd, item in list(self._loop.items.items()):
            if isinstance(item, Stream) and fd not in self._held:
                id, blocked = self._blocked_of(item.node, item.conn)
                if blocked:
                    self._hold(id, item, blocked)
            elif isinstance(item, Listener):
                self._apply_listener(item)
            elif isinstance(item, Dial):
                self._apply_dial(fd, item)
        waiting, self._waiting_dials = self._waiting_dials, []
        for dial in waiting:
            if not dial.is_over:
                self._retry_dial(dial)
        aside, self._aside = self._aside, []
        for each in aside:
            if not self.sets_aside(*each[1:]):
                each.listener.admit(each.sock, each.name)

    def _hold(self, id: str, stream: Stream, blocked: int) -> None:
        assert not isinstance(stream.sock, IsolatedSocket)
        held = IsolatedSocket(stream.sock, blocked, id)
        self._held[stream.fd] = _IsolatedConnection(held, stream.node, stream.conn)
        self._active[id].connections += 1
        stream.use(held)
        self._poller.hold(stream.fd, stream.interest, blocked)

    def _apply_held(self, fd: int, held: _IsolatedConnection) -> None:
        sock = held.sock
        id, blocked = self._blocked_of(held.node, held.conn)
        if blocked and id != sock.rule_id:
            sock.rule_id = id
            sock.bytes_held = 0
            self._active[id].connections += 1
        if blocked == sock.blocked:
            return
        opened = sock.blocked & ~blocked
        sock.blocked = blocked
        item = self._loop.items.get(fd)
        if item is not None:
            self._poller.hold(fd, item.interest if isinstance(item, Stream) else READ, blocked)
        if not blocked:
            del self._held[fd]
            if isinstance(item, Stream):
                item.use(sock.sock)
            elif isinstance(item, LingeringSocket):
                item.sock = sock.sock
        if opened & WRITE:
            waiting = sock.take()
            if isinstance(item, Stream):
                item.put_first(waiting)
            else:
                sock.send_and_shut(waiting)
        if sock.is_closed:
            sock.close()

    def _apply_listener(self, listener: Listener) -> None:
        id, blocked = self._blocked(listener.node, listener.tag, listener.port, None)
        silent = self._silent.get(listener.fd)
        if blocked and silent is None:
            self._silence(id, listener)
        elif blocked and silent is not None:
            self._silent[listener.fd] = (id, silent[1])
        elif silent is not None:
            silent[1].end()
            del self._silent[listener.fd]
            self._poller.hold(listener.fd, READ, 0)

    def _silence(self, id: str, listener: Listener) -> None:
        self._silent[listener.fd] = (id, SilentListener(listener.sock))
        self._poller.hold(listener.fd, READ, READ)

    def _apply_dial(self, fd: int, dial: Dial) -> None:
        """Hide the outcome of a dial in progress, or reveal it after its rules have ended."""
        id, blocked = self._blocked(dial.node, dial.conn.tag, 0, dial.conn.peer)
        is_masked = self._masked_dials.get(fd) is dial
        if blocked and not is_masked:
            self._masked_dials[fd] = dial
            self._active[id].dials_held += 1
            self._poller.hold(fd, WRITE, WRITE)
        elif is_masked and not blocked:
            del self._masked_dials[fd]
            self._poller.hold(fd, WRITE, 0)

    def _retry_dial(self, dial: Dial) -> None:
        _, blocked = self._blocked(dial.node, dial.conn.tag, 0, dial.conn.peer)
        if blocked:
            self._waiting_dials.append(dial)
        else:
            dial.try_next()
