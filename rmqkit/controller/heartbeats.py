"""Heartbeats: which members of broker sets this controller considers alive, and what they report.

Every controller keeps such a table of its own from the heartbeats (904) that brokers send to all
controllers. It is neither replicated nor stored. A member is alive

- until the connection of its newest heartbeat ends, and
- until no heartbeat has arrived for its timeout. A master of rmqkit names its lease: it takes no
  messages when the lease is over. Its timeout is five quarters of the lease, if that is shorter:
  clocks differ, and the lease begins before the heartbeat arrives.

Liveness is bound to the newest connection: a broker that has connected again does not die when its
earlier connection ends. (Apache keeps the earlier one, and so replaces a healthy master.) What a
broker reports on a new connection replaces all it reported before, since it may have restarted with
a shorter log. On the same connection the last report counts.

A controller that has just started has received no heartbeat yet. It considers a member without a
heartbeat dead only `UNHEARD_GRACE_MS` after the start: brokers look for controllers that answer
again every 10 s, and time out after 10 s. Otherwise a restart of the controllers would replace
healthy masters.

Source: `controller/.../impl/heartbeat/DefaultBrokerHeartbeatManager.java`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from rmqkit.runtime.connection import Connection
from rmqkit.wire.schemas.nameserver import BrokerHeartbeatRequest

#: `DEFAULT_BROKER_CHANNEL_EXPIRED_TIME`, for a heartbeat that names no timeout
TIMEOUT_MS = 10_000
TIMEOUT_LEAST_MS = 100
TIMEOUT_MOST_MS = 3_600_000
#: how long to wait for a master without heartbeats, in quarters of its lease
LEASE_QUARTERS = 5
UNHEARD_GRACE_MS = 20_000
#: Java's Integer.MAX_VALUE: the lowest priority, as a lower number wins
PRIORITY_LOWEST = 2**31 - 1

Key = tuple[str, int]


@dataclass(slots=True)
class LiveMember:
    """The last heartbeat of a member, and the connection that it came over."""

    conn: Connection
    cluster: str
    address: str
    heard_ms: int
    timeout_ms: int
    epoch: int
    offset_max: int
    priority: int

    @property
    def expires_ms(self) -> int:
        return self.heard_ms + self.timeout_ms


class HeartbeatTable:
    """The members that are alive, by (broker name, id).

    The caller enters only members of known broker sets, so their limits bound this table, too.
    """

    def __init__(self) -> None:
        self._members: dict[Key, LiveMember] = {}
        #: connection id -> the members whose newest heartbeat came over it
        self._by_connection: dict[int, set[Key]] = {}
        #: every member that was ever entered and not forgotten
        self._heard: set[Key] = set()
        self._started_ms = 0

    def __len__(self) -> int:
        return len(self._members)

    def start(self, now_ms: int) -> None:
        self._started_ms = now_ms

    def record(self, conn: Connection, beat: BrokerHeartbeatRequest, now_ms: int) -> LiveMember:
        """Record a heartbeat that has a broker id."""
        assert beat.broker_id is not None
        key = beat.broker_name, beat.broker_id
        known = self._members.get(key)
        if known is not None and known.conn is not conn:
            self._unbind(key, known.conn.id)
        timeout_ms = TIMEOUT_MS if beat.heartbeat_timeout_mills is None else beat.heartbeat_timeout_mills
        if beat.lease_mills is not None:
            timeout_ms = min(timeout_ms, beat.lease_mills * LEASE_QUARTERS // 4)
        member = self._members[key] = LiveMember(
            conn,
            beat.cluster_name,
            beat.broker_addr,
            now_ms,
            min(max(timeout_ms, TIMEOUT_LEAST_MS), TIMEOUT_MOST_MS),
            -1 if beat.epoch is None else beat.epoch,
            -1 if beat.max_offset is None else beat.max_offset,
            PRIORITY_LOWEST if beat.election_priority is None else beat.election_priority,
        )
        self._by_connection.setdefault(conn.id, set()).add(key)
        self._heard.add(key)
        return member

    def forget(self, broker_name: str, broker_id: int) -> None:
        """Remove a member that an administrator has removed, and forget its heartbeats."""
        self._heard.discard((broker_name, broker_id))
        self._remove((broker_name, broker_id))

    def forget_set(self, broker_name: str) -> None:
        """Remove all members of a broker set that an administrator has removed."""
        for key in [each for each in self._heard if each[0] == broker_name]:
            self.forget(*key)

    def closed(self, conn: Connection) -> list[Key]:
        """Remove the members of a connection that ended; return them."""
        gone = sorted(self._by_connection.pop(conn.id, ()))
        for key in gone:
            del self._members[key]
        return gone

    def expire(self, now_ms: int) -> list[tuple[Key, LiveMember]]:
        """Remove the members whose timeout is over; return them."""
        late = [(key, each) for key, each in self._members.items() if now_ms >= each.expires_ms]
        for key, _ in late:
            self._remove(key)
        return late

    def expiry_ms(self) -> int | None:
        """Return when the next timeout is over, None without members."""
        return min((each.expires_ms for each in self._members.values()), default=None)

    def get(self, broker_name: str, broker_id: int) -> LiveMember | None:
        """Return a member that is alive, None for any other."""
        return self._members.get((broker_name, broker_id))

    def is_alive(self, broker_name: str, broker_id: int) -> bool:
        return (broker_name, broker_id) in self._members

    def is_dead(self, broker_name: str, broker_id: int, now_ms: int) -> bool:
        """Return whether a member is dead: without any heartbeat only after the grace time."""
        if self.is_alive(broker_name, broker_id):
            return False
        return (broker_name, broker_id) in self._heard or now_ms >= self.graced_until_ms()

    def graced_until_ms(self) -> int:
        """Return the time from which members without any heartbeat count as dead."""
        return self._started_ms + UNHEARD_GRACE_MS

    def items(self) -> Iterator[tuple[Key, LiveMember]]:
        yield from self._members.items()

    def validate(self) -> None:
        """Raise AssertionError if the two maps contradict each other."""
        bound = {key: conn_id for conn_id, keys in self._by_connection.items() for key in keys}
        assert bound == {key: each.conn.id for key, each in self._members.items()}
        assert all(self._by_connection.values())
        assert self._heard.issuperset(self._members)

    def _remove(self, key: Key) -> None:
        known = self._members.pop(key, None)
        if known is not None:
            self._unbind(key, known.conn.id)

    def _unbind(self, key: Key, conn_id: int) -> None:
        keys = self._by_connection.get(conn_id)
        if keys is not None:
            keys.discard(key)
            if not keys:
                del self._by_connection[conn_id]
