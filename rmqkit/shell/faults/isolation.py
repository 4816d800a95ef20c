"""Cutting nodes off their peers at the node's own transport: what a drill's `isolate` does to a running process.

Rules say who is cut off; everything here exists only while there are some (`Loop.isolation` is None otherwise), so a node
that no drill touches pays nothing per read, write or event. While a rule covers a connection

- it stays open, but bytes are not read from the kernel (`in`), not written to it (`out`), or neither (`both`);
- ends do not pass: a connection that one side closes meanwhile (idle, timeout, stop) is seen closed by the other after the
  healing only;
- a listener that is covered as a whole accepts nothing (`silence.py`); one that is covered for some peers accepts and sets
  those connections aside, the node hears of them after the healing;
- a dial is not begun: it fails when its timeout is over, or goes on when the rule ends first.

After the healing everything flows on: what waited here goes out before anything newer. A connection that dies of a timeout
meanwhile does so as it would in a real partition; a process that ends takes its rules with it, and its peers see the end.

A rule is a match (peer, tag, own port; what is left out matches all), a direction, and matches that are spared. Peers on
one machine dial from ports of the system's choice, so a rule by `host:port` finds those that the node has dialled, and a
tag or a port those that have dialled it. To cut one pair of nodes, give each a rule with the other's addresses.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from rmqkit.errors import RmqkitError
from rmqkit.runtime.connection import Address, Connection
from rmqkit.shell.faults.isolated_socket import HeldSocket, MaskingPoller
from rmqkit.shell.faults.silence import Silence
from rmqkit.shell.listener import Listener
from rmqkit.shell.poller import READ, WRITE
from rmqkit.shell.streams import Dial, LingeringSocket, Stream, address_of

if TYPE_CHECKING:
    from rmqkit.runtime.node import Node
    from rmqkit.shell.loop import Loop

DIRECTIONS = {"in": READ, "out": WRITE, "both": READ | WRITE}
#: isolations at a time, and accepted connections that are set aside
ISOLATIONS_MAX = 8
ASIDE_MAX = 1024


class IsolationError(RmqkitError):
    """A request that cannot be met; it has changed nothing."""


class Match(NamedTuple):
    """Which connections are meant; "" and 0 are any. `port` is the node's own."""

    host: str = ""
    peer_port: int = 0
    tag: str = ""
    port: int = 0

    @property
    def any_peer(self) -> bool:
        return not self.host and not self.peer_port

    def covers(self, tag: str, port: int, peer: Address | None) -> bool:
        """`peer` None: all peers of a listener."""
        if self.tag not in ("", tag) or self.port not in (0, port):
            return False
        if peer is None:
            return self.any_peer
        return self.host in ("", peer.host) and self.peer_port in (0, peer.port)


class IsolationRule(NamedTuple):
    match: Match
    direction: str = "both"
    spared: tuple[Match, ...] = ()

    def blocks(self, tag: str, port: int, peer: Address | None) -> int:
        """What of a connection is cut off: a mask. For a listener (`peer` None) only when no peer of it is spared."""
        if not self.match.covers(tag, port, peer):
            return 0
        for spared in self.spared:
            named = Match(tag=spared.tag, port=spared.port) if peer is None else spared
            if named.covers(tag, port, peer):
                return 0
        return DIRECTIONS[self.direction]


class Counts(NamedTuple):
    """The proof that an isolation bites, since it began."""

    #: open connections that were caught
    connections: int = 0
    #: bytes that were to go out and were held
    bytes_held: int = 0
    #: bytes that peers have sent and that were left in the kernel; an end of theirs counts as one
    bytes_unread: int = 0
    #: connections of which something could have been read and was not
    reads_ignored: int = 0
    #: connections that were not accepted: set aside, waiting, or tries without an answer
    not_accepted: int = 0
    dials_held: int = 0


class _Aside(NamedTuple):
    id: str
    listener: Listener
    sock: socket.socket
    name: tuple[Any, ...]


