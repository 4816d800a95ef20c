"""DeliveryDedup: finds out whether a due message was delivered before this broker began to deliver.

Slaves learn the master's progress shortly after each delivery. So a slave that starts to act would
begin each level slightly too early, and deliver the master's last messages again. But the slave's
log holds those deliveries. For a message that was due before deliveries began here, `has` searches
the queue where the master would have put it. If it is there, it counts as delivered.

A master that was killed before it saved its progress finds its own deliveries in the same way.

Two messages are the same if all fields match that a delivery preserves: properties (including the
unique key, without those that each delivery stamps anew), body, birth time and host, and reconsume
count. A message without a unique key never matches.

The search covers at most the newest messages of a queue (`look_max`), stored no earlier than
`SKEW_MS` before the due time, because the clocks of members differ. Results are cached: a queue is
read again only for an earlier due time.
"""

from collections.abc import Sequence
from typing import NamedTuple

from rmqkit.errors import CorruptRecord
from rmqkit.runtime.ports import Clock
from rmqkit.store.contract import Entry, Put, StorageEngine
from rmqkit.wire import properties as props
from rmqkit.wire.record import Record, body_crc, decode_record

#: messages per queue that are compared, unless the duty says otherwise
LOOK_MAX = 2000
#: allowed difference between the clocks of two members
SKEW_MS = 2000
_UNIQUE_KEY = props.PROPERTY_UNIQ_KEY.encode()
_CRC = props.PROPERTY_CRC32.encode()


class MessageIdentity(NamedTuple):
    """The fields by which two deliveries count as the same message."""

    properties: bytes
    body_crc: int
    born_ms: int
    born_host: bytes
    reconsume_times: int


class DeliveryDedup:
    """Finds delivered messages in this broker's log, between `begin` and `end`."""

    def __init__(self, clock: Clock, store: StorageEngine, ignored: Sequence[bytes] = (), look_max: int = LOOK_MAX) -> None:
        """`ignored` are names of properties that differ from one delivery to the next.

        `look_max` is the number of messages per queue that are compared.
        """
        self._look_max = look_max
        self._clock = clock
        self._ignored = (*ignored, _CRC)
        self._store = store
        #: wall time; no other member has delivered a message due later. -1: no search is needed
        self._until_ms = -1
        #: by topic and queue id: the store time (ms) from which the queue was read, and its
        #: messages
        self._found: dict[tuple[str, int], tuple[int, set[MessageIdentity]]] = {}

    def begin(self, is_needed: bool) -> None:
        """Deliveries begin here now. `is_needed`: another member delivered until now."""
        self._until_ms = self._clock.wall_ms + SKEW_MS if is_needed else -1
        self._found.clear()

    def end(self) -> None:
        self._until_ms = -1
        self._found.clear()

    def is_needed(self, due_ms: int) -> bool:
        """Whether another member may have delivered messages due at this wall time."""
        return due_ms <= self._until_ms and self._until_ms >= 0

    def has(self, put: Put, due_ms: int) -> bool:
        """Whether this message, due at this wall time, is in this log as a delivered message.

        False without a search if `begin` was told that no search is needed, or if it is due later
        than any earlier delivery.
        """
        if not self.is_needed(due_ms) or props.find(put.properties, _UNIQUE_KEY) is None:
            return False
        key, since_ms = (put.topic, put.queue_id), due_ms - SKEW_MS
        known = self._found.get(key)
        if known is None or since_ms < known[0]:
            known = self._found[key] = since_ms, self._read(put.topic, put.queue_id, since_ms)
        properties = self._preserved(put.properties)
        identity = MessageIdentity(properties, body_crc(put.body), put.born_ms, put.born_host, put.reconsume_times)
        return identity in known[1]

    def _read(self, topic: str, queue_id: int, since_ms: int) -> set[MessageIdentity]:
        store = self._store
        end = store.queue_range(topic, queue_id).offset_max
        if not end or store.store_time(topic, queue_id, end - 1) < since_ms:
            return set()
        next_offset = max(store.offset_by_time(topic, queue_id, since_ms), end - self._look_max)
        found: set[MessageIdentity] = set()
        while next_offset < end and (entries := store.entries(topic, queue_id, next_offset, end - next_offset)):
            next_offset = entries[-1].queue_offset + entries[-1].message_count
            found.update(identity for entry in entries if (identity := self._identity(entry)) is not None)
        return found

    def _identity(self, entry: Entry) -> MessageIdentity | None:
        """Return the identity of an entry's message, or None if the record cannot be read."""
        if not entry.size:
            return None
        try:
            data = self._store.read_log(entry.phy_offset, entry.size)
            record = decode_record(data, check_crc=False, read_body=False)
        except CorruptRecord:
            return None
        if not isinstance(record, Record):
            return None
        properties = self._preserved(record.properties)
        return MessageIdentity(properties, record.body_crc, record.born_ms, record.born_host, record.reconsume_times)

    def _preserved(self, properties: bytes) -> bytes:
        for name in self._ignored:
            if name in properties:
                properties = props.remove(properties, name)
        return properties
