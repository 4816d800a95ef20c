"""HalfSearch: finds what became of a half message, by its unique id in the index of the store.

The offset of the half queue and the ops are written later than what they record. After a kill, or
at a takeover, a half may look undecided although

- its message is committed: a record in its own topic with the commit bits and the same unique id,
  or
- it was put again: a newer half with the same unique id.

Without an index (`messageIndexEnable=false`) nothing is found. The half is then checked again, as
Apache always does, and may be committed twice.
"""

from collections.abc import Iterator

from rmqkit.broker.special.transactions.rewrite import target
from rmqkit.errors import CorruptRecord
from rmqkit.runtime.ports import Clock
from rmqkit.store.contract import StorageEngine
from rmqkit.wire import properties as props
from rmqkit.wire.codes import MessageSysFlag
from rmqkit.wire.record import Record, decode_record
from rmqkit.wire.topic_names import HALF_TOPIC

#: records with the same unique id that a search compares
LOOK_MAX = 64
#: allowed difference between the clocks of two members
SKEW_MS = 10_000
_UNIQ = props.PROPERTY_UNIQ_KEY.encode()


class HalfSearch:
    """Searches the records with the unique id and the body of a half."""

    def __init__(self, clock: Clock, store: StorageEngine) -> None:
        self._clock = clock
        self._store = store

    def newer(self, record: Record) -> Record | None:
        """Return the newest copy of this half; None if this one is the newest."""
        copies = [each for each in self._records(HALF_TOPIC, record) if each.queue_offset > record.queue_offset]
        return max(copies, key=lambda each: each.queue_offset, default=None)

    def is_committed(self, record: Record) -> bool:
        """Whether the message of this half is in its own topic."""
        where = target(record.properties)
        return where is not None and any(
            each.sys_flag & MessageSysFlag.TRANSACTION_MASK == MessageSysFlag.TRANSACTION_COMMIT
            for each in self._records(where[0], record)
        )

    def _records(self, topic: str, half: Record) -> Iterator[Record]:
        unique = props.find(half.properties, _UNIQ)
        if unique is None:
            return
        hits = self._store.query(
            topic,
            unique.decode("utf-8", "replace"),
            count_max=LOOK_MAX,
            begin_ms=half.store_ms - SKEW_MS,
            end_ms=self._clock.wall_ms + SKEW_MS,
        )
        for buffer in hits.buffers:
            try:
                found = decode_record(bytes(buffer), check_crc=False)
            except CorruptRecord:
                continue
            # The index knows only hashes, and a client may use a unique id twice.
            if not isinstance(found, Record) or found.topic != topic or found.body_crc != half.body_crc:
                continue
            if props.find(found.properties, _UNIQ) == unique:
                yield found
