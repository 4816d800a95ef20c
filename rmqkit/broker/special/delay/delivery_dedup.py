"""DeliveryDedup: whether a delayed message is in this broker's log a second time, as it was delivered.

A master's slaves learn of its progress a moment after a delivery. So a slave that begins to act would begin a little too
early with each level, and what its master delivered in its last moment would come a second time. But the slave's log has
what was delivered: a message that was due before deliveries began here is looked for where the master would have put it,
and if it is there it counts.

Compared is all that a delivery keeps: properties (with the unique key), body, times and host of birth, how often it was
consumed. A message without a unique key is never taken for another one.

Bounds: the newest `LOOK_MAX` messages of a queue, those that were stored since the message was due or `SKEW_MS` before, as
clocks of members differ. Each queue is read once.
"""

from typing import NamedTuple

from rmqkit.errors import CorruptRecord
from rmqkit.runtime.ports import Clock
from rmqkit.store.contract import Entry, Put, StorageEngine
from rmqkit.wire import properties as props
from rmqkit.wire.record import Record, body_crc, decode_record

LOOK_MAX = 2000
SKEW_MS = 2000
_UNIQUE_KEY = props.PROPERTY_UNIQ_KEY.encode()
_CRC = props.PROPERTY_CRC32.encode()


class MessageIdentity(NamedTuple):
    properties: bytes
    body_crc: int
    born_ms: int
    born_host: bytes
    reconsume_times: int


class DeliveryDedup:
    def __init__(self, clock: Clock, store: StorageEngine) -> None:
        self._clock = clock
        self._store = store
        #: no member has delivered what is due later than this; -1: nothing is looked for
        self._until_ms = -1
        #: by topic and queue id: from which store time on it was read, and what was found
        self._found: dict[tuple[str, int], tuple[int, set[MessageIdentity]]] = {}

    def begin(self, is_needed: bool) -> None:
        """Deliveries begin here now; `is_needed` if another member delivered before."""
        self._until_ms = self._clock.wall_ms + SKEW_MS if is_needed else -1
        self._found.clear()

    def end(self) -> None:
        self._until_ms = -1
        self._found.clear()

    def has(self, put: Put, due_ms: int) -> bool:
        """Whether this message, due at that wall time, was delivered into this log before deliveries began here."""
        if self._until_ms < 0 or due_ms > self._until_ms or props.find(put.properties, _UNIQUE_KEY) is None:
            return False
        key, since_ms = (put.topic, put.queue_id), due_ms - SKEW_MS
        known = self._found.get(key)
        if known is None or since_ms < known[0]:
            known = self._found[key] = since_ms, self._read(put.topic, put.queue_id, since_ms)
        identity = MessageIdentity(put.properties, body_crc(put.body), put.born_ms, put.born_host, put.reconsume_times)
        return identity in known[1]

    def _read(self, topic: str, queue_id: int, since_ms: int) -> set[MessageIdentity]:
        store = self._store
        end = store.queue_range(topic, queue_id).offset_max
        if not end or store.store_time(topic, queue_id, end - 1) < since_ms:
            return set()
        next_offset = max(store.offset_by_time(topic, queue_id, since_ms), end - LOOK_MAX)
        found: set[MessageIdentity] = set()
        while next_offset < end and (entries := store.entries(topic, queue_id, next_offset, end - next_offset)):
            next_offset = entries[-1].queue_offset + 1
            found.update(identity for entry in entries if (identity := self._identity(entry)) is not None)
        return found

    def _identity(self, entry: Entry) -> MessageIdentity | None:
        """None for what cannot be read."""
        if not entry.size:
            return None
        try:
            data = self._store.read_log(entry.phy_offset, entry.size)
            record = decode_record(data, check_crc=False, read_body=False)
        except CorruptRecord:
            return None
        if not isinstance(record, Record):
            return None
        properties = record.properties
        if _CRC in properties:
            properties = props.remove(properties, _CRC)
        return MessageIdentity(properties, record.body_crc, record.born_ms, record.born_host, record.reconsume_times)