class _IsolatedConnection(NamedTuple):
    """A connection that is cut off. It stays here when the node is done with it, until its rules end."""

    sock: HeldSocket
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
    """All isolations of one loop, by id. Made for the first, out of the way after the last."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._poller = MaskingPoller(loop.poller)
        self._active: dict[str, _Active] = {}
        #: by descriptor
        self._held: dict[int, _IsolatedConnection] = {}
        self._silent: dict[int, tuple[str, Silence]] = {}
        self._masked_dials: dict[int, Dial] = {}
        self._waiting_dials: list[Dial] = []
        self._aside: list[_Aside] = []
        loop.poller = self._poller
        loop.isolation = self

    def begin(self, id: str, node: Node, rules: tuple[IsolationRule, ...]) -> None:
        """Raises IsolationError."""
        if id in self._active:
            raise IsolationError(f"there is an isolation {id!r} already: heal it first, or give another id")
        if len(self._active) >= ISOLATIONS_MAX:
            raise IsolationError(f"there are {ISOLATIONS_MAX} isolations, which is the most")
        self._active[id] = _Active(node, rules, self._loop.clock.wall_ms)
        self._apply()

    def heal(self, id: str) -> None:
        """End one; when it was the last, the loop is as if there had been none."""
        del self._active[id]
        self._apply()
        if not self._active:
            self._loop.poller = self._poller.inner
            self._loop.isolation = None

    def ids(self, node: Node) -> list[str]:
        return [id for id, active in self._active.items() if active.node is node]

    def rules(self, id: str) -> tuple[int, tuple[IsolationRule, ...]]:
        """Wall time of the beginning in ms, and the rules."""
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
        """The loop ends: nothing is kept open any more."""
        for held in self._held.values():
            held.sock.sock.close()
        for aside in self._aside:
            aside.sock.close()

    # --- asked by listeners and dials

    def sets_aside(self, listener: Listener, sock: socket.socket, name: tuple[Any, ...]) -> bool:
        """Whether a connection that was just accepted is kept from the node."""
        id, blocked = self._blocked(listener.node, listener.tag, listener.port, address_of(name))
        if blocked:
            self._aside.append(_Aside(id, listener, sock, name))
            if len(self._aside) >= ASIDE_MAX:
                self._silence(id, listener)
        return bool(blocked)

    def holds(self, dial: Dial) -> bool:
        """Whether a dial is not to begin now; `try_next` is called when it may."""
        id, blocked = self._blocked(dial.node, dial.conn.tag, 0, dial.conn.peer)
        if blocked:
            self._active[id].dials_held += 1
            self._waiting_dials.append(dial)
        return bool(blocked)

    # --- making everything as the rules say now

    def _blocked(self, node: Node, tag: str, port: int, peer: Address | None) -> tuple[str, int]:
        """The first isolation that cuts a connection off, and what all of them cut of it together."""
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
                self._again(dial)
        aside, self._aside = self._aside, []
        for each in aside:
            if not self.sets_aside(*each[1:]):
                each.listener.admit(each.sock, each.name)

    def _hold(self, id: str, stream: Stream, blocked: int) -> None:
        assert not isinstance(stream.sock, HeldSocket)
        held = HeldSocket(stream.sock, blocked, id)
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
                sock.last_words(waiting)
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
        self._silent[listener.fd] = (id, Silence(listener.sock))
        self._poller.hold(listener.fd, READ, READ)

    def _apply_dial(self, fd: int, dial: Dial) -> None:
        """One whose connection is under way: its success or failure is not told."""
        id, blocked = self._blocked(dial.node, dial.conn.tag, 0, dial.conn.peer)
        is_masked = self._masked_dials.get(fd) is dial
        if blocked and not is_masked:
            self._masked_dials[fd] = dial
            self._active[id].dials_held += 1
            self._poller.hold(fd, WRITE, WRITE)
        elif is_masked and not blocked:
            del self._masked_dials[fd]
            self._poller.hold(fd, WRITE, 0)

    def _again(self, dial: Dial) -> None:
        _, blocked = self._blocked(dial.node, dial.conn.tag, 0, dial.conn.peer)
        if blocked:
            self._waiting_dials.append(dial)
        else:
            dial.try_next()
